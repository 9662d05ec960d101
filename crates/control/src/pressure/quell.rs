//! `quell`: protect first, stop second, kill last.
//!
//! *Protect.* The kernel protects what a critical group works on ([`WorkingSet`] where it is
//! measured). The neighbours are kept from taking it. Together they may use all memory but what the
//! critical groups have, and a [`reserve`]. That ceiling is known before any group waits, and is
//! enough where nothing else disturbs.
//!
//! A second ceiling lies below it ([`Ceiling`]). It falls at once with the share of the time for
//! which the critical groups waited, and rises slowly. A neighbour that is to blame for more is cut
//! more.
//!
//! *Stop.* Where that does not suffice for `grace`, or no neighbour may be limited, the one most to
//! blame is frozen. A frozen group gives nothing back, so its memory is reclaimed meanwhile if that
//! is allowed. It stays frozen for `grace`. To resume it is a trial: if it fails, it costs the
//! critical group a unit of work. So each failed trial doubles the next stop, up to
//! [`LONGEST_FREEZE`].
//!
//! The critical group may wait for a lock that a frozen program holds. The sign is that its units
//! stop ending although it waits for no memory. The frozen group is then resumed at once, and is
//! not frozen again for a while.
//!
//! Swapping out into compressed memory frees what compression saves. Where that is little, a cut of
//! a limit frees hardly anything, and the next cut would follow. So no more of the neighbours'
//! memory is swapped out then. A program beyond its limit with nothing to be reclaimed is slowed by
//! the kernel instead.
//!
//! *Kill.* This happens when what is left next to the critical groups' own falls below the kernel's
//! watermark. It also happens when the stall continues although all else is active and the reserve
//! is used up.

use quell_types::units::{Bytes, Nanos, Share};

use super::ceiling::{Ceiling, Together};
use super::rank::{Blame, Suspects};
use super::stall::{Difference, Stall, disks_used};
use super::working::WorkingSet;
use super::{Act, Critical, Decision, Machine, Rules, Sample, Why};

/// The longest that a group is kept frozen at a time.
pub const LONGEST_FREEZE: Nanos = Nanos::secs(8);
/// If a critical group waits again this soon after a group was resumed, that group caused it.
const PROBATION: Nanos = Nanos::secs(2);
/// How long a group that may hold a lock is not frozen again.
const SHY: Nanos = Nanos::secs(10);
/// Units of work are overdue after this many times their usual distance, and not before this time.
const OVERDUE: (u64, Nanos) = (4, Nanos::millis(200));
/// Divisors of the machine's memory: what is little, and the least change of a limit that is worth
/// a write.
const SMALL: u64 = 256;
const WORTH: u64 = 128;
/// Divisors of the machine's memory: limits are removed when this much is left beyond the reserve,
/// and set when less than this is.
pub(super) const PLENTY: u64 = 4;
const SCARCE: u64 = 8;
/// The lowest limit of a neighbour: a divisor of the machine's memory, and its bounds in bytes.
const LEAST: (u64, u64, u64) = (16, 16 << 20, 256 << 20);
/// How many times what is missing of the reserve is taken from the neighbours' limits.
const FIRM: u64 = 4;
/// Swapping out is worth nothing if at least this divisor of the machine's memory was, and takes so
/// much of its size again.
const SWAPPED: u64 = 64;
const TAKES: Share = Share::percent(75);
/// Samples in a row that must find too little left before a process is killed. One alone may be
/// wrong.
const SURE: u32 = 2;

/// What is kept free next to what the critical groups have. It is twice the level at which the
/// kernel stops reclaiming, so that it does not begin. A sixty-fourth of the machine is added for
/// growth between two samples.
#[must_use]
pub fn reserve(machine: &Machine) -> Bytes {
    Bytes(2 * machine.high.0 + machine.total.0 / 64)
}

/// What is done to one neighbour.
#[derive(Clone, Copy, Debug, Default)]
struct Held {
    limit: Option<Bytes>,
    /// No more of it is swapped out.
    unswapped: bool,
    /// Since when it is frozen, and until when at most.
    frozen: Option<(Nanos, Nanos)>,
    /// When it was resumed last.
    thawed: Option<Nanos>,
    /// How long it was frozen last; doubled while that has not helped.
    length: Nanos,
    /// It is not frozen before this time.
    shy: Nanos,
}

