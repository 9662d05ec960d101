//! What is counted of a group: the files of `mon_data`.

use std::collections::BTreeMap;

use super::Group;
use crate::error::{Error, Result};
use crate::root::{Files, gone};

/// The content of a counter's file. That there is no value at the moment is a result, too, and no
/// error.
#[derive(Clone, Debug, PartialEq)]
pub enum Reading {
    /// Bytes, or another whole number.
    Count(u64),
    /// Joules and the like (`PERF_PKG_MON`).
    Decimal(f64),
    /// The hardware has no value now, as after its counter was taken for another id.
    Unavailable,
    /// The hardware does not know the id or the event.
    Failed,
    /// No counter is assigned to the group for this.
    Unassigned,
    /// A text that is not known here.
    Other(String),
}

impl Reading {
    /// Reads the content of a counter's file.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        match text.trim() {
            "Unavailable" => Self::Unavailable,
            "Error" => Self::Failed,
            "Unassigned" => Self::Unassigned,
            other => {
                let whole = other.parse().ok().map(Self::Count);
                let decimal = || other.parse().ok().map(Self::Decimal);
                whole
                    .or_else(decimal)
                    .unwrap_or_else(|| Self::Other(other.to_owned()))
            }
        }
    }

    /// The whole number. `None` for every other reading.
    #[must_use]
    pub const fn count(&self) -> Option<u64> {
        match self {
            Self::Count(n) => Some(*n),
            _ => None,
        }
    }
}

/// What is counted of a group in one domain.
#[derive(Clone, Debug, PartialEq)]
pub struct Data {
    /// The monitored resource: `L3`, `PERF_PKG`, …
    pub of: String,
    /// Number of the domain: of the cache or package.
    pub domain: u32,
    /// Number of a part that is counted by itself (sub-NUMA clusters). `None` for the whole domain.
    pub part: Option<u32>,
    /// Readings by event: `llc_occupancy` (bytes now), `mbm_total_bytes` and `mbm_local_bytes`
    /// (bytes since the mount or the making of the group; they only grow).
    pub events: BTreeMap<String, Reading>,
}

/// A domain in which a group is counted, and the directory of its counters.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Domain {
    /// The monitored resource: `L3`, `PERF_PKG`, …
    pub of: String,
    /// Number of the domain.
    pub number: u32,
    /// Path of the directory.
    pub dir: String,
}

impl Group {
    /// The domains in which the group is counted. Empty where nothing is counted, and for a group
    /// that is gone.
    ///
    /// # Errors
    /// When they cannot be listed.
    pub fn domains(&self, files: &dyn Files) -> Result<Vec<Domain>> {
        let top = self.file("mon_data");
        let names = files.names(&top)?;
        let domain = |name: &String| {
            let (of, number) = split(name)?;
            Some(Domain {
                of: of.to_owned(),
                number,
                dir: format!("{top}/{name}"),
            })
        };
        Ok(names.iter().filter_map(domain).collect())
    }

    /// Reads everything that is counted of the group. Empty where nothing is counted, and for a
    /// group that is gone.
    ///
    /// # Errors
    /// When it cannot be listed.
    pub fn data(&self, files: &dyn Files) -> Result<Vec<Data>> {
        let top = self.file("mon_data");
        let mut all = Vec::new();
        for name in files.names(&top)? {
            read(files, &format!("{top}/{name}"), &name, &mut all)?;
        }
        Ok(all)
    }
}

fn read(files: &dyn Files, dir: &str, name: &str, all: &mut Vec<Data>) -> Result<()> {
    let Some((of, number)) = split(name) else {
        return Ok(());
    };
    let mut data = Data {
        of: of.strip_prefix("sub_").unwrap_or(of).to_owned(),
        domain: number,
        part: None,
        events: BTreeMap::new(),
    };
    let mut parts = Vec::new();
    for event in files.names(dir)? {
        let path = format!("{dir}/{event}");
        if event.starts_with("mon_sub_") {
            read(files, &path, &event, &mut parts)?;
            continue;
        }
        match files.read(&path) {
            Ok(text) => {
                data.events.insert(event, Reading::parse(&text));
            }
            Err(e) if gone(&e) => {}
            Err(e) => return Err(Error::file("read", &path, None, e)),
        }
    }
    for part in &mut parts {
        part.part = Some(part.domain);
        part.domain = number;
    }
    all.push(data);
    all.append(&mut parts);
    Ok(())
}

/// Splits a name: `mon_L3_00` → L3, 0.
fn split(name: &str) -> Option<(&str, u32)> {
    let (of, number) = name.strip_prefix("mon_")?.rsplit_once('_')?;
    Some((of, number.parse().ok()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn readings_are_values_whatever_they_say() {
        let dir = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = dir.path().join("g/mon_data").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("mon_L3_00/llc_occupancy", "65536\n");
        put("mon_L3_00/mbm_total_bytes", "Unavailable\n");
        put("mon_L3_00/mbm_local_bytes", "Unassigned\n");
        put("mon_L3_00/mon_sub_L3_02/llc_occupancy", "Error\n");
        put("mon_PERF_PKG_01/core_energy", "12.5\n");
        put("mon_PERF_PKG_01/activity", "soon\n");
        let group = Group {
            name: "g".to_owned(),
            dir: "/g".to_owned(),
        };
        let all = group.data(&Kernel::at(dir.path())).unwrap();
        let told: Vec<(&str, u32, Option<u32>)> = all
            .iter()
            .map(|d| (d.of.as_str(), d.domain, d.part))
            .collect();
        assert_eq!(
            told,
            [("L3", 0, None), ("L3", 0, Some(2)), ("PERF_PKG", 1, None)]
        );
        let domains = group.domains(&Kernel::at(dir.path())).unwrap();
        let told: Vec<(&str, u32, &str)> = domains
            .iter()
            .map(|d| (d.of.as_str(), d.number, d.dir.as_str()))
            .collect();
        assert_eq!(
            told,
            [
                ("L3", 0, "/g/mon_data/mon_L3_00"),
                ("PERF_PKG", 1, "/g/mon_data/mon_PERF_PKG_01"),
            ]
        );
        assert_eq!(all[0].events["llc_occupancy"].count(), Some(65536));
        assert_eq!(all[0].events["mbm_total_bytes"], Reading::Unavailable);
        assert_eq!(all[0].events["mbm_local_bytes"], Reading::Unassigned);
        assert_eq!(all[1].events["llc_occupancy"], Reading::Failed);
        assert_eq!(all[2].events["core_energy"], Reading::Decimal(12.5));
        assert_eq!(all[2].events["activity"], Reading::Other("soon".to_owned()));
    }
}
