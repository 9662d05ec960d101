//! `perf_event_open(2)`: counters on one CPU that wake their reader on overflow.
//!
//! From the kernel's `include/uapi/linux/perf_event.h` and the manual page. Events are pinned: a
//! counter that cannot be scheduled goes into an error state instead of silently sharing its time.
//! They are not inherited, except for threads that are watched.
//!
//! `poll(2)` on the descriptor shows the overflow. For that the kernel wants a ring buffer: one
//! page, mapped read-only, so that the kernel overwrites it and no reader has to consume it. A
//! record there has the time of the overflow and the interrupted mode. It shows how late the reader
//! is.
//!
//! [`TaskRecords`] has no counter: the kernel writes a record for each context switch of a CPU into
//! its ring buffer, which is mapped writable. [`crate::switches`] reads these records.

use std::cell::Cell;
use std::fs::File;
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU64, Ordering, fence};

use quell_types::cpuset::CpuId;
use quell_types::units::Nanos;

/// `PERF_TYPE_HARDWARE`: events that the kernel has a name for on every processor.
pub const TYPE_HARDWARE: u32 = 0;
/// `PERF_COUNT_HW_CPU_CYCLES`: core cycles while the task runs.
pub const HW_CPU_CYCLES: u64 = 0;
/// `PERF_COUNT_HW_INSTRUCTIONS`: instructions that were completed.
pub const HW_INSTRUCTIONS: u64 = 1;
/// `PERF_COUNT_HW_CACHE_MISSES`: misses of the last-level cache.
pub const HW_CACHE_MISSES: u64 = 3;
/// Events of one cache, by the kernel's own numbers: `PERF_TYPE_HW_CACHE`.
pub const TYPE_HW_CACHE: u32 = 3;
/// Loads at the first-level data cache: L1D, OP_READ, RESULT_ACCESS (perf_event_open(2)).
pub const L1D_LOADS: u64 = 0;
/// Stores there: L1D, OP_WRITE, RESULT_ACCESS.
pub const L1D_STORES: u64 = 1 << 8;
/// Events of the kernel's own: `PERF_TYPE_SOFTWARE`.
pub const TYPE_SOFTWARE: u32 = 1;
/// `PERF_COUNT_SW_CPU_CLOCK`: nanoseconds while the event is scheduled in.
pub const SW_CPU_CLOCK: u64 = 0;
/// `PERF_COUNT_SW_TASK_CLOCK`: nanoseconds that a thread ran.
pub const SW_TASK_CLOCK: u64 = 1;
/// `PERF_COUNT_SW_PAGE_FAULTS_MIN`: minor faults, a real counter that every kernel has.
pub const SW_MINOR_FAULTS: u64 = 5;

const FLAG_PINNED: u64 = 1 << 2;
const FLAG_DISABLED: u64 = 1;
const FLAG_INHERIT: u64 = 1 << 1;
const FLAG_EXCLUDE_KERNEL: u64 = 1 << 5;
/// Records of names, of births and ends, and of context switches, each with the fields of a sample.
const FLAGS_TASKS: u64 = 1 << 9 | 1 << 13 | 1 << 26 | 1 << 18;
/// `wakeup_events` is a number of bytes.
const FLAG_WATERMARK: u64 = 1 << 14;
const FLAG_USE_CLOCKID: u64 = 1 << 25;
/// A record has the process and the thread: `PERF_SAMPLE_TID`.
const SAMPLE_TID: u64 = 1 << 1;
/// A record has the time: `PERF_SAMPLE_TIME`.
const SAMPLE_TIME: u64 = 1 << 2;
/// `PERF_COUNT_SW_DUMMY`: counts nothing, and carries the records of other things.
const SW_DUMMY: u64 = 9;
/// `PERF_RECORD_SAMPLE`, of a header and a time.
const RECORD_SAMPLE: u32 = 9;
const RECORD_BYTES: u64 = 16;
/// Bits of a record's `misc`: `PERF_RECORD_MISC_CPUMODE_MASK`, `PERF_RECORD_MISC_KERNEL`.
const MISC_MODE: u16 = 7;
const MISC_KERNEL: u16 = 1;
/// `data_head` and `data_tail` in `struct perf_event_mmap_page`. The fields before them have the
/// first 1024 bytes of the control page.
const DATA_HEAD: usize = 1024;
const DATA_TAIL: usize = 1032;
const OPEN_CLOEXEC: u64 = 1 << 3;
const OPEN_PID_CGROUP: u64 = 1 << 2;
const FORMAT_TIMES: u64 = 1 | 2;
const IOC_ENABLE: u64 = 0x2400;
const IOC_REFRESH: u64 = 0x2402;
const IOC_PERIOD: u64 = 0x4008_2404;
const IOC_SET_BPF: u64 = 0x4004_2408;

