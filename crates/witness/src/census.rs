//! Which threads there are, brought up to date from look to look.
//!
//! The kernel gives numbers to tasks in ascending order, and `/proc/loadavg` tells the last one
//! given (Documentation/filesystems/proc.rst). So only the numbers given since the last look are
//! asked for, one system call each, and those of the look before: a task has its number a moment
//! before it can be seen. Everything is listed anew where numbers began again from the lowest,
//! where many were given, and from time to time, since root may choose a number (`clone3`).

use std::collections::{BTreeMap, HashSet};
use std::io;

use quell_kernel::procfs;
use quell_kernel::root::Files;

/// From so many new numbers on, listing everything is no dearer.
const MOST: u32 = 2_000;
/// Looks after which everything is listed anew.
const EVERY: u32 = 14;

/// The threads of the machine.
#[derive(Debug, Default)]
pub(crate) struct Census {
    /// Process → its threads.
    pub threads: BTreeMap<u32, Vec<u32>>,
    /// How many processes could not be looked into when everything was listed.
    pub hidden: usize,
    known: HashSet<u32>,
    /// The last number given, at the last look and at the one before.
    given: Option<[u32; 2]>,
    /// Looks since everything was listed.
    looks: u32,
}

/// What `/proc/loadavg` says of tasks: how many there are, and the last number given. `None` where
/// it does not say it.
pub(crate) fn told(files: &dyn Files) -> Option<(usize, u32)> {
    let text = files.read("/proc/loadavg").ok()?;
    let mut fields = text.split_ascii_whitespace().skip(3);
    let count = fields.next()?.split_once('/')?.1.parse().ok()?;
    Some((count, fields.next()?.parse().ok()?))
}

impl Census {
    /// Brings it up to date.
    ///
    /// # Errors
    /// Where `/proc` cannot be listed.
    pub fn update(&mut self, files: &dyn Files) -> io::Result<()> {
        // Before anything is listed: what is born meanwhile has a higher number.
        let last = told(files).map(|(_, last)| last);
        self.looks += 1;
        let new = self.given.zip(last).filter(|([older, before], now)| {
            let few = now.checked_sub(*older).is_some_and(|new| new <= MOST);
            few && before <= now && self.looks < EVERY
        });
        match new {
            Some(([older, before], now)) if self.ask(files, older, now) => {
                self.given = Some([before, now]);
            }
            _ => {
                self.list(files)?;
                self.given = last.map(|last| [last, last]);
                self.looks = 0;
            }
        }
        Ok(())
    }

    /// Forgets threads that have ended.
    pub fn forget(&mut self, ended: &HashSet<u32>) {
        if ended.is_empty() {
            return;
        }
        self.known.retain(|tid| !ended.contains(tid));
        self.threads.retain(|_, tids| {
            tids.retain(|tid| !ended.contains(tid));
            !tids.is_empty()
        });
    }

    /// Adds the threads with numbers above `after` up to `last`. Returns whether they can be asked
    /// for one by one.
    fn ask(&mut self, files: &dyn Files, after: u32, last: u32) -> bool {
        if files.affinity(0).is_err() {
            return false;
        }
        for tid in after + 1..=last {
            if self.known.contains(&tid) {
                continue;
            }
            match files.affinity(tid) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => {}
                Err(_) => return false,
                Ok(_) => match procfs::process_of(files, tid) {
                    Ok(Some(pid)) => {
                        self.known.insert(tid);
                        self.threads.entry(pid).or_default().push(tid);
                    }
                    Ok(None) => {}
                    Err(_) => return false,
                },
            }
        }
        true
    }

    fn list(&mut self, files: &dyn Files) -> io::Result<()> {
        let names = files.list("/proc")?;
        *self = Self {
            given: self.given,
            ..Self::default()
        };
        for pid in names.iter().filter_map(|name| name.parse().ok()) {
            match procfs::threads(files, pid) {
                Ok(tids) => {
                    self.known.extend(&tids);
                    self.threads.insert(pid, tids);
                }
                Err(e) => self.hidden += usize::from(e.errno() != Some(libc::ESRCH)),
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use std::process::{Child, Command};

    use quell_kernel::root::Kernel;

    use super::*;

    fn sleeper() -> Child {
        Command::new("sleep").arg("1000").spawn().unwrap()
    }

    #[test]
    fn new_threads_are_found_by_their_numbers() {
        let files = Kernel::at("/");
        let mut census = Census::default();
        census.update(&files).unwrap();
        let listed = census.threads.len();
        assert!(listed > 1);
        let mut children: Vec<Child> = (0..5).map(|_| sleeper()).collect();
        let (tell, told) = std::sync::mpsc::channel();
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let thread = std::thread::spawn(move || {
            tell.send(rustix::thread::gettid()).unwrap();
            let _ = ends.recv();
        });
        let tid = told.recv().unwrap().as_raw_nonzero().get().unsigned_abs();
        census.update(&files).unwrap();
        // It was asked for, not listed.
        assert_eq!(census.looks, 1);
        for child in &children {
            assert_eq!(census.threads.get(&child.id()), Some(&vec![child.id()]));
        }
        assert!(census.threads[&std::process::id()].contains(&tid));
        drop(end);
        thread.join().unwrap();
        for child in &mut children {
            child.kill().unwrap();
            child.wait().unwrap();
        }
        census.forget(&children.iter().map(Child::id).chain([tid]).collect());
        assert!(
            children
                .iter()
                .all(|child| !census.threads.contains_key(&child.id()))
        );
        assert!(!census.threads[&std::process::id()].contains(&tid));
    }

    #[test]
    fn everything_is_listed_anew_after_some_looks() {
        let files = Kernel::at("/");
        let mut census = Census::default();
        let looks = (0..2 * EVERY).map(|_| {
            census.update(&files).unwrap();
            census.looks
        });
        assert!(looks.filter(|looks| *looks == 0).count() >= 2);
    }
}
