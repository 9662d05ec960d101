//! A thread that writes one group's limit of memory, and what is to be reclaimed from it: the kernel reclaims inside the
//! write, for seconds where that is slow, and whoever watches must not wait for it. The newest order counts; what was
//! overtaken is never written.

use std::fs::File;
use std::io::{self, Write};
use std::os::unix::fs::FileExt;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use quell_core::units::Bytes;

use crate::cgroup::Version;
use crate::error::{Error, Result};
use crate::memory::Memory;
use crate::root::{Access, Files, gone};
use crate::rt;

/// How long the end waits for an order that is just being written. What takes longer is in the kernel, and the limit
/// is set there before anything is reclaimed: whoever sets it back is the last.
const PATIENCE: Duration = Duration::from_millis(50);

#[derive(Debug, Default)]
struct Orders {
    limit: Option<Option<Bytes>>,
    reclaim: Option<Bytes>,
    writing: bool,
    stop: bool,
    /// What the last write was refused with.
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

/// What the thread writes to.
struct Target {
    version: Version,
    limit: (String, File),
    reclaim: Option<(String, File)>,
}

/// The handle of the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Writer {
    mailbox: Arc<Mailbox>,
}

impl Writer {
    /// Opens the files of a group and starts the thread. Whoever calls has recorded what the limit was.
    ///
    /// # Errors
    /// [`Error::File`]; [`Error::Refused`] where files have no descriptors, or no thread can be made.
    pub fn start(files: &dyn Files, memory: &Memory) -> Result<Self> {
        let open = |path: String| {
            let file = files
                .open(&path, Access::Write)
                .map_err(|e| Error::file("open", &path, None, e))?
                .ok_or_else(|| Error::refused(format!("{path} cannot be kept open")))?;
            Ok((path, file))
        };
        let reclaim = memory.reclaim();
        let target = Target {
            version: memory.version(),
            limit: open(memory.steered())?,
            reclaim: files.exists(&reclaim).then(|| open(reclaim)).transpose()?,
        };
        let mailbox = Arc::new(Mailbox::default());
        let shared = Arc::clone(&mailbox);
        std::thread::Builder::new()
            .name("quell-memory".to_owned())
            .stack_size(rt::STACK)
            .spawn(move || run(&shared, &target))
            .map_err(|e| Error::refused(format!("no thread could be made: {e}")))?;
        Ok(Self { mailbox })
    }

    /// Sets the limit; `None`: none.
    ///
    /// # Errors
    /// What an earlier order was refused with.
    pub fn limit(&self, most: Option<Bytes>) -> Result<()> {
        self.order(|orders| orders.limit = Some(most))
    }

    /// Reclaims so much, as far as there is as much.
    ///
    /// # Errors
    /// What an earlier order was refused with.
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
        let mut orders = self.mailbox.lock();
        orders.stop = true;
        self.mailbox.changed.notify_all();
        if orders.writing {
            drop(self.mailbox.changed.wait_timeout(orders, PATIENCE));
        }
    }
}

fn run(mailbox: &Mailbox, target: &Target) {
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
        orders.writing = true;
        drop(orders);
        let failed = target.write(limit, reclaim);
        orders = mailbox.lock();
        orders.writing = false;
        mailbox.changed.notify_all();
        if failed.is_some() {
            orders.failed = failed;
        }
    }
}

impl Target {
    fn write(
        &self,
        limit: Option<Option<Bytes>>,
        reclaim: Option<Bytes>,
    ) -> Option<(String, io::Error)> {
        if let Some(limit) = limit {
            let (path, file) = &self.limit;
            let done = match (limit, self.version) {
                (Some(bytes), _) => put(file, format_args!("{}\n", bytes.0)),
                (None, Version::V2) => put(file, format_args!("max\n")),
                (None, Version::V1) => put(file, format_args!("-1\n")),
            };
            match done {
                // v1 refuses a limit it cannot reach: the next look asks for another.
                Err(e) if !gone(&e) && e.raw_os_error() != Some(libc::EBUSY) => {
                    return Some((path.clone(), e));
                }
                _ => {}
            }
        }
        if let (Some(bytes), Some((path, file))) = (reclaim, &self.reclaim) {
            match put(file, format_args!("{}\n", bytes.0)) {
                // Less was to be had.
                Err(e) if !gone(&e) && e.raw_os_error() != Some(libc::EAGAIN) => {
                    return Some((path.clone(), e));
                }
                _ => {}
            }
        }
        None
    }
}

/// One write of a short text, made without allocating.
fn put(file: &File, text: std::fmt::Arguments<'_>) -> io::Result<()> {
    let mut buffer = [0u8; 32];
    let mut rest = buffer.as_mut_slice();
    rest.write_fmt(text)?;
    let length = 32 - rest.len();
    file.write_at(&buffer[..length], 0).map(drop)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cgroup::Hierarchy;
    use crate::home::Place;
    use crate::root::Kernel;
    use std::time::Instant;

    fn place(version: Version) -> Place {
        Place {
            hierarchy: Hierarchy {
                version,
                mount: "/cg".into(),
                top: "/".into(),
                controllers: vec!["memory".into()],
                own: "/".into(),
            },
            dir: "/cg/a".into(),
            ours: true,
        }
    }

    fn eventually(path: &std::path::Path, wanted: &str) {
        let started = Instant::now();
        loop {
            let now = std::fs::read_to_string(path).unwrap();
            // A folder's file keeps what a shorter text leaves of a longer one; the kernel's does not.
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
        let kernel = Kernel::at(dir.path());
        let writer = Writer::start(&kernel, &Memory::of(&place(Version::V2))).unwrap();
        for bytes in 1..=100 {
            writer.limit(Some(Bytes(bytes << 20))).unwrap();
        }
        eventually(&group.join("memory.high"), "104857600\n");
        writer.reclaim(Bytes(4096)).unwrap();
        eventually(&group.join("memory.reclaim"), "4096\n");
        writer.limit(None).unwrap();
        eventually(&group.join("memory.high"), "max\n");
        assert!(
            Writer::start(&kernel, &Memory::of(&place(Version::V1))).is_err(),
            "no such file"
        );
    }
}
