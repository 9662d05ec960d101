//! A thread that writes one group's memory limit, and the amount to reclaim from it. The kernel
//! reclaims inside the write, for seconds where that is slow, and the sampling thread must not wait
//! for it. The newest order counts; an order that was overtaken is never written.
//!
//! Nothing is written after the end. Dropping the handle interrupts the current write and waits
//! some seconds for the thread. A write that hangs in the kernel must not keep everything else from
//! being reverted. (v1 sets a limit only after it has reclaimed.) Nor is anything written after the
//! run was revoked. If a write returns later than that, or after the wait for it has ended, the
//! file's first value is written again.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::thread::JoinHandleExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, Once, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_kernel::cgroup::Version;
use quell_kernel::error::{Error, Result};
use quell_kernel::memory::Memory;
use quell_kernel::root::{Access, Files, gone};
use quell_kernel::rt;
use quell_types::units::Bytes;

use crate::lease::Lease;

/// How often a write is interrupted until it returns.
const AGAIN: Duration = Duration::from_millis(2);
/// How long to wait for the thread to end.
const PATIENCE: Duration = Duration::from_secs(5);
/// The signal that interrupts a write. Nothing else in Quell uses it.
const INTERRUPT: libc::c_int = libc::SIGUSR2;

#[derive(Debug, Default)]
struct Orders {
    limit: Option<Option<Bytes>>,
    /// The limit that was ordered last. The inner `None` is no limit.
    last: Option<Option<Bytes>>,
    reclaim: Option<Bytes>,
    stop: bool,
    /// Whether the wait for the thread was given up.
    abandoned: bool,
    /// Path and error of the last refused write.
    failed: Option<(String, io::Error)>,
}

#[derive(Debug, Default)]
struct Mailbox {
    orders: Mutex<Orders>,
    changed: Condvar,
}

impl Mailbox {
    fn lock(&self) -> MutexGuard<'_, Orders> {
        self.orders.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// A file to write to, kept open where the root has descriptors. Its cgroup may be removed and made
/// again.
struct LimitFile {
    path: String,
    file: Option<File>,
}

impl LimitFile {
    fn open(files: &dyn Files, path: String) -> Result<Self> {
        let file = files
            .open(&path, Access::Write)
            .map_err(|e| Error::file("open", &path, None, e))?;
        Ok(Self { path, file })
    }

    /// Writes a short text once, without allocating. If the cgroup was made again, the new file is
    /// opened, unless it is `over`.
    fn put(
        &mut self,
        files: &dyn Files,
        text: std::fmt::Arguments<'_>,
        over: &dyn Fn() -> bool,
    ) -> io::Result<()> {
        let mut buffer = [0u8; 32];
        let mut rest = buffer.as_mut_slice();
        rest.write_fmt(text)?;
        let length = 32 - rest.len();
        let Some(file) = &self.file else {
            return files.write(&self.path, &String::from_utf8_lossy(&buffer[..length]));
        };
        match file.write_at(&buffer[..length], 0) {
            Err(e) if gone(&e) && !over() => match files.open(&self.path, Access::Write)? {
                Some(file) => {
                    let written = file.write_at(&buffer[..length], 0);
                    self.file = Some(file);
                    written.map(drop)
                }
                None => Err(e),
            },
            other => other.map(drop),
        }
    }
}

/// The files that the thread writes to.
struct Target {
    files: Arc<dyn Files>,
    memory: Memory,
    limit: LimitFile,
    reclaim: Option<LimitFile>,
    /// What the limit was before, as the file had it.
    old: String,
    lease: Arc<Lease>,
}

/// The handle of the thread, which writes nothing any more when this is dropped.
#[derive(Debug)]
pub struct Writer {
    mailbox: Arc<Mailbox>,
    thread: Option<JoinHandle<()>>,
    lease: Arc<Lease>,
}

impl Writer {
    /// Opens the files of a group and starts the thread. The caller has recorded that the limit was
    /// `old`.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] where no thread can be made.
    pub fn start(
        files: &Arc<dyn Files>,
        memory: &Memory,
        old: String,
        lease: Arc<Lease>,
    ) -> Result<Self> {
        interruptible();
        let (own, reclaim) = (Arc::clone(&lease), memory.reclaim());
        let mut target = Target {
            files: Arc::clone(files),
            memory: memory.clone(),
            limit: LimitFile::open(&**files, memory.steered())?,
            reclaim: files
                .exists(&reclaim)
                .then(|| LimitFile::open(&**files, reclaim))
                .transpose()?,
            old,
            lease,
        };
        let mailbox = Arc::new(Mailbox::default());
        let shared = Arc::clone(&mailbox);
        let thread = std::thread::Builder::new()
            .name("quell-memory".to_owned())
            .stack_size(rt::STACK)
            .spawn(move || run(&shared, &mut target))
            .map_err(|e| Error::refused(format!("no thread could be made: {e}")))?;
        Ok(Self {
            mailbox,
            thread: Some(thread),
            lease: own,
        })
    }

