//! Cells side by side: one thread per machine takes cells in their order and keeps what each puts
//! on record.
//!
//! The thread that writes takes the cells in in the same order. On the record's clock each begins
//! where the one before ended. So the record does not depend on the number of machines, if what a
//! machine does depends on the cell alone.
//!
//! No machine begins a cell more than [`AHEAD`] per machine ahead of the next one to be written.
//! That bounds what is kept.

use std::collections::BTreeMap;
use std::sync::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::thread::{self, ScopedJoinHandle};
use std::time::Duration;
use std::vec;

use quell_record::backend::Backend;
use quell_record::events::{CpuTimes, Decision, Event};
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;

use crate::compare::Progress;
use crate::folder::Folder;
use crate::resume::shift;
use crate::rounds::{Place, Source, Stopper, Taken, attempts};
use crate::setup::Setup;
use crate::sink::Sink;

/// How many cells per machine may be given out ahead of the one that is written.
const AHEAD: usize = 4;
/// How often [`Progress::stop`] is asked while a cell is awaited.
const LOOK: Duration = Duration::from_millis(100);

/// What a cell put on record, with times of the machine's clock.
#[derive(Default)]
struct Tape(Vec<(Nanos, Entry)>);

enum Entry {
    Event(Event),
    Decisions(GroupId, CpuId, Vec<Decision>, u64),
    CpuTimes(Vec<CpuTimes>),
}

impl Sink for Tape {
    fn put(&mut self, at: Nanos, event: &Event) {
        self.0.push((at, Entry::Event(event.clone())));
    }

    fn decisions(&mut self, group: &GroupId, cpu: CpuId, decisions: &[Decision], missed: u64) {
        let entry = Entry::Decisions(group.clone(), cpu, decisions.to_vec(), missed);
        self.0.push((Nanos(0), entry));
    }

    fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
        self.0.push((at, Entry::CpuTimes(times.to_vec())));
    }

    fn wants_cpu_times(&self) -> bool {
        true
    }
}

impl Tape {
    /// Replays everything into `sink`, with every time passed through `on_record`.
    fn play(self, sink: &mut dyn Sink, on_record: impl Fn(Nanos) -> Nanos) {
        for (at, entry) in self.0 {
            match entry {
                Entry::Event(event) => sink.put(on_record(at), &event),
                Entry::CpuTimes(times) => sink.cpu_times(on_record(at), &times),
                Entry::Decisions(group, cpu, mut decisions, missed) => {
                    for decision in &mut decisions {
                        decision.at = on_record(decision.at);
                        decision.what = decision.what.on_clock(&on_record);
                    }
                    sink.decisions(&group, cpu, &decisions, missed);
                }
            }
        }
    }
}

/// A cell that was run, with all that it recorded.
struct Ran {
    outcome: Result<Taken, Stopper>,
    tape: Tape,
    notes: Vec<String>,
    /// By the clock of the machine it ran on.
    begun: Nanos,
    ended: Nanos,
}

/// What the machines' threads share.
struct Shared<'s> {
    setup: &'s Setup<'s>,
    cells: &'s [Place],
    /// Indices in `cells` of the cells to be run next.
    to_run: Mutex<Receiver<usize>>,
    /// Set once no further cell may begin.
    stop: AtomicBool,
}

/// Runs the cells of `to_run` on the machines, side by side. Meanwhile `take_in` takes them from
/// the source that it is given. `begun`: when the first of them begins, on the record's clock.
pub(crate) fn side_by_side<T>(
    setup: &Setup<'_>,
    cells: &[Place],
    machines: Vec<&mut (dyn Backend + Send)>,
    to_run: Vec<usize>,
    begun: Nanos,
    take_in: impl FnOnce(&mut dyn Source) -> T,
) -> T {
    let (feed, fed) = channel();
    let shared = Shared {
        setup,
        cells,
        to_run: Mutex::new(fed),
        stop: AtomicBool::new(false),
    };
    thread::scope(|scope| {
        let (results, ran) = channel();
        let mut source = Beside {
            feed,
            to_run: to_run.into_iter(),
            ran,
            early: BTreeMap::new(),
            workers: Vec::new(),
            stop: &shared.stop,
            stopped: None,
            clock: begun,
        };
        for _ in 0..AHEAD * machines.len() {
            source.feed();
        }
        for machine in machines {
            let (shared, results) = (&shared, results.clone());
            source
                .workers
                .push(scope.spawn(move || work(shared, machine, &results)));
        }
        take_in(&mut source)
        // Dropping the source closes the channel to the threads, and they end.
    })
}

