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
const STEPS: usize = 6;
/// How far a step goes towards what it finds, so that two threads do not give way in turn.
const STRIDE: f64 = 0.7;
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
}

impl Fit {
    /// As `docs/results/2026-11-25-smt-coarse.md` found it for xeon-e5645.
    pub const FITTED: Self = Self {
        rows: 1.42,
        queueing: 0.83,
        sustained: 0.95,
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

/// How a thread goes on, from one step of the search to the next.
#[derive(Clone, Copy)]
struct Now {
    /// Instructions per cycle.
    ipc: f64,
    /// Misses per instruction of what it has of each level.
    levels: [f64; 3],
    /// Misses of memory per instruction, with those of lines that the third level dropped.
    misses: f64,
    /// How many times longer its loads, its stores and the rest of its work take than alone.
    slower: [f64; 3],
}

impl Now {
    /// Before the first step, a thread works half of the time and misses nothing.
    fn first(work: f64) -> Self {
        Self {
            ipc: 0.5 / work,
            levels: [0.0; 3],
            misses: 0.0,
            slower: [1.0; 3],
        }
    }

    /// Some of the way to what a step has found.
    fn goes(&mut self, ipc: f64, of: &Use) {
        let towards = |from: f64, to: f64| from + (to - from) * STRIDE;
        self.ipc = towards(self.ipc, ipc);
        self.misses = of.misses[2];
        self.slower = std::array::from_fn(|n| towards(self.slower[n], of.slower[n]));
    }
}

/// For how many cycles a line stays that is not used, in a cache of `size` bytes that the threads
/// `who` share: until all of them together have touched as much. `age` is what was found for them
/// before, 0 at first. Keeps what each thread misses in this `level`, from 0.
fn age_of(
    threads: &[Thread<'_>],
    now: &mut [Now],
    who: &[usize],
    level: usize,
    size: f64,
    age: f64,
) -> f64 {
    let curve = |n: usize| &threads[n].phase.curve;
    if let [n] = who {
        now[*n].levels[level] = curve(*n).misses(size);
        return curve(*n).instructions(size) / now[*n].ipc;
    }
    let (mut age, mut steps) = (age, 1);
    if age <= 0.0 {
        let share = size / who.len() as f64;
        let alone = who
            .iter()
            .map(|n| curve(*n).instructions(share) / now[*n].ipc);
        (age, steps) = (alone.fold(f64::MAX, f64::min), 4);
    }
    // Newton's method: the rate at which they touch more is that of their misses.
    for _ in 0..steps {
        let (mut held, mut rate) = (0.0, 0.0);
        for n in who {
            let now = &mut now[*n];
            let (bytes, misses) = curve(*n).touched(now.ipc * age);
            now.levels[level] = misses;
            held += bytes;
            rate += misses * LINE_BYTES as f64 * now.ipc;
        }
        age = (age + (size - held) / rate.max(1e-9)).clamp(age / 4.0, age * 16.0);
    }
    age
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

    /// Bytes that it uses so often that they never leave a cache, while all of a larger one is
    /// replaced. Lines stay there for so many cycles, in the larger one for `longer`.
    ///
    /// Uses come independently. So lines leave at times that are used `n` times on average while a
    /// line stays, where `n` is below about ln(`longer` / `stays` × `n`). A footprint has the lines
    /// that are used twice or more: half of those that are used 1.7 times on average.
    fn hidden(&self, ipc: f64, stays: f64, longer: f64) -> f64 {
        let ratio = (longer / stays.max(1.0)).max(std::f64::consts::E).ln();
        let often = (1.7 / (ratio + ratio.ln())).min(1.0);
        let instructions = ipc * stays * often;
        let (bytes, misses) = self.phase.curve.touched(instructions);
        (bytes - misses * instructions * LINE_BYTES as f64).max(0.0)
    }

    /// Cycles of its work that load, store, and do neither.
    fn parts(&self) -> [f64; 3] {
        let (accesses, stores) = (self.phase.accesses, self.phase.stores);
        [accesses - stores, stores, self.work() - accesses]
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
    /// How many times longer its loads, its stores and the rest of its work take than alone.
    slower: [f64; 3],
    /// Cycles of work, as slowed by the other thread.
    slowed: f64,
    /// Cycles for the second and third level.
    near: f64,
    /// Misses that wait for none before them, on average.
    overlap: f64,
    /// Miss buffers that the core's other threads leave.
    buffers: f64,
    /// Runs of misses that wait for buffers, for each miss.
    waits: f64,
    /// Lines from and to memory.
    lines: f64,
}

impl Use {
    /// Cycles per instruction where a miss takes so many.
    ///
    /// Misses come in runs that need none before them, of `overlap` on average and geometrically
    /// distributed. Then one is waited for. A run that is longer than there are buffers waits for
    /// them, unless its misses are so far apart that earlier ones have come back.
    fn cycles(&self, miss: f64) -> f64 {
        let before = self.slowed + self.near;
        let apart = before / self.misses[2].max(1e-12);
        let waited = (miss - self.buffers * apart).max(0.0) * self.waits;
        before + self.misses[2] * (miss / self.overlap + waited)
    }
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
        let mut now: Vec<Now> = threads.iter().map(|of| Now::first(of.work())).collect();
        let mut uses = vec![Use::default(); threads.len()];
        let all: Vec<usize> = (0..threads.len()).collect();
        let of_core = |core: usize| {
            all.iter()
                .copied()
                .filter(move |n| threads[*n].core == core)
        };
        let cores: Vec<Vec<usize>> = (0..self.cores)
            .map(|core| of_core(core).collect())
            .collect();
        // For how many cycles a line stays without being used: in the private caches of each core,
        // and in the third level.
        let mut ages = vec![[0.0; 2]; self.cores];
        let mut oldest = 0.0;
        let mut miss = self.idle * self.mhz;
        for _ in 0..STEPS {
            for (core, ages) in cores.iter().zip(&mut ages) {
                let [first, second] = ages;
                *first = age_of(threads, &mut now, core, 0, self.sizes[0], *first);
                // The second level does not see lines that never leave the first, and drops them.
                let hidden = core
                    .iter()
                    .map(|n| threads[*n].hidden(now[*n].ipc, *first, *second));
                let seen = self.sizes[1] + hidden.sum::<f64>();
                *second = age_of(threads, &mut now, core, 1, seen, *second);
            }
            oldest = age_of(threads, &mut now, &all, 2, self.sizes[2], oldest);
            for (n, of) in uses.iter_mut().enumerate() {
                let core = threads[n].core;
                let others = cores[core].iter().copied().filter(|m| *m != n);
                *of = self.uses(&threads[n], &now[n], ages[core][1], oldest);
                for m in others.clone() {
                    self.slow(threads, &now, n, m, of);
                }
                let work = threads[n].parts().into_iter().zip(of.slower);
                of.slowed = work.map(|(cycles, slower)| cycles * slower).sum();
                // Misses under way: as many as begin in the time of one.
                let taken: f64 = others.map(|m| now[m].misses * miss * now[m].ipc).sum();
                let left = (self.misses - taken).max(self.misses / self.threads as f64);
                let goes_on = (1.0 - 1.0 / threads[n].overlap).powf(left);
                of.buffers = left;
                of.waits = goes_on / (1.0 - goes_on) / threads[n].overlap;
            }
            miss = self.latency(&uses) * self.mhz;
            for (now, of) in now.iter_mut().zip(&uses) {
                now.goes(1.0 / of.cycles(miss), of);
            }
        }
        let paces = threads.iter().zip(&uses).zip(&now);
        let pace = |((thread, of), now): ((&Thread<'_>, &Use), &Now)| {
            let instructions = now.ipc * self.mhz;
            let [first, second, third] = of.misses;
            let (held, _) = thread.phase.curve.touched(now.ipc * oldest);
            Pace {
                ipc: now.ipc,
                first_level: instructions * thread.phase.accesses,
                memory: instructions * of.lines,
                fetched: instructions * third,
                hits: [first - second, second - third].map(|hits| hits.max(0.0) * instructions),
                held: held.min(self.sizes[2]),
            }
        };
        paces.map(pace).collect()
    }

    /// What a thread does per instruction, where lines stay in the second and third level for so
    /// many cycles.
    fn uses(&self, thread: &Thread<'_>, now: &Now, second: f64, third: f64) -> Use {
        let mut misses = now.levels;
        misses[1] = misses[1].min(misses[0]);
        misses[2] = misses[2].min(misses[1]);
        // Nor does the third level see what never leaves the private caches. When it drops a line
        // of that, they lose it, too.
        let hidden = thread.hidden(now.ipc, second, third) / LINE_BYTES as f64;
        let dropped = hidden / (now.ipc * third);
        let near = (misses[0] - misses[1]) * (self.hits[0] - 1.0)
            + (misses[1] - misses[2]) * (self.hits[1] - 1.0);
        let fetched = misses[2] + dropped;
        Use {
            misses: [misses[0], misses[1], fetched],
            slower: [1.0; 3],
            near: near / thread.overlap,
            overlap: thread.overlap,
            lines: fetched * (1.0 + thread.phase.written),
            ..Use::default()
        }
    }

    /// Slows work of thread `n` by that of thread `m` of its core. Both want the same port of the
    /// first level as often as both access it at once. They share slots evenly where they want more
    /// than there are.
    fn slow(&self, threads: &[Thread<'_>], now: &[Now], n: usize, m: usize, of: &mut Use) {
        let [issue, ports @ ..] = self.slots;
        let wants = |thread: &Thread<'_>| 1.0 / thread.work();
        let even = (issue - wants(&threads[m])).max(issue / 2.0);
        let crowded = (wants(&threads[n]) / even).max(1.0);
        let other = threads[m].parts().into_iter().zip(now[m].slower);
        for (same, (cycles, slower)) in other.enumerate() {
            // The part of the time in which the other one does this.
            let meets = cycles * slower * now[m].ipc;
            for (kind, own) in of.slower.iter_mut().enumerate() {
                let port = ports.get(kind).filter(|_| kind == same);
                let factor = port.map_or(1.0, |there| 2.0 / there).max(crowded);
                *own += meets * (factor - 1.0);
            }
        }
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