    /// Orders a limit. `None` means no limit.
    ///
    /// # Errors
    /// The error of an earlier order that was refused.
    pub fn limit(&self, most: Option<Bytes>) -> Result<()> {
        self.order(|orders| (orders.limit, orders.last) = (Some(most), Some(most)))
    }

    /// Orders the last limit again, because the cgroup was made again.
    ///
    /// # Errors
    /// The error of an earlier order that was refused.
    pub fn again(&self) -> Result<()> {
        self.order(|orders| orders.limit = orders.last)
    }

    /// Orders to reclaim `amount`, or less where there is less.
    ///
    /// # Errors
    /// The error of an earlier order that was refused.
    pub fn reclaim(&self, amount: Bytes) -> Result<()> {
        self.order(|orders| orders.reclaim = Some(amount))
    }

    fn order(&self, place: impl FnOnce(&mut Orders)) -> Result<()> {
        let mut orders = self.mailbox.lock();
        place(&mut orders);
        self.mailbox.changed.notify_all();
        match orders.failed.take() {
            Some((path, e)) => Err(Error::file("write", &path, None, e)),
            None => Ok(()),
        }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        self.mailbox.lock().stop = true;
        self.mailbox.changed.notify_all();
        let Some(thread) = self.thread.take() else {
            return;
        };
        end(&self.mailbox, &self.lease, thread, PATIENCE);
    }
}

/// Interrupts a thread that was asked to stop until it has ended, or until `patience` is over.
fn end(mailbox: &Mailbox, lease: &Lease, thread: JoinHandle<()>, patience: Duration) {
    let begun = Instant::now();
    while !thread.is_finished() {
        if begun.elapsed() >= patience {
            mailbox.lock().abandoned = true;
            return;
        }
        // The watchdog must not take the run away meanwhile.
        if !lease.is_revoked() {
            lease.beat(rt::now());
        }
        // Reclaim ends at a signal. A signal between two writes finds that there is nothing left to
        // do. SAFETY: the thread is not joined yet, so its handle is valid; the handler does
        // nothing.
        unsafe { libc::pthread_kill(thread.as_pthread_t(), INTERRUPT) };
        std::thread::sleep(AGAIN);
    }
    let _ = thread.join();
}

/// Makes the signal interrupt the system call that a thread waits in, and do nothing else.
fn interruptible() {
    extern "C" fn nothing(_: libc::c_int) {}
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        // SAFETY: a plain structure for which zeros mean an empty mask and no flags, so that calls
        // are not restarted. The handler does nothing.
        unsafe {
            let mut action: libc::sigaction = std::mem::zeroed();
            action.sa_sigaction = nothing as extern "C" fn(libc::c_int) as libc::sighandler_t;
            libc::sigaction(INTERRUPT, &raw const action, std::ptr::null_mut());
        }
    });
}

fn run(mailbox: &Mailbox, target: &mut Target) {
    let mut orders = mailbox.lock();
    while !orders.stop {
        let (limit, reclaim) = (orders.limit.take(), orders.reclaim.take());
        if limit.is_none() && reclaim.is_none() {
            orders = mailbox
                .changed
                .wait(orders)
                .unwrap_or_else(PoisonError::into_inner);
            continue;
        }
        drop(orders);
        let failed = target.write(mailbox, limit, reclaim);
        orders = mailbox.lock();
        if failed.is_some() {
            orders.failed = failed;
        }
    }
}

