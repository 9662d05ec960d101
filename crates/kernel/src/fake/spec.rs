//! Description of the machine that a model should be.

use super::resctrl::Rdt;

/// Bytes of memory of every machine.
pub(super) const TOTAL: u64 = 8 << 30;

/// Which version of cgroups the machine runs.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavour {
    /// One v1 hierarchy per controller, and next to them a v2 one without controllers. This is
    /// systemd's hybrid layout on Linux 6.18.
    V1,
    /// One v2 hierarchy with all controllers.
    V2,
}

/// Description of a machine for [`Fake::new`](super::Fake::new).
#[derive(Clone, Debug)]
pub struct Spec {
    /// The version of cgroups.
    pub flavour: Flavour,
    /// Number of CPUs, all online.
    pub cpus: u32,
    /// Number of memory nodes.
    pub nodes: u32,
    /// Text of `/proc/sys/kernel/osrelease`. Below 6.2 cpusets forget which CPUs a task asked for.
    /// Below 6.7 there is no `cpuset.cpus.exclusive` and no remote partition.
    pub release: &'static str,
    /// Cache and bandwidth allocation. `None` where the processor has none.
    pub rdt: Option<Rdt>,
    /// Whether registers of cache allocation can be reached (`/dev/cpu/N/msr`).
    pub registers: bool,
    /// Whether callers have CAP_SYS_RESOURCE. Root in a container often has not.
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
            registers: false,
            resource: true,
        }
    }
}
