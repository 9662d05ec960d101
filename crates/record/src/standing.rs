//! What each promise of a plan is worth while the plan is held: the planned level, and what has
//! happened since.

use quell_types::ids::PromiseId;
use std::fmt;

use quell_plan::{Held, Plan};
use quell_types::cpuset::CpuId;
use quell_types::mechanism::Level;
use quell_types::units::{Bytes, Share};
use quell_types::witness::{Fault, Verdict};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::events::Event;

/// Why the level of a promise has changed.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[schemars(rename = "PromiseCause")]
pub enum Cause {
    /// What held the promise was removed.
    Removed {
        /// The path of what was removed.
        what: String,
    },
    /// Other tasks or classes use what the promise gives to its group alone.
    Shared {
        /// Which they are and what they have, in a sentence without its end.
        by: String,
    },
    /// A limit does not hold some task of the group.
    Exempt {
        /// Which task, and its scheduling policy; or the scheduler that replaced the kernel's.
        task: String,
    },
    /// A CPU of the group has no brake any more.
    Unregulated {
        /// The kernel's number of the CPU.
        cpu: CpuId,
        /// Why its brake ended.
        why: String,
    },
    /// A CPU's counter is gone, and CPU time at the peak rate is counted there instead.
    CountedByTime {
        /// The kernel's number of the CPU.
        cpu: CpuId,
        /// Why the counter is gone.
        why: String,
    },
    /// All CPUs of the group have a brake again.
    Regulated {
        /// The last of them to have one.
        cpu: CpuId,
    },
    /// The dispatcher of the windows does not switch any more.
    Undispatched {
        /// Why it ended.
        why: String,
    },
    /// The windows have a dispatcher again.
    Dispatched,
    /// Windows began more than a guard late, or not at all.
    LateWindows {
        /// How many began late.
        late: u64,
        /// Switches that were passed over.
        skipped: u64,
        /// Switches in the same time, those that were passed over included.
        of: u64,
    },
    /// All windows begin in time again.
    Punctual,
    /// A braked group's cgroup was changed, so that its brakes stop it no longer.
    Loose {
        /// What was changed, in a sentence.
        why: String,
    },
    /// The process that kept files in memory has ended.
    KeeperEnded {
        /// How the process ended.
        how: String,
    },
    /// A process of the group does not have its memory locked.
    Unlocked {
        /// Number of the process.
        pid: u32,
        /// Why, in a sentence without its end.
        why: String,
    },
    /// All processes of the group have their memory locked again.
    Locked,
    /// Frames of the group's colours are not kept from other programs any more.
    Unheld {
        /// Why, in a sentence without its end.
        why: String,
    },
    /// Frames of the group's colours are kept from other programs again.
    Held,
    /// Pages of a process do not get the group's colours.
    Unsettled {
        /// Number of the process.
        pid: u32,
        /// Why, in a sentence without its end.
        why: String,
    },
    /// Pages of all processes of the group that can be moved get its colours again.
    Settled,
    /// Memory of the group that should lie in large pages lies in small ones.
    SmallPages {
        /// How many bytes.
        bytes: u64,
        /// Why, in a sentence without its end.
        why: String,
    },
    /// All memory of the group that can lie in large pages does so again.
    LargePages,
    /// Lines that were locked in a cache have left it.
    Evicted,
    /// Pages of the group's memory are not of its colours, which were used up.
    Spilled {
        /// Number of such pages in one program.
        pages: u64,
        /// The program that has them.
        program: String,
    },
    /// Too many units of work were late.
    Late {
        /// Number of late units.
        late: u64,
        /// Number of all units in the same time.
        units: u64,
        /// The share that may be late.
        allowed: Share,
    },
    /// The watchdog has undone the whole plan.
    Revoked {
        /// Why, in a sentence.
        why: String,
    },
    /// An independent look at the machine found that the promise does not hold.
    Broken {
        /// What was found.
        fault: Fault,
    },
    /// An independent look at the machine cannot see whether the promise holds.
    Unseen {
        /// Why not, in a sentence without its end.
        why: String,
    },
    /// An independent look at the machine agrees with the promise again.
    Agreed,
}