impl Target {
    fn write(
        &mut self,
        mailbox: &Mailbox,
        limit: Option<Option<Bytes>>,
        reclaim: Option<Bytes>,
    ) -> Option<(String, io::Error)> {
        let lease = Arc::clone(&self.lease);
        let over = move || lease.is_revoked() || mailbox.lock().stop;
        if self.lease.is_revoked() {
            return None;
        }
        if let Some(limit) = limit {
            let done = match (limit, self.memory.version()) {
                (Some(bytes), _) => {
                    let text = format_args!("{}\n", bytes.0);
                    self.limit.put(&*self.files, text, &over)
                }
                (None, Version::V2) => self.limit.put(&*self.files, format_args!("max\n"), &over),
                (None, Version::V1) => self.limit.put(&*self.files, format_args!("-1\n"), &over),
            };
            if self.lease.is_revoked() || mailbox.lock().abandoned {
                // It was restored meanwhile, or just before this.
                let old = &self.old;
                let _ = (self.limit).put(&*self.files, format_args!("{old}\n"), &over);
                return None;
            }
            // v1 refuses a limit that it cannot reach: the next sample asks for another.
            let busy = |e: &io::Error| {
                matches!(e.raw_os_error(), Some(libc::EBUSY | libc::EINTR)) || gone(e)
            };
            if let Err(e) = done
                && !busy(&e)
            {
                return Some((self.limit.path.clone(), e));
            }
        }
        if let (Some(bytes), Some(limit_file)) = (reclaim.filter(|_| !over()), &mut self.reclaim) {
            // There was less to reclaim, or the write was interrupted.
            let less = |e: &io::Error| {
                matches!(e.raw_os_error(), Some(libc::EAGAIN | libc::EINTR)) || gone(e)
            };
            if let Err(e) = limit_file.put(&*self.files, format_args!("{}\n", bytes.0), &over)
                && !less(&e)
            {
                return Some((limit_file.path.clone(), e));
            }
        }
        None
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::cgroup::Hierarchy;
    use quell_kernel::root::Kernel;

    use super::*;

    fn memory(version: Version) -> Memory {
        let hierarchy = Hierarchy {
            version,
            mount: "/cg".into(),
            top: "/".into(),
            controllers: vec!["memory".into()],
            own: "/".into(),
        };
        Memory::of(&hierarchy, "/cg/a")
    }

    fn lease(dir: &std::path::Path) -> Arc<Lease> {
        Arc::new(Lease::create(dir, 1, rt::now()).unwrap())
    }

    fn eventually(path: &std::path::Path, wanted: &str) {
        let started = Instant::now();
        loop {
            let now = std::fs::read_to_string(path).unwrap();
            // A plain file keeps what a shorter text leaves of a longer one. The kernel's file does
            // not.
            if now.starts_with(wanted) {
                return;
            }
            assert!(started.elapsed() < Duration::from_secs(10), "{now}");
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn orders_are_written_by_the_thread_and_the_newest_counts() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("cg/a");
        std::fs::create_dir_all(&group).unwrap();
        for name in ["memory.high", "memory.reclaim"] {
            std::fs::write(group.join(name), "").unwrap();
        }
        let kernel: Arc<dyn Files> = Arc::new(Kernel::at(dir.path()));
        let lease = lease(dir.path());
        let start = |version| {
            let memory = memory(version);
            Writer::start(&kernel, &memory, "max".to_owned(), Arc::clone(&lease))
        };
        let writer = start(Version::V2).unwrap();
        for bytes in 1..=100 {
            writer.limit(Some(Bytes(bytes << 20))).unwrap();
        }
        eventually(&group.join("memory.high"), "104857600\n");
        writer.reclaim(Bytes(4096)).unwrap();
        eventually(&group.join("memory.reclaim"), "4096\n");
        writer.limit(None).unwrap();
        eventually(&group.join("memory.high"), "max\n");
        assert!(start(Version::V1).is_err(), "no such file");
        // Removed and made again, as a unit that is restarted: the limit is ordered once more.
        writer.limit(Some(Bytes(4096))).unwrap();
        eventually(&group.join("memory.high"), "4096\n");
        std::fs::write(group.join("memory.high"), "max").unwrap();
        writer.again().unwrap();
        eventually(&group.join("memory.high"), "4096\n");
    }

    #[test]
    fn nothing_is_written_after_the_end_or_a_revocation() {
        let dir = tempfile::tempdir().unwrap();
        let group = dir.path().join("cg/a");
        std::fs::create_dir_all(&group).unwrap();
        let file = group.join("memory.high");
        std::fs::write(&file, "").unwrap();
        let kernel: Arc<dyn Files> = Arc::new(Kernel::at(dir.path()));
        let memory = memory(Version::V2);
        for revoked in [false, true] {
            let own = tempfile::tempdir().unwrap();
            let lease = lease(own.path());
            let writer =
                Writer::start(&kernel, &memory, "max".to_owned(), Arc::clone(&lease)).unwrap();
            if revoked {
                assert!(lease.revoke());
            }
            for bytes in 1..1000 {
                writer.limit(Some(Bytes(bytes << 20))).unwrap();
            }
            drop(writer);
            std::fs::write(&file, "undone").unwrap();
            std::thread::sleep(Duration::from_millis(20));
            assert_eq!(std::fs::read_to_string(&file).unwrap(), "undone");
        }
    }

    #[test]
    fn a_file_made_again_is_opened_unless_it_is_over() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("memory.high");
        let kernel = Kernel::at(dir.path());
        let put = |over: bool| {
            // A file of a process that has ended is refused as one of a removed cgroup is.
            let mut child = std::process::Command::new("sleep")
                .arg("60")
                .spawn()
                .unwrap();
            let path = format!("/proc/{}/oom_score_adj", child.id());
            let gone = File::options().write(true).open(path).unwrap();
            child.kill().unwrap();
            child.wait().unwrap();
            std::fs::write(&file, "max").unwrap();
            let mut limit = LimitFile {
                path: "/memory.high".to_owned(),
                file: Some(gone),
            };
            let put = limit.put(&kernel, format_args!("1000"), &|| over);
            (put.is_ok(), std::fs::read_to_string(&file).unwrap())
        };
        assert_eq!(put(false), (true, "1000".to_owned()));
        assert_eq!(put(true), (false, "max".to_owned()));
    }

    #[test]
    fn a_hanging_write_is_given_up_and_leaves_what_was_there() {
        let (mailbox, dir) = (Mailbox::default(), tempfile::tempdir().unwrap());
        let lease = lease(dir.path());
        // A thread that no signal interrupts.
        let hangs = std::thread::spawn(|| std::thread::sleep(Duration::from_secs(60)));
        let begun = Instant::now();
        interruptible();
        mailbox.lock().stop = true;
        end(&mailbox, &lease, hangs, Duration::from_millis(50));
        assert!(begun.elapsed() < Duration::from_secs(30));
        assert!(mailbox.lock().abandoned);
        // The write returns afterwards.
        let group = dir.path().join("cg/a");
        std::fs::create_dir_all(&group).unwrap();
        let read = |name| std::fs::read_to_string(group.join(name)).unwrap();
        for name in ["memory.high", "memory.reclaim"] {
            std::fs::write(group.join(name), "").unwrap();
        }
        let files: Arc<dyn Files> = Arc::new(Kernel::at(dir.path()));
        let memory = memory(Version::V2);
        let mut target = Target {
            limit: LimitFile::open(&*files, memory.steered()).unwrap(),
            reclaim: Some(LimitFile::open(&*files, memory.reclaim()).unwrap()),
            files,
            memory,
            old: "1234567".to_owned(),
            lease,
        };
        let order = (Some(Some(Bytes(4096))), Some(Bytes(1)));
        assert!(target.write(&mailbox, order.0, order.1).is_none());
        assert_eq!(read("memory.high"), "1234567\n");
        assert_eq!(read("memory.reclaim"), "");
    }
}
