//! What one program demands of caches of many sizes, window by window: its profile.
//!
//! Method:
//! - Each access to a line of 64 bytes goes through a first level of 32 KiB and a second level of
//!   256 KiB. Both have 8 ways, LRU and write-back.
//! - What the second level misses goes to LRU caches of all asked sizes ([`Stack`]). All caches
//!   stay warm over the whole run, and every access is counted: nothing is sampled.
//! - How many misses are under way together is a bound of an out-of-order core. A miss opens an
//!   epoch. Another miss joins it within [`REACH`] instructions while fewer than [`BUFFERS`] are in
//!   it. A miss does not join if its address is just above a word of a line of the epoch. It then
//!   follows a pointer that is not there yet. Misses ÷ epochs is the mean.
//! - A miss that continues a walk over neighbouring lines opens no epoch: a prefetcher that watches
//!   the second level has asked for the line before. It counts as a miss all the same.
//!
//! Deviations from hardware: addresses are virtual, no line is fetched in vain, and instruction
//! fetches do not use the second level. An index that a missing line holds is not seen as a
//! dependence, so the bound on misses under way is high for hash tables.

use crate::Invalid;
use crate::cache::{Cache, Fill, Geometry, Policy, Stack, Traffic};

/// Bytes of a line.
pub const LINE: u64 = 64;
/// Words of a line, which may be pointers.
pub const WORDS: usize = 8;
/// Instructions that a core runs ahead of its oldest miss. The reorder buffer of the Westmere
/// generation has so many entries.
pub const REACH: u64 = 128;
/// Misses that a core has under way at most. The same generation has so many line fill buffers.
pub const BUFFERS: usize = 10;
/// An address so many bytes above a pointer, or fewer, follows the pointer.
const FIELD: u64 = 256;

/// Walks that are followed at once.
const WALKS: usize = 16;
/// From the third line on, a walk is recognized.
const RECOGNIZED: u32 = 2;

/// Size and ways of the first and second level.
const LEVELS: [(u64, u32); 2] = [(32 << 10, 8), (256 << 10, 8)];

/// Misses, and groups of them that were under way together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Together {
    /// Misses.
    pub misses: u64,
    /// Groups of misses.
    pub epochs: u64,
}

/// What happened in one window.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Window {
    /// Instructions.
    pub instructions: u64,
    /// Line accesses that read.
    pub loads: u64,
    /// Line accesses that write.
    pub stores: u64,
    /// Misses of the first level.
    pub first: u64,
    /// Misses of the second level behind it.
    pub second: u64,
    /// Lines that left the second level.
    pub evictions: u64,
    /// How many of them were written.
    pub writebacks: u64,
    /// Misses of the second level under way together.
    pub near: Together,
    /// Misses of the cache of the size `share`.
    pub far: Together,
    /// By size, what went through the LRU caches.
    pub sizes: Vec<Traffic>,
}

/// What to record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Plan {
    /// Instructions of a window.
    pub window: u64,
    /// Sizes of the LRU caches in bytes, increasing.
    pub sizes: Vec<u64>,
    /// The index of the size for which [`Window::far`] counts.
    pub share: usize,
}

/// One access of an instruction to one line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Touch {
    /// The place of the instruction within the block of code that runs.
    pub index: u64,
    /// Any address in the line.
    pub address: u64,
    /// Whether it writes.
    pub write: bool,
}

/// A miss of the second level.
struct Miss {
    position: u64,
    address: u64,
    /// The words of its line.
    words: [u64; WORDS],
    /// Whether it was fetched ahead.
    ahead: bool,
}

/// A walk over neighbouring lines.
#[derive(Clone, Copy, Debug, Default)]
struct Walk {
    last: u64,
    lines: u32,
}

/// The walks among the latest misses of the second level.
#[derive(Clone, Debug, Default)]
struct Walks {
    walks: [Walk; WALKS],
    /// The walk that a new one replaces.
    oldest: usize,
}

impl Walks {
    /// Whether a miss continues a recognized walk, up or down.
    fn follows(&mut self, line: u64) -> bool {
        let next = |walk: &&mut Walk| walk.lines > 0 && walk.last.abs_diff(line) == 1;
        if let Some(walk) = self.walks.iter_mut().find(next) {
            (walk.last, walk.lines) = (line, walk.lines + 1);
            return walk.lines > RECOGNIZED;
        }
        self.walks[self.oldest] = Walk {
            last: line,
            lines: 1,
        };
        self.oldest = (self.oldest + 1) % WALKS;
        false
    }
}

/// The misses of the latest epoch.
#[derive(Clone, Debug, Default)]
struct Epoch {
    begin: u64,
    lines: usize,
    words: [[u64; WORDS]; BUFFERS],
}

impl Epoch {
    fn miss(&mut self, counts: &mut Together, miss: &Miss) {
        counts.misses += 1;
        let &Miss {
            position,
            address,
            words,
            ahead,
        } = miss;
        if ahead {
            return;
        }
        let open =
            (1..BUFFERS).contains(&self.lines) && position.saturating_sub(self.begin) < REACH;
        let mut under_way = self.words[..self.lines].iter().flatten();
        if !open || under_way.any(|&word| address.wrapping_sub(word) < FIELD) {
            counts.epochs += 1;
            (self.begin, self.lines) = (position, 0);
        }
        self.words[self.lines] = words;
        self.lines += 1;
    }
}

