//! Anonymous memory, taken by a child process. When the kernel kills that one because memory is
//! exhausted, this process reports it and starts another, as a batch system would.

use std::collections::BTreeMap;
use std::ptr::{self, NonNull};
use std::sync::atomic::{AtomicU64, Ordering};

use quell_kernel::vm;
use quell_policy::workload::{self, PAGES_PER_S};
use quell_record::measurement::Measurement;
use rustix::io::Errno;
use rustix::mm::{Advice, MapFlags, ProtFlags, madvise, mmap_anonymous, munmap};

use super::files::noise;
use super::{ASK_NS, page, resident_mb, window};
use crate::generator::{Generator, Span};
use crate::memory::Granted;

use crate::{Error, clock, procfs};

/// Pages stored to between two readings of the clock.
const BATCH: usize = 256;
/// How long after a kill the next process is started.
const AGAIN_NS: u64 = 500_000_000;

/// Memory that both processes see: the count of pages stored to so far.
#[derive(Debug)]
struct Count(NonNull<AtomicU64>);

// SAFETY: an atomic in a mapping that lives as long as the generator.
unsafe impl Send for Count {}

impl Count {
    fn new() -> Result<Self, Error> {
        let protect = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh anonymous mapping touches nothing that exists.
        let map = unsafe { mmap_anonymous(ptr::null_mut(), page(), protect, MapFlags::SHARED) }
            .map_err(Error::kernel("sharing a page"))?;
        NonNull::new(map.cast())
            .map(Self)
            .ok_or_else(|| Error::last("sharing a page"))
    }

    fn get(&self) -> &AtomicU64 {
        // SAFETY: the mapping is a page, zeroed, and lives as long as `self`.
        unsafe { self.0.as_ref() }
    }
}

impl Drop for Count {
    fn drop(&mut self) {
        // SAFETY: the mapping is ours, and no reference to it is left.
        let _ = unsafe { munmap(self.0.as_ptr().cast(), page()) };
    }
}

/// The process that has the memory. It is killed with this one.
#[derive(Debug)]
struct Taker {
    pid: libc::pid_t,
}

impl Taker {
    fn start(spec: &workload::AnonHog, count: &Count) -> Result<Self, Error> {
        let size =
            usize::try_from(spec.size.0 / page() as u64 * page() as u64).unwrap_or(usize::MAX);
        let (ramp, parent) = (spec.ramp.0, rustix::process::getpid());
        // SAFETY: the child makes system calls only and never returns, whatever other threads held
        // at this moment.
        match unsafe { libc::fork() } {
            -1 => Err(Error::last("starting the process that takes memory")),
            0 => {
                // SAFETY: takes numbers only.
                unsafe { libc::prctl(libc::PR_SET_PDEATHSIG, libc::SIGKILL) };
                let why = if rustix::process::getppid() == Some(parent) {
                    take(size, ramp, count.get()).raw_os_error()
                } else {
                    0
                };
                // SAFETY: ends the child at once, without running the parent's exit handlers.
                unsafe { libc::_exit(why) }
            }
            pid => Ok(Self { pid }),
        }
    }

    /// How it has ended. `None` while it runs.
    fn ended(&self) -> Result<Option<End>, Error> {
        let mut status = 0;
        // SAFETY: `status` is valid for the call, the child is ours.
        match unsafe { libc::waitpid(self.pid, &raw mut status, libc::WNOHANG) } {
            0 => Ok(None),
            -1 => Err(Error::last("waiting for the process that takes memory")),
            _ if libc::WIFSIGNALED(status) => Ok(Some(End::Killed)),
            _ => Ok(Some(End::Refused(libc::WEXITSTATUS(status)))),
        }
    }
}

/// How the process that has the memory ended.
#[derive(Debug)]
enum End {
    /// A signal ended it: the kernel for want of memory, or a user.
    Killed,
    /// It got no memory; the kernel's error number.
    Refused(i32),
}

impl Drop for Taker {
    fn drop(&mut self) {
        let mut status = 0;
        // SAFETY: the child is ours and was not waited for, so its number is not reused: `ended`
        // returned `None`.
        unsafe {
            libc::kill(self.pid, libc::SIGKILL);
            libc::waitpid(self.pid, &raw mut status, 0);
        }
    }
}

