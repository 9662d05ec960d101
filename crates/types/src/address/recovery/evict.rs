//! Which lines drive a line from a cache: groups of pages that share a set, by the times of
//! re-reads.
//!
//! Method: a line is read, then other lines, then the line again. It takes longer if the others
//! filled its set. From many others that do so, parts are left out as long as the rest still does:
//! what remains is a minimal set (group testing; Vila, Köpf and Morales, "Theory and Practice of
//! Finding Eviction Sets", S&P 2019). With one line of it replaced, it tells whether another line
//! shares the set. Many lines are asked about at once.
//!
//! A question is asked until one answer leads by so many votes (Wald, "Sequential Tests of
//! Statistical Hypotheses", 1945). How many follows from how often times lie on the wrong side.

use super::Pool;
use super::sets::Shape;
use crate::rng::SplitMix;

/// log2 of the bytes of a page whose lines are compared. Larger pages are taken in such pieces.
pub(super) const SHIFT: u32 = 12;
/// Lines of such a page.
const LINES: u64 = 1 << (SHIFT - 6);
/// Another line of the victim's page lies so far from it.
const AWAY: u64 = 1 << (SHIFT - 1);
/// How often lines are read. A cache in which most new lines are the next to leave needs three.
const TIMES: usize = 3;
/// How often a question that is asked once may be answered wrongly.
const WRONG: f64 = 1e-5;
/// The votes by which its answer leads, at least and at most.
const LEAD: (i32, i32) = (4, 16);
/// The most votes of a question.
const VOTES: u32 = 96;
/// How often a reduction goes back.
const FAILURES: u32 = 12;
/// A minimal set has at most so many lines for each way that the machine reports.
const LARGEST: usize = 4;
/// How often other lines are drawn that clear the nearer caches.
const DRAWS: u32 = 6;

/// A question: how long does a line take to read again?
#[derive(Clone, Copy, Debug)]
pub struct Reread<'a> {
    /// The virtual address of the line within the pool.
    pub victim: u64,
    /// The lines that may drive it out.
    pub others: &'a [u64],
    /// Lines that drive it from the nearer caches.
    pub clearing: &'a [u64],
}

impl Reread<'_> {
    /// What is read between the two reads of the victim: all lines several times in two directions,
    /// as few caches replace the oldest line. In the end another line of its page, so that its
    /// translation is at hand.
    pub fn between(&self) -> impl Iterator<Item = u64> + '_ {
        let passes = [false, true].into_iter().cycle().take(TIMES);
        let pass = move |down: bool| {
            let in_order = move |lines: &'_ [u64], n: usize| match down {
                true => lines[lines.len() - 1 - n],
                false => lines[n],
            };
            let others = (0..self.others.len()).map(move |n| in_order(self.others, n));
            let clearing = (0..self.clearing.len()).map(move |n| in_order(self.clearing, n));
            others.chain(clearing)
        };
        let again = std::iter::once(self.victim ^ AWAY);
        passes.flat_map(pass).chain(again)
    }

    /// Every line that a question reads, each at least once. No cache may have them before.
    pub fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        let own = [self.victim, self.victim ^ AWAY];
        self.others.iter().chain(self.clearing).copied().chain(own)
    }
}

/// Why no verdict is reached.
pub(super) enum Halt<E> {
    /// The time for it is over.
    Over,
    /// A time could not be taken.
    Failed(E),
}

impl<E> From<E> for Halt<E> {
    fn from(error: E) -> Self {
        Self::Failed(error)
    }
}

/// By how many votes an answer has to lead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Lead {
    /// The answer that a line is driven out.
    lost: i32,
    /// The answer that it is kept.
    kept: i32,
}

/// By how many votes answers to kinds of questions have to lead.
#[derive(Clone, Copy, Debug)]
pub(super) struct Leads {
    /// For what is asked once.
    pub sure: Lead,
    /// For leaving out a part. One that is not needed can be tried again. One that was needed is
    /// hard to find.
    remove: Lead,
    /// For one line that shares the set: few lines do.
    member: Lead,
}

