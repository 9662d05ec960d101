//! An io_uring by its system calls (io_uring(7), io_uring_setup(2), linux/io_uring.h), for a test
//! that needs no more than reads and writes.

use std::io;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::atomic::{AtomicU32, Ordering};

const READ_FIXED: u8 = 4;
const WRITE_FIXED: u8 = 5;
const READ: u8 = 22;
const WRITE: u8 = 23;
/// `IOSQE_ASYNC`: a thread of the kernel does it.
const BY_THREAD: u8 = 1 << 4;
const GET_EVENTS: u32 = 1;
const REGISTER_BUFFERS: u32 = 0;
const ENTRIES_AT: i64 = 0x1000_0000;

/// `struct io_sqring_offsets` and `struct io_cqring_offsets`: eight numbers and an address each.
#[repr(C)]
#[derive(Clone, Copy, Default)]
struct Offsets {
    head: u32,
    tail: u32,
    mask: u32,
    entries: u32,
    /// `flags` or `overflow`.
    fourth: u32,
    /// `dropped` or `cqes`.
    fifth: u32,
    /// `array` or `flags`.
    sixth: u32,
    reserved: u32,
    address: u64,
}

/// `struct io_uring_params`.
#[repr(C)]
#[derive(Default)]
struct Parameters {
    submissions: u32,
    completions: u32,
    flags: u32,
    thread_cpu: u32,
    thread_idle: u32,
    features: u32,
    workers: u32,
    reserved: [u32; 3],
    submission: Offsets,
    completion: Offsets,
}

/// `struct io_uring_sqe`.
#[repr(C)]
#[derive(Default)]
struct Entry {
    opcode: u8,
    flags: u8,
    priority: u16,
    file: i32,
    offset: u64,
    address: u64,
    length: u32,
    operation: u32,
    tag: u64,
    buffer: u16,
    rest: [u16; 11],
}

/// A transfer.
pub struct Request {
    pub write: bool,
    /// The registered buffer that the data lies in.
    pub fixed: Option<u16>,
    /// Whether a thread of the kernel does it.
    pub by_thread: bool,
    pub file: i32,
    pub offset: u64,
    pub data: *mut u8,
    pub length: u32,
    /// Names it in its completion.
    pub tag: u64,
}

pub struct Ring {
    ring: OwnedFd,
    parameters: Parameters,
    /// Both rings' numbers, and the completions.
    numbers: *mut u8,
    entries: *mut Entry,
}

fn call(number: i64, arguments: [usize; 6]) -> io::Result<i64> {
    let [a, b, c, d, e, f] = arguments;
    // SAFETY: the callers pass live memory.
    match unsafe { libc::syscall(number, a, b, c, d, e, f) } {
        -1 => Err(io::Error::last_os_error()),
        done => Ok(done),
    }
}

fn setup(slots: u32, parameters: &mut Parameters) -> io::Result<OwnedFd> {
    let at = std::ptr::from_mut(parameters).addr();
    let ring = call(libc::SYS_io_uring_setup, [slots as usize, at, 0, 0, 0, 0])?;
    // SAFETY: a new descriptor, which nothing else owns.
    Ok(unsafe { OwnedFd::from_raw_fd(i32::try_from(ring).unwrap()) })
}

impl Ring {
    /// Whether this process may have one.
    pub fn is_allowed() -> io::Result<()> {
        setup(1, &mut Parameters::default()).map(drop)
    }

    pub fn new(slots: u32) -> Self {
        let mut parameters = Parameters::default();
        let ring = setup(slots, &mut parameters).unwrap();
        let map = |length: usize, offset| {
            let access = libc::PROT_READ | libc::PROT_WRITE;
            let flags = libc::MAP_SHARED | libc::MAP_POPULATE;
            // SAFETY: a new mapping at an address that the kernel chooses.
            let at = unsafe {
                let fd = ring.as_raw_fd();
                libc::mmap(std::ptr::null_mut(), length, access, flags, fd, offset)
            };
            assert_ne!(at, libc::MAP_FAILED);
            at
        };
        // Since Linux 5.4 one mapping has both (`IORING_FEAT_SINGLE_MMAP`).
        let ends = parameters.completion.fifth + parameters.completions * 16;
        let also = parameters.submission.sixth + parameters.submissions * 4;
        let numbers = map(ends.max(also) as usize, 0).cast();
        let length = parameters.submissions as usize * size_of::<Entry>();
        let entries = map(length, ENTRIES_AT).cast();
        Self {
            ring,
            parameters,
            numbers,
            entries,
        }
    }

