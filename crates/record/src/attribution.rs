//! Why a unit of work was late. Its delay is split into preemption, throttling along, steal, page
//! faults and interrupts, by the kernel's own clocks. What is left is attributed to memory.
//!
//! A *unit* is what a generator times: a window or a job. It is *late* when its value is worse than
//! [`LATE`] times the median unit of the same round's baseline ([`reference()`]). Its *late time*
//! is what it took beyond that for the same work. The causes are taken out of the late time in this
//! order; none takes more than is left of it:
//!
//! | cause | from | how |
//! |---|---|---|
//! | throttled along | stops of its group's brake on its CPU while it waited to run | measured |
//! | preemption | the rest of the time it waited to run (`schedstat`, second field) | measured |
//! | major faults, waiting | *other time*, with a major fault or a sleep in it | measured |
//! | steal | *other time* without either | measured |
//! | interrupts | *other time*, or their number × the gap of one | measured or counted |
//! | minor faults | their number × the time one takes | counted |
//! | standstill | a step far longer than meant, less all of the above | measured |
//! | memory | the rest | remainder |
//!
//! *Other time* is time in which the thread neither ran nor waited to run. It shows steal, because
//! the thread's CPU clock leaves out what the hypervisor took. It shows interrupts where the kernel
//! accounts interrupt time. A standstill is a single step that took twenty times as long as meant:
//! firmware, or a hypervisor that does not report steal.
//!
//! Sources for `run_delay` and the two clocks: kernel/sched/stats.h (`sched_info_arrive`) and
//! kernel/sched/core.c (`update_rq_clock_task`). What a cache lost to a preemption is refilled
//! later and counts as memory.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::stats::Better;
use quell_types::stats::median;

/// A unit is late when it takes longer than this many times the reference for the same work.
pub const LATE: f64 = 1.25;

/// Environment variable of a generator that is to keep an [`Account`].
pub const ACCOUNT_ENV: &str = "QUELL_ACCOUNT";

/// Defines [`Unit`], its columns and its row from one list: fields and columns have the same order.
macro_rules! unit {
    ($($(#[$about:meta])+ $field:ident: $column:literal,)+) => {
        /// What the kernel's clocks say of one unit. Times in nanoseconds.
        #[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
        #[serde(from = "Row", into = "Row")]
        pub struct Unit {
            $($(#[$about])+ pub $field: u64,)+
        }

        impl Unit {
            /// The columns of its row in a record.
            pub const COLUMNS: [&str; [$($column),+].len()] = [$($column),+];
        }

        impl From<Row> for Unit {
            fn from([$($field),+]: Row) -> Self {
                Self { $($field),+ }
            }
        }

        impl From<Unit> for Row {
            fn from(unit: Unit) -> Self {
                [$(unit.$field),+]
            }
        }
    };
}

/// A unit's values, in the order of [`Unit::COLUMNS`].
pub type Row = [u64; Unit::COLUMNS.len()];

unit! {
    /// How many values of the metric it stands for. A stall over several windows is one unit.
    windows: "windows",
    /// When it ended, on the backend's clock.
    at_ns: "at_ns",
    /// How long it took.
    wall_ns: "wall_ns",
    /// How long its thread ran, by the thread's CPU clock.
    cpu_ns: "cpu_ns",
    /// How long its thread was ready to run, but did not run.
    waited_ns: "waited_ns",
    /// How far single steps exceeded twenty times the time that they were meant to take.
    stalled_ns: "stalled_ns",
    /// Page faults without input or output.
    minor: "minor_faults",
    /// Page faults that needed input or output.
    major: "major_faults",
    /// How often its thread went to sleep.
    slept: "sleeps",
    /// The CPU it ended on.
    cpu: "cpu",
}

/// The units of one span, and how to interpret their counts and clocks on this machine.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Account {
    /// The units, in order of time. Their `windows` sum to the metric's values.
    pub units: Vec<Unit>,
    /// What reading the clocks took per unit, in nanoseconds. This time lies between the units.
    pub sample_ns: f64,
    /// The part of the span that interrupts took: their number × the gap one makes ÷ the span.
    pub interrupted: f64,
    /// The kernel accounts interrupts separately from threads (CONFIG_IRQ_TIME_ACCOUNTING).
    pub interrupts_apart: bool,
    /// Nanoseconds that a minor fault takes that brings a page of zeroes.
    pub fault_ns: f64,
    /// There may be a hypervisor that takes CPU time away.
    pub guest: bool,
    /// Steal on the CPU during the span, in nanoseconds, by `/proc/stat`. That clock has steps of
    /// 10 ms.
    pub steal_ns: u64,
}

/// A stretch in which a brake kept its group stopped on a CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Stop {
    /// The group that was stopped.
    pub group: GroupId,
    /// The CPU on which it was stopped.
    pub cpu: CpuId,
    /// Its beginning, in nanoseconds on the backend's clock.
    pub from_ns: u64,
    /// Its end, on the same clock.
    pub until_ns: u64,
}

/// The median over the units of a baseline's `values`. A stall over many windows is one unit, and
/// moves it little.
#[must_use]
pub fn reference(values: &[f64], account: &Account) -> Option<f64> {
    let mut at = 0;
    let units = account.units.iter().filter_map(|unit| {
        let value = values.get(at).copied();
        at = at.saturating_add(usize::try_from(unit.windows).unwrap_or(usize::MAX));
        value.filter(|v| v.is_finite() && *v > 0.0)
    });
    median(&units.collect::<Vec<f64>>())
}

/// What a unit's late time was spent on.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Nothing else accounts for it: caches, memory bandwidth, banks.
    Memory,
    /// Another thread ran on its CPU.
    Preemption,
    /// The brake of its group stopped it.
    ThrottledAlong,
    /// The hypervisor ran another guest.
    Steal,
    /// Interrupts and what they set off.
    Interrupts,
    /// Page faults, minor and major, were handled.
    Faults,
    /// It slept: waited for input, output or another thread.
    Waiting,
    /// The CPU stood still and no clock of the kernel says why.
    Standstill,
}

impl Cause {
    /// All causes, in the order of reports.
    pub const ALL: [Self; 8] = [
        Self::Memory,
        Self::Preemption,
        Self::ThrottledAlong,
        Self::Steal,
        Self::Interrupts,
        Self::Faults,
        Self::Waiting,
        Self::Standstill,
    ];

    /// The name that reports use.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Preemption => "preemption",
            Self::ThrottledAlong => "throttled along",
            Self::Steal => "steal",
            Self::Interrupts => "interrupts",
            Self::Faults => "page faults",
            Self::Waiting => "waiting",
            Self::Standstill => "standstill",
        }
    }
}

