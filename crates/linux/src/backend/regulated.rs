//! Regulated CPUs: how their brakes are started, what the record has been told of each, and budgets that are split again by
//! demand.

use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use quell_control::config::Meter as MeterKind;
use quell_control::config::Regulation;
use quell_control::pooled::Pooled;
use quell_control::split::ByDemand;
use quell_kernel::cgroup::Controller;
use quell_kernel::error::{Error, Result};
use quell_kernel::perf::{self, Scope};
use quell_kernel::pmu::{self, Counting};
use quell_kernel::{fair, rt};
use quell_record::events::Decision;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::options::Split;
use quell_types::units::{Lines, Nanos};

use super::Linux;
use crate::brake::{Brake, Decides};
use crate::enforce::{cores, weight};
use crate::home::Place;
use crate::meter::{ApartMeter, EventMeter, Meter, TimeMeter};
use crate::pool::Pool;

/// A regulated CPU.
pub(super) struct Regulated {
    pub(super) group: String,
    pub(super) brake: Brake,
    /// What it was started with.
    pub(super) regulation: Regulation,
    /// What the record has been told of it: overflows, throttles, time, lines.
    pub(super) told: [u64; 4],
    pub(super) told_pooled: Pooled,
    /// Decisions taken out of its ring and not told yet, and how many were told to be lost.
    pub(super) decisions: Vec<Decision>,
    pub(super) missed: u64,
}

impl Regulated {
    /// Empties the ring.
    pub(super) fn take(&mut self) {
        self.brake.stats().decisions.drain(&mut self.decisions);
    }

    pub(super) fn totals(&self) -> [u64; 4] {
        let stats = self.brake.stats();
        [
            &stats.overflows,
            &stats.throttles,
            &stats.throttled_ns,
            &stats.lines,
        ]
        .map(|v| v.load(Ordering::Relaxed))
    }
}

/// A CPU of a regulated group without a brake, for now.
pub(super) struct Absent {
    pub(super) group: String,
    pub(super) regulation: Regulation,
    pub(super) cpu: CpuId,
}

impl Absent {
    /// Ends the brake.
    pub(super) fn of(regulated: Regulated) -> Self {
        Self {
            cpu: regulated.brake.cpu,
            group: regulated.group,
            regulation: regulated.regulation,
        }
    }
}

/// A group's budget that is split again by what its CPUs draw.
pub(super) struct Splits {
    pub(super) group: String,
    pub(super) cpus: CpuSet,
    pub(super) by: ByDemand,
}

impl Splits {
    pub(super) fn new(group: &str, regulation: &Regulation, now: Nanos) -> Self {
        let group = group.to_owned();
        let cpus = regulation.cpus.clone();
        let total = Lines(regulation.budget.0.saturating_mul(cpus.len() as u64));
        let used = vec![Lines(0); cpus.len()];
        let by = ByDemand::new(total, regulation.least, regulation.period, now, used);
        Self { group, cpus, by }
    }

    /// So many lines for each CPU, which together are what is split from the next time on.
    pub(super) fn set_budget(&mut self, each: Lines) {
        let total = each.0.saturating_mul(self.cpus.len() as u64);
        self.by.set_total(Lines(total));
    }

    /// Splits it, when it is time. A CPU that has not used a budget up since it was last looked at has drawn nothing, as far
    /// as is known.
    pub(super) fn again(&mut self, brakes: &[Regulated], now: Nanos) {
        if now < self.by.next() {
            return;
        }
        let of = |cpu| {
            brakes
                .iter()
                .filter(|r| r.group == self.group)
                .map(|r| &r.brake)
                .find(|t| t.cpu == cpu)
        };
        let brakes: Vec<&Brake> = self.cpus.iter().filter_map(of).collect();
        let used = brakes.iter().map(|t| t.lines()).collect();
        let budgets: Vec<Lines> = brakes.iter().map(|t| t.budget()).collect();
        for (brake, part) in brakes.iter().zip(self.by.step(now, used, &budgets)) {
            brake.set_budget(part);
        }
    }
}

