//! What can be divided and counted: the directories of `info`.

use std::collections::BTreeMap;

use quell_types::partition::Mask;

use super::Resctrl;
use crate::error::{Error, Result};
use crate::root::{Files, gone};

/// The content of `info`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Info {
    /// What can be divided, in the order of the directories' names.
    pub resources: Vec<Resource>,
    /// What can be counted, in the order of the directories' names.
    pub monitors: Vec<Monitor>,
}

/// Something that can be divided: a line of `schemata`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Resource {
    /// The name as in `schemata`: `L3`, `L2CODE`, `MB`, …
    pub name: String,
    /// Number of classes of service, including the default group's. With code and data separate it
    /// is half as many.
    pub classes: u32,
    /// What is divided, with its bounds.
    pub kind: Kind,
}

/// The kind of a resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Kind {
    /// The ways of the caches of one level.
    Ways(Ways),
    /// Bandwidth of memory (`MB`), or of slow memory (`SMBA`).
    Bandwidth(Bandwidth),
    /// A kind that is not known here: its files by name.
    Unknown(BTreeMap<String, String>),
}

/// What may be filled into a cache's ways.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Content {
    /// Code and data together (no suffix in the name).
    All,
    /// Instructions only; the name ends with `CODE`.
    Code,
    /// All except instructions; the name ends with `DATA`.
    Data,
}

/// The ways of caches of one level, for one kind of content.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Ways {
    /// Level of the caches: 2, 3, …
    pub level: u32,
    /// What may be filled into them.
    pub content: Content,
    /// The mask of all ways.
    pub all: Mask,
    /// The fewest bits in a mask.
    pub least: u32,
    /// Ways that devices, or others that the kernel does not see, fill, too.
    pub shareable: Mask,
    /// Whether masks may have holes.
    pub sparse: bool,
    /// The use of each way, highest first, by cache: `X` hardware and software, `H` hardware, `S`
    /// shared, `E` exclusive, `P` pseudo-locked, `0` unused. Empty where the kernel does not report
    /// it.
    pub usage: BTreeMap<u32, String>,
}

/// Bounds of bandwidth values: percent, or MiB/s if mounted so.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bandwidth {
    /// The lowest value that can be set.
    pub least: u32,
    /// The step between values.
    pub step: u32,
    /// Whether the delay is linear in the value.
    pub linear: bool,
    /// How threads of one core with different values are combined (`max`, `per-thread`). `None`
    /// where the kernel does not report it.
    pub threads: Option<String>,
}

/// A resource that is monitored.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Monitor {
    /// The name of the directory: `L3_MON`, `PERF_PKG_MON`, …
    pub name: String,
    /// Number of monitoring ids: one for each control group and each monitor group. 0 where an
    /// unknown kind reports none.
    pub rmids: u32,
    /// Names of the events: the files in `mon_data`.
    pub events: Vec<String>,
    /// Bytes of a cache below which a released id may be used again. `None` where occupancy is not
    /// counted.
    pub limbo_bytes: Option<u64>,
    /// Counters that have to be assigned to groups. `None` where every id has its own.
    pub assignment: Option<Assignment>,
}

/// Counters that are fewer than the monitoring ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Assignment {
    /// How they are assigned: `mbm_event` by hand, `default` by the hardware.
    pub mode: String,
    /// All modes that the kernel offers.
    pub modes: Vec<String>,
    /// Number of counters, by cache.
    pub counters: BTreeMap<u32, u32>,
    /// Number of free counters, by cache. Empty while the hardware assigns them.
    pub free: BTreeMap<u32, u32>,
}

impl Resctrl {
    /// Reads the directory `info`.
    ///
    /// # Errors
    /// Files that cannot be read, or that do not have the documented content.
    pub fn info(&self, files: &dyn Files) -> Result<Info> {
        let top = format!("{}/info", self.root);
        let mut info = Info::default();
        for name in files.names(&top)? {
            let folder = Folder {
                files,
                dir: format!("{top}/{name}"),
            };
            // `last_cmd_status` is a file.
            let names = match files.list(&folder.dir) {
                Ok(names) => names,
                Err(e) if gone(&e) => continue,
                Err(e) => return Err(Error::file("list", &folder.dir, None, e)),
            };
            if names.iter().any(|n| n == "mon_features") {
                info.monitors.push(monitor(&folder, name)?);
            } else {
                info.resources.push(resource(&folder, name, &names)?);
            }
        }
        Ok(info)
    }
}

impl Info {
    /// Number of classes of service. A group has one for all resources, so the resource with the
    /// fewest decides.
    #[must_use]
    pub fn classes(&self) -> u32 {
        let all = self.resources.iter().map(|r| r.classes);
        all.filter(|c| *c > 0).min().unwrap_or(0)
    }

    /// The resources that are ways of a level. There are two where code and data are separate.
    pub fn ways(&self, level: u32) -> impl Iterator<Item = (&Resource, &Ways)> {
        self.all_ways().filter(move |(_, w)| w.level == level)
    }