/// The thread of one machine: runs cells until the channel closes.
fn work(shared: &Shared<'_>, machine: &mut dyn Backend, results: &Sender<(usize, Option<Ran>)>) {
    loop {
        let next = shared.to_run.lock().ok().and_then(|next| next.recv().ok());
        let Some((at, cell)) = next.and_then(|at| Some((at, shared.cells.get(at)?))) else {
            return;
        };
        let ran = (!shared.stop.load(Ordering::Relaxed)).then(|| {
            let mut tape = Tape::default();
            let mut notes = Vec::new();
            let begun = machine.now();
            let outcome = attempts(shared.setup, cell, machine, &mut tape, &mut |note| {
                notes.push(note.to_owned());
            });
            Ran {
                outcome,
                tape,
                notes,
                begun,
                ended: machine.now(),
            }
        });
        if results.send((at, ran)).is_err() {
            return;
        }
    }
}

/// Hands out what the machines have run, in the order of the cells.
struct Beside<'b, 'scope> {
    feed: Sender<usize>,
    to_run: vec::IntoIter<usize>,
    ran: Receiver<(usize, Option<Ran>)>,
    /// Cells that ended before their turn.
    early: BTreeMap<usize, Option<Ran>>,
    workers: Vec<ScopedJoinHandle<'scope, ()>>,
    stop: &'b AtomicBool,
    stopped: Option<Stopper>,
    /// When the next cell begins, on the record's clock.
    clock: Nanos,
}

impl Beside<'_, '_> {
    fn feed(&mut self) {
        if let Some(at) = self.to_run.next() {
            // If the threads are gone, `wait` finds that out.
            let _ = self.feed.send(at);
        }
    }

    /// The `at`-th cell, or `None` if it was not begun.
    fn wait(&mut self, at: usize, progress: &mut dyn Progress) -> Option<Ran> {
        loop {
            if let Some(ran) = self.early.remove(&at) {
                return ran;
            }
            if self.stopped.is_none()
                && let Some(signal) = progress.stop()
            {
                self.stop.store(true, Ordering::Relaxed);
                self.stopped = Some(Stopper::signal(signal));
            }
            match self.ran.recv_timeout(LOOK) {
                Ok((other, ran)) => {
                    self.early.insert(other, ran);
                }
                Err(RecvTimeoutError::Timeout)
                    if !self.workers.iter().any(ScopedJoinHandle::is_finished) => {}
                // A thread has panicked. The cell that it ran will never come.
                Err(_) => return None,
            }
        }
    }
}

impl Drop for Beside<'_, '_> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
    }
}

impl Source for Beside<'_, '_> {
    fn next(
        &mut self,
        at: usize,
        _: &Place,
        folder: &mut Option<Folder>,
        progress: &mut dyn Progress,
    ) -> Result<Taken, Stopper> {
        let Some(ran) = self.wait(at, progress) else {
            return Err(self.stopped.take().unwrap_or_else(|| {
                Stopper::Ended("a thread that runs cells has ended".to_owned())
            }));
        };
        self.feed();
        let (begun, clock) = (ran.begun, self.clock);
        let on_record = |at: Nanos| clock.plus(at.since(begun));
        ran.tape.play(folder, on_record);
        for note in &ran.notes {
            progress.note(note);
        }
        self.clock = on_record(ran.ended);
        ran.outcome.map(|mut taken| {
            shift(&mut taken.measured, &mut taken.throttling, |at| {
                on_record(at).0
            });
            taken
        })
    }
}