/// When units of a critical group end: the last end, and the average distance.
#[derive(Clone, Copy, Debug, Default)]
struct UnitEnds {
    last: Option<Nanos>,
    gap: Nanos,
}

impl UnitEnds {
    fn see(&mut self, unit_end: Option<Nanos>) {
        if let (Some(last), Some(unit_end)) = (self.last, unit_end)
            && unit_end > last
        {
            let gap = unit_end.since(last);
            self.gap = Nanos(self.gap.0.max(1) - self.gap.0 / 8 + gap.0 / 8);
        }
        self.last = unit_end.or(self.last);
    }

    fn overdue(&self, now: Nanos) -> bool {
        let (times, least) = OVERDUE;
        let usual = Nanos(self.gap.0.saturating_mul(times)).max(least);
        self.gap > Nanos(1) && self.last.is_some_and(|last| now.since(last) > usual)
    }
}

/// The controller of all critical groups and neighbours.
#[derive(Clone, Debug)]
pub struct Quell {
    rules: Rules,
    sampled: Option<Nanos>,
    next: Nanos,
    critical: Vec<Stall>,
    sets: Vec<WorkingSet>,
    unit_ends: Vec<UnitEnds>,
    moved: Vec<Difference>,
    blame: Blame,
    suspects: Suspects,
    held: Vec<Held>,
    ceiling: Ceiling,
    /// When less than the reserve was left last.
    scarce_at: Option<Nanos>,
    high_since: Option<Nanos>,
    last_high: Nanos,
    calm_since: Option<Nanos>,
    /// When something was stopped, reclaimed or killed last.
    acted: Nanos,
    short: u32,
    processes: bool,
}

impl Quell {
    /// A controller that takes its first sample an interval after `now`.
    #[must_use]
    pub fn new(rules: &Rules, now: Nanos) -> Self {
        let (critical, neighbours) = (rules.measured.len(), rules.allows.len());
        Self {
            rules: rules.clone(),
            sampled: None,
            next: now.plus(rules.interval),
            critical: vec![Stall::default(); critical],
            sets: vec![WorkingSet::new(now); critical],
            unit_ends: vec![UnitEnds::default(); critical],
            moved: vec![Difference::default(); neighbours],
            blame: Blame::new(neighbours),
            suspects: Suspects::new(),
            held: vec![Held::default(); neighbours],
            ceiling: Ceiling::new(now),
            scarce_at: None,
            high_since: None,
            last_high: now,
            calm_since: None,
            acted: now,
            short: 0,
            processes: false,
        }
    }

    /// When the next sample is due.
    #[must_use]
    pub fn next(&self) -> Nanos {
        self.next
    }

    /// Whether the next sample has to show processes.
    #[must_use]
    pub fn wants_processes(&self) -> bool {
        self.processes
    }

    /// Decides by one sample. Appends to `decisions`.
    pub fn step(&mut self, now: Nanos, sample: &Sample, decisions: &mut Vec<Decision>) {
        self.next = now.plus(self.rules.interval);
        let anew = self.held.iter_mut().zip(&sample.neighbours);
        anew.filter(|(_, neighbour)| neighbour.thawed)
            .for_each(|(held, _)| held.frozen = None);
        let before = self.sampled.replace(now);
        let span = before.map_or(self.rules.interval, |before| now.since(before));
        if span == Nanos(0) {
            return;
        }
        let left = self.left(sample);
        let near = left < 2 * reserve(&sample.machine).0;
        let others = disks_used(&mut self.moved, &sample.neighbours);
        let shares = self.critical.iter_mut().zip(&sample.critical);
        let share = shares
            .map(|(stall, group)| stall.share(group, span, near, others))
            .fold(Share(0), Share::max);
        self.blame.see(&sample.neighbours, span);
        if !sample.processes.is_empty() {
            self.suspects.see(&sample.processes);
        }
        for (unit_end, group) in self.unit_ends.iter_mut().zip(&sample.critical) {
            unit_end.see(group.unit_end);
        }
        self.judge(now, share);
        self.protect(now, &sample.critical, decisions);
        self.thaw(now, share, decisions);
        self.keep_unswapped(sample, decisions);
        self.limit(now, share, sample, left, decisions);
        self.escalate(now, share, sample, decisions);
        // Processes are read only to choose one to kill, and none is killed while more than this is
        // left. A growing process is found within few samples.
        let kills = self.rules.allows.iter().any(|a| a.kill);
        self.processes = kills && self.spare(sample) < 2 * reserve(&sample.machine).0;
    }

