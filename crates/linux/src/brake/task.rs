//! The thread of a brake: it sleeps, asks the regulator, and does what that decides.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_control::Regulator;
use quell_control::bandwidth::Verdict;
use quell_control::config::LineCounts;
use quell_control::pool::Period;
use quell_kernel::pmu::MOST_EVENTS;
use quell_kernel::rt;
use quell_record::events::Decision;
use quell_types::cpuset::CpuId;
use quell_types::units::{Lines, Nanos};
use rustix::event::{PollFd, PollFlags, Timespec};

use super::{Grants, LOOK, Lost, Permit, Shared};
use crate::meter::Meter;
use crate::pool::{ParkSlot, Pool};

/// How often a brake that spins yields its CPU. Otherwise a program that wakes on its CPU waits
/// until the brake sleeps, or until the scheduler's tick. It waits for the tick where the group's
/// deadline is the earlier one.
const GIVE_WAY: Nanos = Nanos::micros(20);

/// Why a thread that slept or stopped its CPU goes on.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Woken {
    /// Its owner asked it to end.
    ToEnd,
    ByCounter,
    /// The end of the period or stop has come, or another period has begun.
    ByTime,
    /// Something in the pool has changed that may end the stop.
    ByPool,
    /// The group's window has ended, or another one is next.
    ByWindow,
}

/// A stop of the group that lasts: when it began and when it is to end.
struct Stopped {
    since: Nanos,
    until: Nanos,
}

/// The windows of the group, as far as the brake has followed them.
pub(super) struct Windows {
    grants: Arc<Grants>,
    /// The window whose budget is regulated, by its beginning. 0: none.
    begins: Nanos,
    /// Lines that were drawn beyond the budgets of windows that have ended.
    owed: Lines,
}

impl Windows {
    /// Before the first window.
    pub(super) const fn new(grants: Arc<Grants>) -> Self {
        Self {
            grants,
            begins: Nanos(0),
            owed: Lines(0),
        }
    }
}

pub(super) struct Task {
    pub(super) cpu: CpuId,
    pub(super) regulator: Regulator,
    /// The most that the meter can count in a period. A budget of that much is no limit.
    pub(super) most: Option<Lines>,
    /// Nothing is counted, because the budget is no limit.
    pub(super) free: bool,
    /// The last reading of the meter.
    pub(super) used: LineCounts,
    /// The lines that the meter was armed with, and its reading then.
    pub(super) armed: Option<(LineCounts, LineCounts)>,
    pub(super) meter: Box<dyn Meter>,
    pub(super) permit: Permit,
    pub(super) shared: Arc<Shared>,
    pub(super) pool: Arc<Pool>,
    pub(super) slot: Arc<ParkSlot>,
    /// `None` where the budget is the same at all times.
    pub(super) windows: Option<Windows>,
}

impl Task {
    /// Runs the thread in its cgroup and on its CPU.
    pub(super) fn run(mut self) {
        // From now on it has the CPU time of its group. Every thread may do that.
        let _ = rt::ordinary();
        let ended = self.regulate();
        self.regulator.leave(&self.pool.budgets);
        if let Err(lost) = ended {
            self.shared.stats.lost.store(lost.code(), Ordering::Release);
        }
    }

    fn read(&mut self) -> Result<(), Lost> {
        match self.meter.read() {
            Ok((moved, true)) => self.used = moved,
            _ => return Err(Lost::Meter),
        }
        Ok(())
    }

    fn regulate(&mut self) -> Result<(), Lost> {
        self.read()?;
        let mut what = self.begin()?;
        let mut stopped: Option<Stopped> = None;
        let mut woken = Woken::ByTime;
        loop {
            let taken = woken == Woken::ByCounter || stopped.is_some();
            let after_stop = stopped.is_some();
            woken = match what {
                Verdict::ThrottleUntil(until) => {
                    let now = rt::now();
                    let since = stopped.map_or(now, |s| s.since);
                    stopped = Some(Stopped { since, until });
                    self.stop_until(until)?
                }
                Verdict::Rearm(lines) | Verdict::NewPeriod(lines) => {
                    stopped = None;
                    self.free = self.no_limit();
                    if self.free {
                        self.rest()?;
                    } else if after_stop || !self.delegate(what)? {
                        self.arm(lines, taken)?;
                    }
                    self.sleep()?
                }
                Verdict::RunFreeUntil(_) => {
                    stopped = None;
                    self.rest()?;
                    self.sleep()?
                }
            };
            if woken == Woken::ToEnd {
                return Ok(());
            }
            what = self.decide(woken, stopped.as_ref())?;
        }
    }

