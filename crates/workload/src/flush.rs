//! How long do calls take that flush per-CPU kernel work? Such a call waits for a worker on every
//! other CPU. Where a CPU is throttled its worker does not run. So the call blocks although its own
//! CPU is not regulated. This measures that, from a CPU that is not regulated:
//!
//! | call | what it waits for |
//! |---|---|
//! | `madvise(MADV_COLLAPSE)` | drains every CPU's pending LRU additions (`lru_add_drain_all`) |
//! | `posix_fadvise(POSIX_FADV_DONTNEED)` | the same |
//! | `membarrier(MEMBARRIER_CMD_GLOBAL)` | a grace period of RCU: milliseconds even undisturbed |
//!
//! - `madvise` collapses 2 MiB of touched base pages (mm/khugepaged.c).
//! - `posix_fadvise` drops a written, synced page that is mapped. A mapped page cannot be dropped
//!   at the first try (mm/fadvise.c).
//!
//! A call only waits for a CPU that has something pending. `stir` keeps it so: a thread there takes
//! and touches pages in between.

use std::collections::BTreeMap;
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::os::fd::AsRawFd;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use quell_policy::workload::Pages;
use quell_types::cpuset::CpuId;
use quell_types::units::{Bytes, Nanos};
use serde::{Deserialize, Serialize};

use crate::bench::{SCHEMA, duration_text};
use crate::memory::Buffer;
use crate::overrun::Lengths;
use crate::{Error, affinity, clock};

const HUGE: usize = 2 << 20;
const PAGE: usize = 4096;
/// `MADV_COLLAPSE`, which Linux 6.1 added.
const MADV_COLLAPSE: libc::c_int = 25;
/// `MEMBARRIER_CMD_GLOBAL`, which Linux 4.3 added.
const MEMBARRIER_CMD_GLOBAL: libc::c_int = 1;

/// Which CPUs to use, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FlushOptions {
    /// The CPU on which the calls are made.
    pub cpu: CpuId,
    /// How long to measure. A call under way is finished.
    pub duration: Nanos,
    /// A folder on a real file system, for the file of one page. On tmpfs the advice does nothing.
    pub folder: PathBuf,
    /// A CPU to keep kernel work pending on. `None`: no such CPU.
    pub stir: Option<CpuId>,
}

/// How long the calls took.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct FlushReport {
    /// Always [`SCHEMA`]; the first field of the JSON.
    pub schema: String,
    /// Always `flush`, as the command is called.
    pub name: String,
    /// The CPU on which the calls were made.
    pub cpu: CpuId,
    /// The CPU that kernel work was kept pending on.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub stirred: Option<CpuId>,
    /// The measured span, in nanoseconds.
    pub duration_ns: u64,
    /// For each call by name: how often it was made and how long it took.
    pub calls: BTreeMap<String, Call>,
    /// Calls that could not be made, each with the reason.
    pub skipped: BTreeMap<String, String>,
}

/// The statistics of one kind of call.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Call {
    /// How often it was made.
    pub count: u64,
    /// Statistics of its lengths, as fields of this one.
    #[serde(flatten)]
    pub lengths: Lengths,
}

/// A call that can be repeated. It prepares itself, then returns the nanoseconds of the call alone.
trait Repeated {
    fn once(&mut self) -> Result<u64, Error>;
}

fn timed(call: impl FnOnce() -> i64, what: &str) -> Result<u64, Error> {
    let begin = clock::now();
    let status = call();
    let took = clock::now() - begin;
    match status {
        0 => Ok(took),
        // posix_fadvise returns the error. All other calls set errno.
        1.. => Err(Error::kernel(what)(std::io::Error::from_raw_os_error(
            i32::try_from(status).unwrap_or(libc::EIO),
        ))),
        _ => Err(Error::last(what)),
    }
}

struct Collapse(Buffer);

impl Collapse {
    fn new() -> Result<Self, Error> {
        Ok(Self(Buffer::new(Bytes(HUGE as u64), Pages::Base)?))
    }

    fn advise(&self, advice: libc::c_int) -> i64 {
        // SAFETY: the range is our own buffer, and its contents are not needed.
        i64::from(unsafe { libc::madvise(self.0.start().cast(), HUGE, advice) })
    }
}

impl Repeated for Collapse {
    fn once(&mut self) -> Result<u64, Error> {
        // Back to base pages: drop all pages, forbid huge ones while touching, allow them again.
        for advice in [libc::MADV_DONTNEED, libc::MADV_NOHUGEPAGE] {
            timed(|| self.advise(advice), "splitting 2 MiB into base pages")?;
        }
        for offset in (0..HUGE).step_by(PAGE) {
            // SAFETY: inside the buffer.
            unsafe { self.0.start().add(offset).write_volatile(1) };
        }
        timed(|| self.advise(libc::MADV_HUGEPAGE), "allowing huge pages")?;
        timed(
            || self.advise(MADV_COLLAPSE),
            "collapsing 2 MiB (MADV_COLLAPSE)",
        )
    }
}

