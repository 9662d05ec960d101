//! What running programs use over time, for `quell profile`. A program is started as a shell would
//! start it, or found as a policy's group finds its tasks. Then its counters are read
//! ([`crate::sampler`]).
//!
//! Nothing of the machine is changed, with one exception that is reported. To see which pages were
//! touched, the kernel's marks for that are cleared once (`/proc/PID/clear_refs`, proc(5)).
//!
//! Children of the program count with it from their birth on. Tasks that a match would select and
//! that come later are not counted.

use std::collections::BTreeSet;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::mpsc;

use quell_client::Reader;
use quell_client::layout::VARIABLE;
use quell_kernel::error::{Error, Result};
use quell_kernel::perf::{Event, EventCode, SW_TASK_CLOCK, Scope, TYPE_SOFTWARE, Wake};
use quell_kernel::pmu::{self, Counting};
use quell_kernel::root::Files;
use quell_kernel::tasks::{Matcher, assign, present};
use quell_kernel::{procfs, rt, signals};
use quell_record::backend::{Seen, SubjectId};
use quell_record::demand::{Work, WorkingSet};
use quell_types::cpuset::CpuSet;
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, poll};

use crate::children::{Birth, FirstPages, Subject};
use crate::sampler::{Sampler, Source};
use crate::work::{self, Countable, Counters};

/// How often the watched tasks are searched for, and counters of their work are read.
const SEARCH: Nanos = Nanos::millis(100);
/// How long a generator may take until it is ready.
const READY_WITHIN: Nanos = Nanos::secs(60);
/// How much longer than the span a generator runs. When it reports, its load rests for a moment.
const BEYOND: Nanos = Nanos::secs(5);

/// Counts the CPU time of a thread.
const CLOCK: EventCode = EventCode {
    kind: TYPE_SOFTWARE,
    config: SW_TASK_CLOCK,
};

