//! The processor that the lab emulates, as data: its caches, what can be divided, and what it
//! counts. Profiles are written in TOML (`docs/lab.md` lists the keys). Four are built in, by
//! name.

use std::path::Path;

use quell_model::address::{AddressMap, Fields};
use quell_model::cache::{Cache, Geometry, Policy};
use quell_model::dram::{OpenRows, Row};
use quell_types::address::{BankMap, BitFunctions};
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

use crate::Error;

/// The built-in profiles: name and text.
pub const BUILT_IN: [(&str, &str); 4] = [
    ("icelake", include_str!("../profiles/icelake.toml")),
    ("goldmont", include_str!("../profiles/goldmont.toml")),
    ("apollolake", include_str!("../profiles/apollolake.toml")),
    ("sparse", include_str!("../profiles/sparse.toml")),
];

/// A processor to emulate.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Profile {
    /// What the profile stands for, in a sentence.
    pub about: String,
    /// QEMU's `-cpu`: a model and its options. The kernel decides by family and model what it
    /// believes.
    pub cpu: String,
    /// Each core's first-level data cache.
    pub l1d: Shape,
    /// Each core's first-level instruction cache.
    pub l1i: Shape,
    /// The second level, shared by [`Shape::cores`] cores.
    pub l2: Shape,
    /// The third level, one per socket. `None`: the second level is the last.
    pub l3: Option<Shape>,
    /// Memory bandwidth allocation. `None`: there is none.
    pub mba: Option<Mba>,
    /// Occupancy and bandwidth monitoring of the third level. `None`: there is none.
    pub monitoring: Option<Monitoring>,
    /// Performance counters. `None`: there are none.
    pub pmu: Option<Counters>,
    /// How many cycles an access takes in the model.
    #[serde(default)]
    pub cycles: Cycles,
    /// The banks behind the last level. `None`: memory is not divided into banks.
    pub dram: Option<Dram>,
}

/// The shape of a cache.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Shape {
    /// Bytes of one cache.
    pub size: Bytes,
    /// Ways per set. With `allocation` they are the bits of a mask.
    pub ways: u32,
    /// How many cores share one cache. It is used for the second level only: each core has its own
    /// first level, and each socket its own third.
    #[serde(default = "one")]
    pub cores: u32,
    /// How its ways can be allocated. `None`: they cannot be.
    pub allocation: Option<Allocation>,
}

/// How a cache's ways can be allocated (CAT).
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Allocation {
    /// Classes of service, 1 to 128.
    pub classes: u32,
    /// Whether masks may have holes.
    #[serde(default)]
    pub sparse: bool,
    /// Whether code and data can have separate masks (CDP).
    #[serde(default)]
    pub cdp: bool,
    /// The mask of ways that devices fill, too.
    #[serde(default)]
    pub shareable: u32,
}

/// How memory bandwidth can be allocated.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Mba {
    /// Classes of service, 1 to 128.
    pub classes: u32,
    /// The largest delay in percent, 1 to 99.
    pub longest: u32,
}

/// Monitoring of the third level.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Monitoring {
    /// How many monitoring ids there are, 1 to 256.
    pub rmids: u32,
}

/// Performance counters, as of version 2 of Intel's architectural ones.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Counters {
    /// How many general counters there are, 1 to 8, in addition to the three fixed ones.
    pub general: u32,
}

/// Cycles of the model: one per instruction, and so many more for each access that went beyond the
/// first level.
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Cycles {
    /// Cycles of an access that the second level served.
    pub l2: u32,
    /// Cycles of an access that the third level served.
    pub l3: u32,
    /// Cycles of an access that memory served.
    pub memory: u32,
}

impl Default for Cycles {
    fn default() -> Self {
        Self {
            l2: 12,
            l3: 40,
            memory: 200,
        }
    }
}

