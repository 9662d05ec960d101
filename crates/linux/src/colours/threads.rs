//! The threads of a process whose pages are moved: which one does the calls, and which ones sleep.

use std::collections::BTreeMap;

use quell_kernel::root::Files;
use quell_kernel::{procfs, traceable};
use quell_types::cpuset::CpuSet;
use quell_types::pages::{Caller, Sleepers};
use quell_types::task::TaskId;

/// The most threads that are looked at one by one before each stop.
const MOST: usize = 128;

/// The thread that is to do calls, and the CPU for it: the one that it runs on. If it sleeps,
/// another program may have that one, and the settler was given one that was free.
pub(super) fn caller(files: &dyn Files, task: TaskId, settler: Option<u32>) -> Option<Caller> {
    let thread = traceable::thread(files, task)?;
    let stat = procfs::thread_stat(files, task.pid, thread.tid).ok()??;
    let settler = settler.filter(|_| stat.state != 'R');
    let settler = settler.and_then(|pid| procfs::stat(files, pid).ok()?);
    let cpus = files.affinity(thread.tid).ok()?;
    let last = settler.map(|stat| stat.last_cpu).into_iter();
    let on = last
        .chain([stat.last_cpu])
        .find(|cpu| cpus.contains(*cpu))?;
    Some(Caller {
        tid: thread.tid,
        cpus,
        on,
    })
}

/// The threads that sleep and may have the caller's CPU, by the CPUs that they have. None where
/// there are too many threads.
pub(super) fn sleepers(files: &dyn Files, task: TaskId, caller: &Caller) -> Vec<Sleepers> {
    let tids = procfs::threads(files, task.pid).unwrap_or_default();
    let mut found: BTreeMap<String, Sleepers> = BTreeMap::new();
    for tid in tids.iter().copied().filter(|_| tids.len() <= MOST) {
        let stat = procfs::thread_stat(files, task.pid, tid).ok().flatten();
        if !stat.is_some_and(|stat| stat.state == 'S' && !stat.io_worker()) {
            continue;
        }
        let cpus = files.affinity(tid).unwrap_or_else(|_| CpuSet::new());
        if cpus.contains(caller.on) && cpus.len() > 1 {
            let none = || Sleepers {
                tids: Vec::new(),
                cpus: cpus.clone(),
            };
            let same = found.entry(cpus.to_string()).or_insert_with(none);
            same.tids.push(tid);
        }
    }
    found.into_values().collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_kernel::root::Kernel;
    use std::collections::BTreeSet;
    use std::sync::mpsc;

    /// Others that take CPUs away would be in the way.
    mod live {
        use super::*;

        #[test]
        fn threads_that_sleep_are_found_with_their_cpus() {
            let files = Kernel::new().unwrap();
            let own = files.affinity(0).unwrap();
            let Some(on) = own.first().filter(|_| own.len() > 1) else {
                quell_testing::skip("one CPU");
                return;
            };
            let pid = std::process::id();
            let start = procfs::stat(&files, pid).unwrap().unwrap().id.start;
            let (tell, told) = mpsc::channel();
            let (end, ended) = mpsc::channel::<()>();
            let sleeper = std::thread::spawn(move || {
                tell.send(rustix::thread::gettid().as_raw_nonzero().get())
                    .unwrap();
                let _ = ended.recv();
            });
            let tid = told.recv().unwrap().unsigned_abs();
            while procfs::thread_stat(&files, pid, tid)
                .unwrap()
                .unwrap()
                .state
                != 'S'
            {
                std::thread::yield_now();
            }
            let caller = Caller {
                tid: rustix::thread::gettid()
                    .as_raw_nonzero()
                    .get()
                    .unsigned_abs(),
                cpus: own.clone(),
                on,
            };
            let found = sleepers(&files, TaskId { pid, start }, &caller);
            let with: Vec<&Sleepers> = found.iter().filter(|s| s.tids.contains(&tid)).collect();
            assert!(with.len() == 1 && with[0].cpus == own, "{found:?}");
            // One that runs, as this one, is not.
            assert!(found.iter().all(|s| !s.tids.contains(&caller.tid)));
            let all: Vec<u32> = found.iter().flat_map(|s| s.tids.clone()).collect();
            assert_eq!(all.iter().collect::<BTreeSet<_>>().len(), all.len());
            // None is kept on a CPU that it may not have.
            let elsewhere = Caller { on: 4095, ..caller };
            assert_eq!(sleepers(&files, TaskId { pid, start }, &elsewhere), []);
            drop(end);
            sleeper.join().unwrap();
        }
    }
}
