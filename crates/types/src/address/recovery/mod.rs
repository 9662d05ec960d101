//! The functions that choose a DRAM bank, from the times of accesses. Those that choose the set of
//! a cache are next to it (`sets`, by `evict`).
//!
//! Method: two lines of one bank, in different rows, close each other's row. Accesses that take
//! turns between them take longer than those to other pairs (Pessl et al., "DRAMA", USENIX Security
//! 2016). The bank is linear in the address bits. So the differences of such pairs span the kernel
//! of the bank's functions, and the functions are what is orthogonal to it. Rows need not be known:
//! the kernel has all of them.
//!
//! 1. Random pairs give the two levels of time ([`timing`]).
//! 2. Pairs in conflict are collected until their differences explain each other (`decode`). With
//!    each few new ones all are timed again: something else may have slowed some for a while.
//! 3. New pairs, which the functions predict, are timed: some within a bank, some one function
//!    apart. The share that was right is the confidence.
//!
//! Only the span of the functions can be known by timing. That is all that partitions need.
//!
//! Deviations: one set of functions for all of memory. Unequal modules, controllers in turn and
//! functions of an offset address look hidden.

mod decode;
mod evict;
mod sets;
mod timing;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use self::decode::{Kernel, decode};
pub use self::evict::Reread;
pub use self::sets::{SetFigures, SetRecovery, Shape, recover_sets};
use self::timing::{Bench, CONFLICTS};
pub use self::timing::{Lines, Pool};
use crate::address::Functions;
use crate::address::gf2::Space;
use crate::partition::Mask;
use crate::rng::SplitMix;
use crate::stats::{percentile, wilson};

/// Conflicts that must lie in the kernel beyond those that span it.
const SURPLUS: usize = 24;
/// The share of pairs that must be as predicted, or as they were before.
const MOSTLY: f64 = 0.9;
/// The share of conflicts that a kernel must explain.
const EXPLAINED: f64 = 0.75;
/// New pairs of each kind that are timed to check the functions.
const HELD_OUT: u32 = 96;
/// The most pairs that are drawn.
const MOST_PAIRS: u64 = 100_000;
/// How often conflicts are timed again with those that are new.
const LOOKS: u32 = 2;
/// How many pairs are looked at for one that the functions predict.
const SEARCH: u32 = 1 << 20;
/// Where usual pairs differ by more than this part, times say nothing.
const NOISE: f64 = 0.15;

/// How many of so many.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Tally {
    /// How many were as expected.
    pub right: u32,
    /// How many there were.
    pub of: u32,
}

impl Tally {
    fn add(&mut self, right: bool) {
        self.right += u32::from(right);
        self.of += 1;
    }

    /// Whether nearly all were right, of at least one.
    fn mostly(self) -> bool {
        self.of > 0 && f64::from(self.right) >= MOSTLY * f64::from(self.of)
    }
}

/// What was seen on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Figures {
    /// Pages of the pool.
    pub pages: u64,
    /// How many pairs of lines were timed.
    pub pairs: u64,
    /// How many times were taken, repetitions included.
    pub times: u64,
    /// Nanoseconds of two accesses to a usual pair.
    pub usual_ns: f64,
    /// The standard deviation of usual pairs, in nanoseconds.
    pub spread_ns: f64,
    /// The 99th percentile of random pairs, in nanoseconds.
    pub p99_ns: f64,
    /// Random pairs that took longer than usual ones each time.
    pub slower: u32,
    /// Pairs among all that took longer because one of their lines does, next to any other.
    pub slow_lines: u32,
    /// Pairs that were in conflict for a while only: not when they were timed again.
    #[serde(default)]
    pub passing: u32,
    /// Nanoseconds of a pair in conflict. Absent: no pairs take longer than the others.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub conflict_ns: Option<f64>,
    /// Conflicts that the best functions explain, of those that were found.
    pub explained: Tally,
    /// Conflicts that were in conflict once more, at the end.
    pub again: Tally,
    /// New pairs of one bank, by the functions, that were in conflict.
    pub together: Tally,
    /// New pairs of two banks, by the functions, that were not in conflict.
    pub apart: Tally,
}

impl Figures {
    /// Usual time and spread, from the sorted times of random pairs. Fewer than half of them are in
    /// conflict or disturbed: so the lower part is usual.
    fn describe(&mut self, times: &[f64]) {
        let at = |p| percentile(times, p).unwrap_or_default();
        // Of a normal distribution the two percentiles are half a standard deviation apart.
        self.spread_ns = 2.0 * (at(30.0) - at(15.0));
        self.usual_ns = at(30.0);
        self.p99_ns = at(99.0);
    }
}

