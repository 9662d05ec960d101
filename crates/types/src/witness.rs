//! What a witness says of a promise, and why one does not hold: data, and a sentence that names the
//! task, the file or the value.

use std::fmt;

use crate::cpuset::{CpuId, CpuSet};
use crate::ids::GroupId;
use crate::partition::Mask;
use crate::units::{Bytes, Nanos, Rate, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the witness says of one promise.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "verdict", content = "because")]
pub enum Verdict {
    /// All that can be seen agrees with the promise.
    Holds,
    /// The promise does not hold.
    Broken(Fault),
    /// The witness cannot tell, for this reason (a sentence without its end).
    Unseen(String),
}

/// Why a promise does not hold.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
#[schemars(rename = "WitnessedFault")]
pub enum Fault {
    /// The group that has CPUs to itself has no process.
    NoProcess {
        /// The group.
        group: GroupId,
    },
    /// A thread of another program may run on a CPU that the group has to itself.
    Stranger {
        /// Number of the thread.
        tid: u32,
        /// Number of its process.
        pid: u32,
        /// The thread's command name.
        comm: String,
        /// The CPU. Where it ran on one of the group's CPUs, that one.
        cpu: CpuId,
        /// Whether it ran there since the last look.
        ran: bool,
        /// How many more such threads were seen.
        others: u32,
    },
    /// A thread that the group matches is not in the group's cgroup.
    Outside {
        /// Number of the thread.
        tid: u32,
        /// Number of its process.
        pid: u32,
        /// The thread's command name.
        comm: String,
        /// Path of the cgroup where it is, from the root of the hierarchy.
        cgroup: String,
        /// Directory of a cgroup of that hierarchy where it should be.
        home: String,
    },
    /// A thread of the group may run where it should not, or not where it should.
    Elsewhere {
        /// Number of the thread.
        tid: u32,
        /// Number of its process.
        pid: u32,
        /// The thread's command name.
        comm: String,
        /// CPUs on which it may run.
        may: CpuSet,
        /// CPUs that it should have.
        wanted: CpuSet,
    },
    /// A limit on the group's cgroup, or on a cgroup above it, leaves less than was promised.
    Limited {
        /// Path of the file with the limit.
        file: String,
        /// Its content.
        value: String,
        /// What the group can get below this limit.
        gets: Amount,
        /// What it should be able to get. Absent where it gets all that the limit allows.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        wanted: Option<Amount>,
    },
    /// Threads of the group wait for one CPU while another of the group's CPUs idles.
    Stacked {
        /// The CPU for which they wait.
        cpu: CpuId,
        /// How many threads run and wait there.
        threads: u32,
        /// A CPU of the group that idled meanwhile.
        idle: CpuId,
    },
    /// Others than the group used its CPUs, by the kernel's account of CPUs and cgroups.
    Used {
        /// The group's CPUs.
        cpus: CpuSet,
        /// CPU time that neither the group, nor the kernel's threads, nor Quell used there.
        others: Nanos,
        /// The time between the two looks.
        span: Nanos,
    },
    /// The group has used more CPU time than it may.
    Exceeded {
        /// CPU time that it used.
        drawn: Nanos,
        /// CPU time that it may use meanwhile, the tolerance included.
        allowed: Nanos,
        /// The time in which it did.
        span: Nanos,
    },
    /// The limit of the group's memory is gone, or higher than promised.
    Unlimited {
        /// Path of the file with the limit.
        file: String,
        /// Its content.
        value: String,
        /// The limit that was promised.
        promised: Bytes,
    },
    /// The group has more memory than promised.
    Overfull {
        /// What is charged to its cgroups, and what its processes have elsewhere.
        has: Bytes,
        /// The limit that was promised.
        promised: Bytes,
    },
    /// Memory of the group's processes is charged to a cgroup that they were in before, where
    /// nothing keeps it.
    Unkept {
        /// How much at least.
        memory: Bytes,
        /// How much the kernel was to keep.
        promised: Bytes,
    },
    /// The group's class does not have the promised ways.
    Remasked {
        /// Name of the resctrl group in which tasks of the group are. Empty: the default group.
        class: String,
        /// Level of the cache.
        level: u32,
        /// Number of the cache.
        cache: u32,
        /// The ways that the class has.
        has: Mask,
        /// The ways that were promised.
        promised: Mask,
    },
    /// Another class fills ways that the group has to itself.
    Filled {
        /// Name of the resctrl group. Empty: the default group.
        class: String,
        /// Level of the cache.
        level: u32,
        /// Number of the cache.
        cache: u32,
        /// Those of the group's ways that this class fills.
        mask: Mask,
    },
    /// By its registers a CPU fills other ways than it should.
    CpuFills {
        /// The CPU.
        cpu: CpuId,
        /// Level of the cache.
        level: u32,
        /// The ways that it fills. Where it is not the group's: those of the group's ways.
        has: Mask,
        /// The ways that were promised to the group.
        promised: Mask,
        /// Whether it is a CPU of the group.
        own: bool,
    },
    /// A group of the windows has used more CPU time than its windows give it.
    Overrun {
        /// The group.
        group: GroupId,
        /// CPU time that it used.
        drawn: Nanos,
        /// CPU time that its windows give it meanwhile, the tolerance included.
        allowed: Nanos,
        /// The time in which it did.
        span: Nanos,
    },
    /// The group has moved more to and from memory than it may.
    Drew {
        /// Bytes that it moved.
        bytes: Bytes,
        /// Bytes that it may move meanwhile, the tolerance included.
        allowed: Bytes,
        /// The time in which it did.
        span: Nanos,
    },
    /// A file of the kernel does not say what was promised.
    Reads {
        /// Path of the file.
        file: String,
        /// Its content.
        value: String,
        /// What was promised, in words.
        promised: String,
    },
    /// Memory of a process of the group is not locked.
    Unlocked {
        /// Number of the process.
        pid: u32,
        /// Its memory that is there.
        resident: Bytes,
        /// Its memory that is locked.
        locked: Bytes,
    },
    /// A file is not in memory as a whole.
    Uncached {
        /// Path of the file.
        file: String,
        /// How much of it is not in memory.
        missing: Bytes,
    },
    /// Anonymous memory of a process of the group lies in pages of another size.
    Paged {
        /// Number of the process.
        pid: u32,
        /// Its anonymous memory in mappings that could have large pages.
        anonymous: Bytes,
        /// How much of that lies in large pages.
        large: Bytes,
        /// Whether it should lie in large pages.
        wanted: bool,
    },
    /// Pages of a process of the group do not have its colours.
    Misplaced {
        /// Number of the process that has most of them.
        pid: u32,
        /// How many of the pages that were looked at.
        pages: u64,
        /// How many were looked at.
        of: u64,
    },
    /// The group has waited longer for memory than promised.
    Stalled {
        /// How long some task of it waited.
        waited: Nanos,
        /// The time in which it did.
        span: Nanos,
        /// The share of the time that was promised.
        most: Share,
    },
}