/// Banks of memory. The functions of the physical address' bits (`12`, `"6-11"`, `[13, 17]` for
/// their exclusive or) define where a line lies. An access adds cycles by what it finds open in its
/// bank, instead of [`Cycles::memory`].
#[derive(Clone, Debug, Deserialize, Serialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Dram {
    /// The memory channel of a line.
    #[serde(default)]
    pub channel: BitFunctions,
    /// Rank within the channel.
    #[serde(default)]
    pub rank: BitFunctions,
    /// Bank within the rank.
    pub bank: BitFunctions,
    /// Row within the bank.
    pub row: BitFunctions,
    /// Column within the row, in lines.
    pub column: BitFunctions,
    /// Cycles of an access with its row open.
    pub hit: u32,
    /// Cycles of an access with no row open.
    pub miss: u32,
    /// Cycles of an access with another row open.
    pub conflict: u32,
}

impl Dram {
    /// The functions of the banks.
    ///
    /// # Errors
    /// For functions that are no map of banks.
    pub fn banks(&self) -> Result<BankMap, String> {
        let all = [&self.channel, &self.rank, &self.bank];
        BankMap::new(all.iter().flat_map(|of| of.0.iter().copied()).collect())
    }

    /// Banks with all rows closed.
    ///
    /// # Errors
    /// For functions that are no address map.
    pub fn rows(&self) -> Result<OpenRows, Error> {
        let map = AddressMap::new(Fields {
            line_shift: LINE.trailing_zeros(),
            channel: self.channel.0.clone(),
            rank: self.rank.0.clone(),
            bank: self.bank.0.clone(),
            row: self.row.0.clone(),
            column: self.column.0.clone(),
            channels_in_turn: 0,
        })?;
        Ok(OpenRows::new(map))
    }

    /// Cycles that an access with this outcome takes.
    #[must_use]
    pub fn cycles(&self, row: Row) -> u32 {
        match row {
            Row::Hit => self.hit,
            Row::Miss => self.miss,
            Row::Conflict => self.conflict,
        }
    }
}

/// Line size of all caches, in bytes.
pub const LINE: u64 = 64;

fn one() -> u32 {
    1
}

impl Shape {
    /// An empty cache of this shape, for so many requesters.
    ///
    /// # Errors
    /// For an impossible shape.
    pub fn cache(&self, requesters: usize) -> Result<Cache, Error> {
        let geometry = Geometry::plain(self.size.0, self.ways, LINE)?;
        Ok(Cache::new(&geometry, Policy::Lru, requesters)?)
    }

    /// The mask of all its ways.
    #[must_use]
    pub fn full(&self) -> u64 {
        u64::MAX >> (64 - self.ways.clamp(1, 64))
    }
}

impl Profile {
    /// Loads a built-in profile by its name, or another one by the path of its file.
    ///
    /// # Errors
    /// Names the file, the key and what is possible.
    pub fn load(name: &str) -> Result<Self, Error> {
        if let Some((_, text)) = BUILT_IN.iter().find(|(known, _)| *known == name) {
            return Self::parse(name, text);
        }
        let text = quell_files::text(Path::new(name), quell_files::MOST_TEXT).map_err(|e| {
            let known: Vec<&str> = BUILT_IN.iter().map(|(name, _)| *name).collect();
            Error::Input(format!(
                "profile {name}: {e}; built in are {}, others are files",
                known.join(", ")
            ))
        })?;
        Self::parse(name, &text)
    }

    /// Reads a profile. `name` is its name in errors.
    ///
    /// # Errors
    /// Those of [`Profile::load`].
    pub fn parse(name: &str, text: &str) -> Result<Self, Error> {
        let profile: Self =
            toml::from_str(text).map_err(|e| Error::Input(format!("profile {name}: {e}")))?;
        profile
            .check()
            .map_err(|e| Error::Input(format!("profile {name}: {e}")))?;
        Ok(profile)
    }

