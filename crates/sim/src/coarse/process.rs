//! A program that runs on the coarse machine: where in its run it is, and what became of it.

use std::sync::Arc;

use quell_control::schedule::{Alone, Member};

use super::chip::{Chip, Pace, Thread};
use crate::recorded::{Phase, Program};

/// What a process did on CPUs.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct Done {
    /// Instructions.
    pub instructions: f64,
    /// Microseconds on a CPU.
    pub on_cpu: f64,
    /// First-level accesses.
    pub first_level: f64,
    /// Lines from and to memory.
    pub memory: f64,
}

impl Done {
    fn add(&mut self, more: Self, part: f64) {
        self.instructions += more.instructions * part;
        self.on_cpu += more.on_cpu * part;
        self.first_level += more.first_level * part;
        self.memory += more.memory * part;
    }
}

/// The first run of a program, from its beginning to its end.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Run {
    /// What it did.
    pub done: Done,
    /// Microseconds from its beginning to its end, waiting included.
    pub took: f64,
    /// Microseconds that it takes alone.
    pub alone: f64,
}

/// Figures of a process as policies know them ÷ as they are.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Told {
    /// The main-memory rate alone.
    pub memory: f64,
    /// Instructions per cycle alone. Progress is worked out from them.
    pub ipc: f64,
    /// The first-level rate.
    pub first_level: f64,
}

impl Told {
    const RIGHT: Self = Self {
        memory: 1.0,
        ipc: 1.0,
        first_level: 1.0,
    };
}

/// A program that runs again and again. Times are in microseconds.
#[derive(Clone, Debug)]
pub struct Process {
    program: Arc<Program>,
    /// What it is alone, as a whole.
    alone: Alone,
    /// What each phase does alone.
    paces: Vec<Pace>,
    /// Instructions of a phase: its own, stretched.
    phase: f64,
    /// The phase it begins in.
    offset: usize,
    /// How far what policies are told of it is off.
    pub told: Told,
    /// Instructions of its run that are done.
    at: f64,
    /// What it has done since it began, in microseconds alone.
    progress: f64,
    began: f64,
    /// Microseconds since it ran last, or began.
    pub waited: f64,
    /// What it did in the last quantum it ran in.
    recent: Done,
    /// Bytes of the third level that it held when it ran last.
    pub held: f64,
    /// The part of them that is still there.
    left_there: f64,
    done: Done,
    /// What it did in each quantum of its first run but the last. `None` once it has waited.
    pub course: Option<Vec<Done>>,
    /// Its first run, once that is over.
    pub first: Option<Run>,
}

impl Process {
    /// A program that begins now, takes `alone` microseconds alone, and begins in a later one of
    /// its phases: `offset` is from 0 to 1.
    #[must_use]
    pub fn new(program: Arc<Program>, chip: &Chip, alone: f64, offset: f64, now: f64) -> Self {
        let count = program.phases.len() as f64;
        let paces: Vec<Pace> = program
            .phases
            .iter()
            .map(|phase| chip.alone(&program, phase))
            .collect();
        let own = program.instructions / count;
        let natural: f64 = paces.iter().map(|pace| own / (pace.ipc * chip.mhz)).sum();
        let phase = own * alone / natural;
        let times: Vec<f64> = paces
            .iter()
            .map(|pace| phase / (pace.ipc * chip.mhz))
            .collect();
        let memory: f64 = paces
            .iter()
            .zip(&times)
            .map(|(pace, time)| pace.memory * time)
            .sum();
        let offset = ((offset * count) as usize).min(program.phases.len() - 1);
        Self {
            program,
            alone: Alone {
                memory: memory / alone,
                ipc: phase * count / (alone * chip.mhz),
                time: alone / 1e6,
            },
            paces,
            phase,
            offset,
            told: Told::RIGHT,
            at: 0.0,
            progress: 0.0,
            began: now,
            waited: 0.0,
            recent: Done::default(),
            held: 0.0,
            left_there: 0.0,
            done: Done::default(),
            course: Some(Vec::new()),
            first: None,
        }
    }

    /// Instructions per cycle of the whole program, alone.
    #[must_use]
    pub fn ipc_alone(&self) -> f64 {
        self.alone.ipc
    }

    fn which(&self) -> usize {
        ((self.at / self.phase) as usize + self.offset) % self.program.phases.len()
    }

    fn now_in(&self) -> &Phase {
        &self.program.phases[self.which()]
    }

    /// What it does on a core.
    #[must_use]
    pub fn on(&self, core: usize) -> Thread<'_> {
        Thread {
            phase: self.now_in(),
            cpi: self.program.cpi,
            overlap: self.program.overlap,
            core,
        }
    }

    /// What a policy is told of it.
    #[must_use]
    pub fn member(&self, now: f64, quantum: f64, mhz: f64) -> Member {
        let age = now - self.began;
        let quanta = |time: f64| (time / quantum).round() as u32;
        let per_us = |of: f64| of / self.recent.on_cpu.max(1e-9);
        Member {
            alone: Alone {
                ipc: self.paces[self.which()].ipc * self.told.ipc,
                memory: self.alone.memory * self.told.memory,
                time: self.alone.time,
            },
            memory: per_us(self.recent.memory),
            first_level: per_us(self.recent.first_level) * self.told.first_level,
            ipc: per_us(self.recent.instructions) / mhz,
            progress: if age > 0.0 {
                self.progress / age / self.told.ipc
            } else {
                1.0
            },
            age: quanta(age),
            waited: quanta(self.waited),
        }
    }

    /// Microseconds until its phase ends, at this pace.
    #[must_use]
    pub fn left(&self, pace: Pace, mhz: f64) -> f64 {
        let left = self.phase - self.at % self.phase;
        left / (pace.ipc * mhz)
    }

    /// It runs for `span` microseconds, of which it loses some.
    pub fn run(&mut self, pace: Pace, mhz: f64, from: f64, span: f64, lost: f64) {
        let working = (span - lost).max(0.0);
        let instructions = pace.ipc * mhz * working;
        self.waited = 0.0;
        self.held = pace.held;
        self.left_there = 1.0;
        let all = Done {
            instructions,
            on_cpu: span,
            first_level: pace.first_level * working,
            memory: pace.memory * working,
        };
        self.recent.add(all, 1.0);
        self.progress += instructions / (self.paces[self.which()].ipc * mhz);
        let whole = self.phase * self.program.phases.len() as f64;
        let before = self.at;
        self.at += instructions;
        if self.at >= whole {
            let part = (whole - before) / instructions;
            self.account(all, part);
            let run = Run {
                done: self.done,
                took: from + span * part - self.began,
                alone: self.alone.time * 1e6,
            };
            self.first.get_or_insert(run);
            self.at -= whole;
        } else {
            self.account(all, 1.0);
        }
    }

    /// It waits, while others replace so much of what it holds.
    pub fn wait(&mut self, span: f64, replaced: f64) {
        self.waited += span;
        if self.first.is_none() {
            self.course = None;
        }
        self.left_there *= 1.0 - replaced;
    }

    /// Bytes of the third level that are still there of what it held.
    #[must_use]
    pub fn kept(&self) -> f64 {
        self.held * self.left_there
    }

    /// A quantum begins in which it runs.
    pub fn begin(&mut self) {
        let before = std::mem::take(&mut self.recent);
        if let (None, Some(course)) = (self.first, &mut self.course)
            && before.on_cpu > 0.0
        {
            course.push(before);
        }
    }

    fn account(&mut self, all: Done, part: f64) {
        if self.first.is_none() {
            self.done.add(all, part);
        }
    }
}