/// What can be said of the machine's banks.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "is")]
pub enum Verdict {
    /// The functions are known.
    Map {
        /// The functions, in reduced form. Any others of the same span say the same.
        functions: Vec<Mask>,
        /// The share of new pairs that are as the functions say: the lower end of its interval at
        /// 95 % (Wilson).
        confidence: f64,
    },
    /// Some pairs are in conflict again and again, but no functions of these addresses say which.
    Hidden {
        /// Functions that all conflicts have in common. They do not make up the bank.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        common: Vec<Mask>,
        /// Lines seem to go to so many controllers in turn, which no function of bits describes.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        in_turn: Option<u64>,
    },
    /// Functions explain the conflicts. But the pool's addresses are too much alike: functions may
    /// have more bits.
    Narrow {
        /// Differences that addresses of memory have, and those of the pool have not.
        missing: Vec<Mask>,
    },
    /// The same pair takes longer at one time and not at another, or usual pairs differ too much.
    Noisy,
    /// No pair takes longer than the others.
    Flat,
}

/// What was recovered.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Recovery {
    /// What can be said.
    pub verdict: Verdict,
    /// What it rests on.
    pub figures: Figures,
}

/// Recovers the functions of the banks. `memory` has the differences of all addresses of the
/// machine's memory. `oracle` gives the nanoseconds of two accesses to two lines, whose turns it
/// takes.
///
/// # Errors
/// Those of `oracle`.
pub fn recover<E>(
    pool: &Pool,
    memory: &Space,
    seed: u64,
    oracle: &mut dyn FnMut(Lines) -> Result<f64, E>,
) -> Result<Recovery, E> {
    let mut bench = Bench {
        pool,
        random: SplitMix::new(seed),
        oracle,
        from_ns: f64::INFINITY,
        calls: 0,
        pairs: 0,
        slow_lines: 0,
    };
    let mut figures = Figures {
        pages: pool.pages() as u64,
        ..Figures::default()
    };
    let verdict = verdict(&mut bench, memory, &mut figures)?;
    (figures.pairs, figures.times) = (bench.pairs, bench.calls);
    figures.slow_lines = bench.slow_lines;
    Ok(Recovery { verdict, figures })
}

