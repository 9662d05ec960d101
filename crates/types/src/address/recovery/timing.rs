//! Which pairs of lines are in conflict, by their times: the pool, the two levels of latency, and
//! the decision for a pair.

use crate::address::gf2::Space;
use crate::rng::SplitMix;
use crate::stats::{median, percentile, sorted};

use super::Figures;

/// log2 of the bytes of a line.
const LINE_SHIFT: u32 = 6;
/// How often a pair is timed, at most, and after how many times it is looked at.
const REPEATS: [usize; 5] = [1, 3, 7, 13, 21];
/// How often a pair is timed where its time alone does not decide.
const BRIEF: usize = 3;
/// Pairs that are timed for the levels, at least and at most.
const LEVELS: (u64, u64) = (2_048, 65_536);
/// Conflicts that the levels need.
pub(super) const CONFLICTS: usize = 16;
/// Other lines that a line is timed with, at most, and how many of them it is slow with where it is
/// slow by itself.
const OTHERS: u32 = 5;
const MOST_OTHERS: u32 = 4;
/// One of so many times may lie between the levels.
const STRAY: usize = 50;
/// A conflict takes longer by at least this part.
const LEAST: f64 = 0.04;

/// Pages at virtual addresses from 0, and their physical addresses.
#[derive(Clone, Debug)]
pub struct Pool {
    pages: Vec<u64>,
    shift: u32,
}

/// Two lines of the pool, by their virtual addresses.
pub type Lines = (u64, u64);

impl Pool {
    /// Pages of 2^`shift` bytes (at least a line) at these physical addresses, aligned.
    #[must_use]
    pub fn new(pages: Vec<u64>, shift: u32) -> Self {
        let shift = shift.clamp(LINE_SHIFT, 40);
        Self { pages, shift }
    }

    /// The physical address of a virtual one. 0 beyond the pool.
    #[must_use]
    pub fn physical(&self, address: u64) -> u64 {
        let page = usize::try_from(address >> self.shift).ok();
        let page = page.and_then(|page| self.pages.get(page));
        page.map_or(0, |page| page | address & !(u64::MAX << self.shift))
    }

    /// The difference of two lines' physical addresses.
    #[must_use]
    pub fn difference(&self, lines: Lines) -> u64 {
        self.physical(lines.0) ^ self.physical(lines.1)
    }

    /// The differences of all its lines.
    #[must_use]
    pub fn differences(&self) -> Space {
        let first = self.pages.first().copied().unwrap_or_default();
        let pages = self.pages.iter().map(|page| page ^ first);
        Space::spanned(pages.chain((LINE_SHIFT..self.shift).map(|bit| 1 << bit)))
    }

    /// Differences that addresses of memory have, and those of the pool have not. `memory` has the
    /// differences of all addresses of the machine's memory.
    #[must_use]
    pub fn missing(&self, memory: &Space) -> Space {
        let lines = memory.within(u64::MAX << LINE_SHIFT);
        lines.independent_of(&self.differences())
    }

    /// The differences of the addresses of these pages, by number.
    pub(super) fn frames(&self, pages: &[u64]) -> Space {
        let first = pages.first().copied().unwrap_or_default() << self.shift;
        let all = pages.iter().map(|page| page << self.shift);
        Space::spanned(all.map(|page| self.difference((first, page))))
    }

    /// How many pages it has.
    #[must_use]
    pub fn pages(&self) -> usize {
        self.pages.len()
    }

    /// Any line.
    pub(super) fn line(&self, random: &mut SplitMix) -> u64 {
        let lines = (self.pages.len() as u64) << (self.shift - LINE_SHIFT);
        random.below(lines.max(1)) << LINE_SHIFT
    }

    /// Any two lines.
    pub(super) fn lines(&self, random: &mut SplitMix) -> Lines {
        loop {
            let lines = (self.line(random), self.line(random));
            if lines.0 != lines.1 || self.pages.is_empty() {
                return lines;
            }
        }
    }
}

/// What times a pair of lines.
pub(super) struct Bench<'a, E> {
    pub pool: &'a Pool,
    pub random: SplitMix,
    pub oracle: &'a mut dyn FnMut(Lines) -> Result<f64, E>,
    /// Nanoseconds from which on a pair is in conflict.
    pub from_ns: f64,
    pub calls: u64,
    pub pairs: u64,
    /// Pairs that take longer because one of their lines always does.
    pub slow_lines: u32,
}