/// `struct perf_event_attr` up to version 5 (112 bytes), which every supported kernel accepts.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Attr {
    kind: u32,
    size: u32,
    config: u64,
    sample_period: u64,
    sample_type: u64,
    read_format: u64,
    flags: u64,
    wakeup_events: u32,
    bp_type: u32,
    config1: u64,
    config2: u64,
    branch_sample_type: u64,
    sample_regs_user: u64,
    sample_stack_user: u32,
    clockid: i32,
    sample_regs_intr: u64,
    aux_watermark: u32,
    sample_max_stack: u16,
    reserved: u16,
}

/// An event as the kernel numbers it: the PMU's type and its configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct EventCode {
    /// `type` of the event, from `/sys/bus/event_source/devices/PMU/type`.
    pub kind: u32,
    /// `config`: the event and its options, in the PMU's own encoding.
    pub config: u64,
}

/// The tasks that an event counts.
#[derive(Clone, Copy, Debug)]
pub enum Scope<'a> {
    /// Everything that runs on one CPU, including kernel and interrupts.
    Cpu(CpuId),
    /// The tasks of one cgroup (and its children) while they run on one CPU. The descriptor is of a
    /// directory in the hierarchy that carries `perf_event`.
    Cgroup(BorrowedFd<'a>, CpuId),
    /// The calling thread, wherever it runs.
    ThisThread,
    /// The calling thread, without what the kernel does on its account.
    ThisProgram,
    /// The thread with this id, wherever it runs, and all its children from now on, processes
    /// included.
    Thread(u32),
    /// The thread with this id, wherever it runs, without its children.
    ThreadAlone(u32),
}

/// A reading of a counter.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// The count so far; for clocks in nanoseconds.
    pub value: u64,
    /// Whether the counter counted all the time that it was enabled. A pinned event that lost its
    /// counter reads as end-of-file and is reported as not running.
    pub running: bool,
    /// How long it has counted.
    pub ran: Nanos,
}

/// An overflow, as the kernel recorded it while it happened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Overflow {
    /// When it happened, on CLOCK_MONOTONIC.
    pub at: Nanos,
    /// Whether it interrupted the kernel (else a program).
    pub kernel: bool,
}

/// When an event wakes its pollers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wake {
    /// Never: it only counts, from the start.
    Never,
    /// Each time the armed number of events was counted, again and again. It counts all the while.
    Repeatedly,
    /// Once per [`Event::arm`]; in between it is disabled and counts nothing.
    Once,
}

/// An open event. Dropping it closes it.
#[derive(Debug)]
pub struct Event {
    fd: OwnedFd,
    wake: Wake,
    /// Mapped as long as the event is polled. `None` for an event that never wakes.
    ring: Option<Ring>,
    /// For an event that wakes once: how much had been recorded when it was last armed.
    armed: Cell<Option<u64>>,
}

/// An event's control page and its pages of records.
#[derive(Debug)]
struct Ring {
    address: *mut libc::c_void,
    length: usize,
}

// SAFETY: the mapping has one owner, which alone unmaps it. The kernel writes to it at any time,
// and it is only read here.
unsafe impl Send for Ring {}

