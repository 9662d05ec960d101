//! Which processes the parties' match tables mean, remembered from look to look.
//!
//! A process is compared when it is new, and in its first looks, since it may still run another
//! program. Later every 32nd look compares it again. What would break a promise is read anew
//! before it is reported.

use std::collections::{BTreeSet, HashMap};

use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::tasks::{self, Fit, Matcher};

use crate::claim::Party;

/// Looks in which a new process is compared each time.
const YOUNG: u64 = 3;
/// An older process is compared once in so many looks.
const ROUND: u64 = 32;
/// The most ancestors that are followed.
const GENERATIONS: usize = 64;

/// Which party a process matches by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Match {
    None,
    /// The party's place in the list of parties.
    Party(usize),
    /// Two parties match it: it is left out, with its children.
    Several,
}

#[derive(Clone, Copy, Debug)]
struct Process {
    /// Clock ticks since boot.
    start: u64,
    parent: u32,
    kernel: bool,
    /// The look that found it first.
    since: u64,
    own: Match,
}

/// All processes of the machine, as far as the parties need them.
#[derive(Debug, Default)]
pub(crate) struct Matches {
    /// One for each party that has tables that can be read.
    matchers: Vec<Matcher>,
    /// The parties of `matchers`.
    of: Vec<usize>,
    /// Why the tables of a party cannot be used.
    wrong: HashMap<usize, String>,
    /// Processes that were started for a party.
    started: HashMap<u32, usize>,
    known: HashMap<u32, Process>,
    look: u64,
}

impl Matches {
    /// Prepares the match tables. Those that are wrong are remembered with the reason.
    pub fn new(files: &dyn Files, parties: &[Party]) -> Self {
        let mut found = Self::default();
        for (party, of) in parties.iter().enumerate() {
            if of.matching.is_empty() {
                continue;
            }
            match Matcher::new(files, &of.name, &of.matching) {
                Ok(matcher) => {
                    found.matchers.push(matcher);
                    found.of.push(party);
                }
                Err(e) => {
                    found.wrong.insert(party, e.to_string());
                }
            }
        }
        found
    }

    /// Sets the processes that were started for parties. Their children follow them.
    pub fn start(&mut self, pids: HashMap<u32, usize>) {
        self.started = pids;
    }

    /// Whether there is something to match.
    pub fn any(&self) -> bool {
        !self.matchers.is_empty() || !self.started.is_empty()
    }

    /// Why the tables of a party cannot be used. `None` where they can.
    pub fn wrong(&self, party: usize) -> Option<&str> {
        self.wrong.get(&party).map(String::as_str)
    }

    /// Begins a look: `pids` are all processes that are there.
    pub fn update(&mut self, files: &dyn Files, pids: &[u32]) {
        self.look += 1;
        if self.known.len() > pids.len() {
            let there: BTreeSet<u32> = pids.iter().copied().collect();
            self.known.retain(|pid, _| there.contains(pid));
        }
        for pid in pids {
            let due = self.known.get(pid).is_none_or(|process| {
                let young = self.look < process.since + YOUNG && !process.kernel;
                young || (u64::from(*pid) + self.look).is_multiple_of(ROUND)
            });
            if due {
                self.refresh(files, *pid);
            }
        }
    }

    /// Reads a process anew.
    fn refresh(&mut self, files: &dyn Files, pid: u32) {
        // The leader's own file: that of the process adds up all its threads.
        let Ok(Some(stat)) = procfs::thread_stat(files, pid, pid) else {
            self.known.remove(&pid);
            return;
        };
        let kernel = stat.kernel_thread();
        let before = self.known.get(&pid).filter(|p| p.start == stat.id.start);
        let since = before.map_or(self.look, |p| p.since);
        let own = match kernel || stat.over() || self.matchers.is_empty() {
            true => Match::None,
            false => match tasks::matched(files, &self.matchers, pid) {
                Ok(Fit::None) => Match::None,
                Ok(Fit::Group(name)) => {
                    let at = self.matchers.iter().position(|m| m.group() == name);
                    at.map_or(Match::None, |at| Match::Party(self.of[at]))
                }
                Ok(Fit::Two(_)) => Match::Several,
                // It ended, or may not be read.
                Err(_) => Match::None,
            },
        };
        let process = Process {
            start: stat.id.start,
            parent: stat.parent,
            kernel,
            since,
            own,
        };
        self.known.insert(pid, process);
    }

    /// Whether a process is a thread of the kernel.
    pub fn is_kernel(&self, pid: u32) -> bool {
        self.known.get(&pid).is_some_and(|p| p.kernel)
    }

    /// Threads of the kernel, ascending.
    pub fn kernel(&self) -> Vec<u32> {
        let all = self.known.iter().filter(|(_, p)| p.kernel);
        let mut all: Vec<u32> = all.map(|(pid, _)| *pid).collect();
        all.sort_unstable();
        all
    }