impl<E> Bench<'_, E> {
    fn grow(&mut self, times: &mut Vec<f64>, lines: Lines, to: usize) -> Result<f64, E> {
        while times.len() < to {
            self.calls += 1;
            times.push((self.oracle)(lines)?);
        }
        Ok(median(times).unwrap_or_default())
    }

    /// The nanoseconds of a pair, where they are above `from`, in the median of all repetitions.
    /// `None` as soon as fewer repetitions say that they are not.
    fn above(&mut self, lines: Lines, from: f64) -> Result<Option<f64>, E> {
        let mut times = Vec::new();
        let mut ns = 0.0;
        for repeats in REPEATS {
            ns = self.grow(&mut times, lines, repeats)?;
            if ns <= from {
                return Ok(None);
            }
        }
        Ok(Some(ns))
    }

    /// The nanoseconds of a pair: the median of all repetitions.
    fn exact(&mut self, lines: Lines) -> Result<f64, E> {
        self.grow(&mut Vec::new(), lines, REPEATS[REPEATS.len() - 1])
    }

    /// Whether a pair is in conflict.
    pub fn conflict(&mut self, lines: Lines) -> Result<bool, E> {
        Ok(self.exact(lines)? > self.from_ns)
    }

    /// Those of the pairs that are in conflict now.
    pub fn still(&mut self, all: Vec<Lines>) -> Result<Vec<Lines>, E> {
        self.kept(all, Self::conflict)
    }

    /// Those of the pairs that take longer as a pair, and neither line by itself.
    pub fn of_both(&mut self, all: Vec<Lines>) -> Result<Vec<Lines>, E> {
        self.kept(all, Self::is_of_both)
    }

    fn kept(
        &mut self,
        all: Vec<Lines>,
        is_kept: impl Fn(&mut Self, Lines) -> Result<bool, E>,
    ) -> Result<Vec<Lines>, E> {
        let mut left = Vec::new();
        for lines in all {
            if is_kept(self, lines)? {
                left.push(lines);
            }
        }
        Ok(left)
    }

    /// Any pair, if it is in conflict.
    pub fn draw(&mut self) -> Result<Option<Lines>, E> {
        let lines = self.pool.lines(&mut self.random);
        self.pairs += 1;
        let slow = self.above(lines, self.from_ns)?.is_some();
        Ok((slow && self.is_of_both(lines)?).then_some(lines))
    }

    /// Whether it is the pair that takes longer, and neither line by itself. A line of memory that
    /// is further away takes longer next to any other: next to most, as times vary.
    fn is_of_both(&mut self, lines: Lines) -> Result<bool, E> {
        for line in [lines.0, lines.1] {
            let (mut slow, mut usual) = (0, 0);
            while slow < MOST_OTHERS && usual <= OTHERS - MOST_OTHERS {
                let other = self.pool.line(&mut self.random);
                let ns = self.grow(&mut Vec::new(), (line, other), BRIEF)?;
                match ns > self.from_ns {
                    true => slow += 1,
                    false => usual += 1,
                }
            }
            if slow == MOST_OTHERS {
                self.slow_lines += 1;
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Finds the two levels. Returns the conflicts that it met. None: no pairs take longer than the
    /// others.
    pub fn levels(&mut self, figures: &mut Figures) -> Result<Vec<Lines>, E> {
        let mut brief = Vec::new();
        let (mut slow, mut seen): (Vec<(f64, Lines)>, usize) = (Vec::new(), 0);
        let mut wanted = LEVELS.0;
        loop {
            while (brief.len() as u64) < wanted {
                let lines = self.pool.lines(&mut self.random);
                let ns = self.grow(&mut Vec::new(), lines, BRIEF)?;
                brief.push((ns, lines));
                self.pairs += 1;
            }
            let times = sorted(&brief.iter().map(|(ns, _)| *ns).collect::<Vec<_>>());
            figures.describe(&times);
            let from = figures.usual_ns + (4.0 * figures.spread_ns).max(LEAST * figures.usual_ns);
            self.from_ns = from;
            for &(ns, lines) in &brief[seen..] {
                if ns > from
                    && let Some(ns) = self.above(lines, from)?
                    && self.is_of_both(lines)?
                {
                    slow.push((ns, lines));
                }
            }
            seen = brief.len();
            if slow.len() >= 2 * CONFLICTS || wanted >= LEVELS.1 {
                break;
            }
            wanted *= 2;
        }
        figures.slower = u32::try_from(slow.len()).unwrap_or(u32::MAX);
        // Next to them, what usual pairs take when they are timed as exactly.
        let mut all: Vec<f64> = slow.iter().map(|(ns, _)| *ns).collect();
        let mut usual = Vec::new();
        for &(_, lines) in brief.iter().take(2 * CONFLICTS) {
            usual.push(self.exact(lines)?);
        }
        let usual = sorted(&usual);
        // Fewer than half of them are in conflict, so the lower part has the noise alone.
        let noise = percentile(&usual, 30.0).zip(percentile(&usual, 10.0));
        let noise = noise.map_or(0.0, |(high, low)| 4.0 * (high - low));
        all.extend(&usual);
        let gap = valley(&sorted(&all), (LEAST * figures.usual_ns).max(noise));
        // Times without a gap may still be of two kinds. Whether pairs keep theirs is asked later.
        let middle = || {
            let slow: Vec<f64> = slow.iter().map(|(ns, _)| *ns).collect();
            let (low, high) = median(&usual).zip(median(&slow))?;
            (slow.len() >= CONFLICTS).then(|| f64::midpoint(low, high))
        };
        let Some(from) = gap.or_else(middle) else {
            return Ok(Vec::new());
        };
        self.from_ns = from;
        slow.retain(|(ns, _)| *ns > from);
        let above: Vec<f64> = slow.iter().map(|(ns, _)| *ns).collect();
        figures.conflict_ns = median(&above);
        // Slow lines may lie below what was asked for at first.
        self.of_both(slow.into_iter().map(|(_, lines)| lines).collect())
    }
}

/// The middle of the highest gap of at least `width` that has enough times above it. A few times
/// may lie within.
fn valley(times: &[f64], width: f64) -> Option<f64> {
    let within = times.len() / STRAY;
    let mut gaps = times.windows(within + 2).enumerate().rev();
    let (low, high) = gaps.find_map(|(at, gap)| {
        let (low, high) = (gap[0], gap[within + 1]);
        let enough = times.len() - at - within > CONFLICTS / 2;
        (enough && high - low >= width).then_some((low, high))
    })?;
    Some(f64::midpoint(low, high))
}
