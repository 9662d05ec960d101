//! A hoard of page frames: which frames a keeper process takes, keeps and releases.
//!
//! Method. A process cannot ask for a frame of a colour. It can take whatever frames are free, read
//! which it got, keep those of the reserved colours and release all others. What it keeps no other
//! program can get. One pass over the free frames is a round:
//!
//! 1. Frames are taken until there are enough, or the memory that stays for other programs is
//!    reached. Where two of eight colours are reserved, four times the limit is enough on average.
//! 2. Each is sorted by its colour, while all of them are held. A frame that is released at once is
//!    the next one that the kernel hands out, so the same few would be taken again and again.
//! 3. The frames of all other colours are released together.
//!
//! Rounds repeat until one gains less than a hundredth of what is kept. A round that goes on has
//! gained more than that, and what is kept has a limit. So the rounds end.
//!
//! A *slot* is a place for one frame: a page of the keeper's memory, by number from 0 on.

use std::ops::Range;

use quell_types::address::Functions;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Colouring;
use quell_types::units::{Bytes, Nanos, Share};
use serde::{Deserialize, Serialize};

/// The most colour bits of a hoard: colours are kept in 16 bits for each slot.
pub const MOST_BITS: usize = 15;
/// Pages that a sieve takes before free memory is read again: 4 MiB of small pages.
pub const AT_ONCE: u64 = 1024;
/// A round that gains less than one in so many pages of what is kept is the last one.
const GAIN: u64 = 100;
/// Share of a second in which tasks waited for memory, from which on the hoard shrinks.
pub const STALLED: Share = Share::percent(10);
/// What is given up then: one in so many pages of what is kept.
const STALLED_GIVES: u64 = 8;
/// What is given up beyond what is missing: one in so many bytes of the reserve.
const BEYOND: u64 = 8;
/// How long memory has to be free before a hoard that lacks frames takes some again.
pub const CALM: Nanos = Nanos::secs(60);
/// The longest that this gets: each sieve after which frames still lack doubles it. Programs that
/// run on may have them.
const LONGEST_CALM: Nanos = Nanos::secs(16 * 60);
/// What has to be available beyond the reserve for that long: one in so many bytes of it. It is
/// twice what is given up beyond what is missing.
const SPARE: u64 = 4;
/// A hoard that lacks less than one in so many bytes has enough: compaction moves some.
const LACK: u64 = 100;
/// The fastest that programs use memory up, in bytes a second.
const FASTEST: u64 = 4 << 30;
/// The shortest and the longest time between two looks at free memory.
const TICK: Nanos = Nanos::millis(50);
const LONGEST_TICK: Nanos = Nanos::secs(1);

/// A slot without a frame.
const EMPTY: u16 = u16::MAX;
/// A slot whose frame was not sorted yet.
const TAKEN: u16 = u16::MAX - 1;
/// A slot whose frame has another colour, and is released at the end of the round.
const WRONG: u16 = u16::MAX - 2;

/// What a hoard keeps, and how much.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Rules {
    /// What distinguishes colours, and the size of a page.
    pub colouring: Colouring,
    /// The reserved colours: the hoard keeps frames of these.
    pub colours: CpuSet,
    /// What the keeper keeps at most. While it sorts frames it holds more:
    /// [`Self::pages_at_once`].
    pub limit: Bytes,
    /// Memory that stays for other programs. Frames are taken as long as more is free, and given
    /// up when less is available.
    pub reserve: Bytes,
}

impl Rules {
    /// The pages that are kept at most.
    #[must_use]
    pub fn pages(&self) -> u64 {
        self.limit.0.checked_div(self.colouring.page.0).unwrap_or(0)
    }

    /// The pages that are held at most while they are sorted: of so many as many have reserved
    /// colours on average as are kept at most.
    #[must_use]
    pub fn pages_at_once(&self) -> u64 {
        self.among(self.pages())
    }

    /// Of how many pages so many have reserved colours on average.
    fn among(&self, pages: u64) -> u64 {
        let reserved = self.colours.len().max(1) as u128;
        let all = u128::from(pages) * u128::from(self.colouring.count());
        u64::try_from(all.div_ceil(reserved)).unwrap_or(u64::MAX)
    }

