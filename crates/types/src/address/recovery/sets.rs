//! The functions that choose the set of a cache, from which lines drive each other out.
//!
//! Method: two lines of one place in their pages share a set if all functions of the set agree, so
//! if the difference of their frames lies in a kernel, as with banks.
//!
//! 1. *Levels*. Re-reads after half of what the cache holds, and after twice as much, give the two
//!    times.
//! 2. *Classes* ([`evict`]). Of some lines, a minimal set that drives them out, and all other lines
//!    of half of the pool that do.
//! 3. *Kernel* (`decode`). Their differences span it.
//! 4. *Check*. Sets made of pages of the other half: as many as a minimal set has that agree in
//!    all functions drive a line out. With half of them a function apart, each in turn, they do
//!    not.
//! 5. *Within a page*. A function that also takes bits within a page is no colour of pages. It has
//!    a line elsewhere in a page be driven out by lines at the beginning of others.
//!
//! Deviations: sets whose number is no power of two look hidden, and so do sets that a hash chooses
//! that is not linear.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::decode::{Kernel, decode};
use super::evict::{Asker, Class, Halt, Leads, Reread, SHIFT};
use super::{EXPLAINED, HELD_OUT, NOISE, Pool, SURPLUS, Tally, Verdict, hidden, orthogonal};
use crate::address::gf2::{Solutions, Space};
use crate::address::{Colours, Functions};
use crate::partition::Mask;
use crate::rng::SplitMix;
use crate::stats::{median, percentile, sorted, wilson};

/// Re-reads that each level is found from.
const SAMPLES: u32 = 64;
/// The share of them that must lie on the right side.
const SIDES: f64 = 0.6;
/// A line that was driven out takes longer by at least this part.
const LEAST: f64 = 0.1;
/// Lines whose classes are looked for, at most.
const VICTIMS: u32 = 24;
/// Classes that a verdict needs.
const CLASSES: usize = 3;
/// Members of a class that are asked again.
const AGAIN: usize = 16;
/// Checks of each function, at least.
const EACH: usize = 8;
/// How many lines are looked at for one that has enough others to check it.
const DRAWS: u32 = 256;
/// How often the part of the pool that is taken is doubled.
const LARGER: u32 = 2;
/// Lines of each class beyond the ways, where all classes are to be full.
const SPARE: usize = 2;
/// log2 of the lines of a page.
const LINES: u32 = SHIFT - 6;

/// What the machine reports of a cache.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    /// Pages of 4 KiB that it holds.
    pub pages: usize,
    /// Lines of a set.
    pub ways: usize,
    /// Pages of 4 KiB that the next nearer level holds.
    pub nearer: usize,
}

impl Shape {
    /// Pages that a pool should have for it: twice what it holds, to find functions and to check
    /// them.
    #[must_use]
    pub const fn pool(&self) -> usize {
        4 * self.pages
    }

    /// How many lines clear the nearer levels.
    pub(super) const fn clearing(&self) -> usize {
        2 * self.nearer
    }

    /// How many lines are asked about at once: half of them share no set with a given line.
    pub(super) fn batch(&self) -> usize {
        self.pages / (2 * self.ways.max(1))
    }
}

/// What was seen on the way.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SetFigures {
    /// Pages of 4 KiB of the pool.
    pub pages: u64,
    /// How many re-reads were timed.
    pub times: u64,
    /// Nanoseconds of a re-read after half of what the cache holds.
    pub kept_ns: f64,
    /// Nanoseconds of a re-read after more than the cache holds.
    pub lost_ns: f64,
    /// Re-reads of the first kind that are nearer to their own level than to the other.
    pub kept: Tally,
    /// The same of the second kind.
    pub lost: Tally,
    /// Lines of which a minimal set was found, of those that were tried.
    pub classes: Tally,
    /// Members that the best functions explain, of those that were found.
    pub explained: Tally,
    /// Members that drove the line out again, much later.
    pub again: Tally,
    /// New sets that agree, by the functions, and drove the line out.
    pub together: Tally,
    /// New sets with half of the lines apart, by the functions, that did not.
    pub apart: Tally,
    /// The time for it was over before there was a verdict.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub over: bool,
}

/// What was recovered of a cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct SetRecovery {
    /// What can be said. Functions are those by which lines at one place of two pages differ. Bits
    /// within a page are in them where a function has both values in every page.
    pub verdict: Verdict,
    /// How many lines drive another one out. Absent where no minimal set was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// What it rests on.
    pub figures: SetFigures,
}