/// How a part is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// By a clock of the kernel.
    Measured,
    /// A number of events × what one was measured to take.
    Counted,
    /// What the other causes leave.
    Remainder,
}

/// One cause's part of the late time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Part {
    /// What this part of the late time was spent on.
    pub cause: Cause,
    /// Nanoseconds, over all late units.
    pub ns: u64,
    /// Part of the late time, 0 to 1.
    pub share: f64,
    /// Whether it was measured, counted, or is what remains.
    pub how: How,
}

/// Why a subject's units were late, over all rounds.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Attribution {
    /// The rule: a unit is late when it takes more than this times the median unit of the same
    /// round's baseline for the same work; its late time is what it took beyond that.
    pub late_above: f64,
    /// Number of units that were judged.
    pub units: u64,
    /// Number of units that were late.
    pub late: u64,
    /// Their late time, in nanoseconds.
    pub late_ns: u64,
    /// Where it went, the causes that have a part in it alone. Shares sum to 1.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub parts: Vec<Part>,
    /// Memory's share at least and at most: without the steal that `/proc/stat` shows and no unit
    /// accounts for; with what was only counted. Absent where nothing was late.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub memory: Option<[f64; 2]>,
    /// What reading the clocks took per unit, in nanoseconds. It lies between the units, not in
    /// them.
    pub sample_ns: f64,
}

/// Late time and its causes, summed over units and spans.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Sum {
    units: u64,
    late: u64,
    late_ns: f64,
    parts: BTreeMap<Cause, f64>,
    /// What is counted, not measured: interrupts and faults.
    counted: BTreeMap<Cause, f64>,
    hidden_ns: f64,
    sampling: (f64, u32),
}

/// The late time of one unit that no cause has taken yet.
struct Late<'s> {
    left: f64,
    sum: &'s mut Sum,
}

impl Late<'_> {
    fn take(&mut self, cause: Cause, how: How, ns: f64) {
        let part = ns.max(0.0).min(self.left);
        if part > 0.0 {
            self.left -= part;
            *self.sum.parts.entry(cause).or_default() += part;
            if how == How::Counted {
                *self.sum.counted.entry(cause).or_default() += part;
            }
        }
    }
}

/// Nanoseconds of a unit that are covered by stops on its CPU.
fn stopped(unit: &Unit, stops: &[Stop]) -> u64 {
    let (from, until) = (unit.at_ns.saturating_sub(unit.wall_ns), unit.at_ns);
    stops
        .iter()
        .filter(|s| u64::from(s.cpu) == unit.cpu)
        .map(|s| s.until_ns.min(until).saturating_sub(s.from_ns.max(from)))
        .sum()
}

