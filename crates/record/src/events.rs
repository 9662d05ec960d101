//! What happened: the events of a run, in the order in which they enter `events.jsonl`, and a whole
//! record as it is read back.

use std::collections::BTreeMap;

use quell_control::{bandwidth::Verdict, pooled::Pooled};
use quell_plan::{Plan, inventory::Inventory};
use quell_types::cpuset::CpuId;
use quell_types::ids::{GroupId, PromiseId, StepId};
use quell_types::mechanism::Level;
use quell_types::refusal::Refusal;
use quell_types::units::{Lines, Nanos};
use quell_types::witness;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::about::About;
pub use crate::declared::Declared;
use crate::owners::FrameOwners;
pub use crate::pages::{ColouredPages, Paged};
use crate::quanta::Turns;
use crate::result::CompareResult;
use crate::standing::Cause;
use crate::target::TargetVerdict;
use crate::ways::Change;
use crate::windows::Kept;

/// Schema id of `events.jsonl`.
pub const EVENTS_SCHEMA: &str = "quell.events/1";
/// Schema id of `manifest.json`.
pub const MANIFEST_SCHEMA: &str = "quell.manifest/1";
/// Schema id of `compare --json`.
pub const COMPARE_SCHEMA: &str = "quell.compare/1";

/// One event. Durations and times carry their unit in the name.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "event")]
pub enum Event {
    /// A phase of the run began.
    Phase {
        /// The phase that began.
        name: Phase,
    },
    /// A cell of an experiment began: everything up to the next cell is its own.
    Cell {
        /// Number of the round, from 0.
        round: u32,
        /// Number of rounds in the experiment.
        of: u32,
        /// Name of the configuration.
        configuration: String,
        /// Name of the subject. Absent where all subjects run together.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        subject: Option<String>,
    },
    /// A step was applied or undone.
    Step {
        /// Number of the step within the plan.
        step: StepId,
        /// `applied`, or what went wrong.
        outcome: String,
    },
    /// The throttling of one CPU since the last such event.
    Throttle {
        /// The kernel's number of the regulated CPU.
        cpu: CpuId,
        /// The group that is regulated there.
        group: GroupId,
        /// How often the budget of a period was used up.
        overflows: u64,
        /// How often the group was throttled on the CPU.
        throttles: u64,
        /// How long it was throttled, in nanoseconds.
        throttled_ns: u64,
        /// Lines that were counted.
        lines: u64,
        /// What went through the pool. Absent where the budget is in none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        pooled: Option<Pooled>,
    },
    /// How processes took turns by `[scheduler]`, since the plan is held.
    Turns {
        /// Totals from the first quantum on.
        #[serde(flatten)]
        turns: Turns,
    },
    /// How exactly the windows of a frame were kept, since the plan is held.
    Windows {
        /// Totals from the first switch on.
        #[serde(flatten)]
        kept: Kept,
    },
    /// What the kernel accounted to a group's threads since the last such event, by samples of
    /// them.
    Spent {
        /// The group of the threads.
        group: GroupId,
        /// Run time, waiting time and page faults.
        #[serde(flatten)]
        spent: Spent,
    },
    /// The pages that the memory of a group's processes lies in now. The first such event of a
    /// group is from before anything was done about them.
    Paged {
        /// The group of the processes.
        group: GroupId,
        /// The sizes, summed over its processes.
        #[serde(flatten)]
        pages: Paged,
    },
    /// Where the pages of a process lie that are moved for colours.
    Coloured {
        /// The group of the process.
        group: GroupId,
        /// Number of the process.
        pid: u32,
        /// The program's name, as the kernel has it.
        program: String,
        /// Whether they leave reserved colours. Pages outside of these are right then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        out: bool,
        /// Pages, and the stops that moving them took.
        #[serde(flatten)]
        pages: ColouredPages,
    },
    /// Which programs have frames of reserved colours: once such frames are held, and at the end.
    Owners {
        /// The largest ten, and sums.
        #[serde(flatten)]
        owners: FrameOwners,
    },
    /// Units of work of an observed group since the last such event.
    Units {
        /// The group whose units are observed.
        group: GroupId,
        /// Number of units that ended.
        units: u64,
        /// Number of them that were late.
        late: u64,
        /// The median duration in nanoseconds.
        median_ns: u64,
        /// The longest duration in nanoseconds.
        worst_ns: u64,
        /// Number of further units whose times could not be read.
        #[serde(default, skip_serializing_if = "crate::pages::is_zero")]
        lost: u64,
    },
    /// What a program declares of its units through quell-client.
    Declared {
        /// The group that the program is in.
        group: GroupId,
        /// Amounts per unit, as declared.
        #[serde(flatten)]
        declared: Declared,
    },
    /// Whether a group's units of work met their target, judged at the end.
    Target {
        /// The group with the target.
        group: GroupId,
        /// The verdict.
        #[serde(flatten)]
        verdict: TargetVerdict,
    },
    /// The bandwidth of best-effort groups was changed, so that a group's units are in time.
    Adapted {
        /// The group with the target.
        group: GroupId,
        /// Bytes per second left to the best-effort groups before.
        from_bytes_per_s: u64,
        /// Bytes per second left to them from now on.
        to_bytes_per_s: u64,
        /// Bytes per second that are thereby reserved for the group.
        reserved_bytes_per_s: u64,
        /// Why, in a sentence.
        why: String,
    },
    /// The memory of a group was protected, limited or reclaimed, or its processes were stopped,
    /// resumed or killed.
    Steered {
        /// The group it was done to.
        group: GroupId,
        /// The act, with its amount or process.
        did: Steering,
        /// Why, in a sentence.
        why: String,
    },
    /// How long a group waited for memory since the last such event, and what it has now.
    Waited {
        /// The group that waited.
        group: GroupId,
        /// Time in which some task of it waited for memory.
        memory_ns: u64,
        /// Time in which all its tasks waited for memory at once (*full* pressure).
        #[serde(default)]
        memory_full_ns: u64,
        /// Time in which some task of it waited for input or output.
        io_ns: u64,
        /// Pages of it that were reclaimed and came back soon.
        refaults: u64,
        /// Bytes that the group uses now.
        bytes: u64,
        /// Bytes that all groups which may be acted upon use now.
        #[serde(default)]
        others_bytes: u64,
        /// Bytes that programs could have now without swapping, by the kernel's estimate.
        available_bytes: u64,
        /// Size of memory in bytes.
        total_bytes: u64,
    },
    /// What Quell's own process took to look after memory since the last such event.
    Own {
        /// Time since the last such event, in nanoseconds.
        span_ns: u64,
        /// CPU time of all its threads.
        cpu_ns: u64,
        /// Bytes that the process has in memory now.
        resident_bytes: u64,
        /// Bytes of its address space that are locked: they stay in memory once they are there.
        locked_bytes: u64,
    },
    /// A group has more or fewer ways of a cache.
    Resized {
        /// The group whose ways have changed.
        group: GroupId,
        /// The cache level: 2 or 3.
        level: u32,
        /// Number of ways before.
        from: u32,
        /// Number of ways from now on.
        to: u32,
        /// Why, in a sentence.
        why: String,
    },
    /// A class may fill other ways than before, a thread is in another class or on another CPU, or
    /// a class was counted.
    Ways {
        /// What has changed, with the values before and now.
        change: Change,
    },
    /// A promise has another level from now on.
    Promise {
        /// Number of the promise within the plan.
        id: PromiseId,
        /// The level from now on.
        level: Level,
        /// Why the level has changed.
        because: Cause,
    },
    /// What an independent look at the machine says of a promise from now on.
    Witnessed {
        /// Number of the promise within the plan.
        id: PromiseId,
        /// Whether the promise holds, as far as that is seen.
        #[serde(flatten)]
        verdict: witness::Verdict,
    },
    /// Something a person should know: a value that another program changed, a sample that failed.
    Finding {
        /// What, in a sentence.
        what: String,
        /// The group concerned. Absent where it is the whole run.
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
        /// The subject of the finding, as data.
        #[serde(default, skip_serializing_if = "About::is_other")]
        about: About,
    },
    /// The command of a group ended.
    Exit {
        /// The group in which the command ran.
        group: GroupId,
        /// Its exit status as a shell reports it.
        status: i32,
    },
}