/// Grows to `size` within `ramp` ns, then stores to page after page without end. Returns only where
/// the memory is refused, with the reason.
fn take(size: usize, ramp: u64, count: &AtomicU64) -> Errno {
    let protect = ProtFlags::READ | ProtFlags::WRITE;
    let flags = MapFlags::PRIVATE | MapFlags::NORESERVE;
    // SAFETY: a fresh anonymous mapping touches nothing that exists.
    let map = match unsafe { mmap_anonymous(ptr::null_mut(), size, protect, flags) } {
        Ok(map) => map,
        Err(why) => return why,
    };
    // SAFETY: the mapping is ours and of that size. It grows page by page, not by 2 MiB.
    let _ = unsafe { madvise(map, size, Advice::LinuxNoHugepage) };
    let start: *mut u8 = map.cast();
    let (bytes, begin) = (page(), clock::now());
    let pages = size / bytes;
    let (mut has, mut at, mut seed) = (0, 0, 1);
    loop {
        let grown = u128::from(clock::now() - begin) * pages as u128 / u128::from(ramp.max(1));
        let due = usize::try_from(grown).unwrap_or(pages).clamp(1, pages);
        let until = due.min(has + BATCH);
        while has < until {
            // SAFETY: the page lies in the mapping, and nothing else refers to it.
            let page = unsafe { std::slice::from_raw_parts_mut(start.add(has * bytes), bytes / 2) };
            // Half of each page does not compress.
            noise(page, &mut seed);
            has += 1;
            count.fetch_add(1, Ordering::Relaxed);
        }
        for _ in 0..BATCH.min(has) {
            // SAFETY: as above. Volatile, because the store is the purpose.
            unsafe { start.add(at * bytes).cast::<u64>().write_volatile(seed) };
            at = (at + 1) % has;
        }
        count.fetch_add(BATCH.min(has) as u64, Ordering::Relaxed);
    }
}

/// The hog: the process that has the memory, and its supervision.
#[derive(Debug)]
pub(crate) struct AnonHog {
    spec: workload::AnonHog,
    /// Dropped before the page that it counts in.
    taker: Option<Taker>,
    count: Count,
    /// When another process is due.
    again: u64,
    killed: u64,
}

/// The values of one span, by metric.
#[derive(Debug, Default)]
struct Record {
    pages_per_s: Vec<f64>,
    resident_mb: Vec<f64>,
    killed: Vec<f64>,
}

impl AnonHog {
    /// # Errors
    /// When the machine does not have so much memory. Else processes would be started only to be
    /// killed.
    pub(crate) fn new(spec: &workload::AnonHog) -> Result<Self, Error> {
        if let Some(memory) = vm::memory(&procfs::live())?
            && let (available, swap) = (memory.available, memory.swap_free)
            && spec.size.0 > available.0.saturating_add(swap.0)
        {
            return Err(Error::refused(
                format!("taking {} of memory", spec.size),
                format!("/proc/meminfo tells of {available} available and {swap} of free swap"),
                "ask for less, or have other programs give memory back",
            ));
        }
        Ok(Self {
            spec: spec.clone(),
            taker: None,
            count: Count::new()?,
            again: 0,
            killed: 0,
        })
    }

    /// Starts a process that takes memory, unless one runs or it is too early.
    fn tend(&mut self, now: u64) -> Result<(), Error> {
        let ended = self.taker.as_ref().map_or(Ok(None), Taker::ended)?;
        if let Some(end) = ended {
            std::mem::forget(self.taker.take());
            if let End::Refused(why) = end {
                return Err(Error::refused(
                    format!("taking {} of memory", self.spec.size),
                    std::io::Error::from_raw_os_error(why).to_string(),
                    "ask for less, or raise the limit of the address space (ulimit -v)",
                ));
            }
            self.killed += 1;
            self.again = now + AGAIN_NS;
        }
        if self.taker.is_none() && now >= self.again {
            self.taker = Some(Taker::start(&self.spec, &self.count)?);
        }
        Ok(())
    }

