//! How fast programs run that share a processor for a while: one balance of what they do to each
//! other, without single accesses.
//!
//! A thread spends cycles per instruction on work, on the second level, on the third and on memory.
//!
//! - **Work** takes `cpi` cycles. While the other thread of the core works, too, issue slots and
//!   first-level ports are shared as in the detailed machine (max-min fairness).
//! - **First and second level**: two threads have as much of them as they fetch into them.
//! - **Third level**: the same among all threads.
//! - **Hits** in the second and third level, and misses: `overlap` of them are under way together.
//! - **Memory**: its latency grows with its load. Both threads of a core have no more misses under
//!   way than the core has miss buffers.
//!
//! [`Fit`] has what no data sheet says. It is fitted to the detailed machine on synthetic loads,
//! never to a schedule.
//!
//! What is left out: the TLB, the prefetcher, and conflicts within sets.

use quell_control::schedule::contention::Contention;
use quell_types::units::LINE_BYTES;

use crate::board::Board;
use crate::recorded::{Phase, Program};

/// Steps of the search for a balance.
const STEPS: usize = 8;
/// Halvings of the interval in which the latency of memory lies.
const HALVINGS: usize = 18;
/// What memory can be loaded to at most, as part of its rate.
const FULL: f64 = 0.999;

/// What is fitted to the detailed machine.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Fit {
    /// The latency of idle memory at random addresses ÷ that of an open row.
    pub rows: f64,
    /// How much of the latency a load of 1 would add if memory sustained it.
    pub queueing: f64,
    /// The load above which latency has no bound, as part of the peak rate.
    pub sustained: f64,
    /// The part of the latency of the second and third level that a program waits for.
    pub waits: f64,
}

impl Fit {
    /// As `docs/results/2026-11-25-smt-coarse.md` found it for xeon-e5645.
    pub const FITTED: Self = Self {
        rows: 1.42,
        queueing: 0.97,
        sustained: 0.95,
        waits: 0.89,
    };

    /// How many times longer a miss takes at a load, which is a part of the peak rate.
    fn longer(&self, load: f64) -> f64 {
        let full = (load / self.sustained).min(FULL);
        1.0 + self.queueing * load / (1.0 - full.powi(4))
    }
}

/// A processor as the coarse machine knows it. Cores and their threads are alike.
#[derive(Clone, Debug)]
pub struct Chip {
    /// Number of cores.
    pub cores: usize,
    /// Hardware threads of each core.
    pub threads: usize,
    /// Cycles per microsecond.
    pub mhz: f64,
    /// Instructions, loads and stores that a core can do per cycle.
    slots: [f64; 3],
    /// Miss buffers of a core.
    misses: f64,
    /// Bytes of the three levels.
    sizes: [f64; 3],
    /// Cycles of a hit in the second and the third level.
    hits: [f64; 2],
    /// Microseconds of a miss where nothing else runs.
    idle: f64,
    /// Microseconds that a switch takes by itself.
    pub switch: f64,
    /// Lines per microsecond that the memory bus can move.
    peak: f64,
    /// Lines per microsecond that memory can sustain.
    pub lines: f64,
    fit: Fit,
}

/// A program in one of its phases, on a hardware thread.
#[derive(Clone, Copy, Debug)]
pub struct Thread<'p> {
    /// What it does.
    pub phase: &'p Phase,
    /// Cycles per instruction without misses.
    pub cpi: f64,
    /// Misses under way together.
    pub overlap: f64,
    /// The core it runs on.
    pub core: usize,
}

impl Thread<'_> {
    /// Cycles of work per instruction. As in the detailed machine, an access takes a cycle.
    fn work(&self) -> f64 {
        self.cpi.max(self.phase.accesses)
    }
}

/// How a thread fares.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Pace {
    /// Instructions per cycle.
    pub ipc: f64,
    /// First-level accesses per microsecond.
    pub first_level: f64,
    /// Lines moved from and to memory per microsecond.
    pub memory: f64,
    /// Those of them that come in.
    pub fetched: f64,
    /// Hits in the second and third level per microsecond.
    pub hits: [f64; 2],
    /// Bytes that it holds in the third level.
    pub held: f64,
}

/// What a thread does per instruction, at the shares of the caches that it has.
#[derive(Clone, Copy, Default)]
struct Use {
    /// Misses of the three levels.
    misses: [f64; 3],
    /// Cycles of work, as slowed by the other thread.
    slowed: f64,
    /// Cycles for the second and third level.
    near: f64,
    /// Misses of memory under way together.
    overlap: f64,
    /// Lines from and to memory.
    lines: f64,
}

impl Use {
    /// Cycles per instruction where a miss takes so many.
    fn cycles(&self, miss: f64) -> f64 {
        self.slowed + self.near + self.misses[2] * miss / self.overlap
    }
}