impl Sum {
    /// Adds one span: the metric's `values`, the [`reference()`] of the same round's baseline, and
    /// the span's account.
    pub fn add(
        &mut self,
        values: &[f64],
        reference: f64,
        better: Better,
        account: &Account,
        stops: &[Stop],
    ) {
        let mut outside_all = 0.0;
        let mut at = 0;
        for unit in &account.units {
            let value = values.get(at).copied();
            at = at.saturating_add(usize::try_from(unit.windows).unwrap_or(usize::MAX));
            let outside = unit
                .wall_ns
                .saturating_sub(unit.cpu_ns)
                .saturating_sub(unit.waited_ns) as f64;
            outside_all += outside;
            let Some(value) = value.filter(|v| v.is_finite() && *v > 0.0) else {
                continue;
            };
            self.units += 1;
            // How much longer than the reference it took for the same work.
            let slower = match better {
                Better::Lower => value / reference,
                Better::Higher => reference / value,
            };
            if slower.is_nan() || slower <= LATE {
                continue;
            }
            let late = unit.wall_ns as f64 * (1.0 - 1.0 / slower);
            self.late += 1;
            self.late_ns += late;
            self.split(unit, late, outside, account, stops);
        }
        if account.guest {
            // A clock of 10 ms is off by less than one tick.
            let unseen = account.steal_ns.saturating_sub(10_000_000) as f64 - outside_all;
            self.hidden_ns += unseen.max(0.0);
        }
        self.sampling = (self.sampling.0 + account.sample_ns, self.sampling.1 + 1);
    }

    fn split(&mut self, unit: &Unit, late: f64, outside: f64, account: &Account, stops: &[Stop]) {
        let mut late = Late {
            left: late,
            sum: self,
        };
        let waited = unit.waited_ns as f64;
        let along = (stopped(unit, stops) as f64).min(waited);
        late.take(Cause::ThrottledAlong, How::Measured, along);
        late.take(Cause::Preemption, How::Measured, waited - along);
        let interrupts = unit.wall_ns as f64 * account.interrupted;
        if unit.major > 0 {
            late.take(Cause::Faults, How::Measured, outside);
        } else if unit.slept > 0 {
            late.take(Cause::Waiting, How::Measured, outside);
        } else if account.interrupts_apart {
            let theirs = if account.guest {
                outside.min(interrupts)
            } else {
                outside
            };
            late.take(Cause::Interrupts, How::Measured, theirs);
            late.take(Cause::Steal, How::Measured, outside - theirs);
        } else if account.guest {
            late.take(Cause::Steal, How::Measured, outside);
        } else {
            late.take(Cause::Standstill, How::Measured, outside);
        }
        let faults = unit.minor as f64 * account.fault_ns;
        late.take(Cause::Faults, How::Counted, faults);
        let known = waited + outside + faults;
        late.take(
            Cause::Standstill,
            How::Measured,
            unit.stalled_ns as f64 - known,
        );
        if !account.interrupts_apart {
            late.take(Cause::Interrupts, How::Counted, interrupts);
        }
        let rest = late.left;
        late.take(Cause::Memory, How::Remainder, rest);
    }

    /// The result; `None` if no span was added.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "sums of nanoseconds, none of them negative"
    )]
    pub fn attribution(&self) -> Option<Attribution> {
        let (sampled, spans) = self.sampling;
        if spans == 0 {
            return None;
        }
        let share = |ns: f64| (ns / self.late_ns * 1e4).round() / 1e4;
        let parts = Cause::ALL
            .into_iter()
            .filter_map(|cause| {
                let ns = *self.parts.get(&cause)?;
                let counted = self.counted.get(&cause).copied().unwrap_or(0.0);
                let how = match cause {
                    Cause::Memory => How::Remainder,
                    _ if counted * 2.0 > ns => How::Counted,
                    _ => How::Measured,
                };
                Some(Part {
                    cause,
                    ns: ns.round() as u64,
                    share: share(ns),
                    how,
                })
            })
            .collect();
        let memory = self.parts.get(&Cause::Memory).copied().unwrap_or(0.0);
        let counted: f64 = self.counted.values().sum();
        Some(Attribution {
            late_above: LATE,
            units: self.units,
            late: self.late,
            late_ns: self.late_ns.round() as u64,
            parts,
            memory: (self.late > 0).then(|| {
                [
                    share((memory - self.hidden_ns).max(0.0)),
                    share(memory + counted),
                ]
            }),
            sample_ns: (sampled / f64::from(spans)).round(),
        })
    }
}

#[cfg(test)]
#[path = "attribution_tests.rs"]
mod tests;
