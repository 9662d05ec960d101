//! What a plan says to the controllers. The plan contains these types, and this crate owns them.

use std::collections::BTreeMap;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::options::{After, GUARDS_PER_WINDOW, Idle, OnLate, SchedulerPolicy, Split};
use quell_types::partition::Mask;
use quell_types::units::{Lines, Nanos, Rate, Share};

/// Which meter a regulation uses. Each counts the tasks of the regulated group only.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Meter {
    /// Hardware events, whatever they tell of both directions together.
    Hardware,
    /// CPU time × peak single-CPU rate.
    Time,
    /// Hardware events of lines that come in, those that a store fetches included.
    Reads,
    /// Hardware events of lines that are written back.
    Writes,
    /// Lines that come in and lines that are written back, each with a budget of its own: `budget`
    /// is that of the lines that come in.
    #[serde(rename = "apart")]
    Directions {
        /// Lines that each CPU may write back per period.
        writes: Lines,
    },
}

/// The budgets of several CPUs in one pool, and periods that begin together. All regulations of a
/// plan that are pooled share one pool.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Pooling {
    /// What a group is predicted not to draw on a CPU goes to the other members of the pool.
    pub reclaim: bool,
    /// What happens once all members have drawn all there is.
    pub after: After,
    /// Whether that waits for CPUs that draw nothing.
    #[serde(skip_serializing_if = "Idle::is_counted", default)]
    pub idle: Idle,
    /// Weight of the newest period in the prediction.
    pub predictor: Share,
    /// How much is taken from the pool at a time.
    pub quantum: Lines,
    /// The budget is a cap. If not, the group is never stopped: it only gives what it does not draw
    /// of the budget.
    pub capped: bool,
    /// The budget is headroom: the group gives all of it while it draws nothing on any of its CPUs,
    /// and nothing while it draws.
    #[serde(skip_serializing_if = "std::ops::Not::not", default)]
    pub headroom: bool,
}

/// The regulator of one group: a budget per CPU and period.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Regulation {
    /// The CPUs, each with its own brake.
    pub cpus: CpuSet,
    /// Lines that the group may move on each CPU per period.
    pub budget: Lines,
    /// The time after which each CPU has its budget again.
    pub period: Nanos,
    /// What counts the lines: hardware events, or CPU time.
    pub meter: Meter,
    /// For the time meter: the peak single-CPU rate.
    pub peak: Rate,
    /// How its CPUs' budgets go together with those of others. Absent: each by itself, reservation
    /// only.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pooling: Option<Pooling>,
    /// How the sum of the budgets is spread over the CPUs: by demand, again and again, or evenly.
    #[serde(default = "Split::even", skip_serializing_if = "Split::is_even")]
    pub split: Split,
    /// Lines per period that every CPU keeps when the budget is split by demand: what can be held
    /// there.
    #[serde(default, skip_serializing_if = "Lines::is_zero")]
    pub least: Lines,
}

impl Regulation {
    /// Whether the budget is a cap: then a group that has spent it is stopped.
    #[must_use]
    pub fn is_capped(&self) -> bool {
        self.pooling.as_ref().is_none_or(|p| p.capped)
    }

    /// The lines that the group may move on each CPU per period, by direction.
    #[must_use]
    pub fn budgets(&self) -> LineCounts {
        LineCounts {
            lines: self.budget,
            writes: match self.meter {
                Meter::Directions { writes } => writes,
                _ => Lines(0),
            },
        }
    }
}

/// Lines of a regulated CPU: what its counters read, or what it may move per period.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LineCounts {
    /// Lines that count against [`Regulation::budget`]. These are the lines that come in where the
    /// lines written back have their own budget, else all lines.
    pub lines: Lines,
    /// Lines written back, where they have their own budget; else zero.
    pub writes: Lines,
}

impl LineCounts {
    /// Lines of both directions together.
    #[must_use]
    pub fn sum(self) -> Lines {
        Lines(self.lines.0.saturating_add(self.writes.0))
    }
}

impl From<Lines> for LineCounts {
    fn from(lines: Lines) -> Self {
        let writes = Lines(0);
        Self { lines, writes }
    }
}

/// What may be done to a neighbour: what its `allow` names, `escalate` names too, and the machine
/// can do.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Allows {
    /// The group may be held below a memory limit that moves.
    pub limit: bool,
    /// The group may be frozen and thawed.
    pub freeze: bool,
    /// Memory of the group may be reclaimed ahead of need.
    pub reclaim: bool,
    /// Processes of the group may be killed.
    pub kill: bool,
}

impl Allows {
    /// Whether nothing may be done to this neighbour.
    #[must_use]
    pub fn is_none(self) -> bool {
        self == Self::default()
    }
}

/// Two neighbouring runs of ways of one cache, and the line between them.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Boundary {
    /// The ways that the group has at most.
    own: Mask,
    /// The ways that the best-effort groups have at least.
    others: Mask,
    /// The ways in `others` have higher numbers than those in `own`.
    above: bool,
}

impl Boundary {
    /// A boundary between `own`, the ways the group has at most, and `others`, those the
    /// best-effort groups have at least. `None` unless both are runs that touch each other: only
    /// then can ways move between them without a hole in a mask.
    #[must_use]
    pub fn between(own: Mask, others: Mask) -> Option<Self> {
        let run = |mask: Mask| {
            let first = mask.0.trailing_zeros();
            (!mask.is_empty() && mask == Mask::run(first, mask.count())).then_some(first)
        };
        let (first, other) = (run(own)?, run(others)?);
        let above = other == first + own.count();
        let below = first == other + others.count();
        (above || below).then_some(Self { own, others, above })
    }