    /// The first verdict.
    fn begin(&mut self) -> Result<Verdict, Lost> {
        if let Some(what) = self.follow() {
            return Ok(what);
        }
        // The group is not charged for what it drew while its brake was started.
        self.regulator.restart(rt::now(), self.used);
        let budgets = &self.pool.budgets;
        Ok(self.regulator.begin(rt::now(), self.used, budgets))
    }

    /// Whether the group's window has ended, or another one is next.
    fn is_past(&self) -> bool {
        let windows = self.windows.as_ref();
        windows.is_some_and(|w| w.grants.begins() != w.begins)
    }

    /// Takes the budget of the group's window. What was drawn beyond that of the last one is owed.
    /// Outside the windows nothing is counted. `None` where the budget is the same at all times.
    fn follow(&mut self) -> Option<Verdict> {
        let windows = self.windows.as_mut()?;
        let (next, used) = (windows.grants.begins(), self.used);
        if let Some(last) = windows.grants.window(windows.begins)
            && last.budget.is_some()
        {
            // All of its periods have begun when it ends, and none of the next window.
            let ended = windows.begins.plus(last.length).since(Nanos(1));
            windows.owed = self.regulator.debt(ended, used);
        }
        windows.begins = next;
        let window = windows.grants.window(next);
        let Some(budget) = window.and_then(|window| window.budget.as_ref()) else {
            return Some(Verdict::RunFreeUntil(Nanos(u64::MAX)));
        };
        let base = Lines(used.lines.0.saturating_sub(windows.owed.0));
        windows.owed = Lines(0);
        self.regulator = Regulator::new(budget, next, base.into());
        self.shared.budget.store(budget.budget.0, Ordering::Relaxed);
        let budgets = &self.pool.budgets;
        Some(self.regulator.begin(rt::now(), used, budgets))
    }

    /// Asks the regulator, and puts the decision on record.
    fn decide(&mut self, woken: Woken, stopped: Option<&Stopped>) -> Result<Verdict, Lost> {
        let overflow = match woken {
            Woken::ByCounter => self.meter.woken().map_err(|_| Lost::Meter)?,
            _ => None,
        };
        self.take_over()?;
        self.read()?;
        if self.is_past()
            && let Some(what) = self.follow()
        {
            let lines = self.used.sum().0;
            self.shared.stats.lines.store(lines, Ordering::Relaxed);
            return Ok(what);
        }
        let (now, used) = (rt::now(), self.used);
        let lines = self.budget();
        let budget = self.regulator.budget();
        if lines != budget.lines {
            self.regulator.set_budget(LineCounts { lines, ..budget });
        }
        if self.free {
            self.regulator.restart(now, used);
        }
        let before = self.regulator.period();
        let budgets = &self.pool.budgets;
        let what = match woken {
            Woken::ByTime | Woken::ToEnd | Woken::ByWindow => {
                self.regulator.begin(now, used, budgets)
            }
            Woken::ByCounter | Woken::ByPool => self.regulator.overflow(now, used, budgets),
        };
        if let Some((period, _)) = self.regulator.period()
            && period.early
            && before.is_none_or(|(before, _)| before != period)
        {
            self.pool.wake_for(period);
        }
        let stats = &self.shared.stats;
        stats.lines.store(used.sum().0, Ordering::Relaxed);
        stats
            .forgiven
            .store(self.regulator.forgiven().0, Ordering::Relaxed);
        if let Some(did) = self.regulator.did() {
            stats.tell_pooled(did);
        }
        if woken == Woken::ByCounter {
            stats.overflows.fetch_add(1, Ordering::Relaxed);
        }
        self.tell_renewed();
        if stopped.is_none() && what.stops() {
            stats.throttles.fetch_add(1, Ordering::Relaxed);
        }
        // For the record a period is news only where it ends, begins or prolongs a stop.
        let news = match (stopped, what) {
            (None, _) => what.stops() || matches!(what, Verdict::RunFreeUntil(_)),
            (Some(s), Verdict::ThrottleUntil(until)) => until != s.until,
            (Some(_), _) => before.is_some(),
        };
        if news || woken == Woken::ByCounter {
            stats.decisions.push(&Decision {
                at: now,
                used: used.sum(),
                what,
                reaction: overflow.map(|o| (now.since(o.at), o.kernel)),
            });
        }
        Ok(what)
    }

