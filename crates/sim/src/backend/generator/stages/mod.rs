//! The two stages of the video call, as loops over what is due, as on Linux. A loop decides what it
//! does next ([`Todo`]) when what it did is done. Its accesses take the machine's time. Where its
//! task has to wait for its core, or is stopped, so does the loop.
//!
//! | stage | metric | a value per | is |
//! |---|---|---|---|
//! | both | `bandwidth_mb_s` | window | bytes that it read from memory, as the study counts them |
//! | both | `frames_per_s` | second | frames decoded; frames drawn |
//! | call | `rtt_ms` | packet | from sending to handling what came back |
//! | call | `media_kb_s` | second | 10^3 bytes of packets that came back |
//! | call | `wasted_packets` | second | packets lost, or back too late for their frame |
//! | call | `encode_ms` | frame | from capture to its being encoded |
//! | display | `compose_ms` | frame | from taking it to its being drawn |
//! | display | `age_ms` | frame of a call | from capture to its being drawn |

mod call;
mod display;
mod link;

use std::collections::BTreeMap;

use quell_control::deadline;
use quell_model::Picos;
use quell_policy::workload::BANDWIDTH_MB_S;
use quell_record::backend::SubjectId;
use quell_record::measurement::Measurement;
use quell_types::rng::SplitMix;
use quell_types::units::{LINE_BYTES, Nanos, Rate};
use quell_types::windows::{Cut, Windows};

use super::{Bell, Counter, Key, WINDOW};
use crate::os::{Os, TaskId};
use crate::pattern::{FPS, Pattern, Piece, Stage};
use call::Call;
use display::Display;
pub(in super::super) use link::Link;

/// Nanoseconds of a second.
const SECOND: u64 = 1_000_000_000;
/// What a loop does when it wakes: it looks whether there is anything.
const WAKE: Piece = Piece::Copy {
    lines: 1,
    compute: 0,
};
/// The same frames in every run: configurations are compared, not films.
const SEED: u64 = 0x5eed;

fn ms(time: Nanos) -> f64 {
    time.0 as f64 / 1e6
}

/// Lines of a frame's traffic: a fifth more or less than the mean, evenly.
fn frame_lines(stage: Stage, random: &mut SplitMix) -> u64 {
    let lines = stage.lines();
    lines * 4 / 5 + random.below(lines * 2 / 5 + 1)
}

/// What a loop does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Todo {
    Do(Piece),
    /// Nothing until then.
    Sleep(Nanos),
    /// Nothing until the other stage has news.
    Wait,
}

/// What happened in the measured span.
#[derive(Debug, Default)]
struct Log {
    measures: bool,
    /// When frames were done, from the last one before the span on.
    frames: Vec<Nanos>,
    samples: BTreeMap<&'static str, Vec<f64>>,
    /// When how many bytes of media came back, and packets were found to be of no use.
    media: Vec<(Nanos, u64)>,
    wasted: u64,
    /// Units that have not been taken yet. `None`: they are not collected.
    units: Option<Vec<deadline::Unit>>,
    now: Nanos,
}

impl Log {
    fn begin(&mut self) {
        self.measures = true;
        self.frames.drain(..self.frames.len().saturating_sub(1));
        self.samples.clear();
        self.media.clear();
        self.wasted = 0;
    }

    fn frame(&mut self, now: Nanos) {
        if !self.measures {
            self.frames.clear();
        }
        self.frames.push(now);
    }

    fn unit(&mut self, begun: Nanos, now: Nanos) {
        if let Some(units) = &mut self.units {
            units.push(deadline::Unit {
                ended: now,
                took: now.since(begun),
                target: None,
            });
        }
    }

    fn sample(&mut self, name: &'static str, value: f64) {
        if self.measures {
            self.samples.entry(name).or_default().push(value);
        }
    }

    fn media(&mut self, bytes: u64) {
        if self.measures {
            self.media.push((self.now, bytes));
        }
    }

    fn wasted(&mut self, packets: u64) {
        self.wasted += packets;
    }
}

#[derive(Debug)]
enum Loop {
    Call(Box<Call>),
    Display(Display),
}

#[derive(Debug)]
#[expect(clippy::large_enum_variant, reason = "there is one per subject")]
enum Phase {
    Ready,
    WarmsUp {
        until: Nanos,
        duration: Nanos,
    },
    Measures {
        begin: Nanos,
        end: Nanos,
        missed: u64,
        counted: Counter,
        windows: Box<Windows>,
    },
    Loads,
}