struct DropPage {
    file: File,
    map: *mut libc::c_void,
}

impl DropPage {
    /// Makes a file without a name in `folder`, so that no file remains.
    fn new(folder: &Path) -> Result<Self, Error> {
        let what = format!("making a temporary file in {}", folder.display());
        let magic = rustix::fs::statfs(folder)
            .map_err(Error::kernel(what.clone()))?
            .f_type;
        if magic == libc::TMPFS_MAGIC {
            return Err(Error::refused(
                what,
                "it is a tmpfs, where the advice does nothing",
                "name a folder on a disk",
            ));
        }
        let flags =
            rustix::fs::OFlags::TMPFILE | rustix::fs::OFlags::RDWR | rustix::fs::OFlags::CLOEXEC;
        let mode = rustix::fs::Mode::RUSR | rustix::fs::Mode::WUSR;
        let mut file =
            File::from(rustix::fs::open(folder, flags, mode).map_err(Error::kernel(what.clone()))?);
        file.write_all(&[1; PAGE])
            .map_err(Error::kernel(what.clone()))?;
        // SAFETY: a fresh shared mapping of our own file of one page, at an address of the kernel's
        // choice.
        let map = unsafe {
            libc::mmap(
                ptr::null_mut(),
                PAGE,
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                file.as_raw_fd(),
                0,
            )
        };
        if map == libc::MAP_FAILED {
            return Err(Error::last(what));
        }
        Ok(Self { file, map })
    }
}

impl Repeated for DropPage {
    fn once(&mut self) -> Result<u64, Error> {
        // SAFETY: the mapping is one writable page of a file that no other process can shorten.
        unsafe { self.map.cast::<u8>().write_volatile(1) };
        self.file
            .sync_data()
            .map_err(Error::kernel("syncing a temporary file"))?;
        // SAFETY: as above. Reading maps the page again if syncing has unmapped it.
        unsafe { self.map.cast::<u8>().read_volatile() };
        let advise = || {
            // SAFETY: an open descriptor; the call takes no pointer.
            i64::from(unsafe {
                libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED)
            })
        };
        timed(advise, "posix_fadvise(POSIX_FADV_DONTNEED)")
    }
}

impl Drop for DropPage {
    fn drop(&mut self) {
        // SAFETY: our own mapping, to which no other pointer exists.
        unsafe { libc::munmap(self.map, PAGE) };
    }
}

struct Membarrier;

impl Repeated for Membarrier {
    fn once(&mut self) -> Result<u64, Error> {
        let call = || {
            // SAFETY: the call takes no pointer.
            unsafe { libc::syscall(libc::SYS_membarrier, MEMBARRIER_CMD_GLOBAL, 0, 0) }
        };
        timed(call, "membarrier(MEMBARRIER_CMD_GLOBAL)")
    }
}

/// Measures the calls one after the other, again and again. A call that cannot be made here is
/// skipped with the reason.
///
/// # Errors
/// When a CPU may not be used.
pub fn flush(options: &FlushOptions) -> Result<FlushReport, Error> {
    let _pinned = affinity::pin_to(options.cpu)?;
    let over = AtomicBool::new(false);
    thread::scope(|scope| {
        let stirring = options.stir.map(|cpu| {
            let over = &over;
            scope.spawn(move || stir(cpu, over))
        });
        let report = calls(options);
        over.store(true, Ordering::Relaxed);
        match stirring.map(thread::ScopedJoinHandle::join) {
            Some(Ok(Err(e))) => Err(e),
            _ => report,
        }
    })
}

/// A call, or why it cannot be made.
type Made = Result<Box<dyn Repeated>, Error>;

/// A kind of call. `None` as its call: it was refused.
struct Kind {
    name: &'static str,
    call: Option<Box<dyn Repeated>>,
    lengths: Vec<u64>,
}