/// The program to watch.
#[derive(Clone, Copy, Debug)]
pub enum Wanted<'a> {
    /// A command that speaks the generators' protocol. It is watched after a warm-up of this
    /// length.
    Generator(&'a [String], Nanos),
    /// Any other command, watched from its start.
    Command(&'a [String]),
    /// Tasks that run already.
    Tasks(&'a [TaskMatch]),
}

/// What is watched, and how.
#[derive(Clone, Debug)]
pub struct Options<'a> {
    /// Name of the program in messages.
    pub name: &'a str,
    /// The program to start, or the tasks to find.
    pub wanted: Wanted<'a>,
    /// The CPUs that a program is started on. Empty: any.
    pub cpus: CpuSet,
    /// All CPUs that Quell may use.
    pub all: CpuSet,
    /// How long to watch. A program that ends earlier ends it.
    pub span: Nanos,
    /// The events that are counted. Empty: CPU time.
    pub counting: &'a [Counting],
}

/// The result of watching a program.
#[derive(Clone, Debug)]
pub struct Watched {
    /// Times, each with two sums: nanoseconds of CPU time and 0, or lines read and lines written.
    pub readings: Vec<(Nanos, [u64; 2])>,
    /// Times, each with what the program had done by then. Empty where not all of that counts.
    pub work: Vec<(Nanos, Work)>,
    /// CPU time that reading took.
    pub cost: Nanos,
    /// Nanoseconds that each unit of work took. Empty unless the program was started here and
    /// reports units through quell-client.
    pub units_ns: Vec<u64>,
    /// What memory the program works on. `None` where that could not be read.
    pub working_set: Option<WorkingSet>,
    /// Sentences for a person.
    pub notes: Vec<String>,
}

/// Watches a program. Blocks until the span is over, the program ends, or a signal comes. `told` is
/// called with every line that a program writes, and `progress` with the percentage done.
///
/// # Errors
/// When the program cannot be started or is not there, and when it cannot be counted.
pub fn watch(
    files: &dyn Files,
    options: &Options<'_>,
    told: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(u32),
) -> Result<Watched> {
    let signals = signals::stop_signals()
        .map_err(|e| Error::refused(format!("signals cannot be received: {e}")))?;
    let mut session = Reader::create(None)
        .map_err(|e| Error::refused(format!("there is no memory for a session: {e}")))?;
    let file = session
        .file()
        .try_clone_to_owned()
        .map_err(|e| Error::refused(format!("no file can be opened: {e}")))?;
    let mut follow = |mut subject: Option<Subject>, own| {
        let known = subject.as_mut();
        let watched = observe(
            files,
            options,
            known,
            own,
            &signals,
            &mut session,
            told,
            progress,
        );
        if let Some(mut subject) = subject {
            subject.stop(&mut || ());
        }
        watched
    };
    let Wanted::Command(_) = options.wanted else {
        let none = Opened::here(options);
        return follow(begin(options, &file, &signals)?, none);
    };
    // A program may have children between its start and the opening of its counters (a shell has,
    // within a tenth of a millisecond). So it is born of a thread that is counted, and counts from
    // its birth on. The thread lives until the program has ended, because its death would kill the
    // program.
    std::thread::scope(|scope| {
        let (born, birth) = mpsc::channel();
        let (over, end) = mpsc::channel::<()>();
        let (signals, file) = (&signals, &file);
        scope.spawn(move || {
            let own = rustix::thread::gettid().as_raw_nonzero().get();
            let mut opened = Opened::here(options);
            let counted = opened.thread(options, own.unsigned_abs());
            let begun = counted.and_then(|()| Ok((begin(options, file, signals)?, opened)));
            // The receiver waits for this before anything else.
            let _ = born.send(begun);
            let _ = end.recv();
        });
        let gone = || Error::refused("the thread that starts programs has ended");
        let (subject, own) = birth.recv().map_err(|_| gone())??;
        let watched = follow(subject, own);
        drop(over);
        watched
    })
}

/// Starts the program, and has a generator run.
fn begin(options: &Options<'_>, session: &OwnedFd, signals: &OwnedFd) -> Result<Option<Subject>> {
    let (command, warmup) = match options.wanted {
        Wanted::Tasks(_) => return Ok(None),
        Wanted::Command(command) => (command, None),
        Wanted::Generator(command, warmup) => (command, Some(warmup)),
    };
    let birth = Birth {
        command,
        env: vec![(VARIABLE.to_owned(), session.as_raw_fd().to_string())],
        procs_files: Vec::new(),
        cpus: options.cpus.clone(),
        generator: warmup.is_some(),
        capture: true,
        along: false,
        inherits: vec![session.as_fd()],
        paging: FirstPages::default(),
    };
    let mut subject = Subject::start(SubjectId(1), options.name, &birth)?;
    if let Some(warmup) = warmup {
        let by = rt::now().plus(READY_WITHIN);
        let mut seen = Vec::new();
        while !seen.contains(&Seen::Ready(SubjectId(1))) {
            wait(signals, Some(&subject), by)?;
            subject.observe(&mut seen);
            let ended = seen.iter().any(|s| matches!(s, Seen::Exited(..)));
            if ended || rt::now() >= by {
                subject.stop(&mut || ());
                return Err(Error::refused(format!(
                    "{}: the generator did not become ready; what it wrote is above",
                    options.name
                )));
            }
        }
        let beyond = options.span.plus(BEYOND);
        subject.say(&format!("go {} {}\n", warmup.0, beyond.0))?;
        let until = rt::now().plus(warmup);
        while rt::now() < until {
            wait(signals, None, until)?;
        }
    }
    Ok(Some(subject))
}

/// The processes that are watched, and how to find them.
struct Followed<'a> {
    files: &'a dyn Files,
    matcher: Matcher,
    known: BTreeSet<u32>,
}

impl Followed<'_> {
    /// Adds the processes that match now.
    fn sample(&mut self) -> Result<()> {
        let mut assigned = assign(
            self.files,
            std::slice::from_ref(&self.matcher),
            &BTreeSet::new(),
            &mut || {},
        )?;
        let all = assigned.take(self.matcher.group()).into_iter();
        self.known.extend(all.map(|stat| stat.id.pid));
        Ok(())
    }
}

