//! Moves between cgroups without their usual delay.
//!
//! A move has to keep the whole machine from starting threads. After a pause the first one waits
//! for that until every CPU has passed through the scheduler (`percpu_down_write`, 5 to 20 ms): as
//! long as a short program lives. A move that follows within some 8 ms does not wait. So while
//! programs begin that have to be moved, a thread moves Quell to the cgroup that it is in already,
//! again and again. It is what the mount option `favordynmods` does for good. Starting a thread
//! costs every program a little more meanwhile.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread::{Builder, JoinHandle};
use std::time::Duration;

use quell_kernel::cgroup::Hierarchy;
use quell_kernel::root::{Files, Kernel};
use quell_kernel::rt;
use quell_types::units::Nanos;

/// Shorter than what the kernel takes to go back to slow moves.
const EVERY: Duration = Duration::from_millis(5);
/// How long moves are kept quick after one was needed.
const AFTER: Nanos = Nanos::secs(2);

/// Keeps moves quick for a while. Dropped, it ends its thread.
#[derive(Default)]
pub struct Gate {
    until: Arc<AtomicU64>,
    thread: Option<JoinHandle<()>>,
}

impl Gate {
    /// Keeps moves quick for the next two seconds. Where no thread can be started, they are slow.
    pub fn keep_open(&mut self, hierarchy: &Hierarchy) {
        self.until.store(rt::now().plus(AFTER).0, Ordering::Relaxed);
        if self.thread.as_ref().is_some_and(|t| !t.is_finished()) {
            return;
        }
        let (until, hierarchy) = (Arc::clone(&self.until), hierarchy.clone());
        let stay = move || {
            let Ok(files) = Kernel::new() else {
                return;
            };
            let own = std::process::id();
            while rt::now().0 < until.load(Ordering::Relaxed) {
                // Read each time: whoever moves Quell meanwhile is not to be undone.
                let Ok(Some(dir)) = hierarchy.dir_of(&files, own) else {
                    return;
                };
                if files
                    .write(&format!("{dir}/cgroup.procs"), &own.to_string())
                    .is_err()
                {
                    return;
                }
                std::thread::sleep(EVERY);
            }
        };
        self.thread = Builder::new().name("gate".to_owned()).spawn(stay).ok();
    }
}

impl Drop for Gate {
    fn drop(&mut self) {
        self.until.store(0, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}
