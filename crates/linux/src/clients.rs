//! Programs that run already and report their units of work through quell-client. They ask for a
//! session at a socket. They get one if they belong to a group whose target has its units from
//! there.
//!
//! No program can delay Quell. Requests are read ten times a second, a limited number at a time.
//! The number of sessions is limited, and a session is read as any other ([`crate::units`]). The
//! kernel says which process asks. A pidfd watches that process, and its session ends with it, or
//! when it closes it.

use std::collections::{BTreeMap, BTreeSet};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

use quell_client::{Caller, Listener, Refused};
use quell_kernel::error::{Error, Result};
use quell_kernel::identity::person;
use quell_plan::Observed;
use quell_record::about::About;
use quell_record::backend::{Seen, TellerId};
use quell_record::events::Event;
use quell_types::ids::GroupId;
use quell_types::source::Source;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::process::{Pid, PidfdFlags};

use crate::membership::{Member, Membership};
use crate::units::{self, Units};

/// How often requests are read.
pub(crate) const EVERY: Nanos = Nanos::millis(100);
/// The most requests that are answered at a time.
const AT_A_TIME: usize = 16;
/// The most sessions at a time, apart from those of launched programs.
const MOST: usize = if cfg!(test) { 3 } else { 64 };
/// The most of them that the programs of one user have, so that nobody keeps others from being
/// heard.
const MOST_OF_USER: usize = if cfg!(test) { 2 } else { 32 };
/// What is set in the numbers of clients among the programs that tell of units. Those below are of
/// launched ones.
const FIRST_TELLER: u32 = 1 << 31;
/// The most processes that the record names over the whole run.
const MOST_TOLD: usize = 64;

/// The socket at which programs ask, below the folder of all runs.
pub(crate) fn socket(run_root: &Path) -> PathBuf {
    run_root.join("client").join("socket")
}

/// A process with a session.
#[derive(Debug)]
struct Client {
    pid: u32,
    /// As [`person`].
    user: u32,
    pidfd: OwnedFd,
    units: Units,
    /// Whether the process has taken the session.
    taken: bool,
}

/// A pidfd of the process that has this number now.
fn numbered(pid: u32) -> Option<OwnedFd> {
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw)?;
    rustix::process::pidfd_open(number, PidfdFlags::empty()).ok()
}

fn ended(process: &OwnedFd) -> bool {
    let mut watched = [PollFd::new(process, PollFlags::IN)];
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    rustix::event::poll(&mut watched, Some(&now)).is_ok_and(|ready| ready > 0)
}

/// The socket and all sessions that programs have asked for.
#[derive(Debug)]
pub(crate) struct Clients {
    listener: Listener,
    observed: BTreeMap<GroupId, Observed>,
    all: Vec<Client>,
    /// Sessions that were granted.
    granted: u32,
    /// Processes that the record has named.
    told: BTreeSet<u32>,
}

impl Clients {
    /// Begins to listen for programs of these groups.
    ///
    /// # Errors
    /// When the socket cannot be made.
    pub(crate) fn listen(run_root: &Path, observed: &BTreeMap<GroupId, Observed>) -> Result<Self> {
        let path = socket(run_root);
        let listener = Listener::open(&path).map_err(|e| {
            Error::refused_with(
                format!(
                    "{}: programs cannot be listened to there: {e}; what they tell of their units is not heard",
                    path.display()
                ),
                "look at who may write there",
            )
        })?;
        Ok(Self {
            listener,
            observed: observed.clone(),
            all: Vec::new(),
            granted: 0,
            told: BTreeSet::new(),
        })
    }

