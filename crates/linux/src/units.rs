//! How a program's units of work are observed: in the session it writes, or in the lines it prints.

use std::os::fd::BorrowedFd;
use std::time::Duration;

use quell_client::Reader;
use quell_control::deadline::Unit;
use quell_plan::Observed;
use quell_record::about::About;
use quell_record::backend::{Seen, SubjectId, TellerId};
use quell_record::events::{Declared, Event};
use quell_types::ids::GroupId;
use quell_types::source::Pattern;
use quell_types::source::Source;
use quell_types::units::Nanos;

use quell_kernel::error::{Error, Result};
use quell_kernel::rt;

/// The most changes of a program's declaration that are reported.
const MOST_CHANGES: u32 = 100;

/// The observed units of one program.
#[derive(Debug)]
pub(crate) struct Units {
    group: GroupId,
    teller: TellerId,
    from: From,
    /// What the program declares of its units, as last reported. `changes` counts the reports.
    declared: Declared,
    changes: u32,
    /// Whether it was reported that the program writes impossible values.
    strange: bool,
}

#[derive(Debug)]
enum From {
    Session(Box<Reader>),
    Lines(SubjectId, Pattern),
}

impl Units {
    /// The units of a program that is launched as `id` in `group`. `None` where nothing observes
    /// the group.
    ///
    /// # Errors
    /// When there is no memory for its session.
    pub(crate) fn new(id: SubjectId, group: &str, observed: &Observed) -> Result<Option<Self>> {
        let from = match &observed.source {
            Source::None => return Ok(None),
            Source::Pattern(pattern) => From::Lines(id, pattern.clone()),
            Source::Client => From::Session(Box::new(session(group, observed)?)),
        };
        Ok(Some(Self::from(group, TellerId(id.0), from)))
    }

    /// The units of a program in `group` that is handed this session.
    pub(crate) fn of(group: &str, teller: TellerId, session: Reader) -> Self {
        Self::from(group, teller, From::Session(Box::new(session)))
    }

    fn from(group: &str, teller: TellerId, from: From) -> Self {
        Self {
            group: group.to_owned(),
            teller,
            from,
            declared: Declared::default(),
            changes: 0,
            strange: false,
        }
    }

    /// The session's file, which the program has to inherit. `None` where its lines are read.
    pub(crate) fn file(&self) -> Option<BorrowedFd<'_>> {
        match &self.from {
            From::Session(reader) => Some(reader.file()),
            From::Lines(..) => None,
        }
    }

    /// Process id of the session's user, as that wrote it. 0 for none.
    pub(crate) fn owner(&self) -> u64 {
        match &self.from {
            From::Session(reader) => reader.owner(),
            From::Lines(..) => 0,
        }
    }

    /// The program's group, and what it last declared of its units.
    pub(crate) fn declared(&self) -> (&GroupId, Declared) {
        (&self.group, self.declared)
    }

    /// Whether the lines that it prints are read for units.
    pub(crate) fn lines(&self) -> bool {
        matches!(self.from, From::Lines(..))
    }

    /// Reports the units that have ended since the last time. Units in lines are found in the lines
    /// of the subject in `seen`.
    pub(crate) fn tell(&mut self, now: Nanos, seen: &mut Vec<Seen>) {
        let (mut units, mut lost, mut strange) = (Vec::new(), 0, 0);
        match &mut self.from {
            From::Session(reader) => {
                let mut read = Vec::new();
                let look = reader.read(|| rt::now().0, &mut read);
                (lost, strange) = (look.lost, look.strange);
                units.extend(read.iter().map(|unit| Unit {
                    ended: Nanos(unit.ended_ns),
                    took: Nanos(unit.took_ns),
                    target: unit.target_ns.map(Nanos),
                }));
                let said = reader.demand();
                let declared = Declared {
                    bytes_per_unit: said.bytes_per_unit,
                    working_set: said.working_set,
                };
                if declared != self.declared && self.changes < MOST_CHANGES {
                    self.changes += 1;
                    self.declared = declared;
                }
            }
            From::Lines(id, pattern) => {
                let lines = seen.iter().filter_map(|one| match one {
                    Seen::Line(of, line) if of == id => pattern.time(line),
                    _ => None,
                });
                units.extend(lines.map(|took| Unit {
                    ended: now,
                    took,
                    target: None,
                }));
            }
        }
        if !units.is_empty() || lost > 0 {
            seen.push(Seen::Units(self.group.clone(), self.teller, units, lost));
        }
        if strange > 0 && !std::mem::replace(&mut self.strange, true) {
            let group = &self.group;
            let what = format!(
                "group {group}: its program tells of units that cannot be (longer than an hour, or in the future); they are left out"
            );
            let event = Event::finding(About::Units, what, Some(group));
            seen.push(Seen::Event(event));
        }
    }
}

/// Makes a session for a program of `group`.
///
/// # Errors
/// When there is no memory for it.
pub(crate) fn session(group: &str, observed: &Observed) -> Result<Reader> {
    let deadline = observed.deadline.map(|d| Duration::from_nanos(d.0));
    Reader::create(deadline).map_err(|e| {
        Error::refused(format!(
            "group {group}: no session can be made for its program: {e}"
        ))
    })
}
