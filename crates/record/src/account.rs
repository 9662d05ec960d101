//! Summary of a hold, computed from its events: how long it took, what each promise was worth when,
//! and what the neighbours got.

use std::collections::{BTreeMap, VecDeque};

use quell_control::config::Meter;
use quell_plan::{Plan, Setting};
use quell_types::ids::{GroupId, PromiseId};
use quell_types::mechanism::Level;
use quell_types::units::{LINE_BYTES, Nanos};

use crate::events::{ColouredPages, Event, Paged, Phase};
use crate::owners::FrameOwners;
use crate::quanta::Turns;
use crate::standing::{Standing, Worth};
use crate::target::TargetVerdict;
use crate::windows::Kept;

/// The span of recent figures.
const RECENT: Nanos = Nanos::secs(5);

/// The summary of one hold.
#[derive(Debug)]
pub struct Account {
    begun: Option<Nanos>,
    ended: Option<Nanos>,
    standing: Standing,
    /// Promise → since when it is lost, if it is, and how long it was lost before that.
    lost: BTreeMap<PromiseId, (Option<Nanos>, Nanos)>,
    neighbours: BTreeMap<GroupId, Neighbour>,
    /// Group → number of units of work, and how many of them were late.
    pub units: BTreeMap<GroupId, (u64, u64)>,
    /// Group → how its units did against their target.
    pub targets: BTreeMap<GroupId, TargetVerdict>,
    /// How exactly windows were kept. `None` where there are none.
    pub windows: Option<Kept>,
    /// How processes took turns. `None` where none do.
    pub turns: Option<Turns>,
    /// Group → the pages of its memory at first and at last.
    pub paged: BTreeMap<GroupId, (Paged, Paged)>,
    /// Group and process → its program, whether its pages are moved out of reserved colours, and
    /// their colours at last.
    pub coloured: BTreeMap<(GroupId, u32), (String, bool, ColouredPages)>,
    /// Which programs had frames of reserved colours, at first and at last.
    pub owners: Option<(FrameOwners, FrameOwners)>,
}

/// What the tasks of one group got during the hold.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Neighbour {
    /// CPU time of all its threads.
    pub ran: Nanos,
    /// Time ready to run while something else ran, summed over its threads.
    pub waited: Nanos,
    /// From the beginning of the hold until its threads were sampled last.
    pub over: Nanos,
    /// How often one of its CPUs was throttled.
    pub throttles: u64,
    /// Time throttled, summed over its CPUs.
    pub throttled: Nanos,
    /// Bytes moved to and from memory. `None` where no hardware counter counts them.
    pub moved: Option<u64>,
    /// Times of recent samples, each with the CPU time since the sample before.
    recent: VecDeque<(Nanos, Nanos)>,
}

impl Neighbour {
    /// CPUs that it used on average over the last [`RECENT`] before `now`. `None` where it was not
    /// seen to run.
    #[must_use]
    pub fn cpus_now(&self, now: Nanos) -> Option<f64> {
        let fresh = |at: &Nanos| now.since(*at) <= RECENT;
        let mut looks = self.recent.iter().filter(|(at, _)| fresh(at));
        let (first, _) = looks.next()?;
        let (last, ran) = looks.fold((*first, 0), |(_, sum), (at, ran)| (*at, sum + ran.0));
        let span = last.since(*first);
        (span.0 > 0 && ran > 0).then(|| ran as f64 / span.0 as f64)
    }

    /// CPUs that it used on average. `None` where it was not seen to run.
    #[must_use]
    pub fn cpus(&self) -> Option<f64> {
        (self.ran.0 > 0 && self.over.0 > 0).then(|| self.ran.0 as f64 / self.over.0 as f64)
    }
}

/// What one promise was worth over a hold.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Share<'a> {
    /// The number of the promise.
    pub id: PromiseId,
    /// What it was worth at its best and worst.
    pub worth: &'a Worth,
    /// The part of the hold in which something held it, 0 to 1. Before any time has passed it is 1,
    /// or 0 if it is lost.
    pub held: f64,
}