    /// Drops the sessions of ended processes, and answers requests. `has` says whether a process
    /// was launched with a session. `membership` is only called for the first request.
    pub(crate) fn attend<'a>(
        &mut self,
        now: Nanos,
        has: &dyn Fn(u32) -> bool,
        membership: &dyn Fn() -> Result<Membership<'a>>,
        seen: &mut Vec<Seen>,
    ) {
        self.let_go(now, seen);
        let mut members = None;
        for _ in 0..AT_A_TIME {
            let caller = match self.listener.next() {
                Ok(Some(caller)) => caller,
                Ok(None) => return,
                Err(e) => {
                    let what = format!("a program that asks for a session cannot be heard: {e}");
                    self.tell(0, what, None, seen);
                    return;
                }
            };
            let members = members.get_or_insert_with(membership);
            let pid = caller.pid();
            let user = match members {
                Ok(members) => person(members.files, caller.user()),
                Err(_) => caller.user(),
            };
            let group = match members {
                Ok(members) if pid != 0 => members.of(pid).map_err(|e| e.to_string()),
                Ok(_) => Ok(Member::OfNone),
                Err(e) => Err(e.to_string()),
            };
            match group {
                Ok(Member::Of(group)) => self.answer(now, caller, user, Some(group), has, seen),
                Ok(Member::OfNone) => self.answer(now, caller, user, None, has, seen),
                Ok(Member::OfAnother(group, above)) => {
                    caller.refuse(Refused::NoGroup);
                    let what = format!(
                        "group {group}: process {pid} of user {user} wants to tell of its units; only process {above} above it \
                         is matched, which is another user's: match process {pid} itself"
                    );
                    self.tell(pid, what, Some(group), seen);
                }
                Err(why) => {
                    caller.refuse(Refused::NoGroup);
                    let what = format!("which group process {pid} is in cannot be told: {why}");
                    self.tell(pid, what, None, seen);
                }
            }
        }
    }

    /// Reports the units of work in all sessions.
    pub(crate) fn tell_units(&mut self, now: Nanos, seen: &mut Vec<Seen>) {
        for client in &mut self.all {
            client.units.tell(now, seen);
        }
    }

    /// The units of all processes that have a session.
    pub(crate) fn units(&self) -> impl Iterator<Item = &Units> {
        self.all.iter().map(|client| &client.units)
    }

    fn answer(
        &mut self,
        now: Nanos,
        caller: Caller,
        user: u32,
        group: Option<GroupId>,
        has: &dyn Fn(u32) -> bool,
        seen: &mut Vec<Seen>,
    ) {
        let pid = caller.pid();
        let observed = group.and_then(|g| Some((self.observed.get(&g)?.clone(), g)));
        let Some((observed, group)) = observed.filter(|(o, _)| o.source == Source::Client) else {
            caller.refuse(Refused::NoGroup);
            let what = format!(
                "process {pid} wants to tell of its units, and is in no group whose target has source = \"client\""
            );
            self.tell(pid, what, None, seen);
            return;
        };
        if self.all.iter().any(|c| c.pid == pid) {
            // Its earlier session may be closed by now, or never taken.
            self.let_go(now, seen);
            for client in self.all.iter_mut().filter(|c| c.pid == pid && !c.taken) {
                client.units.tell(now, seen);
            }
            self.all.retain(|c| c.pid != pid || c.taken);
        }
        if has(pid) || self.all.iter().any(|c| c.pid == pid) {
            caller.refuse(Refused::Second);
            let what = format!("group {group}: process {pid} wants a second session; it has one");
            self.tell(pid, what, Some(group), seen);
            return;
        }
        let of_user = self.all.iter().filter(|c| c.user == user).count();
        if self.all.len() >= MOST || of_user >= MOST_OF_USER {
            caller.refuse(Refused::TooMany);
            let what = format!(
                "group {group}: process {pid} of user {user} is not heard: there are {} sessions of at most {MOST}, and \
                 {of_user} of that user's of at most {MOST_OF_USER}",
                self.all.len()
            );
            self.tell(pid, what, Some(group), seen);
            return;
        }
        match self.grant(caller, user, &group, &observed) {
            Ok(true) => {
                let what = format!("group {group}: process {pid} tells of its units");
                self.tell(pid, what, Some(group), seen);
            }
            // The process did not wait for the answer.
            Ok(false) => {}
            Err(e) => {
                let what = format!("group {group}: process {pid} gets no session: {e}");
                self.tell(pid, what, Some(group), seen);
            }
        }
    }

    fn grant(
        &mut self,
        mut caller: Caller,
        user: u32,
        group: &str,
        observed: &Observed,
    ) -> Result<bool> {
        let pid = caller.pid();
        let Some(pidfd) = caller.take_process().or_else(|| numbered(pid)) else {
            return Ok(false);
        };
        // Then this is still the process that asked, and its number was its own while its group was
        // found.
        if ended(&pidfd) || !caller.there() {
            return Ok(false);
        }
        let session = units::session(group, observed)?;
        if caller.grant(&session).is_err() {
            return Ok(false);
        }
        self.granted = self.granted.wrapping_add(1);
        let teller = TellerId(FIRST_TELLER | self.granted);
        self.all.push(Client {
            pid,
            user,
            pidfd,
            units: Units::of(group, teller, session),
            taken: false,
        });
        Ok(true)
    }

    /// Reads the last units of processes that have ended or closed their session, and drops them.
    fn let_go(&mut self, now: Nanos, seen: &mut Vec<Seen>) {
        self.all.retain_mut(|client| {
            let owned = client.units.owner() != 0;
            let over = ended(&client.pidfd) || (client.taken && !owned);
            client.taken |= owned;
            if over {
                client.units.tell(now, seen);
            }
            !over
        });
    }

    /// Adds a finding to the record, once per process.
    fn tell(&mut self, pid: u32, what: String, group: Option<GroupId>, seen: &mut Vec<Seen>) {
        if self.told.len() < MOST_TOLD && self.told.insert(pid) {
            let event = Event::finding(About::Client, what, group.as_deref());
            seen.push(Seen::Event(event));
        }
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Write};
    use std::process::{Child, Command, Stdio};
    use std::time::{Duration, Instant};

    use quell_client::{Demand, Session, layout};
    use quell_control::deadline::Unit;
    use quell_kernel::root::Kernel;
    use quell_kernel::rt;
    use quell_kernel::tasks::Matcher;
    use quell_record::events::Declared;
    use quell_types::task::TaskMatch;
    use quell_types::units::Share;

    use super::*;

    /// The program that asks, in a process of its own. Other tests run this test for that.
    #[test]
    fn program() {
        if std::env::var_os(layout::SOCKET_VARIABLE).is_none() {
            return;
        }
        let state = |s: &Session| match s.refused() {
            Some(why) => format!("{why}"),
            None => format!("{:?}", s.deadline()),
        };
        let mut session = Session::open();
        println!("\nfirst {}", state(&session));
        let second = Session::open();
        println!("second {}", state(&second));
        session.set_demand(Demand {
            bytes_per_unit: 64,
            working_set: 128,
        });
        // Each line is a unit, except the word that closes the session and opens another.
        for line in std::io::stdin().lines() {
            if line.unwrap() == "again" {
                drop(session);
                session = Session::open();
                println!("again {}", state(&session));
            } else {
                session.unit(Duration::from_millis(3));
            }
        }
    }

    struct Asking {
        child: Child,
        lines: BufReader<std::process::ChildStdout>,
    }

    impl Asking {
        fn start(root: &Path) -> Self {
            let mut child = Command::new(std::env::current_exe().unwrap())
                .args(["clients::tests::program", "--exact", "--nocapture"])
                .env(layout::SOCKET_VARIABLE, socket(root))
                .stdin(Stdio::piped())
                .stdout(Stdio::piped())
                .spawn()
                .unwrap();
            let lines = BufReader::new(child.stdout.take().unwrap());
            Self { child, lines }
        }

        fn say(&mut self, word: &str) {
            writeln!(self.child.stdin.as_mut().unwrap(), "{word}").unwrap();
        }

        /// What the program says after this word. `attend` is called meanwhile.
        fn hears(&mut self, word: &str, attend: &mut dyn FnMut()) -> String {
            std::thread::scope(|scope| {
                let lines = &mut self.lines;
                let read = scope.spawn(move || {
                    let found = lines.lines().map(std::io::Result::unwrap);
                    let mut found = found.filter_map(|l| Some(l.strip_prefix(word)?.to_owned()));
                    found.next().unwrap()
                });
                let begun = Instant::now();
                while !read.is_finished() && begun.elapsed() < Duration::from_secs(20) {
                    attend();
                    std::thread::sleep(Duration::from_millis(5));
                }
                read.join().unwrap().trim().to_owned()
            })
        }
    }

    impl Drop for Asking {
        fn drop(&mut self) {
            let _ = self.child.kill();
            let _ = self.child.wait();
        }
    }

    fn observed() -> BTreeMap<GroupId, Observed> {
        let observed = Observed {
            source: Source::Client,
            matching: Vec::new(),
            deadline: Some(Nanos::millis(16)),
            percentile: Share::percent(99),
        };
        [("job".to_owned(), observed)].into()
    }

    fn members<'a>(kernel: &'a Kernel, pids: &[u32]) -> Result<Membership<'a>> {
        let of = |pid: &u32| TaskMatch {
            pid: Some(*pid),
            ..TaskMatch::default()
        };
        let tables: Vec<TaskMatch> = pids.iter().map(of).collect();
        Ok(Membership {
            files: kernel,
            matchers: vec![Matcher::new(kernel, "job", &tables)?],
            homes: Vec::new(),
        })
    }

    fn findings(seen: &[Seen]) -> Vec<&str> {
        let found = seen.iter().filter_map(|one| match one {
            Seen::Event(Event::Finding { what, .. }) => Some(what.as_str()),
            _ => None,
        });
        found.collect()
    }

    #[test]
    fn a_program_of_the_group_is_heard_to_its_end_in_one_session() {
        let (kernel, dir) = (Kernel::new().unwrap(), tempfile::tempdir().unwrap());
        let mut clients = Clients::listen(dir.path(), &observed()).unwrap();
        let mut program = Asking::start(dir.path());
        let pid = program.child.id();
        let mut seen = Vec::new();
        // Returns whether the program's declaration of its units was read.
        let mut attend = |clients: &mut Clients| {
            let members = || members(&kernel, &[pid]);
            clients.attend(rt::now(), &|_| false, &members, &mut seen);
            clients.tell_units(rt::now(), &mut seen);
            let said = Declared {
                bytes_per_unit: 64,
                working_set: 128,
            };
            let job = "job".to_owned();
            clients
                .units()
                .any(|units| units.declared() == (&job, said))
        };
        let first = program.hears("first", &mut || {
            attend(&mut clients);
        });
        assert_eq!(first, "Some(16ms)");
        let second = program.hears("second", &mut || {
            attend(&mut clients);
        });
        assert_eq!(second, Refused::Second.to_string());
        let begun = Instant::now();
        while !attend(&mut clients) {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::sleep(Duration::from_millis(1));
        }
        program.say("unit");
        // It may close its session, and open another.
        program.say("again");
        let again = program.hears("again", &mut || {
            attend(&mut clients);
        });
        assert_eq!(again, "Some(16ms)");
        program.say("unit");
        drop(program.child.stdin.take());
        program.child.wait().unwrap();
        attend(&mut clients);
        assert!(clients.all.is_empty());
        let took: Vec<Nanos> = seen
            .iter()
            .filter_map(|one| match one {
                Seen::Units(group, _, units, 0) if group == "job" => Some(units),
                _ => None,
            })
            .flatten()
            .map(|unit: &Unit| unit.took)
            .collect();
        assert_eq!(took, [Nanos::millis(3); 2]);
        assert_eq!(
            findings(&seen),
            [format!("group job: process {pid} tells of its units")]
        );
    }

    #[test]
    fn a_refused_client_is_told_the_reason() {
        let (kernel, dir) = (Kernel::new().unwrap(), tempfile::tempdir().unwrap());
        let mut clients = Clients::listen(dir.path(), &observed()).unwrap();
        let mut seen = Vec::new();
        let mut asked = |clients: &mut Clients, member: bool, launched: bool| {
            let mut program = Asking::start(dir.path());
            let pids: Vec<u32> = member.then(|| program.child.id()).into_iter().collect();
            let said = program.hears("first", &mut || {
                clients.attend(
                    rt::now(),
                    &|_| launched,
                    &|| members(&kernel, &pids),
                    &mut seen,
                );
            });
            (program, said)
        };
        let (_stranger, said) = asked(&mut clients, false, false);
        assert_eq!(said, Refused::NoGroup.to_string());
        let (_launched, said) = asked(&mut clients, true, true);
        assert_eq!(said, Refused::Second.to_string());
        let mut inside = Vec::new();
        for _ in 0..MOST_OF_USER {
            let (program, said) = asked(&mut clients, true, false);
            assert_eq!(said, "Some(16ms)");
            inside.push(program);
        }
        let (_late, said) = asked(&mut clients, true, false);
        assert_eq!(said, Refused::TooMany.to_string());
        // There is room, for another user.
        assert!(clients.all.len() < MOST);
        drop(inside);
        let (_next, said) = asked(&mut clients, true, false);
        assert_eq!(said, "Some(16ms)");
    }

    #[test]
    fn nobody_who_asks_and_goes_is_waited_for() {
        let (kernel, dir) = (Kernel::new().unwrap(), tempfile::tempdir().unwrap());
        let mut clients = Clients::listen(dir.path(), &observed()).unwrap();
        let mut seen = Vec::new();
        for _ in 0..3 {
            // The program has asked, and is gone when it is answered.
            let asked = (1..=20).find_map(|tries| {
                let mut program = Asking::start(dir.path());
                std::thread::sleep(Duration::from_millis(100 * tries));
                program.child.kill().unwrap();
                program.child.wait().unwrap();
                clients.listener.next().unwrap()
            });
            let caller = asked.expect("a program that asks within two seconds");
            clients.answer(
                rt::now(),
                caller,
                0,
                Some("job".to_owned()),
                &|_| false,
                &mut seen,
            );
            assert!(clients.all.is_empty());
        }
        // Quell itself belongs to no group.
        let own = [std::process::id()];
        let members = members(&kernel, &own).unwrap();
        assert!(matches!(members.of(own[0]).unwrap(), Member::OfNone));
    }
}