impl SetRecovery {
    /// The colours of pages of 2^`page_shift` bytes. `None` where no functions were recovered.
    #[must_use]
    pub fn colours(&self, page_shift: u32) -> Option<Colours> {
        let Verdict::Map { functions, .. } = &self.verdict else {
            return None;
        };
        let all: Vec<u64> = functions.iter().map(|function| function.0).collect();
        Some(Colours::new(&all, page_shift))
    }
}

/// Recovers the functions of a cache's sets. The pool has pages of 4 KiB. `memory` has the
/// differences of all addresses of the machine's memory. `probe` does what [`Reread`] says, with no
/// line in a cache before, and gives the nanoseconds of the last read: `None` once the time for it
/// is over.
///
/// Where functions mix bits within a page, lines at one place of pages reach more sets than the
/// cache has pages. So a larger part of the pool is taken where a smaller one drives nothing out.
/// Functions that tell more pages apart than the cache holds are those of another cache.
///
/// # Errors
/// Those of `probe`.
pub fn recover_sets<E>(
    pool: &Pool,
    memory: &Space,
    shape: &Shape,
    seed: u64,
    probe: &mut dyn FnMut(&Reread<'_>) -> Result<Option<f64>, E>,
) -> Result<SetRecovery, E> {
    let mut search = Search {
        asker: Asker {
            pool,
            random: SplitMix::new(seed),
            probe,
            from_ns: f64::INFINITY,
            leads: Leads::new(1.0),
            times: 0,
        },
        shape: *shape,
        all: Space::default(),
        find: Vec::new(),
        check: Vec::new(),
        ways: None,
        figures: SetFigures {
            pages: pool.pages() as u64,
            ..SetFigures::default()
        },
    };
    let mut verdict = search.verdict(memory);
    for _ in 0..LARGER {
        let enough = 2 * search.shape.pool() <= pool.pages();
        if !matches!(verdict, Ok(Verdict::Flat | Verdict::Noisy)) || !enough {
            break;
        }
        search.shape.pages *= 2;
        search.figures = SetFigures {
            pages: search.figures.pages,
            ..SetFigures::default()
        };
        verdict = search.verdict(memory);
    }
    let verdict = match verdict {
        Ok(Verdict::Map { functions, .. }) if search.exceeds(&functions, shape) => Verdict::Flat,
        Ok(verdict) => verdict,
        Err(Halt::Over) => {
            search.figures.over = true;
            Verdict::Noisy
        }
        Err(Halt::Failed(error)) => return Err(error),
    };
    search.figures.times = search.asker.times;
    Ok(SetRecovery {
        verdict,
        ways: search.ways.map(number),
        figures: search.figures,
    })
}

fn number(n: usize) -> u32 {
    u32::try_from(n).unwrap_or(u32::MAX)
}

/// A recovery, as far as it has come.
struct Search<'a, E> {
    asker: Asker<'a, E>,
    shape: Shape,
    /// The differences of all pages.
    all: Space,
    /// Pages from which functions are found, and those that check them.
    find: Vec<u64>,
    check: Vec<u64>,
    ways: Option<usize>,
    figures: SetFigures,
}