    /// All resources that are ways.
    pub fn all_ways(&self) -> impl Iterator<Item = (&Resource, &Ways)> {
        self.resources.iter().filter_map(|r| match &r.kind {
            Kind::Ways(ways) => Some((r, ways)),
            _ => None,
        })
    }

    /// The bandwidth of memory (`MB`). `None` where it cannot be divided.
    #[must_use]
    pub fn bandwidth(&self) -> Option<(&Resource, &Bandwidth)> {
        self.resources.iter().find_map(|r| match &r.kind {
            Kind::Bandwidth(bandwidth) if r.name == "MB" => Some((r, bandwidth)),
            _ => None,
        })
    }

    /// What is counted of the caches of a level.
    #[must_use]
    pub fn monitor(&self, level: u32) -> Option<&Monitor> {
        let name = format!("L{level}_MON");
        self.monitors.iter().find(|m| m.name == name)
    }
}

/// A directory of `info`.
struct Folder<'a> {
    files: &'a dyn Files,
    dir: String,
}

impl Folder<'_> {
    fn optional(&self, name: &str) -> Result<Option<String>> {
        self.files.optional(&format!("{}/{name}", self.dir))
    }

    fn number(&self, name: &str) -> Result<u32> {
        let path = format!("{}/{name}", self.dir);
        let found = self.files.parsed(&path, "a number")?;
        found.ok_or_else(|| missing(&path))
    }

    fn mask(&self, name: &str) -> Result<Option<Mask>> {
        let Some(text) = self.optional(name)? else {
            return Ok(None);
        };
        match u64::from_str_radix(&text, 16) {
            Ok(bits) => Ok(Some(Mask(bits))),
            Err(_) => {
                let path = format!("{}/{name}", self.dir);
                Err(Error::malformed(&path, &text, "a mask such as 7ff"))
            }
        }
    }

    fn by_cache<T>(
        &self,
        name: &str,
        read: impl Fn(&str) -> Option<T>,
    ) -> Result<BTreeMap<u32, T>> {
        let Some(text) = self.optional(name)? else {
            return Ok(BTreeMap::new());
        };
        let parts = text.split([';', '\n']).filter(|p| !p.trim().is_empty());
        let part = |part: &str| {
            let (id, value) = part.trim().split_once('=')?;
            Some((id.parse().ok()?, read(value.trim())?))
        };
        let wrong = || {
            let path = format!("{}/{name}", self.dir);
            Error::malformed(&path, &text, "a value for each cache, such as 0=8;1=8")
        };
        parts.map(|p| part(p).ok_or_else(wrong)).collect()
    }
}

fn missing(path: &str) -> Error {
    Error::file(
        "read",
        path,
        None,
        std::io::Error::from_raw_os_error(libc::ENOENT),
    )
}

fn resource(folder: &Folder<'_>, name: String, names: &[String]) -> Result<Resource> {
    let has = |file: &str| names.iter().any(|n| n == file);
    let kind = match cache(&name) {
        Some((level, content)) if has("cbm_mask") => {
            let all = folder.mask("cbm_mask")?;
            Kind::Ways(Ways {
                level,
                content,
                all: all.unwrap_or_default(),
                least: folder.number("min_cbm_bits")?,
                shareable: folder.mask("shareable_bits")?.unwrap_or_default(),
                // Linux before 6.7 has no such file, and accepts no holes.
                sparse: folder.optional("sparse_masks")?.as_deref() == Some("1"),
                usage: folder.by_cache("bit_usage", |text| Some(text.to_owned()))?,
            })
        }
        _ if has("min_bandwidth") && has("bandwidth_gran") => Kind::Bandwidth(Bandwidth {
            least: folder.number("min_bandwidth")?,
            step: folder.number("bandwidth_gran")?,
            linear: folder.optional("delay_linear")?.as_deref() == Some("1"),
            threads: folder.optional("thread_throttle_mode")?,
        }),
        _ => {
            // What cannot be read (a directory, a write-only switch) is left out.
            let read = |n: &String| Some((n.clone(), folder.optional(n).ok()??));
            Kind::Unknown(names.iter().filter_map(read).collect())
        }
    };
    let classes = match kind {
        // Other resources must work without it.
        Kind::Unknown(_) => folder.number("num_closids").unwrap_or(0),
        _ => folder.number("num_closids")?,
    };
    Ok(Resource {
        name,
        classes,
        kind,
    })
}