impl fmt::Display for Cause {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Removed { what } => write!(f, "another process removed {what}"),
            Self::Shared { by } => f.write_str(by),
            Self::Loose { why } => f.write_str(why),
            Self::Exempt { task } => write!(f, "{task}, which no limit holds"),
            Self::Unregulated { cpu, why } => {
                write!(f, "CPU {cpu} is no longer regulated: {why}")
            }
            Self::CountedByTime { cpu, why } => write!(
                f,
                "CPU {cpu}: {why}; the group's CPU time is counted there at the peak rate instead"
            ),
            Self::Regulated { cpu } => write!(f, "CPU {cpu} is regulated again"),
            Self::Undispatched { why } => {
                write!(f, "the windows are no longer switched: {why}")
            }
            Self::Dispatched => f.write_str("the windows are switched again"),
            Self::LateWindows { late, skipped, of } => write!(
                f,
                "of {of} windows, {late} began more than a guard late and {skipped} were passed over"
            ),
            Self::Punctual => f.write_str("the windows begin in time again"),
            Self::KeeperEnded { how } => {
                write!(
                    f,
                    "the process that locked its files in memory has ended ({how})"
                )
            }
            Self::Unlocked { pid, why } => {
                write!(f, "the memory of process {pid} is not locked: {why}")
            }
            Self::Locked => f.write_str("the memory of all its processes is locked again"),
            Self::Unheld { why } => write!(
                f,
                "frames of its colours are not kept from other programs any more: {why}"
            ),
            Self::Held => f.write_str("frames of its colours are kept from other programs again"),
            Self::Unsettled { pid, why } => {
                write!(f, "pages of process {pid} have other colours: {why}")
            }
            Self::Settled => f.write_str("its pages have its colours again"),
            Self::SmallPages { bytes, why } => {
                write!(
                    f,
                    "{} of its memory lie in small pages: {why}",
                    Bytes(*bytes)
                )
            }
            Self::LargePages => f.write_str("its memory lies in large pages again"),
            Self::Evicted => f.write_str("locked lines have left the cache"),
            Self::Spilled { pages, program } => write!(
                f,
                "{pages} of {program}'s pages are not of its colours, which were used up"
            ),
            Self::Late {
                late,
                units,
                allowed,
            } => write!(
                f,
                "{late} of {units} units were late, more than the {allowed} that its target allows"
            ),
            Self::Revoked { why } | Self::Unseen { why } => f.write_str(why),
            Self::Broken { fault } => write!(f, "{fault}"),
            Self::Agreed => f.write_str("what is seen agrees with it again"),
        }
    }
}

/// What one promise is worth, and was worth at its worst.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Worth {
    /// The level that the plan states.
    pub planned: Level,
    /// The level at this moment.
    pub now: Level,
    /// The level at the worst moment since the plan is held.
    pub least: Level,
    /// The level by what holds the promise, and why it is not the planned one. Absent: it is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub said: Option<(Level, Cause)>,
    /// What an independent look at the machine says. Absent: nothing yet, or there is no look at
    /// what was promised.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub witnessed: Option<Verdict>,
    /// The cause of the last change, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub because: Option<Cause>,
    /// The cause of the least level, if that is below the planned one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub least_because: Option<Cause>,
}

impl Worth {
    /// The level and its cause, by what holds the promise and what is seen of it. What is seen can
    /// only lower it.
    fn level(&self) -> (Level, Option<Cause>) {
        let (said, why) = match &self.said {
            Some((level, why)) => (*level, Some(why.clone())),
            None => (self.planned, None),
        };
        match &self.witnessed {
            Some(Verdict::Broken(fault)) if said > Level::None => {
                let fault = fault.clone();
                (Level::None, Some(Cause::Broken { fault }))
            }
            Some(Verdict::Unseen(why)) if said > Level::Estimated => {
                let why = why.clone();
                (Level::Estimated, Some(Cause::Unseen { why }))
            }
            Some(Verdict::Holds) if why.is_none() => (said, Some(Cause::Agreed)),
            _ => (said, why),
        }
    }

