//! What a machine consists of: its identity, its CPUs and its caches.

use quell_policy::lab::Guest;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What tells one machine from another, without naming the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Kernel release, as `uname -r`.
    pub kernel: String,
    /// Hardware architecture, as `uname -m`.
    pub architecture: String,
    /// Processor vendor.
    pub vendor: String,
    /// Processor model name.
    pub model: String,
    /// Microcode revision, where the kernel tells one (x86).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microcode: Option<String>,
    /// The hypervisor, when running in a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// How Quell booted it, if it is a machine of the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Guest>,
}

/// One logical CPU.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cpu {
    /// The kernel's number.
    pub id: CpuId,
    /// The logical CPUs of the same core, this one included (SMT siblings).
    pub siblings: CpuSet,
    /// The physical package.
    pub package: u32,
    /// The memory node.
    pub node: u32,
    /// The kind of core, fastest first: 0 the fastest, 1 the next. All 0 where the cores are alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier: u32,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// What a cache holds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// Data only.
    Data,
    /// Instructions only.
    Instruction,
    /// Both.
    Unified,
}

/// One cache.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cache {
    /// 1, 2, 3, …
    pub level: u32,
    /// What it holds.
    pub kind: CacheKind,
    /// Capacity.
    pub size: Bytes,
    /// Associativity; absent where the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// Number of sets; absent where the kernel does not tell.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<u32>,
    /// Line size.
    pub line: Bytes,
    /// The CPUs that share it, as the kernel believes.
    pub cpus: CpuSet,
}