impl Event {
    /// A finding: what a person should know, about one group or all.
    #[must_use]
    pub fn finding(about: About, what: impl Into<String>, group: Option<&str>) -> Self {
        Self::Finding {
            what: what.into(),
            group: group.map(str::to_owned),
            about,
        }
    }
}

/// A part of a run, as long as it has no cells.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Everything that the plan changes is changed.
    Hold,
    /// All changes are being reverted.
    Undo,
    /// Sampling that changes nothing is over.
    End,
    /// Any other text in a record that is read. Records before 0.1 have their cells here.
    #[serde(untagged)]
    Other(String),
}

impl Phase {
    /// The name of the phase in a record.
    #[must_use]
    pub fn word(&self) -> &str {
        match self {
            Self::Hold => "hold",
            Self::Undo => "undo",
            Self::End => "end",
            Self::Other(text) => text,
        }
    }
}

/// What was done about a group's memory.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "act")]
pub enum Steering {
    /// Memory of the group is protected from reclaim from now on.
    Protect {
        /// How many bytes are protected.
        bytes: u64,
    },
    /// The memory limit of the group is a new one from now on.
    Limit {
        /// The limit in bytes. Absent: there is no limit any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        bytes: Option<u64>,
    },
    /// No more of the group's memory is swapped out from now on.
    KeepUnswapped,
    /// The group was frozen.
    Freeze,
    /// The group was thawed and runs again.
    Thaw,
    /// The kernel was asked to reclaim memory of the group.
    Reclaim {
        /// Bytes that were asked for.
        bytes: u64,
    },
    /// A process of it was stopped.
    Stop {
        /// Number of the process.
        pid: u32,
    },
    /// A process that was stopped was resumed.
    Continue {
        /// Number of the process.
        pid: u32,
    },
    /// A process of it was killed.
    Kill {
        /// Number of the process.
        pid: u32,
    },
}