    fn budget(&self) -> Lines {
        Lines(self.shared.budget.load(Ordering::Relaxed))
    }

    /// Whether this CPU cannot draw enough to be stopped, as long as its budget stays what it is.
    /// Reading the counter once per period would cost the CPU that much for nothing.
    fn no_limit(&self) -> bool {
        let alone = self.regulator.period().is_none();
        alone
            && self
                .most
                .is_some_and(|most| self.regulator.budget().lines >= most)
    }

    fn rest(&mut self) -> Result<(), Lost> {
        self.armed = None;
        self.meter.rest().map_err(|_| Lost::Meter)
    }

    fn arm(&mut self, lines: Lines, taken: bool) -> Result<(), Lost> {
        let lines = self.regulator.armed(lines, self.used);
        let arm = (lines, self.used);
        // A CPU that drew nothing since needs no new arming.
        if taken || self.armed != Some(arm) {
            self.armed = Some(arm);
            self.meter.arm(lines).map_err(|_| Lost::Meter)?;
        }
        Ok(())
    }

    /// Leaves it to the counter's interrupt to begin further budgets, where it can. After a stop
    /// the thread counts until a budget has lasted a period. What the CPU owes is then paid for
    /// exactly.
    fn delegate(&mut self, what: Verdict) -> Result<bool, Lost> {
        let account = match what {
            // Its start may lie ahead.
            _ if self.windows.is_some() => None,
            Verdict::NewPeriod(_) => self.regulator.alone().and_then(|r| r.account()),
            _ => None,
        };
        let Some(account) = account else {
            return Ok(false);
        };
        let delegated = self.meter.delegate(&account).map_err(|_| Lost::Meter)?;
        if delegated {
            self.armed = None;
        }
        Ok(delegated)
    }

    /// Goes on from where the counter's interrupt arrived, if it decided until now.
    fn take_over(&mut self) -> Result<(), Lost> {
        if let Some((start, base)) = self.meter.recall().map_err(|_| Lost::Meter)?
            && let Some(regulator) = self.regulator.alone()
        {
            regulator.resume(start, base);
        }
        Ok(())
    }

    /// Adds the budgets that the counter's interrupt began since the last call.
    fn tell_renewed(&self) {
        let stats = &self.shared.stats;
        let renewed = self.meter.renewed();
        let before = stats.renewed.swap(renewed, Ordering::Relaxed);
        stats
            .overflows
            .fetch_add(renewed.saturating_sub(before), Ordering::Relaxed);
    }

    /// Whether the period of this CPU still lasts.
    fn goes_on(&self, period: Period, end: Nanos, now: Nanos) -> bool {
        now < end && self.pool.is_in(period)
    }

    /// Sleeps until the counter overflows, or the period is over. A counter that is taken away
    /// wakes nothing, so it is read every [`LOOK`].
    fn sleep(&mut self) -> Result<Woken, Lost> {
        loop {
            if let Some(woken) = self.doze()? {
                return Ok(woken);
            }
            let Ok((moved, true)) = self.meter.read() else {
                return Err(Lost::Meter);
            };
            let lines = moved.sum().0;
            self.shared.stats.lines.store(lines, Ordering::Relaxed);
            self.tell_renewed();
        }
    }