/// The latest access: most accesses repeat its line.
#[derive(Clone, Copy, Debug)]
struct Latest {
    line: u64,
    position: u64,
    write: bool,
    /// Whether the line is known to be dirty in the first level.
    dirty: bool,
}

/// Records the profile of one thread.
#[derive(Clone, Debug)]
pub struct Profiler {
    plan: Plan,
    first: Cache,
    second: Cache,
    beyond: Stack,
    walks: Walks,
    near: Epoch,
    far: Epoch,
    latest: Latest,
    /// Instructions before the block that runs, and with it.
    begin: u64,
    position: u64,
    /// Where the window ends.
    end: u64,
    now: Window,
    windows: Vec<Window>,
}

impl Profiler {
    /// With empty caches.
    ///
    /// # Errors
    /// For impossible sizes, an empty window, and a share that is none of the sizes.
    pub fn new(plan: Plan) -> Result<Self, Invalid> {
        let [first, second] = LEVELS.map(|(bytes, ways)| {
            let geometry = Geometry::plain(bytes, ways, LINE)?;
            Cache::new(&geometry, Policy::Lru, 1)
        });
        let lines = |&bytes: &u64| usize::try_from(bytes / LINE).unwrap_or(usize::MAX);
        let sizes: Vec<usize> = plan.sizes.iter().map(lines).collect();
        if plan.window == 0 || plan.share >= sizes.len() {
            let reason = "a window has an instruction at least, and the share is one of the sizes";
            return Err(Invalid::new("profile", reason));
        }
        Ok(Self {
            first: first?,
            second: second?,
            beyond: Stack::new(&sizes)?,
            walks: Walks::default(),
            near: Epoch::default(),
            far: Epoch::default(),
            latest: Latest {
                line: u64::MAX,
                position: u64::MAX,
                write: false,
                dirty: false,
            },
            begin: 0,
            position: 0,
            end: plan.window,
            now: Window::default(),
            windows: Vec::new(),
            plan,
        })
    }

    /// A block of so many instructions begins. The accesses that follow are its own.
    #[inline]
    pub fn block(&mut self, instructions: u64) {
        if self.position >= self.end {
            self.close();
        }
        self.begin = self.position;
        self.position += instructions;
        self.now.instructions += instructions;
    }

    /// One access. `read` returns the words of the line at an address.
    #[inline]
    pub fn access(&mut self, touch: Touch, read: impl FnOnce(u64) -> [u64; WORDS]) {
        let (line, position) = (touch.address / LINE, self.begin + touch.index);
        let latest = self.latest;
        let same = line == latest.line;
        // A wide access comes in pieces.
        if same && position == latest.position && touch.write == latest.write {
            return;
        }
        self.now.stores += u64::from(touch.write);
        self.now.loads += u64::from(!touch.write);
        self.latest = Latest {
            line,
            position,
            write: touch.write,
            dirty: touch.write || same && latest.dirty,
        };
        if same && (!touch.write || latest.dirty) {
            return;
        }
        if self.first.lookup(touch.address, touch.write, 0).is_none() {
            self.miss(touch, position, read);
        }
    }

    /// The windows so far. The last one may be shorter.
    pub fn windows(&mut self) -> &[Window] {
        if self.now.instructions > 0 {
            self.close();
        }
        &self.windows
    }

    fn miss(&mut self, touch: Touch, position: u64, read: impl FnOnce(u64) -> [u64; WORDS]) {
        let Touch { address, write, .. } = touch;
        self.now.first += 1;
        if self.second.lookup(address, false, 0).is_none() {
            self.now.second += 1;
            self.fill_second(address, false);
            let found = self.beyond.access(address / LINE, false);
            let miss = Miss {
                position,
                address,
                words: read(address & !(LINE - 1)),
                ahead: self.walks.follows(address / LINE),
            };
            self.near.miss(&mut self.now.near, &miss);
            if found > self.plan.share {
                self.far.miss(&mut self.now.far, &miss);
            }
        }
        let Fill::Done { victim, .. } = self.first.fill(address, write, 0) else {
            return;
        };
        if let Some(victim) = victim.filter(|victim| victim.dirty)
            && !self.second.mark_dirty(victim.address)
        {
            self.fill_second(victim.address, true);
        }
    }

    fn fill_second(&mut self, address: u64, dirty: bool) {
        let Fill::Done { victim, .. } = self.second.fill(address, dirty, 0) else {
            return;
        };
        let Some(victim) = victim else { return };
        self.now.evictions += 1;
        if victim.dirty {
            self.now.writebacks += 1;
            self.beyond.write_back(victim.address / LINE);
        }
    }

    /// Ends the window. What the LRU caches counted since the last one is its share.
    #[cold]
    fn close(&mut self) {
        self.end = self.position + self.plan.window;
        let mut window = std::mem::take(&mut self.now);
        window.sizes = self.beyond.take_traffic();
        self.windows.push(window);
    }
}