/// What the kernel accounts to threads, by samples of them. A thread that lived between two samples
/// is missing, and so is the end of every thread.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    /// Nanoseconds in which they ran.
    pub ran_ns: u64,
    /// Nanoseconds ready to run, while something else ran.
    pub waited_ns: u64,
    /// Page faults that needed no input or output.
    pub minor_faults: u64,
    /// Page faults that needed input or output.
    pub major_faults: u64,
}

impl Spent {
    /// The sum of both, by field.
    #[must_use]
    pub const fn plus(self, other: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_add(other.ran_ns),
            waited_ns: self.waited_ns.saturating_add(other.waited_ns),
            minor_faults: self.minor_faults.saturating_add(other.minor_faults),
            major_faults: self.major_faults.saturating_add(other.major_faults),
        }
    }

    /// What has been added since `before`, by field.
    #[must_use]
    pub const fn less(self, before: Self) -> Self {
        Self {
            ran_ns: self.ran_ns.saturating_sub(before.ran_ns),
            waited_ns: self.waited_ns.saturating_sub(before.waited_ns),
            minor_faults: self.minor_faults.saturating_sub(before.minor_faults),
            major_faults: self.major_faults.saturating_sub(before.major_faults),
        }
    }
}

/// One decision of a regulator, for `samples/decisions-cpuN.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When, on the backend's clock.
    pub at: Nanos,
    /// The counter's reading, in lines.
    pub used: Lines,
    /// What the regulator decided.
    pub what: Verdict,
    /// Time from the overflow to the decision, and whether the overflow came in the kernel (else in
    /// a program). `None` where the machine does not record overflows as they happen.
    pub reaction: Option<(Nanos, bool)>,
}

/// An event with its time since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stamped {
    /// Nanoseconds since the run began.
    pub at_ns: u64,
    /// The event itself, its keys next to `at_ns`.
    #[serde(flatten)]
    pub event: Event,
}

/// How one CPU's time was spent since the machine started, as the kernel accounts for it. It counts
/// in clock ticks, often of 10 ms (proc_stat(5)). A row of `samples/machine.csv`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuTimes {
    /// Number of the CPU.
    pub cpu: CpuId,
    /// Nanoseconds in programs and in the kernel on their behalf.
    pub busy_ns: u64,
    /// Nanoseconds in hard interrupts.
    pub irq_ns: u64,
    /// Nanoseconds in soft interrupts.
    pub softirq_ns: u64,
    /// Nanoseconds in which the host ran something else while this CPU wanted to run.
    pub steal_ns: u64,
    /// Nanoseconds without anything to do.
    pub idle_ns: u64,
}

impl CpuTimes {
    /// All of the time and the stolen part, in nanoseconds, summed over CPUs.
    fn all_and_stolen<'a>(times: impl Iterator<Item = &'a Self>) -> (u64, u64) {
        times.fold((0, 0), |(all, stolen), t| {
            let parts = [t.busy_ns, t.irq_ns, t.softirq_ns, t.steal_ns, t.idle_ns];
            let all = parts
                .iter()
                .fold(all, |sum, part| sum.saturating_add(*part));
            (all, stolen.saturating_add(t.steal_ns))
        })
    }

    /// The part of the time between two readings in which the host ran something else, over the
    /// chosen CPUs, 0 to 1. `None` where no time has passed.
    #[must_use]
    pub fn stolen(before: &[Self], after: &[Self], of: impl Fn(CpuId) -> bool) -> Option<f64> {
        let in_both =
            |one: &&Self, other: &[Self]| of(one.cpu) && other.iter().any(|t| t.cpu == one.cpu);
        let (all, stolen) = Self::all_and_stolen(after.iter().filter(|t| in_both(t, before)));
        let before = before.iter().filter(|t| in_both(t, after));
        let (all_before, stolen_before) = Self::all_and_stolen(before);
        let passed = all.saturating_sub(all_before);
        (passed > 0).then(|| stolen.saturating_sub(stolen_before) as f64 / passed as f64)
    }
}