    fn check(&self) -> Result<(), String> {
        let between = |what: &str, n: u32, range: std::ops::RangeInclusive<u32>| {
            range
                .contains(&n)
                .then_some(())
                .ok_or_else(|| format!("{what} = {n}: use {} to {}", range.start(), range.end()))
        };
        let shapes = [
            ("l1d", Some(&self.l1d)),
            ("l1i", Some(&self.l1i)),
            ("l2", Some(&self.l2)),
            ("l3", self.l3.as_ref()),
        ];
        for (key, shape) in shapes.iter().filter_map(|(key, s)| Some((key, (*s)?))) {
            shape.cache(1).map_err(|e| format!("{key}: {e}"))?;
            between(&format!("{key}.cores"), shape.cores, 1..=64)?;
            if shape.cores != 1 && *key != "l2" {
                return Err(format!(
                    "{key}.cores: a core's own first level and a socket's third are not shared otherwise; leave it out"
                ));
            }
            let Some(allocation) = &shape.allocation else {
                continue;
            };
            if key.starts_with("l1") {
                return Err(format!("{key}.allocation: no kernel divides a first level"));
            }
            between(
                &format!("{key}.allocation.classes"),
                allocation.classes,
                1..=128,
            )?;
            between(&format!("{key}.ways, with allocation"), shape.ways, 2..=32)?;
            if u64::from(allocation.shareable) & !shape.full() != 0 {
                return Err(format!(
                    "{key}.allocation.shareable = {:#x}: has bits beyond its {} ways",
                    allocation.shareable, shape.ways
                ));
            }
        }
        if let Some(mba) = &self.mba {
            between("mba.classes", mba.classes, 1..=128)?;
            between("mba.longest", mba.longest, 1..=99)?;
        }
        if let Some(monitoring) = &self.monitoring {
            between("monitoring.rmids", monitoring.rmids, 1..=256)?;
        }
        if let Some(dram) = &self.dram {
            let banks = dram.channel.0.len() + dram.rank.0.len() + dram.bank.0.len();
            if banks > 12 {
                return Err(format!(
                    "dram: channel, rank and bank have {banks} functions: use 12 at most"
                ));
            }
            dram.rows().map_err(|e| format!("dram: {e}"))?;
            dram.banks().map_err(|e| format!("dram: {e}"))?;
        }
        if self.l3.is_none() && (self.mba.is_some() || self.monitoring.is_some()) {
            return Err("mba and monitoring belong to a third level: give l3".to_owned());
        }
        self.pmu
            .as_ref()
            .map_or(Ok(()), |pmu| between("pmu.general", pmu.general, 1..=8))
    }

    /// The most classes of service of any resource; at least 1, the class that all tasks are in.
    #[must_use]
    pub fn classes(&self) -> u32 {
        let of = |shape: Option<&Shape>| {
            let allocation = shape.and_then(|s| s.allocation.as_ref());
            allocation.map_or(1, |a| a.classes)
        };
        let mba = self.mba.as_ref().map_or(1, |mba| mba.classes);
        of(Some(&self.l2)).max(of(self.l3.as_ref())).max(mba)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_built_in_can_be_read_and_written() {
        for (name, text) in BUILT_IN {
            let profile = Profile::load(name).unwrap();
            assert!(text.starts_with("about"), "{name} opens with a sentence");
            let again = toml::to_string(&profile).unwrap();
            let again = Profile::parse(name, &again).unwrap();
            assert_eq!(format!("{profile:?}"), format!("{again:?}"));
        }
    }

    #[test]
    fn errors_name_the_key_and_what_would_do() {
        let (_, text) = BUILT_IN[0];
        let wrong = |from: &str, to: &str| {
            assert!(text.contains(from), "{from}");
            Profile::parse("x.toml", &text.replacen(from, to, 1))
                .unwrap_err()
                .to_string()
        };
        let e = wrong("classes = 16", "classes = 0");
        assert!(e.contains("l3.allocation.classes = 0: use 1 to 128"), "{e}");
        let e = wrong("longest = 90", "longest = 100");
        assert!(e.contains("mba.longest = 100: use 1 to 99"), "{e}");
        let e = wrong("[l1d]", "[l1d]\ncores = 2");
        assert!(e.contains("l1d.cores"), "{e}");
        let e = wrong("[l3]", "[l3]\nhoney = 1");
        assert!(e.contains("x.toml") && e.contains("honey"), "{e}");
        let e = Profile::load("icelak").unwrap_err().to_string();
        assert!(e.contains("icelake, goldmont"), "{e}");
    }
}