/// A stage, and its measurement.
#[derive(Debug)]
pub(super) struct Stages {
    does: Loop,
    /// Picoseconds of a core cycle.
    clock: Picos,
    /// While the loop sleeps: until when. `None` inside: until there is news.
    asleep: Option<Option<Nanos>>,
    phase: Phase,
    log: Log,
}

impl Stages {
    pub(super) fn call(id: SubjectId, media: Rate, clock: Picos, link: &mut Link) -> Self {
        link.add_call(id);
        Self::new(Loop::Call(Box::new(Call::new(id, media, SEED))), clock)
    }

    pub(super) fn display(id: SubjectId, clock: Picos, link: &mut Link) -> Self {
        link.add_display(id);
        Self::new(Loop::Display(Display::new(id, SEED)), clock)
    }

    fn new(does: Loop, clock: Picos) -> Self {
        Self {
            does,
            clock,
            asleep: None,
            phase: Phase::Ready,
            log: Log::default(),
        }
    }

    /// From now on frames are collected for [`Self::fresh()`].
    pub(super) fn observe(&mut self) {
        self.log.units = Some(Vec::new());
    }

    /// The frames that were encoded or drawn since the last call, if they are collected.
    pub(super) fn fresh(&mut self) -> Vec<deadline::Unit> {
        let units = self.log.units.as_mut();
        units.map(std::mem::take).unwrap_or_default()
    }

    pub(super) fn go(
        &mut self,
        os: &mut Os,
        task: TaskId,
        key: Key,
        warmup: Nanos,
        duration: Nanos,
    ) {
        let until = os.now().plus(warmup);
        let first = matches!(self.phase, Phase::Ready);
        self.phase = Phase::WarmsUp { until, duration };
        os.alarm(until, key.of(Bell::Look));
        if first {
            match &mut self.does {
                Loop::Call(call) => call.begin(os.now()),
                Loop::Display(display) => display.begin(os.now()),
            }
            give(os, task, WAKE);
        }
    }

    /// The task has done what it was given.
    pub(super) fn finished(&mut self, os: &mut Os, task: TaskId, key: Key, link: &mut Link) {
        let now = os.now();
        self.log.now = now;
        let todo = match &mut self.does {
            Loop::Call(call) => call.next(now, link, &mut self.log),
            Loop::Display(display) => display.next(now, link, &mut self.log),
        };
        match todo {
            Todo::Do(piece) => give(os, task, piece),
            Todo::Sleep(until) => {
                self.asleep = Some(Some(until));
                os.sleep(task);
                os.alarm(until, key.of(Bell::Slot));
            }
            Todo::Wait => {
                self.asleep = Some(None);
                os.sleep(task);
            }
        }
    }

    /// The other stage has news.
    pub(super) fn news(&mut self, os: &mut Os, task: TaskId) {
        if self.asleep.take().is_some() {
            give(os, task, WAKE);
        }
    }

    /// Handles one of its alarms. Returns its measurement once that is over.
    pub(super) fn alarm(
        &mut self,
        os: &mut Os,
        task: TaskId,
        key: Key,
        bell: Bell,
    ) -> Option<Measurement> {
        if bell == Bell::Look {
            return self.look(os, task, key);
        }
        if let Some(Some(until)) = self.asleep
            && until <= os.now()
        {
            self.asleep = None;
            give(os, task, WAKE);
        }
        None
    }