impl Ring {
    /// Bytes recorded since the beginning.
    fn head(&self) -> &AtomicU64 {
        // SAFETY: the control page is mapped as long as `self` lives. `DATA_HEAD` lies in it and is
        // aligned, and the kernel writes it whole.
        unsafe { &*self.address.cast::<u8>().add(DATA_HEAD).cast::<AtomicU64>() }
    }

    /// Bytes that the reader has consumed. To be written only where the mapping is writable.
    fn tail(&self) -> &AtomicU64 {
        // SAFETY: as for `head`; this field belongs to the reader.
        unsafe { &*self.address.cast::<u8>().add(DATA_TAIL).cast::<AtomicU64>() }
    }

    /// Moves what was recorded since the last call to the end of `into`. The kernel may write there
    /// again afterwards. Only for a writable mapping.
    fn take(&self, into: &mut Vec<u8>) {
        let page = rustix::param::page_size();
        let size = self.length - page;
        let head = self.head().load(Ordering::Acquire);
        let tail = self.tail().load(Ordering::Relaxed);
        let unread = usize::try_from(head.saturating_sub(tail)).map_or(size, |n| n.min(size));
        let begin = usize::try_from(tail % size as u64).unwrap_or(0);
        let first = unread.min(size - begin);
        for (from, length) in [(begin, first), (0, unread - first)] {
            // SAFETY: the range lies within the pages of records. The kernel writes none of it
            // before the tail is moved below, since the mapping is writable.
            let bytes = unsafe {
                let from = self.address.cast::<u8>().add(page + from);
                std::slice::from_raw_parts(from, length)
            };
            into.extend_from_slice(bytes);
        }
        self.tail().store(head, Ordering::Release);
    }

    /// The newest record. `None` where there is none, or the kernel wrote another meanwhile.
    fn newest(&self) -> Option<Overflow> {
        let head = self.head();
        let end = head.load(Ordering::Acquire);
        let page = self.length as u64 / 2;
        let begin = usize::try_from(page + end.checked_sub(RECORD_BYTES)? % page).ok()?;
        // Records are 16 bytes and the page is a multiple of that, so none is split. An exception
        // are other records in between (the kernel throttles the event): then the header does not
        // fit, and the result is `None`.
        if begin % 8 != 0 || begin + 16 > self.length {
            return None;
        }
        // SAFETY: 16 bytes within the mapping, aligned to 8, as just checked. The kernel may write
        // them at the same time. That is detected below, and what was read is dropped.
        let [header, at] = unsafe {
            let words = self.address.cast::<u8>().add(begin).cast::<u64>();
            [words.read_volatile(), words.add(1).read_volatile()]
        };
        fence(Ordering::Acquire);
        if head.load(Ordering::Relaxed) != end {
            return None;
        }
        // struct perf_event_header: type (32), misc (16), size (16).
        let bytes = header.to_ne_bytes();
        let kind = u32::from_ne_bytes([bytes[0], bytes[1], bytes[2], bytes[3]]);
        let misc = u16::from_ne_bytes([bytes[4], bytes[5]]);
        let size = u16::from_ne_bytes([bytes[6], bytes[7]]);
        (kind == RECORD_SAMPLE && u64::from(size) == RECORD_BYTES).then_some(Overflow {
            at: Nanos(at),
            kernel: misc & MISC_MODE == MISC_KERNEL,
        })
    }
}

impl Drop for Ring {
    fn drop(&mut self) {
        // SAFETY: address and length are those of a mapping made in `Event::open`, which nothing
        // else unmaps.
        unsafe {
            libc::munmap(self.address, self.length);
        }
    }
}

