//! The lease: a page shared by the main process, its brakes and its watchdog. It says whether the
//! run still holds.
//!
//! The main process holds the lease as long as it renews a heartbeat. When it does not for
//! [`LAPSE`], nothing throttles any more, because the brakes check before every throttle. The
//! watchdog then revokes the lease and undoes everything. While the main thread is blocked, another
//! of its threads stands in for it ([`crate::deputy`]), for [`HELD_UP`] at most.
//!
//! The page is anonymous memory (memfd), not a file. On a disk file system a write to a mapped page
//! may wait for writeback, and a real-time thread must not. `RUN/lease` is a link to it, valid as
//! long as the main process lives.

use std::fs::{File, OpenOptions};
use std::os::fd::{AsFd, AsRawFd};
use std::path::Path;
use std::ptr::NonNull;
use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::Nanos;

use quell_kernel::error::{Error, Result};

/// The link's name in the folder of a run.
pub const FILE: &str = "lease";
/// A heartbeat of this age or older has lapsed.
pub const LAPSE: Nanos = Nanos::secs(1);
/// How long the main thread may show no progress while its process runs.
pub const HELD_UP: Nanos = Nanos::secs(5);
/// The most CPUs that have a record.
pub const MOST_CPUS: usize = 8192;

const MAGIC: u64 = u64::from_le_bytes(*b"quell/1\0");
const HELD: u64 = 1;
const REVOKED: u64 = 2;
const RELEASED: u64 = 3;

/// State of the run that the lease is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// The main process holds what it has applied.
    Held,
    /// The watchdog or another process has undone it, or is about to.
    Revoked,
    /// The main process has undone it itself.
    Released,
}

/// Figures of a regulated CPU, whose meaning is up to the brake. One cache line, so that CPUs do
/// not disturb each other.
#[derive(Debug, Default)]
#[repr(C, align(64))]
pub struct Record(pub [AtomicU64; 8]);

#[derive(Debug)]
#[repr(C, align(64))]
struct Head {
    magic: AtomicU64,
    state: AtomicU64,
    /// Time of the last heartbeat, in CLOCK_MONOTONIC nanoseconds.
    beat: AtomicU64,
    /// Process id of the watchdog. 0 until it is in place.
    watchdog: AtomicU64,
    records: AtomicU64,
    /// Time of the main thread's own last heartbeat, in CLOCK_MONOTONIC nanoseconds.
    progress: AtomicU64,
    _spare: [AtomicU64; 2],
}

/// The shared page, mapped into this process.
#[derive(Debug)]
pub struct Lease {
    memory: NonNull<Head>,
    bytes: usize,
    records: usize,
    /// An open descriptor, which keeps `/proc/PID/fd/N` valid.
    _file: File,
}

// SAFETY: the memory is shared by design. It is only accessed through atomics, and unmapped only on
// drop.
unsafe impl Send for Lease {}
// SAFETY: as above.
unsafe impl Sync for Lease {}

impl Lease {
    /// Makes the lease of this process, held from now on, with a record for each of `records` CPUs.
    /// Links it in the run's folder.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] for more than [`MOST_CPUS`].
    pub fn create(dir: &Path, records: usize, now: Nanos) -> Result<Self> {
        if records > MOST_CPUS {
            return Err(Error::refused(format!(
                "{records} CPUs are more than the {MOST_CPUS} that Linux knows"
            )));
        }
        let path = dir.join(FILE);
        let failed =
            |action, e: std::io::Error| Error::file(action, &path.to_string_lossy(), None, e);
        let flags = rustix::fs::MemfdFlags::CLOEXEC | rustix::fs::MemfdFlags::ALLOW_SEALING;
        let file = File::from(
            rustix::fs::memfd_create("quell-lease", flags).map_err(|e| failed("make", e.into()))?,
        );
        let bytes = size_of::<Head>() + records * size_of::<Record>();
        file.set_len(bytes as u64).map_err(|e| failed("make", e))?;
        // No process may shorten it under a reader.
        let seals = rustix::fs::SealFlags::SHRINK | rustix::fs::SealFlags::GROW;
        rustix::fs::fcntl_add_seals(&file, seals).map_err(|e| failed("seal", e.into()))?;
        let target = format!(
            "/proc/{}/fd/{}",
            std::process::id(),
            file.as_fd().as_raw_fd()
        );
        let lease = Self::map(file, bytes, records).map_err(|e| failed("map", e))?;
        let head = lease.head();
        head.records.store(records as u64, Ordering::Relaxed);
        head.beat.store(now.0, Ordering::Relaxed);
        head.progress.store(now.0, Ordering::Relaxed);
        head.state.store(HELD, Ordering::Release);
        head.magic.store(MAGIC, Ordering::Release);
        std::os::unix::fs::symlink(target, &path).map_err(|e| failed("make", e))?;
        Ok(lease)
    }

