//! Independent random lists, walked in turn.

use quell_model::arch;
use quell_policy::workload::Banks;
use quell_types::rng::SplitMix;

use super::cycle;
use crate::access::{Access, LINE};

/// Independent lists walked in turn. As many accesses are outstanding as there are lists. With a
/// choice of banks only lines in those banks are used.
///
/// Deviation: a real list's step waits only for that list's last step. Here the access that
/// completes a round of all lists is dependent. So the slowest list of a round delays all lists.
#[derive(Clone, Debug)]
pub struct ParallelLists {
    next: Vec<u32>,
    heads: Vec<u32>,
    turn: usize,
    write: bool,
}

/// Why there are no lists to walk.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TooFew {
    /// The memory has too few lines for so many lists.
    #[error(
        "{lists} lists over {lines} lines: 1 to 64 lists of at least one line each are possible; take more memory or more banks"
    )]
    Lines {
        /// How many lists were wanted.
        lists: usize,
        /// How many lines there are.
        lines: usize,
    },
    /// Too little of the memory lies in the chosen banks.
    #[error(
        "{wanted} lines wanted in the banks, and of {of} lines taken only {found} lie there; ask for a smaller size, or check the mask or map: banks should be alike in size"
    )]
    Banks {
        /// How many lines were wanted in the banks.
        wanted: usize,
        /// How many lines were searched.
        of: usize,
        /// How many of them lie in the banks.
        found: usize,
    },
}

impl ParallelLists {
    /// `lists` lists, 1 to 64, that share `bytes` evenly.
    ///
    /// # Errors
    /// Where there are fewer lines than lists.
    pub fn new(bytes: u64, lists: usize, seed: u64) -> Result<Self, TooFew> {
        Self::of(
            (0..u32::try_from(bytes / LINE).unwrap_or(u32::MAX)).collect(),
            lists,
            seed,
        )
    }

    /// The same over `bytes` of lines that lie in the banks of `choice`, out of `memory` bytes.
    /// `physical` gives the physical address of a virtual one.
    ///
    /// # Errors
    /// Where there are fewer such lines than wanted, or than lists.
    pub fn in_banks(
        memory: u64,
        bytes: u64,
        lists: usize,
        seed: u64,
        choice: &Banks,
        physical: impl Fn(u64) -> Option<u64>,
    ) -> Result<Self, TooFew> {
        let all = 0..u32::try_from(memory / LINE).unwrap_or(u32::MAX);
        let (of, wanted) = (
            all.len(),
            usize::try_from(bytes / LINE).unwrap_or(usize::MAX),
        );
        let inside =
            |&line: &u32| physical(u64::from(line) * LINE).is_some_and(|at| choice.wants(at));
        let mut lines: Vec<u32> = all.filter(inside).collect();
        if lines.len() < wanted {
            let found = lines.len();
            return Err(TooFew::Banks { wanted, of, found });
        }
        lines.truncate(wanted);
        Self::of(lines, lists, seed)
    }

    fn of(lines: Vec<u32>, lists: usize, seed: u64) -> Result<Self, TooFew> {
        if !(1..=64).contains(&lists) || lines.len() < lists {
            let lines = lines.len();
            return Err(TooFew::Lines { lists, lines });
        }
        let mut random = SplitMix::new(seed);
        let size = lines.last().map_or(0, |&last| last as usize + 1);
        let mut next = vec![0; size];
        let mut heads = Vec::with_capacity(lists);
        let each = lines.len() / lists;
        for part in lines.chunks_exact(each).take(lists) {
            heads.push(part[0]);
            for (&line, after) in part.iter().zip(cycle(part, &mut random)) {
                next[line as usize] = after;
            }
        }
        Ok(Self {
            next,
            heads,
            turn: 0,
            write: false,
        })
    }

    /// The same lists, with a store into each line visited.
    #[must_use]
    pub fn storing(self) -> Self {
        Self {
            write: true,
            ..self
        }
    }

    pub(super) fn next_access(&mut self) -> Access {
        let head = &mut self.heads[self.turn];
        let address = u64::from(*head) * LINE;
        *head = self.next[*head as usize];
        arch::hint(&self.next, *head as usize);
        self.turn = (self.turn + 1) % self.heads.len();
        Access {
            address,
            write: self.write,
            dependent: self.turn == 0,
            ..Access::default()
        }
    }
}