fn calls(options: &FlushOptions) -> Result<FlushReport, Error> {
    let mut skipped = BTreeMap::new();
    let made: [(&'static str, Made); 3] = [
        ("collapse", Collapse::new().map(|c| Box::new(c) as _)),
        (
            "fadvise",
            DropPage::new(&options.folder).map(|d| Box::new(d) as _),
        ),
        ("membarrier", Ok(Box::new(Membarrier))),
    ];
    let mut kinds: Vec<Kind> = Vec::new();
    for (name, made) in made {
        let call = made
            .map_err(|e| skipped.insert(name.to_owned(), e.to_string()))
            .ok();
        kinds.push(Kind {
            name,
            call,
            lengths: Vec::new(),
        });
    }
    let begin = clock::now();
    let end = begin.saturating_add(options.duration.0);
    while clock::now() < end && kinds.iter().any(|k| k.call.is_some()) {
        for kind in &mut kinds {
            match kind.call.as_mut().map(|call| call.once()) {
                None => {}
                Some(Ok(took)) => kind.lengths.push(took),
                // Refused for good (an old kernel) or for now (no huge page free). Earlier
                // measurements count.
                Some(Err(e)) => {
                    let why = format!("after {} calls: {e}", kind.lengths.len());
                    skipped.insert(kind.name.to_owned(), why);
                    kind.call = None;
                }
            }
        }
    }
    let duration_ns = clock::now() - begin;
    let calls = kinds.iter().filter_map(|kind| {
        let count = kind.lengths.len() as u64;
        let lengths = Lengths::of(&kind.lengths)?;
        Some((kind.name.to_owned(), Call { count, lengths }))
    });
    Ok(FlushReport {
        schema: SCHEMA.to_owned(),
        name: "flush".to_owned(),
        cpu: options.cpu,
        stirred: options.stir,
        duration_ns,
        calls: calls.collect(),
        skipped,
    })
}

/// Keeps LRU additions pending on a CPU: takes, touches and frees a few pages. It rests in between,
/// so that it is no load of its own.
fn stir(cpu: CpuId, over: &AtomicBool) -> Result<(), Error> {
    let _pinned = affinity::pin_to(cpu)?;
    while !over.load(Ordering::Relaxed) {
        drop(Buffer::new(Bytes(4 * PAGE as u64), Pages::Base)?);
        thread::sleep(Duration::from_micros(200));
    }
    Ok(())
}

impl fmt::Display for FlushReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "flush from CPU {} for {}",
            self.cpu,
            duration_text(self.duration_ns as f64)
        )?;
        if let Some(cpu) = self.stirred {
            write!(f, ", kernel work kept pending on CPU {cpu}")?;
        }
        writeln!(f)?;
        let heads = ["calls", "p50", "p95", "p99", "max"];
        write!(f, "{:<11}", "")?;
        heads.iter().try_for_each(|h| write!(f, " {h:>9}"))?;
        writeln!(f)?;
        for (name, call) in &self.calls {
            let l = &call.lengths;
            write!(f, "{name:<11} {:>9}", call.count)?;
            for value in [l.p50_ns, l.p95_ns, l.p99_ns, l.max_ns] {
                write!(f, " {:>9}", duration_text(value))?;
            }
            writeln!(f)?;
        }
        self.skipped
            .iter()
            .try_for_each(|(name, why)| writeln!(f, "{name:<11} not measured: {why}"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn options(folder: &Path, stir: Option<CpuId>) -> FlushOptions {
        FlushOptions {
            cpu: affinity::allowed().unwrap().first().unwrap(),
            duration: Nanos::millis(50),
            folder: folder.to_owned(),
            stir,
        }
    }

    #[test]
    fn every_call_is_measured_or_skipped_with_the_reason() {
        let folder = tempfile::tempdir().unwrap();
        let last = affinity::allowed().unwrap().iter().next_back();
        let report = flush(&options(folder.path(), last)).unwrap();
        for name in ["collapse", "fadvise", "membarrier"] {
            match report.calls.get(name) {
                Some(call) => assert!(call.count > 0 && call.lengths.max_ns >= call.lengths.p50_ns),
                None => assert!(!report.skipped[name].is_empty()),
            }
        }
        assert!(!report.calls.is_empty());
        let json = serde_json::to_string(&report).unwrap();
        let read: FlushReport = serde_json::from_str(&json).unwrap();
        assert!(read.calls.keys().eq(report.calls.keys()));
        assert_eq!(read.skipped, report.skipped);
        // No file remains in the folder.
        assert_eq!(std::fs::read_dir(folder.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_folder_that_is_not_there_skips_its_call_and_names_it() {
        let report = flush(&options(Path::new("/nonexistent"), None)).unwrap();
        assert!(report.skipped["fadvise"].contains("/nonexistent"));
        assert!(report.to_string().contains("not measured"));
        assert!(
            report.calls.contains_key("membarrier") || report.skipped.contains_key("membarrier")
        );
    }

    #[test]
    fn a_cpu_that_does_not_exist_is_an_error() {
        let mut wrong = options(Path::new("/tmp"), Some(8191));
        assert!(flush(&wrong).unwrap_err().to_string().contains("8191"));
        (wrong.cpu, wrong.stir) = (8191, None);
        assert!(flush(&wrong).is_err());
    }
}