#[expect(clippy::too_many_arguments, reason = "one caller, which has them all")]
fn observe(
    files: &dyn Files,
    options: &Options<'_>,
    mut subject: Option<&mut Subject>,
    mut opened: Opened,
    signals: &OwnedFd,
    session: &mut Reader,
    told: &mut dyn FnMut(&str),
    progress: &mut dyn FnMut(u32),
) -> Result<Watched> {
    let own = subject.as_ref().map(|s| TaskMatch {
        pid: Some(s.pid()),
        ..TaskMatch::default()
    });
    let tables = match (&own, options.wanted) {
        (Some(own), _) => std::slice::from_ref(own),
        (None, Wanted::Tasks(tables)) => tables,
        (None, _) => &[],
    };
    let mut followed = Followed {
        files,
        matcher: Matcher::new(files, options.name, tables)?,
        known: BTreeSet::new(),
    };
    let named = std::slice::from_ref(&followed.matcher);
    present(files, named, &BTreeSet::new())?;
    followed.sample()?;
    let first = followed.known.clone();
    if first.is_empty() {
        return Err(Error::refused(format!(
            "{}: no task is matched: there is nothing to look at",
            options.name
        )));
    }
    let from_birth = matches!(options.wanted, Wanted::Command(_));
    for pid in first.iter().filter(|_| !from_birth) {
        for thread in procfs::threads(files, *pid)? {
            opened.thread(options, thread)?;
        }
    }
    let marks = if from_birth {
        Ok(())
    } else {
        first.iter().try_for_each(|pid| clear(files, *pid))
    };
    let other = options.all.difference(&options.cpus).first();
    let beside = other.filter(|_| !options.cpus.is_empty());
    let Opened { sources, work, .. } = opened;
    let sampler = Sampler::start(sources, beside)
        .map_err(|e| Error::refused(format!("the counters cannot be read: {e}")))?;
    let begun = rt::now();
    let end = begun.plus(options.span);
    let mut done = Done::default();
    done.read(begun, &work);
    // Drops the units from the time before it was ready.
    let (mut units, mut lost) = (Vec::new(), 0);
    session.read(|| rt::now().0, &mut Vec::new());
    let (mut search, mut notes, mut seen) = (begun.plus(SEARCH), Vec::new(), Vec::new());
    let mut ended = false;
    while !ended && rt::now() < end {
        if let Some(signal) = wait(signals, subject.as_deref(), end.min(search))? {
            notes.push(format!("ended early by signal {signal}"));
            break;
        }
        if let Some(subject) = subject.as_deref_mut() {
            subject.observe(&mut seen);
        }
        lost += session.read(|| rt::now().0, &mut units).lost;
        for one in seen.drain(..) {
            match one {
                Seen::Line(_, line) => told(&line),
                Seen::Exited(_, status, _) => {
                    ended = true;
                    if status != 0 {
                        notes.push(format!("{} ended with status {status}", options.name));
                    }
                }
                _ => {}
            }
        }
        if rt::now() >= search && !ended {
            search = rt::now().plus(SEARCH);
            done.read(rt::now(), &work);
            let part = rt::now().since(begun).0 * 100 / options.span.0.max(1);
            progress(u32::try_from(part.min(100)).unwrap_or(100));
            // The process that was named is gone.
            if followed.sample().is_err() {
                break;
            }
            ended = subject.is_none() && followed.known.iter().all(|pid| gone(files, *pid));
        }
    }
    done.read(rt::now(), &work);
    let readings = sampler.end();
    if lost > 0 {
        notes.push(format!(
            "{lost} units of work came faster than they were read"
        ));
    }
    if readings.gaps {
        notes
            .push("a counter was taken away for a time: what was drawn then is missing".to_owned());
    }
    let working_set = working_set(files, &followed.known, marks, from_birth);
    Ok(Watched {
        readings: readings.all,
        work: done.0,
        cost: readings.cost,
        units_ns: units.iter().map(|unit| unit.took_ns).collect(),
        working_set,
        notes,
    })
}

fn gone(files: &dyn Files, pid: u32) -> bool {
    let stat = procfs::stat(files, pid);
    stat.is_ok_and(|stat| stat.is_none_or(|stat| stat.dead()))
}

/// Waits for a signal, the program's output or end, or `until`. Returns the signal, if there was
/// one.
fn wait(signals: &OwnedFd, subject: Option<&Subject>, until: Nanos) -> Result<Option<i32>> {
    let mut all: Vec<BorrowedFd<'_>> = vec![signals.as_fd()];
    all.extend(subject.iter().flat_map(|s| s.descriptors()));
    let mut all: Vec<PollFd<'_>> = all
        .into_iter()
        .map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN))
        .collect();
    let timeout = rt::timespec(until.since(rt::now()));
    match poll(&mut all, Some(&timeout)) {
        Ok(_) | Err(rustix::io::Errno::INTR) => Ok(signals::next_signal(signals)),
        Err(e) => Err(Error::refused(format!(
            "the program cannot be waited for: {e}"
        ))),
    }
}

/// The counters of the watched threads and their children.
struct Opened {
    sources: Vec<Source>,
    countable: Option<Countable>,
    work: Vec<Counters>,
}

