//! What a policy promises to or about a group, in words and figures.

use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::options::{CpuWeight, PageSize};
use quell_types::partition::{Divides, Mask};
use quell_types::units::{Bytes, Nanos, Rate, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::DiskRates;

/// One direction of memory traffic.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Direction {
    /// Lines that come in.
    Read,
    /// Lines that are written back.
    Write,
}

impl std::fmt::Display for Direction {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "written back",
        })
    }
}

/// A promise the policy makes to or about a group.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Promise {
    /// The group's CPUs are its own.
    Cpus {
        /// The CPUs that no other task uses.
        cpus: CpuSet,
    },
    /// The group's part of a CPU that other cgroups want, too.
    Weight {
        /// 1 to 10000, or `idle`; any other cgroup has 100.
        weight: CpuWeight,
    },
    /// Windows of a repeating frame in which only this group runs on some CPUs.
    Windows {
        /// The CPUs that it has in its windows.
        cpus: CpuSet,
        /// How long its windows are together in each frame, less the guard at the end of each.
        time: Nanos,
        /// After how long they begin again.
        frame: Nanos,
    },
    /// At most this bandwidth in one window of each frame, guard included.
    WindowBandwidth {
        /// Bytes per second to and from memory.
        rate: Rate,
        /// When the window begins, from the beginning of the frame.
        start: Nanos,
        /// When it ends, from the beginning of the frame.
        end: Nanos,
    },
    /// At least this bandwidth.
    ReserveBandwidth {
        /// Bytes per second to and from memory.
        rate: Rate,
    },
    /// At most this bandwidth.
    LimitBandwidth {
        /// Bytes per second to and from memory.
        rate: Rate,
    },
    /// At least this bandwidth in one direction.
    ReserveDirection {
        /// The direction: reads or writes.
        direction: Direction,
        /// Bytes per second in this direction.
        rate: Rate,
    },
    /// At most this bandwidth in one direction.
    LimitDirection {
        /// The direction: reads or writes.
        direction: Direction,
        /// Bytes per second in this direction.
        rate: Rate,
    },
    /// At most this CPU time (100 % = one CPU).
    LimitCpuTime {
        /// CPU time per time, over all CPUs of the group.
        share: Share,
    },
    /// At most these rates to and from each disk.
    LimitDisk(DiskRates),
    /// Other groups are held back where the group's requests to a disk take longer at the mean.
    DiskLatency {
        /// The longest mean time of a request.
        target: Nanos,
    },
    /// The group's share of a disk that other cgroups want, too.
    DiskWeight {
        /// The weight; any other cgroup has 100.
        weight: u32,
    },
    /// Ways of the caches of a level that only this group fills.
    ReserveWays {
        /// The cache level: 2 or 3.
        level: u32,
        /// The reserved ways, one bit each.
        mask: Mask,
        /// Other groups that also fill these ways, because the policy gives them some of the same.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        shared_with: Vec<GroupId>,
    },
    /// A part of the last-level cache's sets, of the DRAM banks, or of both.
    ReserveColours {
        /// What the colours divide.
        divides: Divides,
        /// The numbers of the reserved colours, from 0.
        colours: CpuSet,
        /// Number of all colours of this kind.
        of: u32,
        /// Other groups that also use these colours, because the policy gives them some of the
        /// same.
        #[serde(skip_serializing_if = "Vec::is_empty", default)]
        shared_with: Vec<GroupId>,
    },
    /// So much of the group's memory stays in the caches of a level.
    ReserveLocked {
        /// The cache level: 2 or 3.
        level: u32,
        /// How many bytes are locked.
        size: Bytes,
    },
    /// So much of the group's memory is never reclaimed.
    ReserveMemory {
        /// Amount of memory. Absent: the memory that the group works on, as measured.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        size: Option<Bytes>,
    },
    /// These files stay in memory.
    ReserveFiles {
        /// Paths of the files.
        files: Vec<String>,
    },
    /// All memory of the group's programs is locked.
    LockedMemory {
        /// It is there as soon as a program maps it.
        prefault: bool,
    },
    /// The group's anonymous memory lies in pages of this size.
    PageSize {
        /// The size of the pages.
        pages: PageSize,
    },
    /// The group uses at most this memory.
    LimitMemory {
        /// The limit in bytes.
        most: Bytes,
    },
    /// The group waits for memory for at most this share of the time.
    MemoryStall {
        /// Time spent waiting ÷ all time.
        share: Share,
    },
    /// Units of work end in time.
    Deadline {
        /// The longest time per unit; absent: what the application says of each.
        #[serde(skip_serializing_if = "Option::is_none", default)]
        deadline: Option<Nanos>,
        /// Which share of the units.
        percentile: Share,
    },
}