impl Account {
    /// An empty account; `neighbours` are the groups whose figures are kept.
    #[must_use]
    pub fn new<'g>(plan: &Plan, neighbours: impl Iterator<Item = &'g GroupId>) -> Self {
        let counted = |group: &GroupId| {
            plan.steps.iter().any(|step| {
                step.group.as_ref() == Some(group)
                    && matches!(&step.set, Setting::Regulate(r) if r.meter == Meter::Hardware)
            })
        };
        let empty = |group: &GroupId| {
            let moved = counted(group).then_some(0);
            let neighbour = Neighbour {
                moved,
                ..Neighbour::default()
            };
            (group.clone(), neighbour)
        };
        Self {
            begun: None,
            ended: None,
            standing: Standing::of(plan),
            lost: BTreeMap::new(),
            neighbours: neighbours.map(empty).collect(),
            units: BTreeMap::new(),
            targets: BTreeMap::new(),
            windows: None,
            turns: None,
            paged: BTreeMap::new(),
            coloured: BTreeMap::new(),
            owners: None,
        }
    }

    /// Updates the account by one event.
    pub fn take(&mut self, at: Nanos, event: &Event) {
        self.standing.take(event);
        match event {
            Event::Phase { name: Phase::Hold } => self.begin(at),
            Event::Phase { name: Phase::Undo } => self.ended = Some(at),
            Event::Promise { id, .. } | Event::Witnessed { id, .. } => {
                let Some(now) = self.standing.worth(*id).map(|worth| worth.now) else {
                    return;
                };
                let (since, before) = self.lost.entry(*id).or_default();
                match (now, *since) {
                    (Level::None, None) => *since = Some(at),
                    (Level::None, Some(_)) | (_, None) => {}
                    (_, Some(from)) => {
                        *before = before.plus(at.since(from));
                        *since = None;
                    }
                }
            }
            Event::Spent { group, spent } => {
                let begun = self.begun;
                if let Some(neighbour) = self.neighbours.get_mut(group) {
                    neighbour.ran = neighbour.ran.plus(Nanos(spent.ran_ns));
                    neighbour.waited = neighbour.waited.plus(Nanos(spent.waited_ns));
                    neighbour.over = begun.map_or(Nanos(0), |begun| at.since(begun));
                    let recent = &mut neighbour.recent;
                    recent.push_back((at, Nanos(spent.ran_ns)));
                    recent.retain(|(look, _)| at.since(*look) <= RECENT);
                }
            }
            Event::Throttle {
                group,
                throttles,
                throttled_ns,
                lines,
                ..
            } => {
                if let Some(neighbour) = self.neighbours.get_mut(group) {
                    neighbour.throttles += throttles;
                    neighbour.throttled = neighbour.throttled.plus(Nanos(*throttled_ns));
                    if let Some(moved) = &mut neighbour.moved {
                        *moved = moved.saturating_add(lines.saturating_mul(LINE_BYTES));
                    }
                }
            }
            Event::Units {
                group, units, late, ..
            } => {
                let sum = self.units.entry(group.clone()).or_default();
                *sum = (sum.0 + units, sum.1 + late);
            }
            Event::Target { group, verdict } => {
                self.targets.insert(group.clone(), *verdict);
            }
            Event::Windows { kept } => self.windows = Some(kept.clone()),
            Event::Turns { turns } => self.turns = Some(turns.clone()),
            Event::Coloured {
                group,
                pid,
                program,
                out,
                pages,
            } => {
                let of = (group.clone(), *pid);
                self.coloured.insert(of, (program.clone(), *out, *pages));
            }
            Event::Owners { owners } => {
                let first = self.owners.take().map(|(first, _)| first);
                self.owners = Some((first.unwrap_or_else(|| owners.clone()), owners.clone()));
            }
            Event::Paged { group, pages } => {
                let (_, last) = self.paged.entry(group.clone()).or_insert((*pages, *pages));
                *last = *pages;
            }
            _ => {}
        }
    }

    fn begin(&mut self, at: Nanos) {
        self.begun = Some(at);
        for neighbour in self.neighbours.values_mut() {
            neighbour.recent.push_back((at, Nanos(0)));
        }
    }

    /// How long the plan has been held, at `now` or at its end. `None` before all steps are
    /// applied.
    #[must_use]
    pub fn held(&self, now: Nanos) -> Option<Nanos> {
        Some(self.ended.unwrap_or(now).since(self.begun?))
    }

    /// What each promise was worth until `now`, or until the end.
    #[must_use]
    pub fn shares(&self, now: Nanos) -> Vec<Share<'_>> {
        let end = self.ended.unwrap_or(now);
        let held = self.held(now).unwrap_or(Nanos(0));
        let share = |(id, worth)| {
            let (since, before) = self.lost.get(&id).copied().unwrap_or_default();
            let lost = since.map_or(before, |since| before.plus(end.since(since)));
            let part = if held.0 > 0 {
                1.0 - (lost.0 as f64 / held.0 as f64).min(1.0)
            } else {
                f64::from(u8::from(lost.0 == 0 && since.is_none()))
            };
            Share {
                id,
                worth,
                held: part,
            }
        };
        self.standing.all().map(share).collect()
    }

    /// The neighbours by the names of their groups.
    #[must_use]
    pub fn neighbours(&self) -> &BTreeMap<GroupId, Neighbour> {
        &self.neighbours
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::events::Spent;
    use crate::standing::Cause;
    use quell_plan::{Held, Loops, Promise};

    fn s(n: u64) -> Nanos {
        Nanos::secs(n)
    }

    fn account(levels: &[Level]) -> Account {
        let held = |level: &Level| Held {
            group: "critical".to_owned(),
            promise: Promise::Cpus {
                cpus: "1".parse().unwrap(),
            },
            level: *level,
            held_by: Vec::new(),
            weakest: None,
            assumed: false,
        };
        let plan = Plan {
            policy: "p".to_owned(),
            groups: Vec::new(),
            steps: Vec::new(),
            promises: levels.iter().map(held).collect(),
            notes: Vec::new(),
            acts: Vec::new(),
            assumed: None,
            loops: Loops::default(),
        };
        Account::new(&plan, ["noise".to_owned()].iter())
    }

    fn promise(id: u32, level: Level) -> Event {
        Event::Promise {
            id: PromiseId(id),
            level,
            because: Cause::Evicted,
        }
    }

    fn spent(ran: Nanos) -> Event {
        Event::Spent {
            group: "noise".to_owned(),
            spent: Spent {
                ran_ns: ran.0,
                ..Spent::default()
            },
        }
    }

    #[test]
    fn a_promise_is_held_for_its_part_of_the_time() {
        let mut account = account(&[Level::Enforced, Level::Regulated, Level::Estimated]);
        assert_eq!(account.held(s(9)), None);
        account.take(s(10), &Event::Phase { name: Phase::Hold });
        // Lost for 2 + 3 of 20 s; what is said twice counts once; a lower level is no loss.
        account.take(s(12), &promise(2, Level::None));
        account.take(s(13), &promise(2, Level::None));
        account.take(s(14), &promise(2, Level::Estimated));
        account.take(s(27), &promise(2, Level::None));
        account.take(s(15), &promise(3, Level::Estimated));
        assert_eq!(account.held(s(28)), Some(s(18)));
        account.take(s(30), &Event::Phase { name: Phase::Undo });
        let held: Vec<f64> = account.shares(s(99)).iter().map(|s| s.held).collect();
        assert_eq!(held, [1.0, 0.75, 1.0]);
        assert_eq!(account.held(s(99)), Some(s(20)));
    }

    #[test]
    fn a_neighbour_that_was_not_seen_to_run_has_no_figure() {
        let mut account = account(&[]);
        account.take(s(10), &Event::Phase { name: Phase::Hold });
        let noise = |account: &Account| account.neighbours()["noise"].clone();
        assert_eq!(
            (noise(&account).cpus(), noise(&account).moved),
            (None, None)
        );
        account.take(s(11), &spent(Nanos::millis(500)));
        account.take(s(12), &spent(Nanos::millis(500)));
        assert_eq!(noise(&account).cpus_now(s(12)), Some(0.5));
        account.take(s(18), &spent(s(2)));
        // A single sample spans no time.
        assert_eq!(noise(&account).cpus_now(s(18)), None);
        account.take(s(19), &spent(s(2)));
        assert_eq!(noise(&account).cpus_now(s(19)), Some(2.0));
        assert_eq!(noise(&account).cpus_now(s(40)), None, "it sleeps");
        assert_eq!(noise(&account).cpus(), Some(5.0 / 9.0));
    }
}