/// An amount of what a limit limits.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Amount {
    /// CPU time; 100 % is one CPU.
    CpuTime(Share),
    /// Memory.
    Memory(Bytes),
    /// Bytes to or from a disk.
    DiskRate(Rate),
    /// Requests of a disk in a second.
    DiskRequests(u64),
    /// A weight among sibling cgroups, of which any other has 100; 0 where it runs when no other
    /// wants the CPU.
    Weight(u64),
}

impl fmt::Display for Amount {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::CpuTime(share) => write!(f, "{share} of a CPU"),
            Self::Memory(bytes) => write!(f, "{bytes} of memory"),
            Self::DiskRate(rate) => write!(f, "{rate} of a disk"),
            Self::DiskRequests(n) => write!(f, "{n} requests of a disk in a second"),
            Self::Weight(0) => f.write_str("the CPU time that nobody else wants"),
            Self::Weight(n) => write!(f, "weight {n} where others have 100"),
        }
    }
}

/// A resctrl group in a sentence.
fn class_named(class: &str) -> String {
    match class {
        "" => "the default resctrl group".to_owned(),
        name => format!("resctrl group {name}"),
    }
}

impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::NoProcess { group } => write!(f, "group {group} has no process"),
            Self::Stranger {
                tid,
                pid,
                comm,
                cpu,
                ran,
                others,
            } => {
                let did = if *ran { "ran" } else { "may run" };
                write!(f, "{} {did} on CPU {cpu}", thread(*tid, *pid, comm))?;
                match others {
                    0 => Ok(()),
                    n => write!(f, ", and so may {n} more threads of other programs"),
                }
            }
            Self::Outside {
                tid,
                pid,
                comm,
                cgroup,
                home,
            } => write!(
                f,
                "{} belongs to the group, but is in cgroup {cgroup}, not in {home}",
                thread(*tid, *pid, comm)
            ),
            Self::Elsewhere {
                tid,
                pid,
                comm,
                may,
                wanted,
            } => write!(
                f,
                "{} of the group may run on CPUs {may}, where it should have {wanted}",
                thread(*tid, *pid, comm)
            ),
            Self::Stacked { cpu, threads, idle } => write!(
                f,
                "{threads} threads of the group share CPU {cpu} while its CPU {idle} idles"
            ),
            Self::Used { cpus, others, span } => write!(
                f,
                "other programs used {} ms of CPUs {cpus} in {} ms",
                millis(*others),
                millis(*span)
            ),
            Self::Limited { .. }
            | Self::Exceeded { .. }
            | Self::Unlimited { .. }
            | Self::Overfull { .. }
            | Self::Unkept { .. } => self.fmt_amounts(f),
            Self::Remasked { .. } | Self::Filled { .. } | Self::CpuFills { .. } => self.fmt_ways(f),
            _ => self.fmt_rest(f),
        }
    }
}

