//! The times of re-reads on an idle simulated machine, for recovering which address bits choose the
//! set of a cache (`quell_types::address::recovery::recover_sets`).
//!
//! Method: one program reads lines in the order of the question, then the victim alone. In the end
//! it flushes all of them, so that the next question finds empty ways. Its pages lie anywhere in
//! memory.

use std::collections::BTreeSet;
use std::convert::Infallible;

use quell_model::{Invalid, Picos};
use quell_types::address::Ranges;
use quell_types::address::gf2::Space as Differences;
use quell_types::address::recovery::{Pool, Reread, SetRecovery, Shape, recover_sets};
use quell_types::rng::SplitMix;
use quell_types::units::Bytes;

use crate::access::{Effect, PAGE_SHIFT};
use crate::banks::Shown;
use crate::board::Board;
use crate::frames::Space;
use crate::machine::{Machine, Program, Raised};
use crate::pattern::{Pattern, Walk};

/// Picoseconds of a nanosecond.
const PS: f64 = 1_000.0;

/// A program on an idle machine that times re-reads.
#[derive(Debug)]
pub struct Rereads {
    machine: Machine,
    shape: Shape,
    pool: Pool,
    memory: Differences,
    done: u64,
    now: Picos,
}

impl Rereads {
    /// The program, on a machine just booted, for a cache of this shape.
    ///
    /// # Errors
    /// For an impossible machine, or one whose memory is less than the pool.
    pub fn new(board: &Board, shape: Shape, shown: Shown, seed: u64) -> Result<Self, Invalid> {
        let all = board.memory() >> PAGE_SHIFT;
        let count = shape.pool();
        if count as u64 > all / 2 {
            return Err(Invalid {
                what: "pool".into(),
                reason: format!("{count} pages are more than half of memory"),
            });
        }
        let take = |seed| {
            let mut random = SplitMix::new(seed);
            let (mut frames, mut taken) = (Vec::new(), BTreeSet::new());
            while frames.len() < count {
                let frame = random.below(all);
                if taken.insert(frame) {
                    frames.push(frame);
                }
            }
            Space::of_frames(frames)
        };
        let space = take(seed);
        let seen = match shown {
            Shown::Host => space.clone(),
            Shown::Guest => take(!seed),
        };
        let pages = seen.frames().map(|frame| frame << PAGE_SHIFT).collect();
        let mut machine = Machine::new(&board.description)?;
        let mut program = Program::endless(Pattern::Walk(Walk::default()), space, 0);
        program.until = 0;
        machine.switch(0, Some(program), 0);
        Ok(Self {
            machine,
            shape,
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

    /// Goes over lines once, and waits for all of them. Returns the picoseconds that it took.
    fn walk(&mut self, lines: Vec<u64>, effect: Effect) -> Picos {
        let walk = Walk::new(lines, effect);
        let begin = self.now;
        self.done += walk.accesses();
        if let Some(program) = self.machine.program_mut(0) {
            program.pattern = Pattern::Walk(walk);
        }
        self.machine.go_on(0, self.done, begin);
        while let Some(raised) = self.machine.run(Picos::MAX) {
            if let Raised::Finished { at, .. } = raised {
                self.now = at;
                break;
            }
        }
        self.now - begin
    }

    /// Nanoseconds of the last read of a question.
    pub fn time(&mut self, question: &Reread<'_>) -> f64 {
        let first = std::iter::once(question.victim);
        self.walk(first.chain(question.between()).collect(), Effect::Use);
        let took = self.walk(vec![question.victim], Effect::Use);
        self.walk(question.lines().collect(), Effect::Flush);
        took as f64 / PS
    }

    /// Recovers the functions of the cache's sets.
    pub fn recover(&mut self, seed: u64) -> SetRecovery {
        let (pool, memory, shape) = (self.pool.clone(), self.memory.clone(), self.shape);
        let probe = &mut |question: &Reread<'_>| Ok::<_, Infallible>(Some(self.time(question)));
        match recover_sets(&pool, &memory, &shape, seed, probe) {
            Ok(found) => found,
            Err(never) => match never {},
        }
    }
}