/// Misses under way on average, on a core with so many buffers. Misses come in runs that need none
/// before them, of `overlap` on average and geometrically distributed. A run that is longer than
/// there are buffers waits.
fn under_way(overlap: f64, buffers: f64) -> f64 {
    let longer = (1.0 - 1.0 / overlap).powf(buffers);
    overlap / (1.0 + longer * overlap / buffers)
}

impl Chip {
    /// The processor of a board that has three levels of cache, and what hardware threads share.
    ///
    /// # Errors
    /// What it lacks.
    pub fn of(board: &Board, fit: Fit) -> Result<Self, String> {
        let profile = &board.profile;
        let lacks = |what: &str| format!("{}: the coarse machine needs {what}", profile.name);
        let smt = profile.smt.as_ref().ok_or_else(|| lacks("[smt]"))?;
        let [first, second, third] = profile.cache.as_slice() else {
            return Err(lacks("three levels of cache"));
        };
        let mhz = f64::from(profile.cores.mhz);
        let dram = &board.description.dram;
        let channels = f64::from(board.description.map.channels());
        let burst = dram.timing.cycles(dram.timing.burst) as f64 / 1e6;
        Ok(Self {
            cores: profile.cores.count as usize,
            threads: profile.cores.threads as usize,
            mhz,
            slots: [smt.issue, smt.loads, smt.stores].map(f64::from),
            misses: f64::from(profile.cores.misses),
            sizes: [first, second, third].map(|level| level.size.0 as f64),
            hits: [second, third].map(|level| f64::from(level.latency)),
            idle: board.description.idle_latency() as f64 / 1e6 * fit.rows,
            switch: board.costs.switch.0 as f64 / 1e3,
            peak: channels / burst,
            lines: channels / burst * fit.sustained,
            fit,
        })
    }

    /// What policies are told that the processor can do.
    #[must_use]
    pub fn contention(&self) -> Contention {
        Contention {
            issue: self.slots[0],
            ports: (self.slots[1] + self.slots[2]) * self.mhz,
            memory: self.lines,
            thread: self.misses / self.idle,
        }
    }