impl Fault {
    /// The sentence of a fault of limits and amounts.
    fn fmt_amounts(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Limited {
                file,
                value,
                gets,
                wanted,
            } => write!(
                f,
                "{file} reads '{value}': the group gets at most {gets}, {}",
                match wanted {
                    Some(wanted) => format!("where it should get {wanted}"),
                    None => "and uses that up".to_owned(),
                }
            ),
            Self::Exceeded {
                drawn,
                allowed,
                span,
            } => write!(
                f,
                "the group used {} ms of CPU time in {} ms, where it may use {} ms",
                millis(*drawn),
                millis(*span),
                millis(*allowed)
            ),
            Self::Unlimited {
                file,
                value,
                promised,
            } => write!(f, "{file} reads '{value}', where {promised} was promised"),
            Self::Overfull { has, promised } => {
                write!(
                    f,
                    "the group has {has} of memory, where it may have {promised}"
                )
            }
            Self::Unkept { memory, promised } => write!(
                f,
                "{memory} of the group's memory is charged to a cgroup that its processes were in \
                 before and that keeps nothing of it, where {promised} was promised"
            ),
            _ => Ok(()),
        }
    }

    /// The sentence of a fault of ways.
    fn fmt_ways(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Remasked {
                class,
                level,
                cache,
                has,
                promised,
            } => write!(
                f,
                "tasks of the group are in {}, which has ways {has} of L{level} {cache}, \
                 where {promised} was promised",
                class_named(class)
            ),
            Self::Filled {
                class,
                level,
                cache,
                mask,
            } => write!(
                f,
                "{} fills ways {mask} of L{level} {cache}, which the group has to itself",
                class_named(class)
            ),
            Self::CpuFills {
                cpu,
                level,
                has,
                promised,
                own,
            } => match own {
                true => write!(
                    f,
                    "CPU {cpu} of the group fills ways {has} of L{level}, \
                     where {promised} was promised"
                ),
                false => write!(
                    f,
                    "CPU {cpu} fills ways {has} of L{level}, which the group has to itself"
                ),
            },
            _ => Ok(()),
        }
    }

    /// The sentence of a fault of windows, traffic and memory.
    fn fmt_rest(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Overrun {
                group,
                drawn,
                allowed,
                span,
            } => write!(
                f,
                "group {group} used {} ms of CPU time in {} ms, where its windows give it {} ms",
                millis(*drawn),
                millis(*span),
                millis(*allowed)
            ),
            Self::Drew {
                bytes,
                allowed,
                span,
            } => write!(
                f,
                "the group moved {bytes} in {} ms, where it may move {allowed}",
                millis(*span)
            ),
            Self::Reads {
                file,
                value,
                promised,
            } => write!(f, "{file} reads '{value}', where {promised} was promised"),
            Self::Unlocked {
                pid,
                resident,
                locked,
            } => write!(
                f,
                "{locked} of the {resident} that process {pid} has in memory are locked"
            ),
            Self::Uncached { file, missing } => write!(f, "{missing} of {file} are not in memory"),
            Self::Paged {
                pid,
                anonymous,
                large,
                wanted,
            } => write!(
                f,
                "{large} of {anonymous} of process {pid} lie in large pages, where {} should",
                if *wanted { "all" } else { "none" }
            ),
            Self::Misplaced { pid, pages, of } => write!(
                f,
                "{pages} of {of} pages that were looked at do not have the group's colours, \
                 most of them of process {pid}"
            ),
            Self::Stalled { waited, span, most } => write!(
                f,
                "the group waited for memory for {} ms of {} ms, more than {most} of the time",
                millis(*waited),
                millis(*span)
            ),
            _ => Ok(()),
        }
    }
}

