//! What happened: the events of a run, in the order they enter `events.jsonl`.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::control::bandwidth::Fast;
use crate::cpuset::CpuId;
use crate::plan::{GroupId, StepId};
use crate::units::{Lines, Nanos};

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
    /// A phase began (a round, a cell, warm-up, holding, undoing).
    Phase {
        /// What begins.
        name: String,
    },
    /// A step was applied or undone.
    Step {
        /// Which.
        step: StepId,
        /// What came of it.
        outcome: String,
    },
    /// The throttling of one CPU since the last such event.
    Throttle {
        /// The regulated CPU.
        cpu: CpuId,
        /// The group.
        group: GroupId,
        /// Budgets used up.
        overflows: u64,
        /// Times the CPU was throttled.
        throttles: u64,
        /// Time throttled.
        throttled_ns: u64,
        /// Lines counted.
        lines: u64,
    },
    /// Something a person should know: a promise lost, a value changed by somebody else.
    Finding {
        /// What, in a sentence.
        what: String,
        /// The group concerned.
        #[serde(skip_serializing_if = "Option::is_none")]
        group: Option<GroupId>,
    },
    /// A command ended.
    Exit {
        /// The group it ran in.
        group: GroupId,
        /// Its exit status as a shell reports it.
        status: i32,
    },
}

/// One decision of a regulator, for `samples/decisions-cpuN.csv`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Decision {
    /// When, on the backend's clock.
    pub at: Nanos,
    /// What the counter read.
    pub used: Lines,
    /// What was decided.
    pub what: Fast,
    /// From the overflow to the decision, where the machine records overflows as they happen, and whether the overflow
    /// came while the kernel ran (else a program).
    pub reaction: Option<(Nanos, bool)>,
}

/// An event with its time since the run began.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Stamped {
    /// Nanoseconds since the run began.
    pub at_ns: u64,
    /// The event.
    #[serde(flatten)]
    pub event: Event,
}