impl Linux {
    /// Holds a group's budgets: a brake for each of its CPUs. Returns what a person should know.
    pub(super) fn regulate(
        &mut self,
        name: &str,
        regulation: &Regulation,
    ) -> Result<Option<String>> {
        self.cached_inventory()?;
        let home = self.group(name)?.home.clone();
        fair::required(&self.files, name, &home.tasks_dirs())?;
        if regulation.is_capped() {
            if home.stop_doors().is_empty() {
                return Err(Error::refused_with(
                    format!("group {name}: its cgroup has no room for a brake"),
                    "hold its limit by cpu.max (mechanisms.bandwidth = \"none\")",
                ));
            }
            weight::under_the_brake(&mut self.hands()?, &home)?;
        }
        for cpu in regulation.cpus.iter() {
            self.throttle(name, regulation, cpu)?;
        }
        if regulation.split == Split::Demand {
            self.splits.push(Splits::new(name, regulation, rt::now()));
        }
        let woken = |r: &&Regulated| r.group == name && r.brake.decides == Decides::Thread;
        let woken = self.brakes.iter().filter(woken).count();
        Ok((woken > 0 && !Decides::needs_the_thread(regulation)).then(|| {
            format!(
                "group {name}: its brakes are woken at every budget, which costs it 20 to 40 µs each: the kernel loads no program \
                 for the counter's interrupt (CAP_BPF and CAP_PERFMON)"
            )
        }))
    }

    /// Starts the brake of one of a group's CPUs.
    pub(super) fn throttle(
        &mut self,
        name: &str,
        regulation: &Regulation,
        cpu: CpuId,
    ) -> Result<()> {
        let (home, cgroups) = (self.group(name)?.home.clone(), self.cgroups.clone());
        let on = CpuSet::from_iter([cpu]);
        let doors = cores::doors(
            &mut self.hands()?,
            &cgroups,
            &home,
            regulation.is_capped(),
            &on,
        )?;
        let dirs: Vec<String> = home
            .dirs(&self.cgroups, Controller::PerfEvent)
            .map(Place::tasks_dir)
            .collect();
        let failed = |what: &str, e: std::io::Error| {
            Error::refused_with(
                format!("group {name}, CPU {cpu}: {what}: {e}"),
                "quell doctor tells what is missing; mechanisms.bandwidth = \"none\" uses cpu-max instead",
            )
        };
        let [dir] = dirs.as_slice() else {
            return Err(Error::refused_with(
                format!(
                    "group {name} lives in {} cgroups that carry perf_event; what it draws is counted in one",
                    dirs.len()
                ),
                "match it by something else than its cgroup, or limit cpu-time",
            ));
        };
        let dir = perf::cgroup_dir(Path::new(dir))
            .map_err(|e| failed("its cgroup cannot be opened", e))?;
        let meter: Box<dyn Meter> = match regulation.meter {
            MeterKind::Time => {
                let meter = TimeMeter::open(&dir, cpu, regulation.peak);
                Box::new(meter.map_err(|e| failed("its CPU clock cannot be counted", e))?)
            }
            hardware => self
                .event_meter(hardware, Scope::Cgroup(dir.as_fd(), cpu), cpu)
                .map_err(|e| failed("its counters cannot be opened", e))?,
        };
        let pool = self.pool()?;
        let lease = Arc::clone(self.session()?.0.lease());
        let permit = Arc::new(move |now| lease.is_held(now));
        let brake = Brake::start(cpu, regulation, meter, (permit, doors), &pool)
            .map_err(|e| failed("no brake", e))?;
        self.brakes.push(Regulated {
            group: name.to_owned(),
            brake,
            regulation: regulation.clone(),
            told: [0; 4],
            told_pooled: Pooled::default(),
            decisions: Vec::new(),
            missed: 0,
        });
        Ok(())
    }

    /// Hardware events in `scope`, as the meter wants them.
    fn event_meter(
        &self,
        wanted: MeterKind,
        scope: Scope<'_>,
        cpu: CpuId,
    ) -> std::io::Result<Box<dyn Meter>> {
        let counting = pmu::of_cpu(&self.counting, cpu);
        let [reads, writes] = counting.map(Counting::codes_apart).unwrap_or_default();
        let meter = match wanted {
            MeterKind::Apart { .. } => {
                return Ok(Box::new(ApartMeter::open(&reads, &writes, scope)?));
            }
            MeterKind::Reads => EventMeter::open(&reads, scope),
            MeterKind::Writes => EventMeter::open(&writes, scope),
            MeterKind::Hardware | MeterKind::Time => {
                EventMeter::open(&[reads, writes].concat(), scope)
            }
        };
        Ok(Box::new(meter?))
    }

    /// What the brakes of this hold share.
    fn pool(&mut self) -> Result<Arc<Pool>> {
        if let Some(pool) = &self.pool {
            return Ok(Arc::clone(pool));
        }
        let cpus = self.all_cpus()?.iter().next_back();
        let new = Arc::new(Pool::new(cpus.map_or(0, |c| c as usize + 1)));
        Ok(Arc::clone(self.pool.insert(new)))
    }
}
