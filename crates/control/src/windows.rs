//! Whose window it is: fixed windows of a repeating frame, as in ARINC 653 (part 1, "Partition
//! scheduling"). The caller has the clock, stops groups and resumes them.
//!
//! Every decision follows from the time alone, not from the decision before. A caller that comes
//! late finds the group of that time, and never works through windows that have passed.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_types::units::{Nanos, Share};

use crate::config::Frame;

/// What a CPU changes to when a window begins.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch {
    /// When the window begins: the group in `go` runs from here on.
    pub at: Nanos,
    /// Which of [`Frame::spans`] begins.
    pub span: usize,
    /// The group that is stopped, by its place in [`Frame::groups`]. The group in `go` where its
    /// next window gives it something else.
    pub stop: Option<usize>,
    /// The group that is resumed, by its place in [`Frame::groups`].
    pub go: Option<usize>,
}

/// Where another span begins.
#[derive(Clone, Copy, Debug, Default)]
struct Edge {
    /// From the beginning of the frame, in nanoseconds.
    start: u64,
    /// Its place in [`Frame::spans`].
    span: usize,
    /// The group that runs from here on, by its place in [`Frame::groups`].
    owner: Option<usize>,
}

/// Follows a frame through time, one switch after the other.
#[derive(Clone, Debug)]
pub struct Dispatch {
    length: u64,
    guard: Nanos,
    /// In the order of their starts.
    edges: Vec<Edge>,
    /// The last one that was taken.
    running: Option<Edge>,
    next: Nanos,
    skipped: u64,
}

impl Dispatch {
    /// Follows `frame` from `now` on. No group runs until the first switch.
    #[must_use]
    pub fn new(frame: &Frame, now: Nanos) -> Self {
        let groups = frame.groups();
        let place = |group: &_| groups.iter().position(|known| *known == group);
        let spans = frame.spans.iter().enumerate();
        let mut edges: Vec<Edge> = spans
            .map(|(span, of)| Edge {
                start: of.start.0,
                span,
                owner: of.group.as_ref().and_then(place),
            })
            .collect();
        if let [first, .., last] = frame.spans.as_slice()
            && first.is_alike(last)
        {
            // The frame ends in what it begins with.
            edges.remove(0);
        }
        let mut dispatch = Self {
            length: frame.length.0.max(1),
            guard: frame.guard,
            edges,
            running: None,
            next: Nanos(0),
            skipped: 0,
        };
        dispatch.next = dispatch.after(now);
        dispatch
    }

    /// The number of the last edge at or before `now`, counted from time 0. `None` before the
    /// first.
    fn number(&self, now: Nanos) -> Option<u64> {
        let (frames, into) = (now.0 / self.length, now.0 % self.length);
        let begun = self.edges.partition_point(|edge| edge.start <= into);
        let begun = u64::try_from(begun).unwrap_or(u64::MAX);
        (frames * self.edges.len() as u64 + begun).checked_sub(1)
    }

    /// The edge with this number, and when it is.
    fn edge(&self, number: u64) -> (Nanos, Edge) {
        let each = self.edges.len().max(1) as u64;
        let place = usize::try_from(number % each).unwrap_or(0);
        let edge = self.edges.get(place).copied().unwrap_or_default();
        let frame = (number / each).saturating_mul(self.length);
        (Nanos(frame.saturating_add(edge.start)), edge)
    }

    /// The first edge after `now`.
    fn after(&self, now: Nanos) -> Nanos {
        let number = self.number(now).map_or(0, |n| n + 1);
        self.edge(number).0
    }

    /// The group that the frame gives `now` to.
    #[must_use]
    pub fn owner(&self, now: Nanos) -> Option<usize> {
        match self.number(now) {
            Some(number) => self.edge(number).1.owner,
            // Before the first edge of all it is the group of the last one.
            None => self.edges.last().and_then(|edge| edge.owner),
        }
    }

    /// When the CPU is to be taken for the next switch: a guard before the window begins.
    #[must_use]
    pub fn due(&self) -> Nanos {
        self.next.since(self.guard)
    }

    /// The switch that is due at `now`, which is [`Self::due`] or later. Windows that have passed
    /// altogether are counted, not gone through.
    pub fn take(&mut self, now: Nanos) -> Switch {
        let number = self.number(now.max(self.next)).unwrap_or(0);
        let (at, edge) = self.edge(number);
        let due = self.number(self.next).unwrap_or(0);
        self.skipped += number.saturating_sub(due);
        let before = self.running.replace(edge);
        let changes = before.is_none_or(|before| before.span != edge.span);
        let stop = before.and_then(|before| before.owner);
        self.next = self.edge(number + 1).0;
        Switch {
            at,
            span: edge.span,
            stop: stop.filter(|_| changes),
            go: edge.owner.filter(|_| changes),
        }
    }

    /// Number of switches that were passed over because the caller came too late.
    #[must_use]
    pub const fn skipped(&self) -> u64 {
        self.skipped
    }
}

/// Buckets per doubling: a quantile is at most an eighth too high.
const PER_DOUBLING: u64 = 8;
const BUCKETS: usize = 62 * 8;

/// How late something was, again and again. One thread notes, any thread reads.
#[derive(Debug)]
pub struct Lateness {
    counts: Box<[AtomicU64]>,
    most: AtomicU64,
}

impl Default for Lateness {
    fn default() -> Self {
        Self {
            counts: (0..BUCKETS).map(|_| AtomicU64::new(0)).collect(),
            most: AtomicU64::new(0),
        }
    }
}

/// The bucket of a time. Times below eight nanoseconds have one each.
fn bucket(late: Nanos) -> usize {
    let place = if late.0 < PER_DOUBLING {
        late.0
    } else {
        let exponent = u64::from(late.0.ilog2());
        (exponent - 2) * PER_DOUBLING + ((late.0 >> (exponent - 3)) & (PER_DOUBLING - 1))
    };
    usize::try_from(place).unwrap_or(0).min(BUCKETS - 1)
}

/// The longest time of a bucket.
fn longest(bucket: usize) -> Nanos {
    let place = bucket as u64;
    if place < PER_DOUBLING {
        return Nanos(place);
    }
    let exponent = place / PER_DOUBLING + 2;
    let width = 1_u64 << (exponent - 3);
    let below = (PER_DOUBLING + place % PER_DOUBLING) * width;
    Nanos(below + (width - 1))
}

impl Lateness {
    /// Notes one more.
    pub fn note(&self, late: Nanos) {
        if let Some(count) = self.counts.get(bucket(late)) {
            count.fetch_add(1, Ordering::Relaxed);
        }
        self.most.fetch_max(late.0, Ordering::Relaxed);
    }

    /// The longest of all.
    #[must_use]
    pub fn most(&self) -> Nanos {
        Nanos(self.most.load(Ordering::Relaxed))
    }

    /// The time that a share of all did not exceed, rounded up by an eighth at most. Zero where
    /// nothing was noted.
    #[must_use]
    pub fn quantile(&self, share: Share) -> Nanos {
        let counts: Vec<u64> = self
            .counts
            .iter()
            .map(|count| count.load(Ordering::Relaxed))
            .collect();
        let all: u64 = counts.iter().sum();
        let rank = u128::from(all) * u128::from(share.0);
        let rank = rank.div_ceil(u128::from(Share::WHOLE.0)).max(1);
        let mut seen = 0_u128;
        for (place, count) in counts.iter().enumerate() {
            seen += u128::from(*count);
            if seen >= rank {
                return longest(place).min(self.most());
            }
        }
        Nanos(0)
    }
}

#[cfg(test)]
#[path = "windows_tests.rs"]
mod tests;
