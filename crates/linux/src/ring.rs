//! Takes a brake's decisions to the record: a ring of fixed size per regulated CPU. It is made
//! before the thread starts. Only that thread writes it, and the main process empties it with every
//! heartbeat. Writing takes a few stores and never waits. A decision that does not fit is counted.

use std::sync::atomic::{AtomicU64, Ordering};

use quell_control::bandwidth::Verdict;
use quell_record::events::Decision;
use quell_types::units::{Lines, Nanos};

/// Number of decisions that fit, in 40 KiB: those of a hundred milliseconds at the shortest period,
/// 100 µs.
const SLOTS: usize = 1024;

/// Layout of a decision's third word. The lowest two bits are its kind. `SEEN` means that the time
/// and mode of the overflow are known, and `KERNEL` that the mode was kernel mode.
const KIND: u64 = 3;
const SEEN: u64 = 4;
const KERNEL: u64 = 8;

/// The ring of one CPU, with one writer and one reader.
#[derive(Debug)]
pub struct Ring {
    slots: Box<[[AtomicU64; 5]]>,
    /// Number of decisions written since the beginning.
    written: AtomicU64,
    /// Number of decisions taken out since the beginning.
    taken: AtomicU64,
    missed: AtomicU64,
}

impl Default for Ring {
    fn default() -> Self {
        Self {
            slots: (0..SLOTS).map(|_| Default::default()).collect(),
            written: AtomicU64::new(0),
            taken: AtomicU64::new(0),
            missed: AtomicU64::new(0),
        }
    }
}

impl Ring {
    fn slot(&self, number: u64) -> &[AtomicU64; 5] {
        // In range by the modulus. The ring always has slots.
        let index = usize::try_from(number % SLOTS as u64).unwrap_or(0);
        &self.slots[index]
    }

    /// Adds a decision. Only the writing thread may call this.
    pub fn push(&self, decision: &Decision) {
        let number = self.written.load(Ordering::Relaxed);
        if number - self.taken.load(Ordering::Acquire) >= SLOTS as u64 {
            self.missed.fetch_add(1, Ordering::Relaxed);
            return;
        }
        let (kind, argument) = match decision.what {
            Verdict::Rearm(lines) => (0, lines.0),
            Verdict::NewPeriod(lines) => (1, lines.0),
            Verdict::ThrottleUntil(until) => (2, until.0),
            Verdict::RunFreeUntil(until) => (3, until.0),
        };
        let mode = match decision.reaction {
            None => 0,
            Some((_, false)) => SEEN,
            Some((_, true)) => SEEN | KERNEL,
        };
        let reaction = decision.reaction.map_or(0, |(late, _)| late.0);
        let words = [
            decision.at.0,
            decision.used.0,
            kind | mode,
            argument,
            reaction,
        ];
        for (slot, word) in self.slot(number).iter().zip(words) {
            slot.store(word, Ordering::Relaxed);
        }
        self.written.store(number + 1, Ordering::Release);
    }

    /// Takes all decisions out, in order. Only the reading thread may call this.
    pub fn drain(&self, into: &mut Vec<Decision>) {
        let written = self.written.load(Ordering::Acquire);
        let taken = self.taken.load(Ordering::Relaxed);
        for number in taken..written {
            let [at, used, flags, argument, reaction] = self
                .slot(number)
                .each_ref()
                .map(|word| word.load(Ordering::Relaxed));
            into.push(Decision {
                at: Nanos(at),
                used: Lines(used),
                what: match flags & KIND {
                    0 => Verdict::Rearm(Lines(argument)),
                    1 => Verdict::NewPeriod(Lines(argument)),
                    2 => Verdict::ThrottleUntil(Nanos(argument)),
                    _ => Verdict::RunFreeUntil(Nanos(argument)),
                },
                reaction: (flags & SEEN != 0).then_some((Nanos(reaction), flags & KERNEL != 0)),
            });
        }
        self.taken.store(written, Ordering::Release);
    }

    /// Decisions that did not fit, since the beginning.
    #[must_use]
    pub fn missed(&self) -> u64 {
        self.missed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn decision(number: u64) -> Decision {
        Decision {
            at: Nanos(number),
            used: Lines(number * 2),
            what: match number % 5 {
                0 => Verdict::Rearm(Lines(7)),
                1 => Verdict::NewPeriod(Lines(8)),
                2 => Verdict::RunFreeUntil(Nanos(number + 2)),
                _ => Verdict::ThrottleUntil(Nanos(number + 1)),
            },
            reaction: match number % 4 {
                0 => None,
                1 => Some((Nanos(0), true)),
                _ => Some((Nanos(number), false)),
            },
        }
    }

    #[test]
    fn what_goes_in_comes_out_in_order() {
        let ring = Ring::default();
        let mut out = Vec::new();
        for round in 0..5 {
            for number in 0..700 {
                ring.push(&decision(round * 700 + number));
            }
            ring.drain(&mut out);
        }
        assert!(out.iter().copied().eq((0..3_500).map(decision)));
        assert_eq!(ring.missed(), 0);
    }

    #[test]
    fn what_does_not_fit_is_counted_and_the_rest_is_whole() {
        let ring = Ring::default();
        for number in 0..SLOTS as u64 + 5 {
            ring.push(&decision(number));
        }
        let mut out = Vec::new();
        ring.drain(&mut out);
        assert!(out.iter().copied().eq((0..SLOTS as u64).map(decision)));
        assert_eq!(ring.missed(), 5);
    }

    #[test]
    fn one_may_write_while_the_other_reads() {
        let ring = Ring::default();
        let mut out = Vec::new();
        std::thread::scope(|scope| {
            scope.spawn(|| (0..20_000).for_each(|number| ring.push(&decision(number))));
            while (out.len() as u64 + ring.missed()) < 20_000 {
                ring.drain(&mut out);
            }
        });
        assert!(out.iter().all(|d| *d == decision(d.at.0)));
        assert!(out.windows(2).all(|two| two[0].at < two[1].at));
    }
}