/// The windows of one subject's primary metric in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct Span {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the subject.
    pub subject: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// Nanoseconds since the run began at which each window began, where that is known.
    pub at_ns: Option<Vec<u64>>,
    /// The value of each window, in order of time.
    pub values: Vec<f64>,
}

/// What the units of work of one subject met in memory in one round.
#[derive(Clone, Debug, PartialEq)]
pub struct MemorySeries {
    /// Name of the configuration.
    pub configuration: String,
    /// Name of the subject.
    pub subject: String,
    /// Number of the round, from 0.
    pub round: u32,
    /// A point at the end of each unit, in order of time.
    pub points: Vec<MemoryPoint>,
}

/// What one unit of work met in memory.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct MemoryPoint {
    /// When the unit ended, in nanoseconds since the run began.
    pub at_ns: u64,
    /// Resident memory of its process, in 10^6 bytes.
    pub resident_mb: f64,
    /// Share of the pages it read that were not in the page cache.
    pub cache_misses: f64,
    /// Page faults that waited for a disk.
    pub major_faults: f64,
}

/// A stretch in which a regulator kept a CPU stopped, in nanoseconds since the run began.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stop {
    /// When the stop began.
    pub from_ns: u64,
    /// When the stop ended.
    pub until_ns: u64,
}

/// A record of `compare` or of `run`: everything that a report is made from.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Record {
    /// The experiment's name, or the policy's.
    pub name: String,
    /// The version of Quell that wrote it.
    pub version: String,
    /// When it began: `YYYY-MM-DD HH:MM:SS UTC`.
    pub created: Option<String>,
    /// The command that was run, word for word.
    pub command_line: Option<String>,
    /// What a comparison found; absent in the record of a run.
    pub result: Option<CompareResult>,
    /// The experiment or the policy as TOML.
    pub text: Option<String>,
    /// The machine as it was probed.
    pub machine: Option<Inventory>,
    /// Configuration (of a run: the policy's name) → plan.
    pub plans: BTreeMap<String, Plan>,
    /// Configuration → why it was refused.
    pub refused: BTreeMap<String, Vec<Refusal>>,
    /// The windows of every subject in every cell.
    pub spans: Vec<Span>,
    /// What subjects met in memory, of those that report it.
    pub courses: Vec<MemorySeries>,
    /// All events, in order of time.
    pub events: Vec<Stamped>,
    /// When regulators kept CPUs stopped, in order of time.
    pub stops: BTreeMap<CpuId, Vec<Stop>>,
    /// How the CPUs' time was spent, by the kernel's account, in order of time. Each entry begins
    /// with nanoseconds since the run began.
    pub cpu_times: BTreeMap<CpuId, Vec<(u64, CpuTimes)>>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_phase_is_written_as_its_word_and_any_text_is_read() {
        for phase in [Phase::Hold, Phase::Undo, Phase::End] {
            let text = serde_json::to_string(&phase).unwrap();
            assert_eq!(text, format!("\"{}\"", phase.word()));
            assert_eq!(serde_json::from_str::<Phase>(&text).unwrap(), phase);
        }
        let line = r#"{"at_ns":7,"event":"phase","name":"round 1 of 8, solo"}"#;
        let stamped: Stamped = serde_json::from_str(line).unwrap();
        let name = Phase::Other("round 1 of 8, solo".to_owned());
        assert_eq!(stamped.event, Event::Phase { name });
        assert_eq!(serde_json::to_string(&stamped).unwrap(), line);
    }

    #[test]
    fn stolen_time_is_a_part_of_all_time_of_the_cpus_that_stayed() {
        let time = |cpu, busy_ns, steal_ns| CpuTimes {
            cpu,
            busy_ns,
            steal_ns,
            ..CpuTimes::default()
        };
        let before = [time(0, 96, 4), time(3, 100, 0)];
        let after = [time(0, 171, 29), time(3, 200, 0), time(5, 9, 9)];
        let stolen = |of: &dyn Fn(CpuId) -> bool| CpuTimes::stolen(&before, &after, of);
        assert_eq!(stolen(&|cpu| cpu == 0), Some(0.25));
        assert_eq!(stolen(&|_| true), Some(0.125));
        // It came meanwhile.
        assert_eq!(stolen(&|cpu| cpu == 5), None);
        assert_eq!(CpuTimes::stolen(&after, &after, |_| true), None);
    }
}