    /// Memory that the kernel keeps pinned: fixed buffers by number.
    pub fn register(&self, buffers: &[(*mut u8, usize)]) {
        let vectors = buffers.iter().map(|(at, length)| libc::iovec {
            iov_base: at.cast(),
            iov_len: *length,
        });
        let vectors: Vec<_> = vectors.collect();
        let fd = usize::try_from(self.ring.as_raw_fd()).unwrap();
        let what = REGISTER_BUFFERS as usize;
        let at = vectors.as_ptr().addr();
        let done = call(
            libc::SYS_io_uring_register,
            [fd, what, at, vectors.len(), 0, 0],
        );
        done.unwrap();
    }

    fn number(&self, offset: u32) -> &AtomicU32 {
        // SAFETY: within the mapping, aligned, and changed by atomic operations alone.
        unsafe { AtomicU32::from_ptr(self.numbers.add(offset as usize).cast()) }
    }

    fn enter(&self, submit: u32, wait: u32) {
        let fd = usize::try_from(self.ring.as_raw_fd()).unwrap();
        let flags = if wait > 0 { GET_EVENTS } else { 0 };
        let arguments = [fd, submit as usize, wait as usize, flags as usize, 0, 0];
        match call(libc::SYS_io_uring_enter, arguments) {
            // A stop of the thread interrupts it, as a signal does.
            Err(e) if e.raw_os_error() == Some(libc::EINTR) => {}
            done => drop(done.unwrap()),
        }
    }

    pub fn submit(&mut self, what: &Request) {
        let opcode = match (what.write, what.fixed.is_some()) {
            (false, true) => READ_FIXED,
            (true, true) => WRITE_FIXED,
            (false, false) => READ,
            (true, false) => WRITE,
        };
        let entry = Entry {
            opcode,
            flags: if what.by_thread { BY_THREAD } else { 0 },
            file: what.file,
            offset: what.offset,
            address: what.data.addr() as u64,
            length: what.length,
            tag: what.tag,
            buffer: what.fixed.unwrap_or(0),
            ..Entry::default()
        };
        let offsets = self.parameters.submission;
        let tail = self.number(offsets.tail).load(Ordering::Relaxed);
        let slot = tail & self.number(offsets.mask).load(Ordering::Relaxed);
        // SAFETY: within the mapping. The kernel reads it once the tail has passed.
        unsafe { self.entries.add(slot as usize).write(entry) };
        let list = offsets.sixth + slot * 4;
        self.number(list).store(slot, Ordering::Relaxed);
        let next = tail.wrapping_add(1);
        self.number(offsets.tail).store(next, Ordering::Release);
        while self.number(offsets.head).load(Ordering::Acquire) != next {
            self.enter(1, 0);
        }
    }

    /// Waits for the next completion. Returns its tag and result.
    pub fn completed(&mut self) -> (u64, i32) {
        let offsets = self.parameters.completion;
        let head = self.number(offsets.head).load(Ordering::Relaxed);
        while self.number(offsets.tail).load(Ordering::Acquire) == head {
            self.enter(0, 1);
        }
        let slot = head & self.number(offsets.mask).load(Ordering::Relaxed);
        // SAFETY: within the mapping, and written before the tail passed.
        let found = unsafe {
            let at = self.numbers.add((offsets.fifth + slot * 16) as usize);
            (at.cast::<u64>().read(), at.add(8).cast::<i32>().read())
        };
        let next = head.wrapping_add(1);
        self.number(offsets.head).store(next, Ordering::Release);
        found
    }
}
