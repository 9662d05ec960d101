//! A machine to simulate: hardware, what its operating system takes, and where every number comes from.

use quell_core::inventory::Parameter;
use quell_core::units::Nanos;
use quell_model::Invalid;
use quell_model::address::{AddressMap, Fields, bits};
use quell_model::cache::{Geometry, Inclusion, Level, Policy};
use quell_model::dram::{Config, Timing};

use crate::frames::PAGE_SHIFT;
use crate::machine::Description;
use crate::os::Costs;

/// A machine to simulate.
#[derive(Clone, Debug)]
pub struct Board {
    /// The profile's name, as in `--on sim:NAME`.
    pub name: String,
    /// The processor it stands for.
    pub model: String,
    /// As `uname -m` would say.
    pub architecture: String,
    /// The hardware.
    pub description: Description,
    /// The operating system's times.
    pub costs: Costs,
    /// log2 of the frames of 4 KiB that memory has.
    pub frame_bits: u32,
    /// Every number above with its origin.
    pub parameters: Vec<Parameter>,
}

impl Board {
    /// The machines there are.
    pub const NAMES: [&'static str; 1] = ["xeon-w3530"];
    /// The one that `--on sim` means.
    pub const USUAL: &'static str = "xeon-w3530";

    /// The machine of that name, one of [`Board::NAMES`].
    ///
    /// # Errors
    /// When its description makes no sense.
    pub fn named(name: &str) -> Option<Result<Self, Invalid>> {
        match name {
            "xeon-w3530" => Some(Self::xeon_w3530()),
            _ => None,
        }
    }

    /// The machine of the published case study of core, bank and bandwidth partitioning (Gondi, Biswas, Yun): four cores, 8 MiB
    /// shared by all, one DIMM.
    ///
    /// # Errors
    /// Never, unless a number above makes no sense.
    pub fn xeon_w3530() -> Result<Self, Invalid> {
        let level = |size, ways, inclusion, cache_of: &[usize]| {
            Ok::<_, Invalid>(Level {
                geometry: Geometry::plain(size, ways, 64)?,
                policy: Policy::Lru,
                inclusion,
                cache_of: cache_of.to_vec(),
            })
        };
        let own = [0, 1, 2, 3];
        let fields = Fields {
            line_shift: 6,
            rank: bits(20, 20),
            bank: [bits(12, 13), bits(19, 19)].concat(),
            column: bits(6, 11),
            row: [bits(14, 18), bits(21, 31)].concat(),
            ..Fields::default()
        };
        let description = Description {
            clock: 357,
            levels: vec![
                (level(32 << 10, 8, Inclusion::NonInclusive, &own)?, 4),
                (level(256 << 10, 8, Inclusion::NonInclusive, &own)?, 10),
                (level(8 << 20, 16, Inclusion::Inclusive, &[0; 4])?, 38),
            ],
            transit: 10_000,
            misses: 10,
            map: AddressMap::new(fields)?,
            dram: Config::ddr3(Timing::ddr3_1066()),
        };
        let said = |name: &str, value: &str, origin: &str| Parameter {
            name: name.to_owned(),
            value: value.to_owned(),
            origin: origin.to_owned(),
        };
        Ok(Self {
            name: "xeon-w3530".to_owned(),
            model: "Intel Xeon W3530 (Nehalem)".to_owned(),
            architecture: "x86_64".to_owned(),
            description,
            costs: Costs {
                slice: Nanos::millis(3),
                switch: Nanos::micros(2),
                interrupt_delay: Nanos::micros(1),
                interrupt: Nanos::micros(1),
            },
            frame_bits: 20,
            parameters: vec![
                said("cores", "4 at 2.8 GHz", "the case study"),
                said("L1D", "32 KiB, 8 ways, 4 cycles", "Sniper's nehalem.cfg"),
                said(
                    "L2",
                    "256 KiB, 8 ways, 10 cycles",
                    "Sniper's nehalem.cfg; the case study has the size",
                ),
                said("L3", "8 MiB, 16 ways, inclusive", "the case study"),
                said(
                    "L3 latency",
                    "38 cycles",
                    "between Sniper's 35 at 2.66 GHz and 40-42 on an X5650 (7-cpu.com)",
                ),
                said("replacement", "true LRU at every level", "assumed"),
                said(
                    "outstanding misses",
                    "10 per core",
                    "line-fill buffers of the microarchitecture",
                ),
                said("prefetchers", "none", "assumed: switched off"),
                said(
                    "memory",
                    "4 GiB, one channel of two ranks of eight banks, open page",
                    "the case study: 4 GB, 16 banks",
                ),
                said(
                    "DRAM timing",
                    "DDR3-1066 7-7-7",
                    "Ramulator 2's preset from JEDEC JESD79-3",
                ),
                said(
                    "bank bits",
                    "12, 13, 19 and 20 (rank)",
                    "PALLOC's README, for this processor",
                ),
                said(
                    "transit",
                    "10 ns",
                    "assumed: with lookups and DRAM near the 66 ns measured on an X5550",
                ),
                said("time slice", "3 ms", "Linux' base slice on four CPUs"),
                said("context switch", "2us", "assumed"),
                said("interrupt delay", "1us", "assumed"),
                said("interrupt handler", "1us", "assumed"),
            ],
        })
    }

    /// Its memory in bytes.
    #[must_use]
    pub fn memory(&self) -> u64 {
        1 << (self.frame_bits + PAGE_SHIFT)
    }
}