    /// Sleeps as [`Self::sleep`]; `None` after [`LOOK`].
    fn doze(&self) -> Result<Option<Woken>, Lost> {
        let mut watched: [PollFd<'_>; 1 + MOST_EVENTS] =
            std::array::from_fn(|_| PollFd::new(&self.slot.wake, PollFlags::IN));
        let mut meters = 0;
        for (slot, meter) in watched[1..]
            .iter_mut()
            .zip(self.meter.descriptors().into_iter().flatten())
        {
            *slot = PollFd::from_borrowed_fd(meter, PollFlags::IN);
            meters += 1;
        }
        let watched = &mut watched[..=meters];
        loop {
            let mut span = LOOK;
            if let Some((period, end)) = self.regulator.period() {
                self.slot.parks(period);
                let now = rt::now();
                if !self.goes_on(period, end, now) {
                    self.slot.leaves();
                    self.here()?;
                    return Ok(Some(Woken::ByTime));
                }
                span = span.min(end.since(now));
            }
            let timeout = Timespec {
                tv_sec: 0,
                tv_nsec: i64::try_from(span.0).unwrap_or(i64::MAX),
            };
            let polled = rustix::event::poll(watched, Some(&timeout));
            self.slot.leaves();
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(Some(Woken::ToEnd));
            }
            // The kernel wakes a thread whose CPU is gone on another CPU. Budgets that move may
            // ring more often than every [`LOOK`].
            self.here()?;
            match polled {
                Ok(0) if span == LOOK => return Ok(None),
                Ok(0) | Err(rustix::io::Errno::INTR) => {}
                Err(_) => return Err(Lost::Meter),
                Ok(_) => {
                    let (bell, meters) = watched.split_at(1);
                    let gone = PollFlags::HUP | PollFlags::ERR;
                    // Such a descriptor belongs to an event in error state or to a CPU that went
                    // away.
                    if meters.iter().any(|w| w.revents().intersects(gone)) {
                        return Err(Lost::Meter);
                    }
                    if bell[0].revents().contains(PollFlags::IN) {
                        self.slot.heard();
                        if self.is_past() {
                            return Ok(Some(Woken::ByWindow));
                        }
                        if self.budget() != self.regulator.budget().lines {
                            if self.free {
                                return Ok(Some(Woken::ByTime));
                            }
                            self.meter.withhold();
                        }
                    }
                    if meters.iter().any(|w| w.revents().contains(PollFlags::IN)) {
                        return Ok(Some(Woken::ByCounter));
                    }
                }
            }
        }
    }

    /// Checks that the thread is on its CPU. A thread whose affinity was changed from outside pins
    /// itself again, as long as it may.
    fn here(&self) -> Result<(), Lost> {
        let there = || rt::current_cpu() == self.cpu;
        if there() || (rt::pin(self.cpu).is_ok() && there()) {
            Ok(())
        } else {
            Err(Lost::WrongCpu)
        }
    }

    /// Keeps the group stopped until `until`, or until the pool has news.
    fn stop_until(&self, until: Nanos) -> Result<Woken, Lost> {
        let began = rt::now();
        let woken = self.spin_until(until);
        self.shared
            .stats
            .throttled_ns
            .fetch_add(rt::now().since(began).0, Ordering::Relaxed);
        woken
    }

    fn spin_until(&self, until: Nanos) -> Result<Woken, Lost> {
        let mut gave_way = rt::now();
        loop {
            let mut now = rt::now();
            if now.since(gave_way) >= GIVE_WAY {
                // The kernel chooses again what runs: a program outside the group, if one woke, and
                // never the group's tasks.
                std::thread::yield_now();
                now = rt::now();
                gave_way = now;
            }
            if now >= until {
                return Ok(Woken::ByTime);
            }
            self.here()?;
            if self.shared.stop.load(Ordering::Acquire) {
                return Ok(Woken::ToEnd);
            }
            if !(self.permit)(now) {
                return Err(Lost::NotPermitted);
            }
            if self.is_past() {
                return Ok(Woken::ByWindow);
            }
            if self.regulator.news(&self.pool.budgets) {
                return Ok(Woken::ByPool);
            }
            for _ in 0..4 {
                rt::relax();
            }
        }
    }
}