    /// Whether the parent of a process is in `pids`.
    pub fn is_child(&self, pid: u32, pids: &BTreeSet<u32>) -> bool {
        self.known
            .get(&pid)
            .is_some_and(|p| pids.contains(&p.parent))
    }

    /// The party of a process: the one that matches it or for which it was started, or that of its
    /// closest such ancestor. Children of processes in `ignore` follow no further ancestor.
    pub fn party(&self, pid: u32, ignore: &BTreeSet<u32>) -> Option<usize> {
        let mut at = pid;
        for _ in 0..GENERATIONS {
            let process = self.known.get(&at)?;
            let started = self.started.get(&at);
            match process.own {
                Match::Party(party) => return Some(party),
                Match::Several => return None,
                Match::None if started.is_some() => return started.copied(),
                Match::None if process.parent == 0 || ignore.contains(&process.parent) => {
                    return None;
                }
                Match::None => at = process.parent,
            }
        }
        None
    }

    /// As [`Self::party`], after the process and its ancestors were read anew.
    pub fn confirmed(
        &mut self,
        files: &dyn Files,
        pid: u32,
        ignore: &BTreeSet<u32>,
    ) -> Option<usize> {
        let mut at = pid;
        for _ in 0..GENERATIONS {
            self.refresh(files, at);
            let process = self.known.get(&at)?;
            if process.own != Match::None || process.parent == 0 {
                break;
            }
            at = process.parent;
        }
        self.party(pid, ignore)
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::fake::{Fake, Flavour, Spec};
    use quell_types::task::TaskMatch;

    use super::*;

    fn party(name: &str, comm: &str) -> Party {
        Party {
            name: name.to_owned(),
            matching: vec![TaskMatch {
                comm: Some(comm.to_owned()),
                ..TaskMatch::default()
            }],
            ..Party::default()
        }
    }

    #[test]
    fn children_follow_and_a_process_of_two_parties_is_left_out() {
        let fake = Fake::new(&Spec::new(Flavour::V2));
        let [a, b, child, stray] = fake.with(|m| {
            let (a, b) = (m.spawn("a"), m.spawn("b"));
            let child = m.fork(a);
            [a, b, child, m.spawn("stray")]
        });
        let mut parties = [party("one", "a"), party("two", "b"), party("three", "b")];
        parties[0].matching = vec![format!("pid={a}").parse().unwrap()];
        let mut matches = Matches::new(&fake, &parties);
        let mut pids = vec![1, 2, a, b, child, stray];
        matches.update(&fake, &pids);
        let none = BTreeSet::new();
        let of = |matches: &Matches, pid| matches.party(pid, &none);
        assert_eq!(of(&matches, a), Some(0));
        assert_eq!(of(&matches, child), Some(0));
        assert_eq!((of(&matches, b), of(&matches, stray)), (None, None));
        assert!(matches.is_kernel(2) && !matches.is_kernel(a));
        // Its parent ends: init adopts it.
        fake.with(|m| {
            m.exit(a);
            m.reap(a);
        });
        pids.retain(|pid| *pid != a);
        matches.update(&fake, &pids);
        assert_eq!(matches.confirmed(&fake, child, &none), None);
    }

    #[test]
    fn children_of_quell_follow_nobody() {
        let fake = Fake::new(&Spec::new(Flavour::V2));
        let (above, quell, launched) = fake.with(|m| {
            let above = m.spawn("a");
            let quell = m.fork(above);
            (above, quell, m.fork(quell))
        });
        let mut parties = [party("one", "a")];
        parties[0].matching = vec![format!("pid={above}").parse().unwrap()];
        let mut matches = Matches::new(&fake, &parties);
        matches.update(&fake, &[above, quell, launched]);
        let ignore = BTreeSet::from([quell]);
        assert_eq!(matches.party(launched, &ignore), None);
        assert_eq!(matches.party(launched, &BTreeSet::new()), Some(0));
        assert!(matches.is_child(launched, &ignore));
        matches.start(HashMap::from([(launched, 1)]));
        assert_eq!(matches.party(launched, &ignore), Some(1));
        let child = fake.with(|m| m.fork(launched));
        matches.update(&fake, &[above, quell, launched, child]);
        assert_eq!(matches.confirmed(&fake, child, &ignore), Some(1));
    }

    #[test]
    fn tables_that_make_no_sense_are_remembered() {
        let fake = Fake::new(&Spec::new(Flavour::V2));
        let mut wrong = party("one", "a");
        wrong.matching[0].arg = Some("(".to_owned());
        let matches = Matches::new(&fake, &[wrong, party("two", "b")]);
        assert!(matches.wrong(0).is_some_and(|why| why.contains("arg")));
        assert!(matches.wrong(1).is_none() && matches.any());
    }
}