    /// Why there is no such hoard; `None` if there is.
    #[must_use]
    pub fn refusal(&self) -> Option<String> {
        let bits = self.colouring.functions.len();
        if !self.colouring.page.0.is_power_of_two() {
            return Some(format!("{} is no size of a page", self.colouring.page));
        }
        if bits == 0 || bits > MOST_BITS {
            return Some(format!(
                "the map leaves 2^{bits} colours: a hoard needs 2^1 to 2^{MOST_BITS}"
            ));
        }
        let count = self.colouring.count();
        let missing: CpuSet = self.colours.iter().filter(|c| *c >= count).collect();
        if self.colours.is_empty() || !missing.is_empty() {
            return Some(format!(
                "colours '{}': there are the colours 0-{}",
                self.colours,
                count - 1
            ));
        }
        if self.colours.len() == count as usize {
            return Some(format!(
                "all {count} colours are reserved: no other program could get memory"
            ));
        }
        if self.pages() == 0 {
            return Some(format!(
                "the limit of {} is less than a page of {}",
                self.limit, self.colouring.page
            ));
        }
        (self.reserve == Bytes(0)).then(|| "no memory stays for other programs".to_owned())
    }
}

/// The memory of the machine, as the kernel reports it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Memory {
    /// Free now.
    pub free: Bytes,
    /// What programs could have without swapping.
    pub available: Bytes,
}

/// What one round came to, in pages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Round {
    /// Pages taken, whatever their colour.
    pub taken: u64,
    /// Of them, those that are kept.
    pub gained: u64,
    /// Pages kept after the round.
    pub kept: u64,
}

impl Round {
    /// Whether another round may gain enough.
    #[must_use]
    pub const fn again(&self) -> bool {
        self.gained > 0 && self.gained.saturating_mul(GAIN) >= self.kept
    }
}

/// Which slots have which frames.
#[derive(Clone, Debug)]
pub struct Slots {
    colour: Functions,
    page: u64,
    wanted: Vec<bool>,
    rules: Rules,
    /// Of each slot: its colour, or one of the words above.
    slots: Vec<u16>,
    /// No slot below this one is empty.
    lowest: usize,
    taken: u64,
    wrong: u64,
    kept: Vec<u64>,
    round: Round,
}

impl Slots {
    /// Without frames.
    ///
    /// # Errors
    /// [`Rules::refusal`].
    pub fn new(rules: &Rules) -> Result<Self, String> {
        if let Some(why) = rules.refusal() {
            return Err(why);
        }
        let count = rules.colouring.count();
        let masks = rules.colouring.functions.iter().map(|mask| mask.0);
        Ok(Self {
            colour: Functions::new(masks.collect()),
            page: rules.colouring.page.0,
            wanted: (0..count).map(|c| rules.colours.contains(c)).collect(),
            rules: rules.clone(),
            slots: Vec::new(),
            lowest: 0,
            taken: 0,
            wrong: 0,
            kept: vec![0; count as usize],
            round: Round::default(),
        })
    }

    /// The number of slots so far. Never more than [`Rules::pages_at_once`].
    #[must_use]
    pub fn count(&self) -> usize {
        self.slots.len()
    }

    /// Pages with a frame, whatever its colour.
    #[must_use]
    pub fn held(&self) -> u64 {
        self.taken + self.wrong + self.kept()
    }

    /// Pages with a frame of a reserved colour.
    #[must_use]
    pub fn kept(&self) -> u64 {
        self.kept.iter().sum()
    }

    /// Pages that are kept of each colour, colour 0 first.
    #[must_use]
    pub fn by_colour(&self) -> &[u64] {
        &self.kept
    }

    /// The size of pages that are kept.
    #[must_use]
    pub fn kept_bytes(&self) -> Bytes {
        Bytes(self.kept().saturating_mul(self.page))
    }

    /// Slots that are to get a frame now, at most so many, in runs. Empty: it takes no more.
    pub fn take(&mut self, memory: Memory, most: u64) -> Vec<Range<usize>> {
        let spare = memory.free.min(memory.available).0;
        let spare = spare.saturating_sub(self.rules.reserve.0) / self.page;
        let missing = self.rules.pages().saturating_sub(self.kept());
        let unsorted = self.taken + self.wrong;
        let wanted = self.rules.among(missing).saturating_sub(unsorted);
        let mut count = spare.min(wanted).min(most);
        let mut runs = Vec::new();
        let mut at = self.lowest;
        while count > 0 {
            match self.slots.get_mut(at) {
                Some(slot) if *slot != EMPTY => {
                    at += 1;
                    continue;
                }
                Some(slot) => *slot = TAKEN,
                None => self.slots.push(TAKEN),
            }
            add(&mut runs, at);
            self.taken += 1;
            self.round.taken += 1;
            count -= 1;
            at += 1;
        }
        self.lowest = at;
        runs
    }