impl Opened {
    /// No thread yet. Finds out which events count.
    fn here(options: &Options<'_>) -> Self {
        let demand: Vec<EventCode> = codes(options).into_iter().map(|(code, _)| code).collect();
        Self {
            sources: Vec::new(),
            countable: Countable::here(&demand),
            work: Vec::new(),
        }
    }

    /// Adds a thread. One that has ended meanwhile counts nothing.
    fn thread(&mut self, options: &Options<'_>, thread: u32) -> Result<()> {
        let refused = |e: std::io::Error| {
            Error::refused_with(
                format!("{}: thread {thread} cannot be counted: {e}", options.name),
                "run as root, or lower kernel.perf_event_paranoid",
            )
        };
        let ended = |e: &std::io::Error| e.raw_os_error() == Some(libc::ESRCH);
        let mut source = Source::default();
        for (code, write) in codes(options) {
            match Event::open(code, Scope::Thread(thread), Wake::Never) {
                Ok(event) => source.0[usize::from(write)].push(event),
                Err(e) if ended(&e) => {}
                Err(e) => return Err(refused(e)),
            }
        }
        self.sources.push(source);
        match self.countable.map(|countable| countable.of(thread)) {
            Some(Ok(counters)) => self.work.push(counters),
            Some(Err(e)) if !ended(&e) => return Err(refused(e)),
            _ => {}
        }
        Ok(())
    }
}

/// The events of every kind of core, because a thread may use any, and whether they count what is
/// written; else the thread's clock.
fn codes(options: &Options<'_>) -> Vec<(EventCode, bool)> {
    let of = |counting: &Counting| -> Vec<(EventCode, bool)> {
        let writes = counting.events.iter().map(|e| e.write);
        counting.codes().into_iter().zip(writes).collect()
    };
    let mut codes: Vec<(EventCode, bool)> = options.counting.iter().flat_map(of).collect();
    if codes.is_empty() {
        codes.push((CLOCK, false));
    }
    codes
}

/// What the program has done, from time to time. Nothing once a counter was taken away.
#[derive(Default)]
struct Done(Vec<(Nanos, Work)>);

impl Done {
    fn read(&mut self, now: Nanos, counters: &[Counters]) {
        match work::together(counters) {
            Some(work) => self.0.push((now, work)),
            None => self.0.clear(),
        }
    }
}

/// Whether these events see the lines that are written back.
#[must_use]
pub fn sees_writes(counting: &[Counting], cpus: &CpuSet) -> bool {
    pmu::fills_only(counting, cpus).is_empty()
}

fn clear(files: &dyn Files, pid: u32) -> Result<()> {
    files.put(&format!("/proc/{pid}/clear_refs"), "1")
}

/// Bytes of a process's memory: resident, and how much of that is marked as touched. `None` once
/// the process is gone.
fn rollup(files: &dyn Files, pid: u32) -> Result<Option<(u64, u64)>> {
    let path = format!("/proc/{pid}/smaps_rollup");
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name))?;
        let kib: u64 = line.trim().strip_suffix("kB")?.trim().parse().ok()?;
        Some(kib << 10)
    };
    // A process that is ending has only the header line left.
    Ok(field("Rss:").zip(field("Referenced:")))
}

fn working_set(
    files: &dyn Files,
    pids: &BTreeSet<u32>,
    marks: Result<()>,
    from_birth: bool,
) -> Option<WorkingSet> {
    let read = |pid: &u32| rollup(files, *pid).ok().flatten();
    let all: Vec<(u64, u64)> = pids.iter().filter_map(read).collect();
    let sum = |of: fn(&(u64, u64)) -> u64| all.iter().map(of).sum::<u64>();
    let since = if from_birth {
        "its start"
    } else {
        "the beginning"
    };
    let page = rustix::param::page_size() as u64;
    (!all.is_empty()).then(|| WorkingSet {
        resident_bytes: sum(|m| m.0),
        touched_bytes: marks.is_ok().then(|| sum(|m| m.1)),
        cached_bytes: None,
        cache_bytes: None,
        resolution_bytes: page,
        how: match &marks {
            Ok(()) => format!(
                "pages of {page} bytes that the kernel saw touched since {since} (/proc/PID/smaps_rollup), a large page as a whole; pages that \
                 processes share count for each, and as touched whoever touched them"
            ),
            Err(why) => format!("resident pages only; which were touched cannot be told: {why}"),
        },
    })
}

#[cfg(test)]
#[path = "profile_tests.rs"]
mod tests;