impl Leads {
    /// Where at least this share of times lies on the right side.
    #[must_use]
    pub fn new(right: f64) -> Self {
        let odds = (right / (1.0 - right).max(WRONG)).ln();
        #[expect(
            clippy::cast_possible_truncation,
            reason = "held within the bounds of a lead"
        )]
        let lead = |votes: f64| (votes / odds.max(WRONG)).ceil().min(1e3) as i32;
        let sure = lead(-WRONG.ln()).clamp(LEAD.0, LEAD.1);
        let again = (sure / 4).max(1);
        let of = |lost, kept| Lead { lost, kept };
        Self {
            sure: of(sure, sure),
            remove: of(sure / 2, again),
            member: of(2 * sure / 3, again),
        }
    }
}

/// What answers a question: nanoseconds. `None`: the time for it is over.
pub(super) type Probe<'a, E> = &'a mut dyn FnMut(&Reread<'_>) -> Result<Option<f64>, E>;

/// Asks questions.
pub(super) struct Asker<'a, E> {
    pub pool: &'a Pool,
    pub random: SplitMix,
    pub probe: Probe<'a, E>,
    /// Nanoseconds from which on a line was driven out.
    pub from_ns: f64,
    pub leads: Leads,
    pub times: u64,
}

/// A line, a minimal set of others that drives it out, and further lines that share their set.
#[derive(Clone, Debug)]
pub(super) struct Class {
    pub victim: u64,
    pub clearing: Vec<u64>,
    pub set: Vec<u64>,
    pub members: Vec<u64>,
}

impl Class {
    fn asks<'a>(&'a self, others: &'a [u64]) -> Reread<'a> {
        Reread {
            victim: self.victim,
            others,
            clearing: &self.clearing,
        }
    }

    /// All lines known to share the set of the victim.
    pub fn lines(&self) -> impl Iterator<Item = u64> + '_ {
        self.set.iter().chain(&self.members).copied()
    }

    /// The minimal set with one line replaced by these.
    fn with(&self, lines: &[u64]) -> Vec<u64> {
        let kept = self.set.iter().skip(1);
        kept.chain(lines).copied().collect()
    }
}