    /// To be called when a sample fails. Resumes groups that have been frozen for as long as they
    /// may. Nothing shows then that a lock is waited for.
    pub fn blind(&mut self, now: Nanos, decisions: &mut Vec<Decision>) {
        self.next = now.plus(self.rules.interval);
        self.thaw(now, Share::WHOLE, decisions);
    }

    /// Pages of the critical groups' files that no other group gets: those that they use again and
    /// again, and whatever else is protected.
    fn kept(&self, sample: &Sample) -> u64 {
        let groups = sample.critical.iter().zip(&self.sets);
        let kept = groups.map(|(group, set)| {
            let anonymous = group.anonymous.0;
            let all = group.usage.0.saturating_sub(anonymous);
            let protected = set.protected().0.saturating_sub(anonymous);
            group.file.0.max(all.min(protected))
        });
        kept.sum()
    }

    /// What could be had without taking from the critical groups what they keep. No process is
    /// killed for what the kernel can reclaim.
    fn spare(&self, sample: &Sample) -> u64 {
        sample.machine.available.0.saturating_sub(self.kept(sample))
    }

    /// What could be had without taking from any group what it uses. The kernel's estimate counts
    /// all groups' files as available.
    fn left(&self, sample: &Sample) -> u64 {
        let neighbours = sample.neighbours.iter();
        let files = neighbours.map(|n| n.usage.0.saturating_sub(n.anonymous.0));
        self.spare(sample).saturating_sub(files.sum())
    }

    /// Updates since when the stall is high, and since when it is calm.
    fn judge(&mut self, now: Nanos, share: Share) {
        if share >= self.rules.start {
            self.last_high = now;
            self.high_since.get_or_insert(now);
            self.calm_since = None;
        } else if share <= self.rules.release {
            self.calm_since.get_or_insert(now);
        } else {
            self.calm_since = None;
        }
        if now.since(self.last_high) >= self.rules.grace {
            self.high_since = None;
        }
    }

    fn protect(&mut self, now: Nanos, groups: &[Critical], decisions: &mut Vec<Decision>) {
        for (i, (set, group)) in self.sets.iter_mut().zip(groups).enumerate() {
            if !self.rules.measured[i] {
                continue;
            }
            if let Some(memory) = set.step(now, group) {
                decisions.push(Decision {
                    act: Act::Protect {
                        critical: i,
                        memory,
                    },
                    why: Why::WorkingSet,
                });
            }
        }
    }

    fn limitable(&self, sample: &Sample, i: usize) -> bool {
        self.rules.allows[i].limit && sample.neighbours[i].populated
    }