    /// Opens the lease of another process.
    ///
    /// # Errors
    /// [`Error::File`] when that process has ended, [`Error::Malformed`].
    pub fn open(path: &Path) -> Result<Self> {
        let name = path.to_string_lossy();
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .open(path)
            .map_err(|e| Error::file("open", &name, None, e))?;
        let length = file
            .metadata()
            .map_err(|e| Error::file("inspect", &name, None, e))?
            .len();
        let bytes = usize::try_from(length).unwrap_or(0);
        let most = size_of::<Head>() + MOST_CPUS * size_of::<Record>();
        let wrong = || {
            Error::malformed(
                &name,
                &format!("{length} bytes"),
                "a lease of this version of Quell",
            )
        };
        if !(size_of::<Head>()..=most).contains(&bytes) {
            return Err(wrong());
        }
        let records = (bytes - size_of::<Head>()) / size_of::<Record>();
        let lease =
            Self::map(file, bytes, records).map_err(|e| Error::file("map", &name, None, e))?;
        let head = lease.head();
        if head.magic.load(Ordering::Acquire) != MAGIC
            || head.records.load(Ordering::Relaxed) != records as u64
        {
            return Err(wrong());
        }
        Ok(lease)
    }

    fn map(file: File, bytes: usize, records: usize) -> std::io::Result<Self> {
        use rustix::mm::{MapFlags, ProtFlags};
        // SAFETY: a fresh shared mapping of a file at least this long, at an address that the
        // kernel chooses.
        let memory = unsafe {
            rustix::mm::mmap(
                std::ptr::null_mut(),
                bytes,
                ProtFlags::READ | ProtFlags::WRITE,
                MapFlags::SHARED,
                &file,
                0,
            )?
        };
        let memory = NonNull::new(memory.cast())
            .ok_or_else(|| std::io::Error::other("mapped at address zero"))?;
        Ok(Self {
            memory,
            bytes,
            records,
            _file: file,
        })
    }

    fn head(&self) -> &Head {
        // SAFETY: the mapping is page-aligned, at least as long as the head, and lives as long as
        // `self`. Every bit pattern is a valid head of atomics.
        unsafe { self.memory.as_ref() }
    }

    /// The state of the run now. Any unknown value counts as revoked.
    #[must_use]
    pub fn state(&self) -> State {
        match self.head().state.load(Ordering::Acquire) {
            HELD => State::Held,
            RELEASED => State::Released,
            _ => State::Revoked,
        }
    }

    /// Renews the heartbeat: the main thread gets on with its work.
    pub fn beat(&self, now: Nanos) {
        self.head().progress.store(now.0, Ordering::Relaxed);
        self.head().beat.store(now.0, Ordering::Release);
    }

    /// Announces that the main thread waits until then at most, for a known reason. Its deputy
    /// stands in that long. The next [`Self::beat`] ends that. A process that is stopped is noticed
    /// all the same.
    pub fn waits_until(&self, until: Nanos) {
        self.head().progress.store(until.0, Ordering::Relaxed);
    }

    /// Renews the heartbeat in place of the main thread, unless that made no progress for
    /// [`HELD_UP`].
    pub fn stand_in(&self, now: Nanos) {
        let head = self.head();
        let beat = head.beat.load(Ordering::Acquire);
        if beat < now.0 && now.since(Nanos(head.progress.load(Ordering::Relaxed))) < HELD_UP {
            // The main thread's own beat, which may lie in the future, has precedence.
            let (done, lost) = (Ordering::Release, Ordering::Relaxed);
            let _ = head.beat.compare_exchange(beat, now.0, done, lost);
        }
    }

    /// Time of the last heartbeat, on CLOCK_MONOTONIC.
    #[must_use]
    pub fn last_beat(&self) -> Nanos {
        Nanos(self.head().beat.load(Ordering::Acquire))
    }

    /// Whether what was applied still holds: not revoked, and the heartbeat is fresh. Two loads,
    /// for the brakes.
    #[must_use]
    pub fn is_held(&self, now: Nanos) -> bool {
        self.head().state.load(Ordering::Acquire) == HELD && now.since(self.last_beat()) < LAPSE
    }

    /// Whether another process has reverted the run.
    #[must_use]
    pub fn is_revoked(&self) -> bool {
        self.state() == State::Revoked
    }