    fn look(&mut self, os: &mut Os, task: TaskId, key: Key) -> Option<Measurement> {
        let now = os.now();
        let missed = os.counts(task).misses;
        match &mut self.phase {
            Phase::WarmsUp { until, duration } if now >= *until => {
                let mut windows = Box::new(Windows::new(duration.0, WINDOW.0, Cut::Evenly));
                windows.begin(now.0, missed);
                let end = now.plus(*duration);
                os.alarm(now.plus(WINDOW).min(end), key.of(Bell::Look));
                self.log.begin();
                self.phase = Phase::Measures {
                    begin: now,
                    end,
                    missed,
                    counted: Counter::begin(os, task, self.clock),
                    windows,
                };
                None
            }
            Phase::Measures {
                begin,
                end,
                missed: before,
                counted,
                windows,
            } => {
                windows.sample(now.0, missed, |lines, ns| {
                    (lines * LINE_BYTES) as f64 * 1e3 / ns.max(1) as f64
                });
                if now < *end {
                    os.alarm(now.plus(WINDOW).min(*end), key.of(Bell::Look));
                    return None;
                }
                let mut metrics: Vec<(&str, Vec<f64>)> =
                    vec![(BANDWIDTH_MB_S, (**windows).clone().into_values())];
                self.log.measures = false;
                if let Loop::Call(_) = &self.does {
                    metrics.extend(packets(&self.log, *begin, now));
                }
                let frames = per_second(*begin, now, &self.log.frames, SECOND / FPS);
                metrics.push(("frames_per_s", frames));
                metrics.extend(std::mem::take(&mut self.log.samples));
                let metrics = metrics.into_iter().map(|(name, v)| (name.to_owned(), v));
                let metrics = metrics.chain(counted.end(os, task));
                let measured = Measurement {
                    metrics: metrics.filter(|(_, v)| !v.is_empty()).collect(),
                    window_ns: windows.length(),
                    bytes: (missed - *before) * LINE_BYTES,
                    duration_ns: now.since(*begin).0,
                    begun: None,
                    memory_bytes: Some(counted.memory_bytes(os, task)),
                    ended_ns: Vec::new(),
                    account: None,
                };
                self.phase = Phase::Loads;
                Some(measured)
            }
            Phase::Ready | Phase::WarmsUp { .. } | Phase::Loads => None,
        }
    }
}

/// Gives the task a piece of work. It goes on, or wakes.
fn give(os: &mut Os, task: TaskId, piece: Piece) {
    let Some(Pattern::Frames(frames)) = os.pattern_mut(task) else {
        return;
    };
    let accesses = frames.add(piece);
    os.go_on(task, os.done(task) + accesses);
}

/// How many seconds a span has, at least one, and where each begins and ends.
fn seconds(begin: Nanos, end: Nanos) -> impl Iterator<Item = (Nanos, Nanos)> {
    let whole = end.since(begin).0;
    let count = ((whole + SECOND / 2) / SECOND).max(1);
    let at = move |n: u64| Nanos(begin.0 + whole * n / count);
    (0..count).map(move |n| (at(n), at(n + 1)))
}

/// `media_kb_s` and `wasted_packets`.
fn packets(log: &Log, begin: Nanos, end: Nanos) -> [(&'static str, Vec<f64>); 2] {
    let media = seconds(begin, end).map(|(from, to)| {
        let inside = log.media.iter().filter(|(at, _)| *at > from && *at <= to);
        let bytes: u64 = inside.map(|(_, bytes)| bytes).sum();
        bytes as f64 * 1e6 / to.since(from).0.max(1) as f64
    });
    let wasted = log.wasted as f64 * 1e9 / end.since(begin).0.max(1) as f64;
    [
        ("media_kb_s", media.collect()),
        ("wasted_packets", vec![wasted]),
    ]
}

/// Frames done per second, for each second. Its time is counted between the last completions before
/// its begin and before its end. Where the last completion is more than two periods old, its time
/// counts to the boundary itself.
fn per_second(begin: Nanos, end: Nanos, frames: &[Nanos], period: u64) -> Vec<f64> {
    let last = |time: Nanos| {
        let before = frames.iter().copied().take_while(|e| *e <= time).last();
        let last = before.filter(|last| time.since(*last).0 <= 2 * period);
        last.unwrap_or(time)
    };
    seconds(begin, end)
        .map(|(from, to)| {
            let (from, to) = (last(from), last(to));
            let done = frames.iter().filter(|e| **e > from && **e <= to).count();
            let took = to.since(from).0 as f64 / 1e9;
            if took > 0.0 { done as f64 / took } else { 0.0 }
        })
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_counted_from_completion_to_completion() {
        let period = 40_000_000;
        let steady: Vec<Nanos> = (0..31).map(|n| Nanos::millis(n * 40 + 9)).collect();
        let found = |from, to, frames: &[Nanos]| {
            per_second(Nanos::millis(from), Nanos::millis(to), frames, period)
        };
        assert_eq!(found(200, 1200, &steady), [25.0]);
        // The same, whatever part of a period the span begins with.
        assert_eq!(found(215, 1187, &steady), [25.0]);
        // No completion after half of the time: two periods of doubt, then that time counts.
        let (half, _) = steady.split_at(16);
        let found = found(200, 1200, half)[0];
        assert!((found - 11.0 / 1.031).abs() < 1e-9, "{found}");
    }
}