impl std::fmt::Display for Promise {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Cpus { cpus } if cpus.len() > 1 => {
                write!(f, "CPUs {} to itself", cpus.brief())
            }
            Self::Cpus { cpus } => write!(f, "CPU {cpus} to itself"),
            Self::Weight {
                weight: CpuWeight::Idle,
            } => f.write_str("runs only where no other program wants the CPU"),
            Self::Weight { weight } => {
                write!(
                    f,
                    "weight {weight} where others with {} want the CPU",
                    CpuWeight::USUAL
                )
            }
            Self::Windows { cpus, time, frame } => {
                let s = if cpus.len() > 1 { "s" } else { "" };
                write!(f, "{time} of each {frame} alone on CPU{s} {}", cpus.brief())
            }
            Self::WindowBandwidth { rate, start, end } => {
                write!(f, "at most {rate} in its window from {start} to {end}")
            }
            Self::ReserveBandwidth { rate } => write!(f, "at least {rate}"),
            Self::LimitBandwidth { rate } => write!(f, "at most {rate}"),
            Self::ReserveDirection { direction, rate } => write!(f, "at least {rate} {direction}"),
            Self::LimitDirection { direction, rate } => write!(f, "at most {rate} {direction}"),
            Self::LimitCpuTime { share } => write!(f, "at most {share} of a CPU"),
            Self::LimitDisk(rates) => write!(f, "at most {rates}"),
            Self::DiskLatency { target } => write!(f, "disk requests within {target} at the mean"),
            Self::DiskWeight { weight } => write!(f, "weight {weight} where several want a disk"),
            Self::ReserveWays {
                level,
                mask,
                shared_with,
            } => {
                let ways = if mask.count() == 1 { "way" } else { "ways" };
                let whose = whose(shared_with);
                write!(f, "{} {ways} ({mask}) of L{level} {whose}", mask.count())
            }
            Self::ReserveColours {
                divides,
                colours,
                of,
                shared_with,
            } => {
                let (s, what) = (if colours.len() == 1 { "" } else { "s" }, divides.of());
                let whose = whose(shared_with);
                write!(
                    f,
                    "colour{s} {} of the {of} of {what} {whose}",
                    colours.brief()
                )
            }
            Self::ReserveLocked { level, size } => write!(f, "{size} locked in L{level}"),
            Self::ReserveMemory { size: Some(size) } => write!(f, "{size} of memory kept"),
            Self::ReserveMemory { size: None } => f.write_str("the memory it works on kept"),
            Self::ReserveFiles { files } if files.len() == 1 => {
                write!(f, "{} kept in memory", files[0])
            }
            Self::ReserveFiles { files } => write!(f, "{} files kept in memory", files.len()),
            Self::LockedMemory { prefault: false } => f.write_str("its memory locked"),
            Self::LockedMemory { prefault: true } => {
                f.write_str("its memory locked, and there before it is touched")
            }
            Self::PageSize { pages } => write!(f, "its memory in pages of {}", pages.name()),
            Self::LimitMemory { most } => write!(f, "at most {most} of memory"),
            Self::MemoryStall { share } => {
                write!(f, "waits for memory at most {share} of the time")
            }
            Self::Deadline {
                deadline: Some(deadline),
                percentile,
            } => write!(f, "{percentile} of its units within {deadline}"),
            Self::Deadline {
                deadline: None,
                percentile,
            } => write!(f, "{percentile} of its units within what it says of each"),
        }
    }
}

fn whose(shared_with: &[GroupId]) -> String {
    if shared_with.is_empty() {
        return "to itself".to_owned();
    }
    format!("shared with {}", shared_with.join(", "))
}
