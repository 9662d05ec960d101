//! What a machine consists of: its identity, its CPUs and its caches.

use quell_policy::lab::Guest;
use quell_types::cpuset::{CpuId, CpuSet, CpuSetError, MAX_CPU};
use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize, de};

/// What tells one machine from another, without naming the host.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Identity {
    /// Kernel release, as `uname -r`.
    pub kernel: String,
    /// Hardware architecture, as `uname -m`.
    pub architecture: String,
    /// Vendor of the processor, as the kernel reports it.
    pub vendor: String,
    /// Model name of the processor, as the kernel reports it.
    pub model: String,
    /// Microcode revision. Absent where the kernel reports none (other than x86).
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub microcode: Option<String>,
    /// The hypervisor, when running in a virtual machine.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub hypervisor: Option<String>,
    /// How Quell booted it, if it is a machine of the lab.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lab: Option<Guest>,
}

/// A number that Linux can give to a CPU or a memory node: every list that it gets into can then be
/// read again.
pub(crate) fn known<'de, D: Deserializer<'de>>(deserializer: D) -> Result<CpuId, D::Error> {
    let id = CpuId::deserialize(deserializer)?;
    match id <= MAX_CPU {
        true => Ok(id),
        false => Err(de::Error::custom(CpuSetError::TooLarge(id.into()))),
    }
}

/// One logical CPU that is online.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cpu {
    /// The kernel's number of the CPU.
    #[serde(deserialize_with = "known")]
    #[schemars(with = "CpuId")]
    pub id: CpuId,
    /// The logical CPUs of the same core, this one included (SMT siblings).
    pub siblings: CpuSet,
    /// The kernel's number of the physical package (the socket).
    pub package: u32,
    /// The kernel's number of the memory node that the CPU belongs to.
    #[serde(deserialize_with = "known")]
    #[schemars(with = "u32")]
    pub node: u32,
    /// The kind of core, fastest first: 0 the fastest, 1 the next. All 0 where the cores are alike.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub tier: u32,
    /// Whether the scheduler balances no thread onto it or off it (`isolcpus`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub isolated: bool,
    /// Whether it has no tick of the timer while one thread runs there (`nohz_full`).
    #[serde(default, skip_serializing_if = "is_false")]
    pub tickless: bool,
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_false(it: &bool) -> bool {
    !*it
}

#[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
fn is_zero(n: &u32) -> bool {
    *n == 0
}

/// Whether a cache holds data, instructions or both.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum CacheKind {
    /// It holds data only.
    Data,
    /// It holds instructions only.
    Instruction,
    /// It holds data and instructions.
    Unified,
}

/// One cache of the processor.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cache {
    /// Level of the cache: 1, 2, 3, …
    pub level: u32,
    /// Whether it holds data, instructions or both.
    pub kind: CacheKind,
    /// Capacity of the whole cache.
    pub size: Bytes,
    /// Associativity. Absent where the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub ways: Option<u32>,
    /// Number of sets. Absent where the kernel does not report it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub sets: Option<u32>,
    /// Size of a cache line.
    pub line: Bytes,
    /// The CPUs that share it, as the kernel reports them.
    pub cpus: CpuSet,
}

impl Cache {
    /// Whether it holds data, at this level.
    #[must_use]
    pub fn holds_data_at(&self, level: u32) -> bool {
        self.level == level && self.kind != CacheKind::Instruction
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_beyond_what_linux_knows_are_refused() {
        let read = |id: u32, node: u32| {
            let text = format!(r#"{{"id":{id},"siblings":"0","package":0,"node":{node}}}"#);
            serde_json::from_str::<Cpu>(&text)
        };
        assert!(read(MAX_CPU, 0).is_ok());
        let refused = read(MAX_CPU + 1, 0).unwrap_err().to_string();
        assert!(refused.contains("CPU 8192 is beyond"), "{refused}");
        assert!(read(0, u32::MAX).is_err());
    }
}
