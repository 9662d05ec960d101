//! The times of pairs of lines on an idle simulated machine, for recovering its address map
//! (`quell_types::address::recovery`).
//!
//! Method: one program reads two lines in turn. It flushes each after its use, as a program on
//! hardware has to. Its pages lie anywhere in memory.

use std::convert::Infallible;

use quell_model::{Invalid, Picos};
use quell_types::address::Ranges;
use quell_types::address::gf2::Space as Differences;
use quell_types::address::recovery::{Lines, Pool, Recovery, recover};
use quell_types::rng::SplitMix;
use quell_types::units::Bytes;

use crate::access::PAGE_SHIFT;
use crate::board::Board;
use crate::frames::Space;
use crate::machine::{Machine, Program, Raised};
use crate::pattern::{Pair, Pattern};

/// Pages of the program.
const PAGES: u64 = 8_192;
/// How often each line of a pair is read for one time.
const ROUNDS: u64 = 6;
/// Picoseconds of a nanosecond.
const PS: f64 = 1_000.0;

/// Which physical addresses the program is shown.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Shown {
    /// Those of the machine.
    Host,
    /// Those of a virtual machine, whose host gives it pages anywhere.
    Guest,
}

/// A program on an idle machine that times pairs of lines.
#[derive(Debug)]
pub struct Pairs {
    machine: Machine,
    pool: Pool,
    memory: Differences,
    done: u64,
    now: Picos,
}

impl Pairs {
    /// The program, on a machine just booted.
    ///
    /// # Errors
    /// For an impossible machine.
    pub fn new(board: &Board, shown: Shown, seed: u64) -> Result<Self, Invalid> {
        let all = board.memory() >> PAGE_SHIFT;
        let take = |seed| {
            let mut random = SplitMix::new(seed);
            Space::of_frames((0..PAGES).map(|_| random.below(all)).collect())
        };
        let space = take(seed);
        let seen = match shown {
            Shown::Host => space.clone(),
            Shown::Guest => take(!seed),
        };
        let pages = seen.frames().map(|frame| frame << PAGE_SHIFT).collect();
        let mut machine = Machine::new(&board.description)?;
        let mut program = Program::endless(Pattern::Pair(Pair::new(0, 0)), space, 0);
        program.until = 0;
        machine.switch(0, Some(program), 0);
        Ok(Self {
            machine,
            pool: Pool::new(pages, PAGE_SHIFT),
            memory: Ranges::new(std::iter::once(0..board.memory())).differences(),
            done: 0,
            now: 0,
        })
    }

    /// The memory of the program.
    #[must_use]
    pub fn size(&self) -> Bytes {
        Bytes((self.pool.pages() as u64) << PAGE_SHIFT)
    }

    /// Nanoseconds of an access to each of two lines, which take turns.
    pub fn time(&mut self, lines: Lines) -> f64 {
        let pair = Pair::new(lines.0, lines.1);
        let begin = self.now;
        self.done += ROUNDS * pair.accesses();
        if let Some(program) = self.machine.program_mut(0) {
            program.pattern = Pattern::Pair(pair);
        }
        self.machine.go_on(0, self.done, begin);
        while let Some(raised) = self.machine.run(Picos::MAX) {
            if let Raised::Finished { at, .. } = raised {
                self.now = at;
                break;
            }
        }
        (self.now - begin) as f64 / PS / ROUNDS as f64
    }

    /// Recovers the functions of the machine's banks.
    pub fn recover(&mut self, seed: u64) -> Recovery {
        let (pool, memory) = (self.pool.clone(), self.memory.clone());
        let oracle = &mut |lines| Ok::<f64, Infallible>(self.time(lines));
        match recover(&pool, &memory, seed, oracle) {
            Ok(found) => found,
            Err(never) => match never {},
        }
    }
}