/// A thread in a sentence.
fn thread(tid: u32, pid: u32, comm: &str) -> String {
    match tid == pid {
        true => format!("process {pid} ({comm})"),
        false => format!("thread {tid} ({comm}) of process {pid}"),
    }
}

fn millis(time: Nanos) -> u64 {
    time.0 / 1_000_000
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_sentence_names_task_file_and_value() {
        let stranger = |tid, ran, others| Fault::Stranger {
            tid,
            pid: 7,
            comm: "hog".to_owned(),
            cpu: 3,
            ran,
            others,
        };
        assert_eq!(
            stranger(7, true, 0).to_string(),
            "process 7 (hog) ran on CPU 3"
        );
        assert_eq!(
            stranger(8, false, 2).to_string(),
            "thread 8 (hog) of process 7 may run on CPU 3, and so may 2 more threads of other programs"
        );
        let limited = Fault::Limited {
            file: "/sys/fs/cgroup/a/cpu.max".to_owned(),
            value: "20000 100000".to_owned(),
            gets: Amount::CpuTime(Share::percent(20)),
            wanted: Some(Amount::CpuTime(Share::percent(100))),
        };
        assert_eq!(
            limited.to_string(),
            "/sys/fs/cgroup/a/cpu.max reads '20000 100000': the group gets at most 20% of a CPU, \
             where it should get 100% of a CPU"
        );
        let filled = Fault::Filled {
            class: String::new(),
            level: 3,
            cache: 0,
            mask: Mask(0xc),
        };
        assert_eq!(
            filled.to_string(),
            "the default resctrl group fills ways 0xc of L3 0, which the group has to itself"
        );
    }

    #[test]
    fn a_verdict_reads_back() {
        let all = [
            Verdict::Holds,
            Verdict::Unseen("why".to_owned()),
            Verdict::Broken(Fault::Used {
                cpus: CpuSet::one(1),
                others: Nanos(123_456_789),
                span: Nanos(1_000_000_001),
            }),
            Verdict::Broken(Fault::Overfull {
                has: Bytes(1_234_567),
                promised: Bytes(1 << 20),
            }),
        ];
        for verdict in all {
            let text = serde_json::to_string(&verdict).unwrap();
            assert_eq!(serde_json::from_str::<Verdict>(&text).unwrap(), verdict);
        }
        let schema = schemars::schema_for!(Verdict).to_value().to_string();
        assert!(schema.contains("WitnessedFault") && schema.contains("stranger"));
    }
}