fn verdict<E>(
    bench: &mut Bench<'_, E>,
    memory: &Space,
    figures: &mut Figures,
) -> Result<Verdict, E> {
    let all = bench.pool.differences();
    let drawn = bench.levels(figures)?;
    let nothing = match figures.spread_ns > NOISE * figures.usual_ns {
        true => Verdict::Noisy,
        false => Verdict::Flat,
    };
    if figures.conflict_ns.is_none() {
        return Ok(nothing);
    }
    let (conflicts, kernel) = collect(bench, &all, drawn, figures)?;
    if conflicts.len() < CONFLICTS {
        figures.conflict_ns = None;
        return Ok(nothing);
    }
    for &lines in &conflicts {
        figures.again.add(bench.conflict(lines)?);
    }
    if !figures.again.mostly() {
        return Ok(Verdict::Noisy);
    }
    figures.explained = Tally {
        right: number(kernel.as_ref().map_or(0, |kernel| kernel.explained)),
        of: number(conflicts.len()),
    };
    let Some(kernel) = kernel else {
        return Ok(hidden(bench.pool, &conflicts, &[]));
    };
    let functions = checked(bench, kernel.space, &all, figures)?;
    if !figures.together.mostly() || !figures.apart.mostly() {
        return Ok(hidden(bench.pool, &conflicts, &functions));
    }
    let missing = bench.pool.missing(memory);
    if missing.rank() > 0 {
        let missing = missing.rows().iter().map(|row| Mask(*row)).collect();
        return Ok(Verdict::Narrow { missing });
    }
    let (together, apart) = (figures.together, figures.apart);
    let right = wilson(together.right + apart.right, together.of + apart.of);
    Ok(Verdict::Map {
        functions: functions.into_iter().map(Mask).collect(),
        confidence: right.map_or(0.0, |right| right.low),
    })
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// The functions that are constant on a kernel, and not on all differences.
fn orthogonal(kernel: &Space, all: &Space) -> Vec<u64> {
    let bits = all.rows().iter().fold(0, |bits, row| bits | row);
    let constant = all.orthogonal(bits);
    let functions = kernel.orthogonal(bits).independent_of(&constant);
    functions.rows().to_vec()
}

/// Draws conflicts until a kernel explains them, beginning with those that were drawn. `None`: no
/// kernel does.
fn collect<E>(
    bench: &mut Bench<'_, E>,
    all: &Space,
    mut drawn: Vec<Lines>,
    figures: &mut Figures,
) -> Result<(Vec<Lines>, Option<Kernel>), E> {
    let rank = all.rank() as usize;
    let (mut conflicts, mut wanted) = (Vec::new(), rank + SURPLUS);
    loop {
        while conflicts.len() < wanted && bench.pairs < MOST_PAIRS {
            while drawn.len() < CONFLICTS && bench.pairs < MOST_PAIRS {
                drawn.extend(bench.draw()?);
            }
            conflicts.append(&mut bench.of_both(std::mem::take(&mut drawn))?);
            for _ in 0..LOOKS {
                let of = conflicts.len();
                conflicts = bench.still(conflicts)?;
                figures.passing += number(of - conflicts.len());
            }
        }
        let of = |lines: &Lines| bench.pool.difference(*lines);
        let differences: Vec<u64> = conflicts.iter().map(of).collect();
        let found = decode(&differences, all, &mut bench.random).filter(|kernel| {
            let explained = kernel.explained as f64 >= EXPLAINED * conflicts.len() as f64;
            explained && kernel.surplus() >= SURPLUS
        });
        if found.is_some() || conflicts.len() < wanted || wanted >= 2 * (rank + SURPLUS) {
            return Ok((conflicts, found));
        }
        wanted += SURPLUS;
    }
}

/// The functions of a kernel, checked. Where pairs that differ in one of them are in conflict all
/// the same, it is none: the pool has so few addresses of the one value that no conflict with
/// them was drawn. Then the differences of such pairs belong to the kernel.
fn checked<E>(
    bench: &mut Bench<'_, E>,
    mut kernel: Space,
    all: &Space,
    figures: &mut Figures,
) -> Result<Vec<u64>, E> {
    loop {
        let functions = orthogonal(&kernel, all);
        let slow = check(bench, &functions, figures)?;
        let bank = Functions::new(functions.clone());
        let mut grown = false;
        for at in 0..functions.len() {
            let of = |difference: &&u64| bank.of(**difference) == 1 << at;
            let few = HELD_OUT as usize / functions.len() / 2;
            if slow.iter().filter(of).count() > few {
                for &difference in slow.iter().filter(of) {
                    grown |= kernel.insert(difference);
                }
            }
        }
        if !grown {
            return Ok(functions);
        }
    }
}

/// Times new pairs that the functions predict. Returns the differences of those in conflict that
/// should be apart.
fn check<E>(
    bench: &mut Bench<'_, E>,
    functions: &[u64],
    figures: &mut Figures,
) -> Result<Vec<u64>, E> {
    let bank = Functions::new(functions.to_vec());
    let (mut together, mut apart) = (Vec::new(), Vec::new());
    for n in 0..HELD_OUT {
        together.extend(predicted(bench, &bank, 0));
        // One function apart: each in turn.
        let at = n as usize % functions.len().max(1);
        apart.extend(predicted(bench, &bank, 1 << at));
    }
    let mut surprises = Vec::new();
    for (tally, pairs, conflicts) in [
        (&mut figures.together, together, true),
        (&mut figures.apart, apart, false),
    ] {
        let of = pairs.len();
        let mut slow = pairs;
        for _ in 0..LOOKS {
            slow = bench.still(slow)?;
        }
        let right = if conflicts {
            slow.len()
        } else {
            of - slow.len()
        };
        *tally = Tally {
            right: number(right),
            of: number(of),
        };
        if !conflicts {
            surprises.extend(slow.iter().map(|lines| bench.pool.difference(*lines)));
        }
    }
    Ok(surprises)
}

/// Two lines whose banks differ by `by`. `None` where a search finds none.
fn predicted<E>(bench: &mut Bench<'_, E>, bank: &Functions, by: u64) -> Option<Lines> {
    let pool = bench.pool;
    let mut pairs = (0..SEARCH).map(|_| pool.lines(&mut bench.random));
    pairs.find(|lines| bank.of(pool.difference(*lines)) == by)
}

/// Banks that no functions give.
fn hidden(pool: &Pool, conflicts: &[Lines], common: &[u64]) -> Verdict {
    let line = |address: u64| pool.physical(address) >> 6;
    let agree = |n: &u64| {
        let same = conflicts
            .iter()
            .filter(|(a, b)| line(*a) % n == line(*b) % n);
        same.count() as f64 >= MOSTLY * conflicts.len() as f64
    };
    Verdict::Hidden {
        common: common.iter().map(|mask| Mask(*mask)).collect(),
        in_turn: [12, 10, 9, 7, 6, 5, 3].into_iter().find(agree),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kernel_is_found_among_a_fifth_of_wrong_differences() {
        let mut random = SplitMix::new(1);
        let all = Space::spanned((6..36).map(|bit| 1 << bit));
        let functions = [
            1 << 14 | 1 << 18,
            1 << 15 | 1 << 19,
            1 << 16 | 1 << 20,
            1 << 7 | 1 << 30,
        ];
        let kernel = Space::spanned(functions).orthogonal((1 << 36) - (1 << 6));
        let mut draw = |n: usize| {
            let bits = random.bits();
            let right =
                |sum, (i, row): (usize, &u64)| if bits >> i & 1 == 1 { sum ^ row } else { sum };
            match n % 5 {
                0 => bits & ((1 << 36) - (1 << 6)),
                _ => kernel.rows().iter().enumerate().fold(0, right),
            }
        };
        let differences: Vec<u64> = (0..80).map(&mut draw).collect();
        let found = decode(&differences, &all, &mut SplitMix::new(2)).unwrap();
        assert_eq!(found.space, kernel);
        assert!((64..70).contains(&found.explained), "{}", found.explained);
        // Nothing is found in nothing.
        let any: Vec<u64> = (0..80).map(|_| draw(0)).collect();
        assert!(decode(&any, &all, &mut SplitMix::new(2)).is_none());
    }
}