    fn limit(
        &mut self,
        now: Nanos,
        share: Share,
        sample: &Sample,
        left: u64,
        decisions: &mut Vec<Decision>,
    ) {
        let (total, machine) = (sample.machine.total.0, &sample.machine);
        let limited = || (0..sample.neighbours.len()).filter(|i| self.limitable(sample, *i));
        let count = limited().count() as u64;
        if count == 0 {
            return;
        }
        let used: u64 = limited().map(|i| sample.neighbours[i].usage.0).sum();
        let least = (total / LEAST.0).clamp(LEAST.1, LEAST.2);
        let reserve = reserve(machine).0;
        // What there is for all of them: what they have, and what is left beyond the reserve.
        let known = (used + left).saturating_sub(reserve);
        let together = Together {
            share,
            calm_since: self.calm_since,
            used,
            least: least * count,
            known,
            total,
        };
        self.ceiling.step(&self.rules, now, &together);
        let ceiling = self.ceiling.bytes();
        let any = self.held.iter().any(|h| h.limit.is_some());
        let calm = self
            .calm_since
            .is_some_and(|since| now.since(since) >= self.rules.grace);
        let plenty = left > reserve + total / PLENTY && ceiling.is_none() && calm;
        let scarce = left < reserve + total / SCARCE || ceiling.is_some();
        if any && plenty {
            self.remove_limits(decisions);
            return;
        }
        if !any && !scarce {
            return;
        }
        // A program beyond its limit that has nothing to be reclaimed runs on, and is slower the
        // further beyond it is (mm/memcontrol.c). So a multiple of what is missing of the reserve
        // is taken.
        let known = match reserve.saturating_sub(left) {
            0 => known,
            missing => {
                self.scarce_at = Some(now);
                used.saturating_sub(missing.saturating_mul(FIRM))
            }
        };
        // A group that has just had too much is not given more at once. One that reads on fills a
        // limit faster than a sample shows. It goes beyond it before the kernel has reclaimed, and
        // would be cut again.
        let rises = self
            .scarce_at
            .is_none_or(|at| now.since(at) >= self.rules.grace);
        let budget = known.min(ceiling.unwrap_or(u64::MAX));
        let blamed = |i: usize| u128::from(self.blame.of(i, &sample.neighbours[i]).max(1));
        let blame: u128 = (0..sample.neighbours.len())
            .filter(|i| self.limitable(sample, *i))
            .map(blamed)
            .sum();
        let why = match ceiling {
            _ if share >= self.rules.start => Why::Stalled(share),
            Some(ceiling) if ceiling < known => Why::Calm,
            _ => Why::Spare(Bytes(left)),
        };
        for neighbour in 0..sample.neighbours.len() {
            if !self.limitable(sample, neighbour) {
                continue;
            }
            let own = sample.neighbours[neighbour].usage.0;
            let to = if budget >= used {
                own + (budget - used) / count
            } else {
                let cut = u128::from(used - budget) * blamed(neighbour) / blame.max(1);
                own.saturating_sub(u64::try_from(cut).unwrap_or(u64::MAX))
            };
            let most = Bytes(to.max(least));
            let worth = total / WORTH;
            let moves = match self.held[neighbour].limit {
                None => true,
                Some(old) if most < old => old.0 - most.0 >= worth.min(old.0 / 16).max(1 << 20),
                Some(old) => rises && most.0 - old.0 >= worth,
            };
            if moves {
                self.held[neighbour].limit = Some(most);
                decisions.push(Decision {
                    act: Act::Limit {
                        neighbour,
                        most: Some(most),
                    },
                    why,
                });
            }
        }
    }

    fn keep_unswapped(&mut self, sample: &Sample, decisions: &mut Vec<Decision>) {
        let machine = &sample.machine;
        let takes = Share::ratio(machine.compressed_takes.0, machine.compressed.0);
        if machine.compressed.0 < (machine.total.0 / SWAPPED).max(1) || takes < TAKES {
            return;
        }
        for neighbour in 0..sample.neighbours.len() {
            if self.limitable(sample, neighbour) && !self.held[neighbour].unswapped {
                self.held[neighbour].unswapped = true;
                decisions.push(Decision {
                    act: Act::KeepUnswapped { neighbour },
                    why: Why::Incompressible(takes),
                });
            }
        }
    }

    fn remove_limits(&mut self, decisions: &mut Vec<Decision>) {
        for (neighbour, held) in self.held.iter_mut().enumerate() {
            if held.limit.take().is_some() {
                let most = None;
                decisions.push(Decision {
                    act: Act::Limit { neighbour, most },
                    why: Why::Calm,
                });
            }
        }
    }