impl Event {
    /// Opens a counter. An event that wakes does nothing before it is armed.
    pub fn open(code: EventCode, scope: Scope<'_>, wake: Wake) -> io::Result<Self> {
        let samples = wake != Wake::Never;
        let attr = Attr {
            kind: code.kind,
            size: u32::try_from(size_of::<Attr>()).unwrap_or(0),
            config: code.config,
            // Beyond reach until armed.
            sample_period: if samples { u64::MAX >> 2 } else { 0 },
            sample_type: if samples { SAMPLE_TIME } else { 0 },
            clockid: libc::CLOCK_MONOTONIC,
            read_format: FORMAT_TIMES,
            // The kernel refuses `pinned` on task events that are not on every CPU's context.
            // Per-thread probes do without.
            flags: FLAG_DISABLED
                | FLAG_USE_CLOCKID
                | match scope {
                    Scope::ThisThread | Scope::ThreadAlone(_) => 0,
                    Scope::ThisProgram => FLAG_EXCLUDE_KERNEL,
                    Scope::Thread(_) => FLAG_INHERIT,
                    Scope::Cpu(_) | Scope::Cgroup(..) => FLAG_PINNED,
                },
            wakeup_events: u32::from(samples),
            ..Attr::default()
        };
        let number = |cpu: CpuId| i32::try_from(cpu).unwrap_or(i32::MAX);
        let (pid, cpu, extra) = match scope {
            Scope::Cpu(cpu) => (-1, number(cpu), 0),
            Scope::Cgroup(dir, cpu) => (dir.as_raw_fd(), number(cpu), OPEN_PID_CGROUP),
            Scope::ThisThread | Scope::ThisProgram => (0, -1, 0),
            Scope::Thread(tid) | Scope::ThreadAlone(tid) => (number(tid), -1, 0),
        };
        let fd = open(&attr, pid, cpu, extra)?;
        let ring = match samples {
            true => Some(map_ring(&fd, 1, libc::PROT_READ)?),
            false => None,
        };
        let event = Self {
            fd,
            wake,
            ring,
            armed: Cell::new(None),
        };
        if wake != Wake::Once {
            event.ioctl(IOC_ENABLE, 0)?;
        }
        Ok(event)
    }

    fn ioctl(&self, request: u64, argument: u64) -> io::Result<()> {
        ioctl(&self.fd, request, argument)
    }

    /// Wakes pollers after another `period` events, counted from now. It does not matter whether it
    /// was armed and has not woken them yet.
    ///
    /// Each refresh enables an event that wakes once for one more overflow. So it is refreshed only
    /// after it has overflowed: otherwise it would wake again and again. Arming and overflow must
    /// happen on the event's own CPU, where neither can come in the middle of the other.
    pub fn arm(&self, period: u64) -> io::Result<()> {
        let period = period.max(1);
        self.ioctl(IOC_PERIOD, &raw const period as u64)?;
        let recorded = self.ring.as_ref().map(|r| r.head().load(Ordering::Acquire));
        if self.wake == Wake::Once && self.armed.replace(recorded) != recorded {
            self.ioctl(IOC_REFRESH, 1)
        } else {
            Ok(())
        }
    }

    /// Whether an event that wakes once was armed and has not woken any poller since.
    #[must_use]
    pub fn is_pending(&self) -> bool {
        let recorded = self.ring.as_ref().map(|r| r.head().load(Ordering::Acquire));
        self.wake == Wake::Once && recorded.is_some() && self.armed.get() == recorded
    }

    /// Lets a program decide at each overflow whether pollers are woken. Not for an event that
    /// wakes once: before about Linux 6.10 an overflow that wakes no poller uses it up.
    pub fn decide_by(&self, program: BorrowedFd<'_>) -> io::Result<()> {
        let program = u64::try_from(program.as_raw_fd()).map_err(io::Error::other)?;
        self.ioctl(IOC_SET_BPF, program)
    }

    /// The last overflow. `None` where the kernel has recorded none.
    #[must_use]
    pub fn overflow(&self) -> Option<Overflow> {
        self.ring.as_ref()?.newest()
    }