    /// Sorts the frames of slots from `first` on, of which some may be empty. `None`: the slot has
    /// no frame in memory. What exceeds the limit counts as of another colour. Returns how many
    /// frames that were kept have moved to another colour.
    pub fn sort(&mut self, first: usize, frames: &[Option<u64>]) -> u64 {
        let mut moved = 0;
        let mut room = self.rules.pages().saturating_sub(self.kept());
        let slots = self.slots.iter_mut().skip(first);
        for (slot, frame) in slots.zip(frames) {
            if matches!(*slot, EMPTY | WRONG) {
                continue;
            }
            let address = frame.and_then(|frame| frame.checked_mul(self.page));
            let colour = address.and_then(|at| u16::try_from(self.colour.of(at)).ok());
            let wanted = |c: &u16| self.wanted.get(usize::from(*c)).copied() == Some(true);
            let now = colour.filter(wanted).unwrap_or(WRONG);
            if *slot == now {
                continue;
            }
            let now = match *slot {
                TAKEN => {
                    self.taken -= 1;
                    let now = if room > 0 { now } else { WRONG };
                    self.round.gained += u64::from(now != WRONG);
                    now
                }
                before => {
                    moved += 1;
                    room += 1;
                    count(&mut self.kept, before, false);
                    now
                }
            };
            room -= u64::from(now != WRONG);
            match now {
                WRONG => self.wrong += 1,
                now => count(&mut self.kept, now, true),
            }
            *slot = now;
        }
        moved
    }

    /// The slots whose frames are to be released now, in runs: those of other colours. Empty while
    /// any frame is not sorted yet.
    pub fn release(&mut self) -> Vec<Range<usize>> {
        let mut runs = Vec::new();
        if self.taken > 0 || self.wrong == 0 {
            return runs;
        }
        for (at, slot) in self.slots.iter_mut().enumerate() {
            if *slot == WRONG {
                *slot = EMPTY;
                add(&mut runs, at);
            }
        }
        self.wrong = 0;
        self.emptied(&runs);
        runs
    }

    /// What the round came to that ends now.
    pub fn end_round(&mut self) -> Round {
        let kept = self.kept();
        Round {
            kept,
            ..std::mem::take(&mut self.round)
        }
    }

    /// Gives up pages of reserved colours, or of these among them: of the colours of which most are
    /// kept first, so that all last equally long. Returns the slots whose frames are to be
    /// released, in runs.
    pub fn give_up(&mut self, pages: u64, of: Option<&CpuSet>) -> Vec<Range<usize>> {
        let given = |colour: u32| of.is_none_or(|of| of.contains(colour));
        let kept = (0..).zip(&self.kept);
        let kept: Vec<u64> = kept.map(|(c, n)| if given(c) { *n } else { 0 }).collect();
        let mut left = shares(&kept, pages);
        let mut open: u64 = left.iter().sum();
        let mut given = Vec::new();
        for (at, slot) in self.slots.iter_mut().enumerate().rev() {
            if open == 0 {
                break;
            }
            if let Some(of) = left.get_mut(usize::from(*slot)).filter(|of| **of > 0) {
                *of -= 1;
                open -= 1;
                count(&mut self.kept, *slot, false);
                *slot = EMPTY;
                given.push(at);
            }
        }
        let mut runs = Vec::new();
        given.into_iter().rev().for_each(|at| add(&mut runs, at));
        self.emptied(&runs);
        runs
    }

    /// How many pages are to be given up, because other programs need the memory. `stalled` is the
    /// share of the last second in which tasks waited for memory. A group waits below its own
    /// limit, too, and a smaller hoard would not help it. So waiting counts only where memory is
    /// scarce.
    #[must_use]
    pub fn pressed(&self, memory: Memory, stalled: Share) -> u64 {
        let reserve = self.rules.reserve.0;
        let missing = reserve.saturating_sub(memory.available.0);
        let mut pages = 0;
        if missing > 0 {
            pages = missing.saturating_add(reserve / BEYOND).div_ceil(self.page);
        }
        if stalled >= STALLED && memory.available.0 < reserve.saturating_mul(2) {
            pages = pages.max(self.kept().div_ceil(STALLED_GIVES));
        }
        pages.min(self.kept())
    }

    /// When to look at free memory again, if this is it now. Programs that use up 4 GiB a second
    /// cannot get below twice the reserve before, where [`Self::pressed`] begins to count. Where
    /// they may within 50 ms, or have, it is 50 ms.
    #[must_use]
    pub fn next_look(&self, memory: Memory) -> Nanos {
        let spare = memory
            .available
            .0
            .saturating_sub(self.rules.reserve.0.saturating_mul(2));
        let nanos = u128::from(spare) * 1_000_000_000 / u128::from(FASTEST);
        let nanos = Nanos(u64::try_from(nanos).unwrap_or(u64::MAX));
        nanos.clamp(TICK, LONGEST_TICK)
    }

    fn emptied(&mut self, runs: &[Range<usize>]) {
        if let Some(run) = runs.first() {
            self.lowest = self.lowest.min(run.start);
        }
        // Slots that are empty up to the last one need no look.
        while self.slots.last() == Some(&EMPTY) {
            self.slots.pop();
        }
    }
}