    /// The masks of the group and of the best-effort groups, where the group has `ways` ways.
    #[must_use]
    pub fn at(&self, ways: u32) -> (Mask, Mask) {
        let all = self.own.count();
        let ways = ways.clamp(1, all);
        let first = self.own.0.trailing_zeros();
        let own = if self.above {
            Mask::run(first, ways)
        } else {
            Mask::run(first + all - ways, ways)
        };
        (own, Mask(self.others.0 | (self.own.0 & !own.0)))
    }
}

/// Ways of the caches of a level that a group may fill.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Fill {
    /// The cache level: 2 or 3.
    pub level: u32,
    /// The ways, one bit each.
    pub mask: Mask,
}

/// A part of a frame: what runs from `start` to `end`.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Span {
    /// When it begins, from the beginning of the frame.
    pub start: Nanos,
    /// When the next one begins, from the beginning of the frame.
    pub end: Nanos,
    /// The group that runs. Absent: no group does.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// The ways that the group fills from `start` on. Absent: those that it has anyway.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub ways: Option<Fill>,
    /// What the group may move to and from memory until `end`. Its periods begin at `start`.
    /// Absent: as much as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub budget: Option<Regulation>,
}

impl Span {
    /// Whether the same group has the same in both.
    #[must_use]
    pub fn is_alike(&self, other: &Self) -> bool {
        let of = |span: &Self| (span.group.clone(), span.ways, span.budget.clone());
        of(self) == of(other)
    }
}

/// Windows in which one group at a time runs on some CPUs, repeated for ever. A frame begins
/// whenever CLOCK_MONOTONIC is a multiple of its length.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Frame {
    /// The CPUs that are divided.
    pub cpus: CpuSet,
    /// After how long the windows begin again.
    pub length: Nanos,
    /// How long before a window begins its CPUs are taken from the group that runs.
    pub guard: Nanos,
    /// What happens when a window begins more than a guard late.
    pub on_late: OnLate,
    /// The whole frame, in order and without gaps. Neighbouring spans have different groups, or
    /// give the same group something else.
    pub spans: Vec<Span>,
}

impl Frame {
    /// A frame in which each of `windows` runs its group. They are in order and do not overlap.
    /// Time that no window covers goes to `spare`, where it is long enough for a window.
    #[must_use]
    pub fn new(
        cpus: CpuSet,
        length: Nanos,
        guard: Nanos,
        windows: &[Span],
        spare: Option<&GroupId>,
    ) -> Self {
        let least = Nanos(guard.0.saturating_mul(GUARDS_PER_WINDOW));
        let mut spans: Vec<Span> = Vec::new();
        let mut add = |span: Span| match spans.last_mut() {
            _ if span.end <= span.start => {}
            Some(last) if last.is_alike(&span) => last.end = span.end,
            _ => spans.push(span),
        };
        let unowned = |start: Nanos, end: Nanos| Span {
            start,
            end,
            group: spare.filter(|_| end.since(start) >= least).cloned(),
            ..Span::default()
        };
        let mut covered = Nanos(0);
        for window in windows {
            add(unowned(covered, window.start));
            add(window.clone());
            covered = window.end;
        }
        add(unowned(covered, length));
        Self {
            cpus,
            length,
            guard,
            on_late: OnLate::default(),
            spans,
        }
    }

    /// The groups that have a window, each once, in the order of their first window.
    #[must_use]
    pub fn groups(&self) -> Vec<&GroupId> {
        let mut groups = Vec::new();
        for group in self.spans.iter().filter_map(|span| span.group.as_ref()) {
            if !groups.contains(&group) {
                groups.push(group);
            }
        }
        groups
    }

    /// The groups with a budget in a window, each once for every such window.
    pub fn budgeted(&self) -> impl Iterator<Item = &GroupId> {
        let spans = self.spans.iter().filter(|span| span.budget.is_some());
        spans.filter_map(|span| span.group.as_ref())
    }

    /// How long a group runs in each frame: its windows, less the guard at the end of each.
    #[must_use]
    pub fn time_left_to(&self, group: &str) -> Nanos {
        let of = |span: &&Span| span.group.as_deref() == Some(group);
        let windows = self.spans.iter().filter(of).count() as u64;
        // What is not divided has no end.
        let guards = if self.spans.len() > 1 { windows } else { 0 };
        self.time_of(group)
            .since(Nanos(self.guard.0.saturating_mul(guards)))
    }

    /// How long a group's windows are in each frame, guards included.
    #[must_use]
    pub fn time_of(&self, group: &str) -> Nanos {
        let of = |span: &&Span| span.group.as_deref() == Some(group);
        let spans = self.spans.iter().filter(of);
        spans.fold(Nanos(0), |sum, span| sum.plus(span.end.since(span.start)))
    }
}

/// What one process demands while it runs alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct ProgramDemand {
    /// What it moves to and from main memory. Zero where that is not declared.
    pub memory: Rate,
    /// What it loads from and stores to the first-level cache. Zero where that is not declared.
    pub first_level: Rate,
}

/// Who decides for each quantum which processes run, and where.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Scheduling {
    /// Who decides.
    pub policy: SchedulerPolicy,
    /// For how long a decision holds.
    pub quantum: Nanos,
    /// How many quanta a process waits at most.
    pub bound: u32,
    /// The CPUs that are shared out, one set per core. Empty: all of the machine.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub cores: Vec<CpuSet>,
    /// The groups whose processes take turns, and what one process of the group demands as far as
    /// that is not counted. Empty: all processes, whose demands the machine counts.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub groups: BTreeMap<GroupId, ProgramDemand>,
    /// Whether counters of each process of the groups say what it demands.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub counted: bool,
    /// What the CPUs can draw from memory together. Absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sustainable: Option<Rate>,
    /// What one CPU can draw from memory. Absent where that is not known.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub peak_cpu: Option<Rate>,
}