    fn thaw(&mut self, now: Nanos, share: Share, decisions: &mut Vec<Decision>) {
        let waits = share > self.rules.release;
        let overdue = !waits && self.unit_ends.iter().any(|b| b.overdue(now));
        for (neighbour, held) in self.held.iter_mut().enumerate() {
            let Some((since, until)) = held.frozen else {
                continue;
            };
            let locked = overdue && now.since(since) >= OVERDUE.1;
            let why = if locked {
                held.shy = now.plus(SHY);
                Why::Heartbeat
            } else if now.plus(self.rules.interval) > until {
                Why::Bound
            } else {
                continue;
            };
            held.frozen = None;
            held.thawed = Some(now);
            decisions.push(Decision {
                act: Act::Thaw { neighbour },
                why,
            });
        }
    }

    fn escalate(
        &mut self,
        now: Nanos,
        share: Share,
        sample: &Sample,
        decisions: &mut Vec<Decision>,
    ) {
        let grace = self.rules.grace;
        let spare = self.spare(sample);
        self.short = if spare < sample.machine.high.0 {
            self.short + 1
        } else {
            0
        };
        let waited = now.since(self.acted) >= grace;
        if self.short >= SURE && waited && self.kill(sample, Why::Spare(Bytes(spare)), decisions) {
            self.acted = now;
            return;
        }
        let Some(since) = self.high_since.filter(|_| share >= self.rules.start) else {
            return;
        };
        let limits = (0..sample.neighbours.len()).any(|i| self.limitable(sample, i));
        let enough = !limits || now.since(since) >= grace;
        if !enough || !(waited || !limits && self.held.iter().all(|h| h.frozen.is_none())) {
            return;
        }
        let why = Why::Stalled(share);
        let done = self.freeze(now, sample, why, decisions)
            || self.reclaim(sample, decisions)
            || (now.since(since) >= Nanos(grace.0.saturating_mul(4))
                && spare < reserve(&sample.machine).0
                && self.kill(sample, why, decisions));
        if done {
            self.acted = now;
        }
    }

    fn freeze(
        &mut self,
        now: Nanos,
        sample: &Sample,
        why: Why,
        decisions: &mut Vec<Decision>,
    ) -> bool {
        let may = |i: usize| {
            let held = &self.held[i];
            self.rules.allows[i].freeze && held.frozen.is_none() && now >= held.shy
        };
        let Some(neighbour) = self.blame.worst(&sample.neighbours, may) else {
            return false;
        };
        let held = &mut self.held[neighbour];
        let failed = held.thawed.is_some_and(|at| now.since(at) < PROBATION);
        let least = self.rules.grace.max(self.rules.interval);
        held.length = if failed {
            Nanos(held.length.0.saturating_mul(2))
        } else {
            least
        }
        .min(LONGEST_FREEZE);
        held.frozen = Some((now, now.plus(held.length)));
        decisions.push(Decision {
            act: Act::Freeze { neighbour },
            why,
        });
        true
    }

    /// Reclaims from a frozen group half of what can be had: pages of files, and its own memory as
    /// far as there is swap space.
    fn reclaim(&self, sample: &Sample, decisions: &mut Vec<Decision>) -> bool {
        for (neighbour, held) in self.held.iter().enumerate() {
            if held.frozen.is_none() || !self.rules.allows[neighbour].reclaim {
                continue;
            }
            let has = &sample.neighbours[neighbour];
            let files = has.usage.0.saturating_sub(has.anonymous.0);
            let own = has.anonymous.0.min(sample.machine.swap_free.0);
            let amount = files.saturating_add(own) / 2;
            if amount >= sample.machine.total.0 / SMALL {
                decisions.push(Decision {
                    act: Act::Reclaim {
                        neighbour,
                        amount: Bytes(amount),
                    },
                    why: Why::WhileStopped,
                });
                return true;
            }
        }
        false
    }

    fn kill(&self, sample: &Sample, why: Why, decisions: &mut Vec<Decision>) -> bool {
        let small = sample.machine.total.0 / SMALL;
        // Killing a group without memory of its own frees nothing that could not be reclaimed.
        let may = |i: usize| self.rules.allows[i].kill && sample.neighbours[i].anonymous.0 >= small;
        let worst = self.blame.worst(&sample.neighbours, may);
        let Some(task) = worst.and_then(|i| self.suspects.worst(i, &sample.processes)) else {
            return false;
        };
        decisions.push(Decision {
            act: Act::Kill(task),
            why,
        });
        true
    }
}
