//! A process that match tables are compared with ([`crate::tasks`]).

use std::cell::Cell;

use crate::procfs::Stat;
use crate::reading::Arguments;
use crate::root::Files;

/// A process that tables are compared with.
pub(crate) struct Candidate<'a> {
    pub files: &'a dyn Files,
    pub stat: &'a Stat,
    /// Read once for all tables: they may be long. `None`: not yet.
    pub told: Option<Arguments>,
    asked: Cell<bool>,
}

impl<'a> Candidate<'a> {
    pub fn new(files: &'a dyn Files, stat: &'a Stat, told: Option<Arguments>) -> Self {
        Self {
            files,
            stat,
            told,
            asked: Cell::new(false),
        }
    }

    /// Whether some table goes by its arguments.
    pub fn asked(&self) -> bool {
        self.asked.get()
    }

    /// None where they are not told.
    pub fn arguments(&self) -> &[String] {
        self.asked.set(true);
        match &self.told {
            Some(Arguments::Told(words)) => words,
            _ => &[],
        }
    }
}