    /// Whether the plan promised something that nothing held at some moment.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.least == Level::None && self.planned > Level::None
    }

    /// Whether the witness cannot see it, or could not when it was worth least.
    #[must_use]
    pub fn was_unseen(&self) -> bool {
        matches!(self.witnessed, Some(Verdict::Unseen(_)))
            || matches!(self.least_because, Some(Cause::Unseen { .. }))
    }

    /// Whether the plan promised something that nothing holds now.
    #[must_use]
    pub fn is_lost(&self) -> bool {
        self.now == Level::None && self.planned > Level::None
    }
}

/// What each promise of a plan is worth, by the events [`Event::Promise`] and
/// [`Event::Witnessed`] so far.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Standing(Vec<Worth>);

impl Standing {
    /// All promises at their planned levels.
    #[must_use]
    pub fn of(plan: &Plan) -> Self {
        let worth = |held: &Held| Worth {
            planned: held.level,
            now: held.level,
            least: held.level,
            said: None,
            witnessed: None,
            because: None,
            least_because: None,
        };
        Self(plan.promises.iter().map(worth).collect())
    }

    /// Applies an event. Returns whether a promise is worth something else now.
    pub fn take(&mut self, event: &Event) -> bool {
        let (Event::Promise { id, .. } | Event::Witnessed { id, .. }) = event else {
            return false;
        };
        let place = (id.0 as usize).checked_sub(1);
        let Some(worth) = place.and_then(|place| self.0.get_mut(place)) else {
            return false;
        };
        match event {
            Event::Promise { level, because, .. } => worth.said = Some((*level, because.clone())),
            Event::Witnessed { verdict, .. } => worth.witnessed = Some(verdict.clone()),
            _ => {}
        }
        let (level, because) = worth.level();
        let changed = worth.now != level;
        // A first look that agrees has changed nothing.
        if changed || matches!(event, Event::Promise { .. }) {
            worth.because.clone_from(&because);
        }
        worth.now = level;
        if level < worth.least {
            worth.least = level;
            worth.least_because = because;
        }
        changed
    }

    /// All promises with their numbers, from 1 on.
    pub fn all(&self) -> impl Iterator<Item = (PromiseId, &Worth)> {
        (1..).map(PromiseId).zip(&self.0)
    }

    /// What a promise is worth. `None` for a number that the plan does not have.
    #[must_use]
    pub fn worth(&self, id: PromiseId) -> Option<&Worth> {
        self.0.get((id.0 as usize).checked_sub(1)?)
    }

    /// Whether a promise was lost at some moment.
    #[must_use]
    pub fn was_lost(&self) -> bool {
        self.0.iter().any(Worth::was_lost)
    }

    /// Whether everything that the plan promised holds now.
    #[must_use]
    pub fn holds(&self) -> bool {
        !self.0.iter().any(Worth::is_lost)
    }

    /// A copy of the plan with the current levels, and the cause where a level has changed.
    #[must_use]
    pub fn over(&self, plan: &Plan) -> Plan {
        let mut plan = plan.clone();
        for (held, worth) in plan.promises.iter_mut().zip(&self.0) {
            if worth.now != held.level {
                held.level = worth.now;
                held.weakest = worth.because.as_ref().map(Cause::to_string);
            }
        }
        plan
    }
}

#[cfg(test)]
mod tests {
    use quell_plan::{Loops, Promise};

    use super::*;
    use proptest::prelude::*;

    const LEVELS: [Level; 4] = [
        Level::None,
        Level::Estimated,
        Level::Regulated,
        Level::Enforced,
    ];

    fn plan(levels: &[Level]) -> Plan {
        let held = |level: &Level| Held {
            group: "g".to_owned(),
            promise: Promise::Cpus {
                cpus: "1".parse().unwrap(),
            },
            level: *level,
            held_by: Vec::new(),
            weakest: None,
            assumed: false,
        };
        Plan {
            policy: "p".to_owned(),
            groups: Vec::new(),
            steps: Vec::new(),
            promises: levels.iter().map(held).collect(),
            notes: Vec::new(),
            loops: Loops::default(),
            acts: Vec::new(),
            assumed: None,
        }
    }