    /// How threads fare that run together, at most one on each hardware thread.
    #[must_use]
    pub fn balance(&self, threads: &[Thread<'_>]) -> Vec<Pace> {
        let mut paces: Vec<Pace> = threads
            .iter()
            .map(|thread| Pace {
                ipc: 1.0 / (2.0 * thread.work()),
                held: self.sizes[2] / threads.len() as f64,
                ..Pace::default()
            })
            .collect();
        let mut uses = vec![Use::default(); threads.len()];
        let mut miss = self.idle * self.mhz;
        for _ in 0..STEPS {
            self.share_core(threads, &paces, miss, &mut uses);
            miss = self.latency(&uses) * self.mhz;
            self.share_third(threads, &uses, miss, &mut paces);
        }
        for ((pace, thread), of) in paces.iter_mut().zip(threads).zip(&uses) {
            let instructions = pace.ipc * self.mhz;
            pace.first_level = instructions * thread.phase.accesses;
            pace.memory = instructions * of.lines;
            pace.fetched = instructions * of.misses[2];
            let [first, second, third] = of.misses;
            pace.hits = [first - second, second - third].map(|hits| hits * instructions);
        }
        paces
    }

    /// What each thread does per instruction, next to the other threads of its core.
    fn share_core(&self, threads: &[Thread<'_>], paces: &[Pace], miss: f64, uses: &mut [Use]) {
        for (n, thread) in threads.iter().enumerate() {
            let curve = &thread.phase.curve;
            let of = uses[n];
            let others =
                || (0..threads.len()).filter(|m| *m != n && threads[*m].core == thread.core);
            // Before the first step nothing is known of anybody's misses.
            let fetched = |m: usize, level: usize| {
                let per_instruction = match level {
                    0 => threads[m].phase.accesses,
                    _ => uses[m].misses[0].max(1e-9),
                };
                paces[m].ipc * per_instruction
            };
            let mut misses = [0.0; 3];
            for (level, missed) in misses.iter_mut().take(2).enumerate() {
                let own = fetched(n, level);
                let all: f64 = own + others().map(|m| fetched(m, level)).sum::<f64>();
                *missed = curve.misses(self.sizes[level] * own / all);
            }
            misses[1] = misses[1].min(misses[0]);
            misses[2] = curve.misses(paces[n].held).min(misses[1]);
            let slowed = thread.work() * self.slower(threads, n, paces, uses);
            let near =
                (misses[0] - misses[1]) * self.hits[0] + (misses[1] - misses[2]) * self.hits[1];
            // Both threads of a core have as many misses under way as they wait for.
            let waits = |m: usize| {
                let of = &uses[m];
                let part = of.misses[2] * miss / of.overlap.max(1.0) * paces[m].ipc;
                part.min(1.0) * threads[m].overlap
            };
            let taken: f64 = others().map(waits).sum();
            let left = (self.misses - taken).max(self.misses / self.threads as f64);
            uses[n] = Use {
                misses,
                slowed: (slowed + if of.slowed > 0.0 { of.slowed } else { slowed }) / 2.0,
                near: near * self.fit.waits / thread.overlap,
                overlap: under_way(thread.overlap, left),
                lines: misses[2] * (1.0 + thread.phase.written),
            };
        }
    }

    /// How much longer work of a thread takes next to the other threads of its core.
    fn slower(&self, threads: &[Thread<'_>], n: usize, paces: &[Pace], uses: &[Use]) -> f64 {
        let wants = |m: usize| {
            let thread = &threads[m];
            let loads = thread.phase.accesses - thread.phase.stores;
            [1.0, loads, thread.phase.stores].map(|each| each / thread.work())
        };
        let own = wants(n);
        let mut slower = 1.0;
        for m in (0..threads.len()).filter(|m| *m != n && threads[*m].core == threads[n].core) {
            let other = wants(m);
            // The part of its time in which it works.
            let busy = (paces[m].ipc * uses[m].slowed.max(threads[m].work())).min(1.0);
            let factors = (0..3).map(|resource| {
                let there = self.slots[resource];
                let share = (there - other[resource]).max(there / 2.0).min(there);
                (own[resource] / share).max(1.0)
            });
            slower += busy * (factors.fold(1.0, f64::max) - 1.0);
        }
        slower
    }

    /// Microseconds of a miss at which what all threads ask of memory is what loads it so.
    fn latency(&self, uses: &[Use]) -> f64 {
        let asked = |latency: f64| -> f64 {
            let miss = latency * self.mhz;
            let each = uses.iter().map(|of| of.lines * self.mhz / of.cycles(miss));
            each.sum()
        };
        let answers = |latency: f64| {
            let load = (asked(latency) / self.peak).min(self.fit.sustained);
            self.idle * self.fit.longer(load)
        };
        let (mut low, mut high) = (self.idle, answers(self.idle));
        for _ in 0..HALVINGS {
            let middle = (low + high) / 2.0;
            match answers(middle) > middle {
                true => low = middle,
                false => high = middle,
            }
        }
        (low + high) / 2.0
    }

    /// Divides the third level by what each thread fetches into it.
    fn share_third(&self, threads: &[Thread<'_>], uses: &[Use], miss: f64, paces: &mut [Pace]) {
        let third = self.sizes[2];
        let mut fetched = Vec::with_capacity(threads.len());
        for (pace, of) in paces.iter_mut().zip(uses) {
            pace.ipc = 1.0 / of.cycles(miss);
            // A thread that misses nothing still holds what it works on.
            fetched.push(pace.ipc * (of.misses[2] + 0.02 * of.misses[1]).max(1e-9));
        }
        let all: f64 = fetched.iter().sum();
        for (pace, fetched) in paces.iter_mut().zip(fetched) {
            pace.held = (pace.held + third * fetched / all) / 2.0;
        }
    }

    /// How a phase of a program fares where nothing else runs.
    #[must_use]
    pub fn alone(&self, program: &Program, phase: &Phase) -> Pace {
        let thread = Thread {
            phase,
            cpi: program.cpi,
            overlap: program.overlap,
            core: 0,
        };
        self.balance(&[thread])[0]
    }

    /// Which part of a cache that is full of older lines so many fetched lines replace. A line is
    /// equally likely to be replaced wherever it is.
    #[must_use]
    pub fn replaced(&self, lines: f64) -> f64 {
        1.0 - (-lines * LINE_BYTES as f64 / self.sizes[2]).exp()
    }

    /// Microseconds that a program loses in the first `span` after others ran: what it held in the
    /// caches is fetched when it is used next. `kept` of `held` bytes of the third level are still
    /// there, and nothing of the private ones.
    #[must_use]
    pub fn refill(&self, thread: &Thread<'_>, pace: &Pace, held: [f64; 2], span: f64) -> f64 {
        let [held, kept] = held;
        // Lines that are used again within the span, of so many that are equally likely to be.
        let again = |bytes: f64, hits: f64| {
            let lines = bytes.max(1.0) / LINE_BYTES as f64;
            lines * (1.0 - (-hits * span / lines).exp())
        };
        let [second, third] = self.hits.map(|cycles| cycles / self.mhz);
        let far = again(held - kept, pace.hits[1]) * (self.idle - third).max(0.0);
        let near = again(self.sizes[1].min(held), pace.hits[0]) * (third - second).max(0.0);
        ((far + near) / thread.overlap).min(span)
    }
}
