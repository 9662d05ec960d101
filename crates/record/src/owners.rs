//! What the page frames of some colours are used for, and by which programs.

use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The most programs of a record.
pub const MOST: usize = 10;

/// Memory of processes in such frames, by how it is mapped. A frame that several processes of a
/// program map counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Mapped {
    /// Bytes of no file that one process alone maps.
    pub private_bytes: u64,
    /// Bytes of no file that several processes map, for example after a fork.
    pub shared_bytes: u64,
    /// Bytes of files, and of memory that was made to be shared.
    pub files_bytes: u64,
}

impl Mapped {
    /// All of it.
    #[must_use]
    pub const fn bytes(self) -> u64 {
        let own = self.private_bytes.saturating_add(self.shared_bytes);
        own.saturating_add(self.files_bytes)
    }
}

impl std::ops::AddAssign for Mapped {
    fn add_assign(&mut self, other: Self) {
        let sum = u64::saturating_add;
        self.private_bytes = sum(self.private_bytes, other.private_bytes);
        self.shared_bytes = sum(self.shared_bytes, other.shared_bytes);
        self.files_bytes = sum(self.files_bytes, other.files_bytes);
    }
}

/// A program that has such frames.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Owner {
    /// Its name, as the kernel has it.
    pub program: String,
    /// The group of its processes. Absent where they are in none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub group: Option<GroupId>,
    /// Number of its processes that have such frames.
    pub processes: u32,
    /// What they have.
    #[serde(flatten)]
    pub mapped: Mapped,
}

/// Programs that are not named one by one.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Rest {
    /// Number of programs.
    pub programs: u32,
    /// Number of their processes that have such frames.
    pub processes: u32,
    /// What they have. A frame that several of these programs map counts for each.
    #[serde(flatten)]
    pub mapped: Mapped,
}

/// Frames by their use, for all processes together. Each frame counts once.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Uses {
    /// Bytes in frames of these colours, those left out that the kernel never hands out.
    pub all_bytes: u64,
    /// Bytes that are free.
    pub free_bytes: u64,
    /// Bytes of files that no process maps.
    pub cached_bytes: u64,
    /// Bytes of the kernel, such as page tables. Frames in the lists of single CPUs are among them.
    pub kernel_bytes: u64,
}

/// The frames of some colours, by owner. The memory changes while it is counted.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct FrameOwners {
    /// The colours.
    pub colours: CpuSet,
    /// Bytes that a hoard holds.
    pub held_bytes: u64,
    /// Bytes of processes in the groups that reserve these colours.
    pub reserving_bytes: u64,
    /// Other programs, by what they have, the largest first.
    pub programs: Vec<Owner>,
    /// Other programs beyond those. Absent where all are named.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rest: Option<Rest>,
    /// Number of processes that may not be read.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub unread: u32,
    /// All frames by their use. Absent where the kernel does not show it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub uses: Option<Uses>,
}

const fn is_zero(n: &u32) -> bool {
    *n == 0
}

impl FrameOwners {
    /// Names at most so many programs, the largest, and adds up the others.
    pub fn shorten(&mut self, most: usize) {
        if self.programs.len() <= most {
            return;
        }
        let mut rest = self.rest.unwrap_or_default();
        for owner in self.programs.drain(most..) {
            rest.programs += 1;
            rest.processes += owner.processes;
            rest.mapped += owner.mapped;
        }
        self.rest = Some(rest);
    }

    /// What other programs have. A frame that several of them map counts for each.
    #[must_use]
    pub fn others(&self) -> Mapped {
        let mut all = self.rest.map(|rest| rest.mapped).unwrap_or_default();
        self.programs.iter().for_each(|owner| all += owner.mapped);
        all
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_beyond_the_largest_are_added_up() {
        let owner = |program: &str, private_bytes| Owner {
            program: program.to_owned(),
            processes: 2,
            mapped: Mapped {
                private_bytes,
                shared_bytes: 1,
                files_bytes: 2,
            },
            ..Owner::default()
        };
        let programs = vec![owner("a", 30), owner("b", 20), owner("c", 10)];
        let mut owners = FrameOwners {
            programs,
            ..FrameOwners::default()
        };
        let all = owners.others();
        assert_eq!((all.private_bytes, all.bytes()), (60, 69));
        owners.shorten(3);
        assert_eq!(owners.rest, None);
        owners.shorten(1);
        assert_eq!(owners.programs, [owner("a", 30)]);
        let rest = owners.rest.unwrap();
        assert_eq!((rest.programs, rest.processes), (2, 4));
        assert_eq!((rest.mapped.private_bytes, owners.others()), (30, all));
    }
}