impl<E> Search<'_, E> {
    /// Whether pages of all colours, as many as a set has lines, are clearly more than the cache
    /// holds.
    fn exceeds(&self, functions: &[Mask], reported: &Shape) -> bool {
        let all: Vec<u64> = functions.iter().map(|function| function.0).collect();
        let colours = usize::try_from(Colours::new(&all, SHIFT).count()).unwrap_or(usize::MAX);
        let pages = colours.saturating_mul(self.ways.unwrap_or_default());
        pages > reported.pages + reported.pages / 2
    }

    fn verdict(&mut self, memory: &Space) -> Result<Verdict, Halt<E>> {
        let mut pages: Vec<u64> = (0..self.figures.pages).collect();
        self.asker.shuffle(&mut pages);
        pages.truncate(self.shape.pool());
        self.all = self.asker.pool.frames(&pages);
        self.check = pages.split_off(pages.len() / 2);
        self.find = pages;
        if let Some(verdict) = self.levels()? {
            return Ok(verdict);
        }
        let (classes, kernel) = self.collect()?;
        let Tally { right, of } = self.figures.classes;
        if classes.len() < self.needed() || 2 * right < of {
            return Ok(Verdict::Noisy);
        }
        let mut pairs = Vec::new();
        for class in &classes {
            for &member in class.members.iter().take(AGAIN) {
                let again = self.asker.is_member(class, member)?;
                self.figures.again.add(again);
            }
            pairs.extend(class.lines().map(|line| (class.victim, line)));
        }
        if !self.figures.again.mostly() {
            return Ok(Verdict::Noisy);
        }
        let pool = self.asker.pool;
        let Some(kernel) = kernel else {
            return Ok(hidden(pool, &pairs, &[]));
        };
        let functions = orthogonal(&kernel.space, &self.all);
        let ways = self.lines_of_a_set(&classes, &functions);
        self.ways = Some(ways);
        let holds = self.holds(&functions, ways)?;
        // Classes of pages are too small to check it.
        if 2 * self.figures.together.of < HELD_OUT {
            return Ok(Verdict::Flat);
        }
        if !holds {
            let common = self.figures.explained.mostly();
            return Ok(hidden(pool, &pairs, if common { &functions } else { &[] }));
        }
        let missing = memory.within(u64::MAX << SHIFT).independent_of(&self.all);
        if missing.rank() > 0 {
            let missing = missing.rows().iter().map(|row| Mask(*row)).collect();
            return Ok(Verdict::Narrow { missing });
        }
        let functions = match self.within_pages(&functions, ways)? {
            Ok(functions) => functions,
            Err(verdict) => return Ok(verdict),
        };
        let (together, apart) = (self.figures.together, self.figures.apart);
        let right = wilson(together.right + apart.right, together.of + apart.of);
        Ok(Verdict::Map {
            functions: functions.into_iter().map(Mask).collect(),
            confidence: right.map_or(0.0, |right| right.low),
        })
    }

    /// Finds the two levels. Some verdict where there are none.
    fn levels(&mut self) -> Result<Option<Verdict>, Halt<E>> {
        let (mut kept, mut lost) = (Vec::new(), Vec::new());
        let few = (self.shape.pages / 2).min(self.find.len() / 4);
        for _ in 0..SAMPLES {
            let mut pages = self.find.clone();
            self.asker.shuffle(&mut pages);
            let offset = self.asker.offset();
            let lines: Vec<u64> = pages.iter().map(|page| page << SHIFT | offset).collect();
            let Some((&victim, others)) = lines.split_first() else {
                return Ok(Some(Verdict::Flat));
            };
            for (times, count) in [(&mut kept, few), (&mut lost, others.len())] {
                times.push(self.asker.time(&Reread {
                    victim,
                    others: &others[..count],
                    clearing: &[],
                })?);
            }
        }
        let figures = &mut self.figures;
        (figures.kept_ns, figures.lost_ns) = median(&kept).zip(median(&lost)).unwrap_or_default();
        let from = f64::midpoint(figures.kept_ns, figures.lost_ns);
        kept.iter().for_each(|ns| figures.kept.add(*ns <= from));
        lost.iter().for_each(|ns| figures.lost.add(*ns > from));
        self.asker.from_ns = from;
        if figures.lost_ns < (1.0 + LEAST) * figures.kept_ns {
            let kept = sorted(&kept);
            let spread = percentile(&kept, 30.0).zip(percentile(&kept, 15.0));
            let spread = spread.map_or(0.0, |(high, low)| 2.0 * (high - low));
            let noisy = spread > NOISE * figures.kept_ns;
            return Ok(Some(if noisy { Verdict::Noisy } else { Verdict::Flat }));
        }
        let worse = figures.kept.right.min(figures.lost.right);
        let right = wilson(worse, SAMPLES).map_or(0.0, |right| right.low);
        self.asker.leads = Leads::new(right);
        Ok((f64::from(worse) < SIDES * f64::from(SAMPLES)).then_some(Verdict::Noisy))
    }

    /// How many classes a verdict needs: not more than there are.
    fn needed(&self) -> usize {
        CLASSES.min(self.shape.pages / self.shape.ways.max(1))
    }

    /// Looks for classes until a kernel explains them. No kernel: none does.
    fn collect(&mut self) -> Result<(Vec<Class>, Option<Kernel>), Halt<E>> {
        let wanted = self.all.rank() as usize + SURPLUS;
        let (mut classes, mut differences) = (Vec::<Class>::new(), Vec::new());
        for n in 0..VICTIMS {
            let Some(&victim) = self.find.get(n as usize) else {
                break;
            };
            let known = |class: &Class| class.lines().any(|line| line >> SHIFT == victim);
            if classes.iter().any(known) {
                continue;
            }
            let class = self.asker.class(victim, &self.find, &self.shape)?;
            self.figures.classes.add(class.is_some());
            let Some(class) = class else {
                continue;
            };
            let pool = self.asker.pool;
            let of = |line| pool.difference((class.victim, line));
            differences.extend(class.lines().map(of));
            classes.push(class);
            if differences.len() < wanted {
                continue;
            }
            let found = decode(&differences, &self.all, &mut self.asker.random);
            self.figures.explained = Tally {
                right: number(found.as_ref().map_or(0, |kernel| kernel.explained)),
                of: number(differences.len()),
            };
            let found = found.filter(|kernel| {
                let explained = kernel.explained as f64 >= EXPLAINED * differences.len() as f64;
                explained && kernel.surplus() >= SURPLUS
            });
            let enough = differences.len() >= 2 * wanted;
            if classes.len() >= self.needed() && (found.is_some() || enough) {
                return Ok((classes, found));
            }
        }
        Ok((classes, None))
    }

    /// How many lines of a class drive another one out. A minimal set may lack some that are among
    /// those that clear the nearer caches.
    fn lines_of_a_set(&self, classes: &[Class], functions: &[u64]) -> usize {
        let set = Functions::new(functions.to_vec());
        let mut counts: Vec<usize> = Vec::new();
        for class in classes {
            let of = |line: u64| set.of(self.asker.pool.physical(line));
            let same = |line: &&u64| of(**line) == of(class.victim);
            counts.push(class.set.len() + class.clearing.iter().filter(same).count());
        }
        counts.sort_unstable();
        counts.get(counts.len() / 2).copied().unwrap_or_default()
    }

    /// The class of a page, by the functions.
    fn class_of(&self, set: &Functions, page: u64) -> u64 {
        set.of(self.asker.pool.physical(page << SHIFT))
    }

    /// Lines at `offset` of pages of other classes, which clear the nearer caches.
    fn clearing(&mut self, set: &Functions, class: u64, offset: u64) -> Vec<u64> {
        let mut lines = Vec::new();
        for _ in 0..DRAWS as usize * self.shape.clearing() {
            if lines.len() == self.shape.clearing() {
                break;
            }
            let at = self.asker.random.below(self.find.len().max(1) as u64);
            let page = usize::try_from(at).ok().and_then(|at| self.find.get(at));
            if let Some(&page) = page.filter(|page| self.class_of(set, **page) != class) {
                lines.push(page << SHIFT | offset);
            }
        }
        lines
    }

    /// Checks the functions by sets made of pages that did not find them.
    fn holds(&mut self, functions: &[u64], ways: usize) -> Result<bool, Halt<E>> {
        let set = Functions::new(functions.to_vec());
        let sure = self.asker.leads.sure;
        let mut classes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for &page in &self.check {
            let class = self.class_of(&set, page);
            classes.entry(class).or_default().push(page);
        }
        let mut each = vec![Tally::default(); functions.len()];
        for n in 0..(HELD_OUT as usize).max(EACH * functions.len()) {
            let at = n % functions.len().max(1);
            let Some((class, other)) = self.full(&set, &classes, at, ways) else {
                continue;
            };
            let offset = self.asker.offset();
            let mut pages = classes.get(&class).cloned().unwrap_or_default();
            self.asker.shuffle(&mut pages);
            let mut lines: Vec<u64> = pages.iter().map(|page| page << SHIFT | offset).collect();
            lines.truncate(ways + 1);
            let Some(victim) = lines.pop() else {
                continue;
            };
            let clearing = self.clearing(&set, class, offset);
            let mut lost = |others: &[u64]| {
                self.asker.lost(
                    &Reread {
                        victim,
                        others,
                        clearing: &clearing,
                    },
                    sure,
                )
            };
            let together = lost(&lines)?;
            for (line, page) in lines.iter_mut().step_by(2).zip(other) {
                *line = page << SHIFT | offset;
            }
            let apart = !lost(&lines)?;
            self.figures.together.add(together);
            self.figures.apart.add(apart);
            each[at].add(apart);
        }
        let half = |tally: &Tally| tally.of > 0 && 2 * tally.right > tally.of;
        let (together, apart) = (self.figures.together, self.figures.apart);
        Ok(together.mostly() && apart.mostly() && each.iter().all(half))
    }

    /// A class with more lines than a minimal set, and half as many pages that differ from it in
    /// the function at `at` alone. `None` where none is met.
    fn full<'p>(
        &mut self,
        set: &Functions,
        classes: &'p BTreeMap<u64, Vec<u64>>,
        at: usize,
        ways: usize,
    ) -> Option<(u64, &'p [u64])> {
        (0..DRAWS).find_map(|_| {
            let n = self.asker.random.below(self.check.len().max(1) as u64);
            let page = *self.check.get(usize::try_from(n).ok()?)?;
            let class = self.class_of(set, page);
            let others = classes.get(&(class ^ 1 << at))?;
            let full = classes.get(&class)?.len() > ways && 2 * others.len() > ways && ways > 0;
            full.then_some((class, others.as_slice()))
        })
    }

    /// The functions with their bits within a page. Lines at the beginning of pages of all classes
    /// are read. A line at another place that they drive out shares the set of some: its place
    /// counts as a difference of class. An error is the verdict where that cannot be found out, for
    /// example as some class has too few pages to drive a line out.
    fn within_pages(
        &mut self,
        functions: &[u64],
        ways: usize,
    ) -> Result<Result<Vec<u64>, Verdict>, Halt<E>> {
        let set = Functions::new(functions.to_vec());
        let sure = self.asker.leads.sure;
        let mut classes: BTreeMap<u64, Vec<u64>> = BTreeMap::new();
        for &page in self.find.iter().chain(&self.check) {
            let of = classes.entry(self.class_of(&set, page)).or_default();
            if of.len() < ways + SPARE {
                of.push(page << SHIFT);
            }
        }
        let full = classes.values().filter(|lines| lines.len() >= ways);
        if full.count() < 1 << functions.len() {
            return Ok(Err(Verdict::Flat));
        }
        let (mut places, mut shifts) = (Space::default(), Vec::new());
        for place in 1..1u64 << LINES {
            let offset = place << 6;
            if places.contains(offset) {
                continue;
            }
            let at = self.asker.random.below(self.find.len().max(1) as u64);
            let page = usize::try_from(at).ok().and_then(|at| self.find.get(at));
            let Some(&page) = page else { continue };
            let class = self.class_of(&set, page);
            let clearing = self.clearing(&set, class, offset);
            let mut lost = |chosen: &dyn Fn(u64) -> bool| {
                let all = classes.iter().filter(|(class, _)| chosen(**class));
                let others: Vec<u64> = all.flat_map(|(_, lines)| lines).copied().collect();
                self.asker.lost(
                    &Reread {
                        victim: page << SHIFT | offset,
                        others: &others,
                        clearing: &clearing,
                    },
                    sure,
                )
            };
            if !lost(&|_| true)? {
                continue;
            }
            let mut shift = 0;
            for bit in 0..functions.len() {
                let same = lost(&|other| (other ^ class) >> bit & 1 == 0)?;
                shift |= u64::from(!same) << bit;
            }
            // Some answer was wrong.
            if !lost(&|other| other == class ^ shift)? {
                return Ok(Err(Verdict::Noisy));
            }
            places.insert(offset);
            shifts.push(Shift {
                offset,
                class: shift,
            });
        }
        Ok(Ok(with_places(functions, &shifts)))
    }
}

/// A place within pages whose lines are of another class than those at the beginning.
struct Shift {
    offset: u64,
    /// The difference of the classes.
    class: u64,
}

/// Functions of pages with the bits within a page that give these differences of class.
fn with_places(functions: &[u64], shifts: &[Shift]) -> Vec<u64> {
    let places: Vec<u64> = shifts.iter().map(|shift| shift.offset).collect();
    let within = !(u64::MAX << SHIFT) & u64::MAX << 6;
    let bits = functions.iter().enumerate().map(|(bit, function)| {
        let of = |shift: &Shift| shift.class >> bit & 1;
        let value = shifts
            .iter()
            .rev()
            .fold(0, |all, shift| all << 1 | of(shift));
        let solution = Solutions::of(&places, value, within);
        function | solution.and_then(|all| all.nth(0)).unwrap_or_default()
    });
    bits.collect()
}