    /// Runs from `begin`, which is now, until `until`. Returns how many pages were stored to, or
    /// `None` when asked to end.
    fn run(
        &mut self,
        begin: u64,
        until: u64,
        mut record: Option<&mut Record>,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>, Error> {
        let from = self.count.get().load(Ordering::Relaxed);
        let length = window(until - begin);
        let (mut window, mut before, mut killed) = (begin, from, self.killed);
        loop {
            let now = clock::now();
            self.tend(now)?;
            let count = self.count.get().load(Ordering::Relaxed);
            // Windows that passed during a sleep share evenly what was done since then.
            let due = (now.min(until) - window) / length;
            if let Some(record) = record.as_deref_mut().filter(|_| due > 0) {
                let each = (count - before) as f64 * 1e9 / length as f64 / due as f64;
                let resident = self.taker.as_ref().and_then(|t| u32::try_from(t.pid).ok());
                let resident = resident.and_then(|pid| resident_mb(Some(pid)));
                for n in 0..due {
                    record.pages_per_s.push(each);
                    record.resident_mb.push(resident.unwrap_or_default());
                    let new = if n == 0 { self.killed - killed } else { 0 };
                    record.killed.push(new as f64);
                }
                killed = self.killed;
            }
            if due > 0 {
                window += due * length;
                before = count;
            }
            if now >= until {
                return Ok(Some(count - from));
            }
            if asked() {
                return Ok(None);
            }
            clock::sleep_until(until.min(now + ASK_NS));
        }
    }
}

impl Generator for AnonHog {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        let now = clock::now();
        if self.run(now, now + span.warmup.0, None, asked)?.is_none() {
            return Ok(None);
        }
        let begin = clock::now();
        let mut record = Record::default();
        let pages = self.run(begin, begin + span.duration.0, Some(&mut record), asked)?;
        Ok(pages.map(|pages| Measurement {
            metrics: BTreeMap::from([
                (PAGES_PER_S.to_owned(), record.pages_per_s),
                ("resident_mb".to_owned(), record.resident_mb),
                ("killed".to_owned(), record.killed),
            ]),
            window_ns: window(span.duration.0),
            bytes: pages * page() as u64,
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            ended_ns: Vec::new(),
            account: None,
        }))
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.run(clock::now(), u64::MAX, None, asked).map(|_| ())
    }

    fn granted(&self) -> Granted {
        Granted::Base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::span_of;
    use quell_types::units::{Bytes, Nanos};

    fn hog() -> AnonHog {
        AnonHog::new(&workload::AnonHog {
            size: Bytes(16 << 20),
            ramp: Nanos::millis(200),
        })
        .unwrap()
    }

    #[test]
    fn it_grows_to_its_size_and_goes_on() {
        let measured = hog().span(span_of(600), &mut || false).unwrap().unwrap();
        let resident = &measured.metrics["resident_mb"];
        // Half of it is there after half of the ramp. The rest is what the test itself had when it
        // forked.
        let (first, last) = (resident[0], *resident.last().unwrap());
        assert!(last >= 16.0, "{resident:?}");
        assert!((2.0..17.0).contains(&(last - first)), "{resident:?}");
        assert_eq!(measured.metrics["pages_per_s"].len(), 6);
        assert!(measured.bytes > 16 << 20);
        assert!(measured.metrics["killed"].iter().all(|k| *k == 0.0));
    }

    #[test]
    fn when_it_is_killed_that_is_counted_and_another_one_is_started() {
        let mut hog = hog();
        let now = clock::now();
        hog.run(now, now + 100_000_000, None, &mut || false)
            .unwrap();
        let pid = hog.taker.as_ref().unwrap().pid;
        // SAFETY: our own child, not waited for.
        unsafe { libc::kill(pid, libc::SIGKILL) };
        let measured = hog.span(span_of(1000), &mut || false).unwrap().unwrap();
        let killed: f64 = measured.metrics["killed"].iter().sum();
        assert_eq!(killed, 1.0);
        assert!(hog.taker.as_ref().is_some_and(|t| t.pid != pid));
        let last = *measured.metrics["pages_per_s"].last().unwrap();
        assert!(last > 0.0, "{:?}", measured.metrics["pages_per_s"]);
    }

    #[test]
    fn memory_that_is_refused_is_an_error_and_no_kill() {
        let mut hog = hog();
        // Larger than any address space.
        hog.spec.size = Bytes(1 << 60);
        let why = hog
            .span(span_of(500), &mut || false)
            .unwrap_err()
            .to_string();
        assert!(why.contains("taking 1") && why.contains("less"), "{why}");
        assert_eq!(hog.killed, 0);
    }

    #[test]
    fn more_than_the_machine_has_is_refused_before_anybody_takes_it() {
        let spec = workload::AnonHog {
            size: Bytes(1 << 44),
            ramp: Nanos::millis(200),
        };
        let why = AnonHog::new(&spec).unwrap_err().to_string();
        assert!(
            why.contains("available and") && why.contains("free swap"),
            "{why}"
        );
    }

    #[test]
    fn what_is_left_after_the_last_window_is_in_none() {
        for (ms, windows, window_ns) in [(250, 2, 100_000_000), (40, 1, 40_000_000)] {
            let measured = hog().span(span_of(ms), &mut || false).unwrap().unwrap();
            assert_eq!(measured.metrics["pages_per_s"].len(), windows);
            assert_eq!(measured.window_ns, window_ns);
        }
    }
}