impl<E> Asker<'_, E> {
    /// The nanoseconds of one re-read.
    pub fn time(&mut self, question: &Reread<'_>) -> Result<f64, Halt<E>> {
        self.times += 1;
        (self.probe)(question)?.ok_or(Halt::Over)
    }

    /// Whether the victim is driven out.
    pub fn lost(&mut self, question: &Reread<'_>, lead: Lead) -> Result<bool, Halt<E>> {
        let mut ahead = 0;
        for _ in 0..VOTES {
            let lost = self.time(question)? > self.from_ns;
            ahead += if lost { 1 } else { -1 };
            if ahead >= lead.lost || ahead <= -lead.kept {
                break;
            }
        }
        Ok(ahead > 0)
    }

    /// Any line of a page, as an offset.
    pub fn offset(&mut self) -> u64 {
        self.random.below(LINES) << 6
    }

    /// Puts items in any order.
    pub fn shuffle<T>(&mut self, items: &mut [T]) {
        for at in (1..items.len()).rev() {
            let other = usize::try_from(self.random.below(at as u64 + 1)).unwrap_or(at);
            items.swap(at, other);
        }
    }

    /// Finds the lines of `pages` that share the set of a line of the page `victim`. `None` where
    /// they do not drive it out, or no minimal set is found.
    pub fn class(
        &mut self,
        victim: u64,
        pages: &[u64],
        shape: &Shape,
    ) -> Result<Option<Class>, Halt<E>> {
        let offset = self.offset();
        let others = pages.iter().filter(|page| **page != victim);
        let mut lines: Vec<u64> = others.map(|page| page << SHIFT | offset).collect();
        let mut class = Class {
            victim: victim << SHIFT | offset,
            clearing: Vec::new(),
            set: Vec::new(),
            members: Vec::new(),
        };
        let clearing = shape.clearing().min(lines.len() / 2);
        for draw in 0.. {
            self.shuffle(&mut lines);
            class.clearing = lines[..clearing].to_vec();
            if !self.lost(&class.asks(&[]), self.leads.sure)? {
                break;
            }
            if draw == DRAWS {
                return Ok(None);
            }
        }
        let lines = lines.split_off(clearing);
        let mut count = shape.pages;
        loop {
            count = count.min(lines.len());
            if self.lost(&class.asks(&lines[..count]), self.leads.remove)? {
                break;
            }
            if count == lines.len() {
                return Ok(None);
            }
            count += count / 2;
        }
        let Some(set) = self.reduce(&class, lines[..count].to_vec(), shape.ways)? else {
            return Ok(None);
        };
        class.set = set;
        // The line that others replace has to be a needed one.
        let mut left = class.set.len();
        while self.lost(&class.asks(&class.with(&[])), self.leads.sure)? {
            class.set.rotate_left(1);
            left -= 1;
            if left == 0 {
                return Ok(None);
            }
        }
        let rest = lines.iter().filter(|line| !class.set.contains(line));
        let rest: Vec<u64> = rest.copied().collect();
        class.members = self.members(&class, &rest, shape.batch())?;
        Ok(Some(class))
    }

    /// Leaves out lines of `set` until each is needed.
    fn reduce(
        &mut self,
        class: &Class,
        mut set: Vec<u64>,
        ways: usize,
    ) -> Result<Option<Vec<u64>>, Halt<E>> {
        // Of one part more than there are needed lines, one has none of them.
        let least = ways + 1;
        let (mut parts, mut failures) = (least, 0);
        let mut removed = Vec::new();
        loop {
            if self.sweep(class, &mut set, parts, &mut removed)? {
                parts = least;
            } else if parts < set.len().min(LARGEST * least) {
                parts = set.len().min(2 * parts);
            } else {
                let evicts = self.lost(&class.asks(&set), self.leads.sure)?;
                if evicts && set.len() <= LARGEST * ways {
                    return Ok(Some(set));
                }
                failures += 1;
                if failures > FAILURES || removed.is_empty() && !evicts {
                    return Ok(None);
                }
                // A wrong answer left out lines that are needed.
                let mut evicts = evicts;
                while !evicts && let Some(part) = removed.pop() {
                    set.extend::<Vec<u64>>(part);
                    evicts = self.lost(&class.asks(&set), self.leads.sure)?;
                }
                self.shuffle(&mut set);
                parts = least;
            }
        }
    }

    /// Tries to leave out each of so many parts. True where some was.
    fn sweep(
        &mut self,
        class: &Class,
        set: &mut Vec<u64>,
        parts: usize,
        removed: &mut Vec<Vec<u64>>,
    ) -> Result<bool, Halt<E>> {
        let size = set.len().div_ceil(parts);
        let (mut at, before) = (0, removed.len());
        while at < set.len() {
            let end = (at + size).min(set.len());
            let rest = [&set[..at], &set[end..]].concat();
            if self.lost(&class.asks(&rest), self.leads.remove)? {
                removed.push(set[at..end].to_vec());
                *set = rest;
            } else {
                at = end;
            }
        }
        Ok(removed.len() > before)
    }

    /// Those of `lines` that share the set: each drives the victim out in place of another. They
    /// are asked about in batches, and a batch that has some in halves.
    fn members(&mut self, class: &Class, lines: &[u64], batch: usize) -> Result<Vec<u64>, Halt<E>> {
        let mut found = Vec::new();
        let mut batches: Vec<&[u64]> = lines.chunks(batch.max(1)).collect();
        while let Some(lines) = batches.pop() {
            let Leads { remove, member, .. } = self.leads;
            let lead = if lines.len() == 1 { member } else { remove };
            if !self.lost(&class.asks(&class.with(lines)), lead)? {
                continue;
            }
            match lines {
                [line] => found.push(*line),
                _ => batches.extend(<[&[u64]; 2]>::from(lines.split_at(lines.len() / 2))),
            }
        }
        Ok(found)
    }

    /// Whether a line shares the set, asked once more.
    pub fn is_member(&mut self, class: &Class, line: u64) -> Result<bool, Halt<E>> {
        self.lost(&class.asks(&class.with(&[line])), self.leads.sure)
    }
}