/// When a hoard that lacks frames takes free ones again, and whether it has all that it should.
///
/// It lacks frames after it has shrunk. It also does where the kernel moves pages of the programs
/// that have got frames of it: those frames come free then, and the programs get other ones. A
/// sieve comes after [`CALM`] without pressure, and no two of them in a shorter time. It takes
/// nothing of the reserve, as [`Slots::take`] sees to.
#[derive(Clone, Debug)]
pub struct Regrowth {
    reserve: Bytes,
    /// What was held when the promise was made.
    whole: Bytes,
    /// Whether frames were lost to other programs since.
    shrunk: bool,
    /// Since when memory has been free, or when the last sieve was.
    calm: Option<Nanos>,
    /// For how long it has to be free.
    wait: Nanos,
}

impl Regrowth {
    /// Of a hoard that holds so much and leaves so much to other programs.
    #[must_use]
    pub const fn new(reserve: Bytes, held: Bytes) -> Self {
        Self {
            reserve,
            whole: held,
            shrunk: false,
            calm: None,
            wait: CALM,
        }
    }

    /// Frames were given up: other programs need memory.
    pub const fn gave_up(&mut self) {
        (self.shrunk, self.calm, self.wait) = (true, None, CALM);
    }

    /// The kernel has moved frames away. `held` is what the hoard and the programs that have got
    /// frames of it hold. Returns whether that is too little and was enough before.
    pub const fn moved(&mut self, held: Bytes) -> bool {
        let lost = !self.shrunk && self.lacks(held);
        if lost {
            self.gave_up();
        }
        lost
    }

    /// Whether frames were lost to other programs, and as many are not held yet.
    #[must_use]
    pub const fn is_shrunk(&self) -> bool {
        self.shrunk
    }

    /// Whether to sieve now, while `held` is held as above. To be asked about every second. Memory
    /// that is scarce for less than that is not seen, unless the hoard has shrunk by it.
    pub fn is_due(&mut self, now: Nanos, memory: Memory, held: Bytes) -> bool {
        let least = self.reserve.0.saturating_add(self.reserve.0 / SPARE);
        let scarce = memory.free.min(memory.available).0 < least;
        if scarce || !(self.shrunk || self.lacks(held)) {
            self.calm = None;
            return false;
        }
        let since = *self.calm.get_or_insert(now);
        let due = now >= since.plus(self.wait);
        if due {
            self.calm = Some(now);
        }
        due
    }

    /// A sieve has ended, and `held` is held as above. Returns whether frames were lost before, and
    /// as many are held again.
    pub fn sieved(&mut self, held: Bytes) -> bool {
        if self.lacks(held) {
            self.wait = Nanos(self.wait.0 * 2).min(LONGEST_CALM);
            return false;
        }
        (self.calm, self.wait) = (None, CALM);
        std::mem::take(&mut self.shrunk)
    }

    const fn lacks(&self, held: Bytes) -> bool {
        let lacks = self.whole.0.saturating_sub(held.0);
        lacks.saturating_mul(LACK) > self.whole.0
    }
}

/// Adds a slot to runs that ascend.
fn add(runs: &mut Vec<Range<usize>>, at: usize) {
    match runs.last_mut() {
        Some(last) if last.end == at => last.end += 1,
        _ => runs.push(at..at + 1),
    }
}

/// Counts a page of a colour, or no longer.
fn count(kept: &mut [u64], colour: u16, more: bool) {
    if let Some(n) = kept.get_mut(usize::from(colour)) {
        *n = if more { *n + 1 } else { n.saturating_sub(1) };
    }
}

/// How many pages of each colour are given up, so that those of which most are kept come first.
fn shares(kept: &[u64], pages: u64) -> Vec<u64> {
    let above = |level: u64| kept.iter().map(move |n| n.saturating_sub(level));
    let sum = |level: u64| above(level).fold(0u64, u64::saturating_add);
    let pages = pages.min(sum(0));
    // The lowest level to which all colours can be brought.
    let (mut low, mut high) = (0, kept.iter().max().copied().unwrap_or(0));
    while low < high {
        let middle = low + (high - low) / 2;
        match sum(middle) <= pages {
            true => high = middle,
            false => low = middle + 1,
        }
    }
    let mut shares: Vec<u64> = above(low).collect();
    let mut rest = pages - sum(low);
    for (share, n) in shares.iter_mut().zip(kept).rev() {
        if rest > 0 && *n >= low && low > 0 {
            *share += 1;
            rest -= 1;
        }
    }
    shares
}

#[cfg(test)]
#[path = "hoard_tests.rs"]
mod tests;