    /// Reads the present count.
    pub fn read(&self) -> io::Result<Reading> {
        let mut values = [0u64; 3];
        // SAFETY: the buffer is 24 bytes, which is what the read format of `open` yields.
        let n = unsafe { libc::read(self.fd.as_raw_fd(), values.as_mut_ptr().cast(), 24) };
        match n {
            24 => Ok(Reading {
                value: values[0],
                running: values[1] == values[2],
                ran: Nanos(values[2]),
            }),
            0 => Ok(Reading {
                value: 0,
                running: false,
                ran: Nanos(0),
            }),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

impl AsFd for Event {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Records what tasks do on one CPU: context switches, births, ends, and new names. The kernel
/// overwrites nothing that was not taken. It counts what does not fit, and records that number.
#[derive(Debug)]
pub struct TaskRecords {
    fd: OwnedFd,
    ring: Ring,
}

impl TaskRecords {
    /// Opens it with room for `bytes` of records, a power of two of pages. Pollers wake when half
    /// of that is used.
    pub fn open(cpu: CpuId, bytes: usize) -> io::Result<Self> {
        let attr = Attr {
            kind: TYPE_SOFTWARE,
            size: u32::try_from(size_of::<Attr>()).unwrap_or(0),
            config: SW_DUMMY,
            sample_type: SAMPLE_TID | SAMPLE_TIME,
            clockid: libc::CLOCK_MONOTONIC,
            flags: FLAG_DISABLED | FLAG_USE_CLOCKID | FLAGS_TASKS | FLAG_WATERMARK,
            wakeup_events: u32::try_from(bytes / 2).unwrap_or(u32::MAX),
            ..Attr::default()
        };
        let fd = open(&attr, -1, i32::try_from(cpu).unwrap_or(i32::MAX), 0)?;
        let pages = bytes / rustix::param::page_size();
        let ring = map_ring(&fd, pages.max(1), libc::PROT_READ | libc::PROT_WRITE)?;
        ioctl(&fd, IOC_ENABLE, 0)?;
        Ok(Self { fd, ring })
    }

    /// Moves the records since the last call to the end of `into`.
    pub fn take(&self, into: &mut Vec<u8>) {
        self.ring.take(into);
    }
}

impl AsFd for TaskRecords {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

/// Opens an event of a task (or cgroup, by `flags`) on a CPU; -1 stands for any.
fn open(attr: &Attr, pid: i32, cpu: i32, flags: u64) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is a valid perf_event_attr of the size it states, and outlives the call.
    let raw = unsafe {
        libc::syscall(
            libc::SYS_perf_event_open,
            std::ptr::from_ref(attr),
            pid,
            cpu,
            -1,
            OPEN_CLOEXEC | flags,
        )
    };
    let raw = i32::try_from(raw).unwrap_or(-1);
    if raw < 0 {
        return Err(io::Error::last_os_error());
    }
    // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
    Ok(unsafe { OwnedFd::from_raw_fd(raw) })
}

fn ioctl(fd: &OwnedFd, request: u64, argument: u64) -> io::Result<()> {
    // SAFETY: the requests used take a plain number, or a pointer to a u64 that outlives the call.
    let result = unsafe { libc::ioctl(fd.as_raw_fd(), request as libc::c_ulong, argument) };
    if result < 0 {
        Err(io::Error::last_os_error())
    } else {
        Ok(())
    }
}

fn map_ring(fd: &OwnedFd, pages: usize, access: i32) -> io::Result<Ring> {
    let length = (1 + pages) * rustix::param::page_size();
    // SAFETY: a fresh mapping of the event's control page and its pages of records, at an address
    // that the kernel chooses.
    let address = unsafe {
        libc::mmap(
            std::ptr::null_mut(),
            length,
            access,
            libc::MAP_SHARED,
            fd.as_raw_fd(),
            0,
        )
    };
    if address == libc::MAP_FAILED {
        return Err(io::Error::last_os_error());
    }
    Ok(Ring { address, length })
}

/// Opens a cgroup directory for [`Scope::Cgroup`].
pub fn cgroup_dir(path: &std::path::Path) -> io::Result<OwnedFd> {
    File::open(path).map(OwnedFd::from)
}
