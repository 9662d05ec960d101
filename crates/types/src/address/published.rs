//! Address maps of DRAM banks that others have recovered and published, built in as data
//! (`crates/types/maps.toml`). A map holds for one population of memory modules and one firmware
//! setting. So nothing uses one unless a person declares that this machine is like that.

use serde::Deserialize;

use super::{BankMap, BitFunctions};

const LIBRARY: &str = include_str!("../../maps.toml");

/// A published map.
#[derive(Clone, Debug, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Published {
    /// The name by which it is declared, such as `raspberry-pi-5`.
    pub name: String,
    /// The machine that it was recovered on.
    pub machine: String,
    /// The memory modules of that machine, as far as the source says.
    pub memory: String,
    /// The firmware setting that it holds for. `None` where the source names none.
    pub firmware: Option<String>,
    /// Where it is published.
    pub source: String,
    /// The functions.
    pub map: BankMap,
    /// The index of the cache in `index`, taken as plain address bits. `None`: not known.
    pub sets: Option<BitFunctions>,
    /// Which cache `sets` is the index of, and why it is assumed.
    pub index: Option<String>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Library {
    map: Vec<Published>,
}

impl Published {
    /// What it holds for: machine, memory and firmware.
    #[must_use]
    pub fn about(&self) -> String {
        let firmware = self.firmware.as_ref();
        let firmware = firmware.map_or_else(String::new, |f| format!("; firmware: {f}"));
        format!("{}; memory: {}{firmware}", self.machine, self.memory)
    }
}

/// All published maps, in the order of the file.
#[must_use]
pub fn all() -> Vec<Published> {
    let library: Library = toml::from_str(LIBRARY).expect("invariant: a test reads it");
    library.map
}

/// The published map of this name.
#[must_use]
pub fn named(name: &str) -> Option<Published> {
    all().into_iter().find(|map| map.name == name)
}
