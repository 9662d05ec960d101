//! What machine is wanted of the model.

use super::resctrl::Rdt;

/// Memory of every machine, in bytes.
pub(super) const TOTAL: u64 = 8 << 30;

/// Which generation of cgroups the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One v1 hierarchy per controller, and a v2 one without controllers beside them, as on Linux
    /// 6.18 with systemd's hybrid layout.
    V1,
    /// One v2 hierarchy.
    V2,
}

/// What machine is wanted.
#[derive(Clone, Debug)]
pub struct Spec {
    /// The cgroups.
    pub flavour: Flavour,
    /// CPUs, all online.
    pub cpus: u32,
    /// Memory nodes.
    pub nodes: u32,
    /// `/proc/sys/kernel/osrelease`. Below 6.2 cpusets forget what CPUs a task asked for; below 6.7
    /// there is no `cpuset.cpus.exclusive` and no remote partition.
    pub release: &'static str,
    /// Cache and bandwidth allocation, where the machine has them.
    pub rdt: Option<Rdt>,
    /// Whether whoever asks has CAP_SYS_RESOURCE, as root in a container often has not.
    pub resource: bool,
}

impl Spec {
    /// Four CPUs, one node, Linux 6.12, without cache allocation.
    #[must_use]
    pub fn new(flavour: Flavour) -> Self {
        Self {
            flavour,
            cpus: 4,
            nodes: 1,
            release: "6.12.0",
            rdt: None,
            resource: true,
        }
    }
}