    /// Revokes a run that its main process holds. Returns whether this call did it.
    pub fn revoke(&self) -> bool {
        let state = &self.head().state;
        state
            .compare_exchange(HELD, REVOKED, Ordering::AcqRel, Ordering::Acquire)
            .is_ok()
    }

    /// Announces that the main process has undone everything, so that the watchdog ends.
    pub fn release(&self) {
        self.head().state.store(RELEASED, Ordering::Release);
    }

    /// Process id of the watchdog. `None` until it is in place.
    #[must_use]
    pub fn watchdog(&self) -> Option<u32> {
        u32::try_from(self.head().watchdog.load(Ordering::Acquire))
            .ok()
            .filter(|p| *p != 0)
    }

    /// Announces the watchdog's process id. The watchdog calls this when it is in place.
    pub fn set_watchdog(&self, pid: u32) {
        self.head()
            .watchdog
            .store(u64::from(pid), Ordering::Release);
    }

    /// The record of CPU `index`. `None` beyond the number of records.
    #[must_use]
    pub fn record(&self, index: usize) -> Option<&Record> {
        if index >= self.records {
            return None;
        }
        // SAFETY: the mapping holds `records` records after the head (both are multiples of 64
        // bytes) and lives as long as `self`. Every bit pattern is a valid record of atomics.
        unsafe { Some(self.memory.add(1).cast::<Record>().add(index).as_ref()) }
    }
}

impl Drop for Lease {
    fn drop(&mut self) {
        // SAFETY: mapped by `map` with this address and length. No reference outlives `self`.
        let _ = unsafe { rustix::mm::munmap(self.memory.as_ptr().cast(), self.bytes) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_lease_is_held_while_the_heart_beats() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease::create(dir.path(), 2, Nanos::secs(10)).unwrap();
        assert!(lease.is_held(Nanos(10_999_999_999)));
        assert!(
            !lease.is_held(Nanos::secs(11)),
            "a second without a heartbeat"
        );
        lease.beat(Nanos::secs(11));
        assert!(lease.is_held(Nanos::secs(11)));
    }

    #[test]
    fn who_stands_in_for_the_main_thread_does_so_for_a_while() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease::create(dir.path(), 0, Nanos::secs(10)).unwrap();
        for second in [11, 12, 13, 14] {
            lease.stand_in(Nanos::secs(second));
            assert!(lease.is_held(Nanos::secs(second)), "{second}");
        }
        lease.stand_in(Nanos::secs(10).plus(HELD_UP));
        assert!(!lease.is_held(Nanos::secs(10).plus(HELD_UP)));
        lease.beat(Nanos::secs(20));
        lease.waits_until(Nanos::secs(40));
        for second in [21, 40, 44] {
            lease.stand_in(Nanos::secs(second));
            assert!(lease.is_held(Nanos::secs(second)), "{second}");
        }
        lease.stand_in(Nanos::secs(40).plus(HELD_UP));
        assert!(!lease.is_held(Nanos::secs(40).plus(HELD_UP)));
        lease.beat(Nanos::secs(600));
        lease.stand_in(Nanos::secs(20));
        assert_eq!(lease.last_beat(), Nanos::secs(600), "a rest stays one");
    }

    #[test]
    fn another_process_sees_and_revokes_it() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease::create(dir.path(), 3, Nanos(1)).unwrap();
        let other = Lease::open(&dir.path().join(FILE)).unwrap();
        lease.record(2).unwrap().0[7].store(42, Ordering::Relaxed);
        assert_eq!(other.record(2).unwrap().0[7].load(Ordering::Relaxed), 42);
        assert!(other.record(3).is_none());
        assert!(other.revoke());
        assert!(!other.revoke(), "only one can take it");
        assert!(lease.is_revoked() && !lease.is_held(Nanos(1)));
    }

    #[test]
    fn a_released_lease_cannot_be_revoked() {
        let dir = tempfile::tempdir().unwrap();
        let lease = Lease::create(dir.path(), 1, Nanos(1)).unwrap();
        lease.release();
        assert!(!lease.revoke());
        assert_eq!(lease.state(), State::Released);
    }

    #[test]
    fn what_is_no_lease_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("x");
        std::fs::write(&path, vec![0u8; 128]).unwrap();
        assert!(
            Lease::open(&path)
                .unwrap_err()
                .to_string()
                .contains("lease")
        );
        std::fs::write(&path, b"").unwrap();
        assert!(Lease::open(&path).is_err());
        let lease = Lease::create(dir.path(), 1, Nanos(1)).unwrap();
        drop(lease);
        assert!(
            Lease::open(&dir.path().join(FILE)).is_err(),
            "its process has let it go"
        );
    }
}