    fn told(id: u32, level: Level) -> Event {
        Event::Promise {
            id: PromiseId(id),
            level,
            because: Cause::Evicted,
        }
    }

    #[test]
    fn a_promise_that_comes_back_was_lost_all_the_same() {
        let plan = plan(&[Level::Regulated, Level::None]);
        let mut standing = Standing::of(&plan);
        assert!(standing.holds() && !standing.was_lost());
        assert!(standing.take(&told(1, Level::None)));
        assert!(!standing.holds() && standing.was_lost());
        let shown = standing.over(&plan);
        assert_eq!(shown.promises[0].level, Level::None);
        let why = shown.promises[0].weakest.as_deref();
        assert_eq!(why, Some("locked lines have left the cache"));
        assert!(standing.take(&told(1, Level::Regulated)));
        assert!(standing.holds() && standing.was_lost());
        assert_eq!(standing.over(&plan), plan);
        let worth = standing.worth(PromiseId(1)).unwrap();
        assert_eq!((worth.now, worth.least), (Level::Regulated, Level::None));
    }

    #[test]
    fn what_is_seen_lowers_a_promise_and_raises_none() {
        let plan = plan(&[Level::Enforced]);
        let mut standing = Standing::of(&plan);
        let seen = |verdict: Verdict| Event::Witnessed {
            id: PromiseId(1),
            verdict,
        };
        let group = || "g".to_owned();
        let broken = || Verdict::Broken(Fault::NoProcess { group: group() });
        let now = |standing: &Standing| standing.worth(PromiseId(1)).unwrap().now;
        assert!(!standing.take(&seen(Verdict::Holds)));
        assert!(standing.take(&seen(Verdict::Unseen("dark".to_owned()))));
        assert_eq!(now(&standing), Level::Estimated);
        assert!(standing.take(&seen(broken())) && standing.was_lost());
        // What holds it says that all is well: what is seen counts.
        assert!(!standing.take(&told(1, Level::Enforced)));
        assert_eq!(now(&standing), Level::None);
        let why = standing.over(&plan).promises[0].weakest.clone();
        assert_eq!(why.as_deref(), Some("group g has no process"));
        assert!(standing.take(&seen(Verdict::Holds)));
        assert_eq!(now(&standing), Level::Enforced);
        // And the other way round.
        assert!(standing.take(&told(1, Level::None)));
        assert!(!standing.take(&seen(Verdict::Holds)));
        assert!(standing.was_lost() && !standing.holds());
        let text = serde_json::to_string(&standing).unwrap();
        assert_eq!(serde_json::from_str::<Standing>(&text).unwrap(), standing);
    }

    #[test]
    fn what_the_plan_never_promised_cannot_be_lost() {
        let mut standing = Standing::of(&plan(&[Level::None]));
        assert!(!standing.take(&told(1, Level::None)));
        assert!(standing.holds() && !standing.was_lost());
    }

    proptest! {
        /// For any events: the last one for a promise is now, and the least one, or the planned
        /// one, is least. Events with other numbers change nothing.
        #[test]
        fn the_last_is_now_and_the_least_is_kept(
            planned in prop::collection::vec(0_usize..4, 1..4),
            events in prop::collection::vec((0_u32..6, 0_usize..4), 0..20),
        ) {
            let planned: Vec<Level> = planned.iter().map(|l| LEVELS[*l]).collect();
            let mut standing = Standing::of(&plan(&planned));
            for (id, level) in &events {
                standing.take(&told(*id, LEVELS[*level]));
            }
            for (id, worth) in standing.all() {
                let of = events.iter().filter(|(e, _)| *e == id.0).map(|(_, l)| LEVELS[*l]);
                let first = planned[id.0 as usize - 1];
                prop_assert_eq!(worth.now, of.clone().next_back().unwrap_or(first));
                prop_assert_eq!(worth.least, of.min().map_or(first, |l| l.min(first)));
                prop_assert_eq!(worth.least_because.is_some(), worth.least < first);
            }
            let text = serde_json::to_string(&standing).unwrap();
            prop_assert_eq!(serde_json::from_str::<Standing>(&text).unwrap(), standing);
        }
    }
}