fn monitor(folder: &Folder<'_>, name: String) -> Result<Monitor> {
    let events = folder.optional("mon_features")?.unwrap_or_default();
    let limbo = format!("{}/max_threshold_occupancy", folder.dir);
    let number = |text: &str| text.parse().ok();
    let assignment = match folder.optional("mbm_assign_mode")? {
        None => None,
        Some(text) => {
            let modes = text.lines().map(str::trim);
            let chosen = |mode: &str| Some(mode.strip_prefix('[')?.strip_suffix(']')?.to_owned());
            Some(Assignment {
                mode: modes.clone().find_map(chosen).unwrap_or_default(),
                modes: modes
                    .map(|m| m.trim_matches(['[', ']']).to_owned())
                    .collect(),
                counters: folder.by_cache("num_mbm_cntrs", number)?,
                // While the hardware assigns the counters, none is free, and reading the file fails
                // with EINVAL.
                free: match folder.by_cache("available_mbm_cntrs", number) {
                    Err(e) if e.errno() == Some(libc::EINVAL) => BTreeMap::new(),
                    told => told?,
                },
            })
        }
    };
    let rmids = match folder.number("num_rmids") {
        // An unknown kind may have no such file.
        Err(_) if !name.starts_with('L') => 0,
        told => told?,
    };
    Ok(Monitor {
        name,
        rmids,
        events: events.lines().map(str::to_owned).collect(),
        limbo_bytes: folder.files.parsed(&limbo, "a number of bytes")?,
        assignment,
    })
}

/// Level and content of a cache's resource, by its name. `None` for other names.
#[must_use]
pub fn cache(name: &str) -> Option<(u32, Content)> {
    let rest = name.strip_prefix('L')?;
    let (level, content) = match (rest.strip_suffix("CODE"), rest.strip_suffix("DATA")) {
        (Some(level), _) => (level, Content::Code),
        (None, Some(level)) => (level, Content::Data),
        (None, None) => (rest, Content::All),
    };
    Some((level.parse().ok()?, content))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn machine(all: &[(&str, &str)]) -> (tempfile::TempDir, Resctrl) {
        let dir = tempfile::tempdir().unwrap();
        for (path, text) in all {
            let path = dir.path().join("r/info").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, format!("{text}\n")).unwrap();
        }
        let resctrl = Resctrl::at("/r");
        (dir, resctrl)
    }

    #[test]
    fn resources_are_what_their_files_say() {
        let (dir, resctrl) = machine(&[
            ("last_cmd_status", "ok"),
            ("L3CODE/cbm_mask", "7ff"),
            ("L3CODE/min_cbm_bits", "2"),
            ("L3CODE/num_closids", "8"),
            ("L3CODE/shareable_bits", "600"),
            ("L3CODE/bit_usage", "0=XX000000SSS;1=HH000000000"),
            ("SMBA/min_bandwidth", "0"),
            ("SMBA/bandwidth_gran", "1"),
            ("SMBA/num_closids", "16"),
            ("SMBA/delay_linear", "1"),
            ("NEW/num_closids", "many"),
            ("NEW/depth", "12"),
            ("NEW_MON/mon_features", "age"),
        ]);
        let info = resctrl.info(&Kernel::at(dir.path())).unwrap();
        let names: Vec<&str> = info.resources.iter().map(|r| r.name.as_str()).collect();
        assert_eq!(names, ["L3CODE", "NEW", "SMBA"]);
        let (_, ways) = info.ways(3).next().unwrap();
        assert_eq!((ways.all, ways.shareable), (Mask(0x7ff), Mask(0x600)));
        assert_eq!(
            (ways.content, ways.least, ways.sparse),
            (Content::Code, 2, false)
        );
        assert_eq!(ways.usage[&1], "HH000000000");
        assert!(
            info.bandwidth().is_none(),
            "slow memory is another resource"
        );
        let Kind::Unknown(files) = &info.resources[1].kind else {
            panic!("{:?}", info.resources[1]);
        };
        assert_eq!(files["depth"], "12");
    }

    #[test]
    fn what_is_counted_and_how_counters_are_assigned() {
        let (dir, resctrl) = machine(&[
            ("L3_MON/mon_features", "llc_occupancy\nmbm_total_bytes"),
            ("L3_MON/num_rmids", "64"),
            ("L3_MON/max_threshold_occupancy", "65536"),
            ("L3_MON/mbm_assign_mode", "[mbm_event]\ndefault"),
            ("L3_MON/num_mbm_cntrs", "0=32;1=32"),
            ("L3_MON/available_mbm_cntrs", "0=30;1=32"),
            ("PERF_PKG_MON/mon_features", "core_energy\nactivity"),
            ("PERF_PKG_MON/num_rmids", "576"),
        ]);
        let info = resctrl.info(&Kernel::at(dir.path())).unwrap();
        let caches = info.monitor(3).unwrap();
        let assignment = caches.assignment.as_ref().unwrap();
        assert_eq!(assignment.mode, "mbm_event");
        assert_eq!(assignment.modes, ["mbm_event", "default"]);
        assert_eq!(assignment.free[&0], 30);
        assert_eq!(info.monitors[1].events, ["core_energy", "activity"]);
        assert_eq!(info.monitors[1].limbo_bytes, None);
    }

    #[test]
    fn a_file_that_makes_no_sense_is_named() {
        let (dir, resctrl) = machine(&[
            ("L3/cbm_mask", "all"),
            ("L3/min_cbm_bits", "1"),
            ("L3/num_closids", "4"),
        ]);
        let error = resctrl
            .info(&Kernel::at(dir.path()))
            .unwrap_err()
            .to_string();
        assert!(error.contains("/r/info/L3/cbm_mask reads 'all'"), "{error}");
    }
}
