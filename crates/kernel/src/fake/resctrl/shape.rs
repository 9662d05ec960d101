//! What the modelled processor can divide, and what `info` says about it.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuSet;

/// A processor with allocation and monitoring, shaped like those of the lab.
#[derive(Clone, Debug)]
pub struct Rdt {
    /// Number of ways of the third level. `None` where there is no third level.
    pub l3: Option<u32>,
    /// Number of ways of the second level, which two CPUs share. `None` where it cannot be divided.
    pub l2: Option<u32>,
    /// Number of classes of service of the caches.
    pub classes: u32,
    /// Number of classes of bandwidth. `None` where it cannot be divided.
    pub mba: Option<u32>,
    /// The fewest ways in a mask.
    pub least: u32,
    /// Whether masks may have holes.
    pub sparse: bool,
    /// Mask of the ways of the third level that devices fill, too.
    pub shareable: u32,
    /// Number of monitoring ids; 0 where nothing is counted.
    pub rmids: u32,
    /// Whether the kernel locks memory on it.
    pub locks: bool,
    /// Whether resctrl is mounted already, without options.
    pub mounted: bool,
}

impl Rdt {
    /// The lab's `icelake`, with resctrl mounted.
    #[must_use]
    pub const fn icelake() -> Self {
        Self {
            l3: Some(16),
            l2: None,
            classes: 16,
            mba: Some(8),
            least: 1,
            sparse: false,
            shareable: 0,
            rmids: 64,
            locks: false,
            mounted: true,
        }
    }

    /// The lab's `goldmont`, with resctrl mounted.
    #[must_use]
    pub const fn goldmont() -> Self {
        Self {
            l3: None,
            l2: Some(16),
            classes: 4,
            mba: None,
            least: 1,
            sparse: false,
            shareable: 0,
            rmids: 0,
            locks: true,
            mounted: true,
        }
    }

    /// The lab's `sparse`, with resctrl mounted.
    #[must_use]
    pub const fn sparse() -> Self {
        Self {
            l3: Some(12),
            l2: Some(16),
            classes: 8,
            mba: Some(8),
            least: 1,
            sparse: true,
            shareable: 0xc00,
            rmids: 128,
            locks: false,
            mounted: true,
        }
    }
}

/// One value for each domain id.
pub(super) type Domains = BTreeMap<u32, u32>;

/// A resource, as one line of `schemata` has it.
#[derive(Clone, Debug)]
pub(super) struct Resource {
    pub name: String,
    pub classes: u32,
    /// Number of ways. `None` for bandwidth.
    pub bits: Option<u32>,
    pub shareable: u32,
    pub domains: Vec<u32>,
    pub way: u64,
    /// Whether bandwidth is in MiB/s instead of percent.
    pub mib_s: bool,
}

impl Resource {
    /// The value that restricts nothing.
    pub fn all(&self) -> u32 {
        match self.bits {
            Some(bits) => full(bits),
            None if self.mib_s => u32::MAX,
            None => 100,
        }
    }

    fn level(&self) -> &str {
        self.name.get(..2).unwrap_or_default()
    }

    /// The resource itself, and the other one of the same caches: code and data.
    pub fn peers<'a>(&self, all: &'a [Self]) -> impl Iterator<Item = &'a Self> + use<'a> {
        let level = self.level().to_owned();
        all.iter().filter(move |r| r.level() == level)
    }
}

pub(super) fn full(bits: u32) -> u32 {
    u32::MAX >> (32 - bits)
}

/// The lowest run of ones in a mask.
pub(super) fn lowest_run(mask: u32) -> u32 {
    if mask == 0 {
        return 0;
    }
    let start = mask.trailing_zeros();
    let length = (mask >> start).trailing_ones();
    (u32::MAX >> (32 - length)) << start
}

/// The resources, in the order of the kernel's lines.
pub(super) fn resources(
    rdt: &Rdt,
    cdp: bool,
    cdp_l2: bool,
    mib_s: bool,
    cpus: &CpuSet,
) -> Vec<Resource> {
    let mut all = Vec::new();
    if let Some(classes) = rdt.mba {
        all.push(Resource {
            name: "MB".to_owned(),
            classes,
            bits: None,
            shareable: 0,
            domains: vec![0],
            way: 0,
            mib_s,
        });
    }
    let pairs = u32::try_from(cpus.len().div_ceil(2)).unwrap_or(1);
    let caches = [
        (
            "L2",
            rdt.l2,
            cdp_l2,
            0,
            (0..pairs).collect::<Vec<u32>>(),
            // A second level that is the last one is larger.
            if rdt.l3.is_some() { 32 << 10 } else { 64 << 10 },
        ),
        ("L3", rdt.l3, cdp, rdt.shareable, vec![0], 1 << 20),
    ];
    for (level, bits, code_data, shareable, domains, way) in caches {
        let Some(bits) = bits else { continue };
        let kinds: &[&str] = if code_data { &["DATA", "CODE"] } else { &[""] };
        all.extend(kinds.iter().map(|kind| Resource {
            name: format!("{level}{kind}"),
            // Each class takes two masks of the hardware.
            classes: rdt.classes / if code_data { 2 } else { 1 },
            bits: Some(bits),
            shareable,
            domains: domains.clone(),
            way,
            mib_s: false,
        }));
    }
    all
}

/// Names of all files in the directories of `info`.
pub(super) const INFO: [&str; 14] = [
    "bandwidth_gran",
    "bit_usage",
    "cbm_mask",
    "delay_linear",
    "max_threshold_occupancy",
    "mbm_assign_mode",
    "min_bandwidth",
    "min_cbm_bits",
    "mon_features",
    "num_closids",
    "num_rmids",
    "shareable_bits",
    "sparse_masks",
    "thread_throttle_mode",
];

pub(super) fn cache_info(rdt: &Rdt, resource: &Resource, bits: u32, file: &str) -> Option<String> {
    Some(match file {
        "cbm_mask" => format!("{:x}", full(bits)),
        "min_cbm_bits" => rdt.least.to_string(),
        "shareable_bits" => format!("{:x}", resource.shareable),
        "sparse_masks" => u32::from(rdt.sparse).to_string(),
        _ => return None,
    })
}

pub(super) const LEAST_BANDWIDTH: u32 = 10;
pub(super) const GRANULARITY: u32 = 10;

pub(super) fn bandwidth_info(file: &str) -> Option<String> {
    Some(match file {
        "bandwidth_gran" => GRANULARITY.to_string(),
        "delay_linear" => "1".to_owned(),
        "min_bandwidth" => LEAST_BANDWIDTH.to_string(),
        "thread_throttle_mode" => "max".to_owned(),
        _ => return None,
    })
}
