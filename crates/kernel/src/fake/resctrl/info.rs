//! The directories of `info`.

use super::{Control, Resctrl, Resource, shape};
use crate::fake::Answer;

impl Resctrl {
    pub(super) fn info(&self, name: &str) -> Option<String> {
        let (folder, file) = name.split_once('/').unwrap_or(("", name));
        if folder.is_empty() {
            return (file == "last_cmd_status").then(|| match self.status.as_str() {
                "" => "ok\n".to_owned(),
                status => status.to_owned(),
            });
        }
        if folder == "L3_MON" && self.rdt.rmids > 0 {
            let text = match file {
                "mon_features" => "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes".to_owned(),
                "num_rmids" => self.rdt.rmids.to_string(),
                "max_threshold_occupancy" => self.threshold.to_string(),
                "mbm_assign_mode" if self.newer => "[default]".to_owned(),
                _ => return None,
            };
            return Some(text + "\n");
        }
        let resource = self.resources.iter().find(|r| r.name == folder)?;
        let text = match (file, resource.bits) {
            ("num_closids", _) => resource.classes.to_string(),
            ("bit_usage", Some(_)) => self.usage(resource),
            (file, Some(bits)) => shape::cache_info(&self.rdt, resource, bits, file)?,
            (file, None) => shape::bandwidth_info(file)?,
        };
        Some(text + "\n")
    }

    pub(super) fn info_folders(&self) -> Vec<String> {
        let mut folders: Vec<String> = self.resources.iter().map(|r| r.name.clone()).collect();
        folders.extend((self.rdt.rmids > 0).then(|| "L3_MON".to_owned()));
        folders
    }

    pub(super) fn info_names(&self, folder: &str) -> Answer<Vec<String>> {
        if folder.is_empty() {
            let mut names = self.info_folders();
            names.push("last_cmd_status".to_owned());
            return Ok(names);
        }
        if !self.info_folders().iter().any(|f| f == folder) {
            return Err(self.info(folder).map_or(libc::ENOENT, |_| libc::ENOTDIR));
        }
        let there = |file: &&&str| self.info(&format!("{folder}/{file}")).is_some();
        let names = shape::INFO.iter().filter(there).map(|f| (*f).to_owned());
        Ok(names.collect())
    }

    /// Text of `bit_usage`: `0=EESS00…`, highest way first.
    fn usage(&self, resource: &Resource) -> String {
        let Some(bits) = resource.bits else {
            return String::new();
        };
        let domain = |d: &u32| {
            let of = |way: u32| {
                let has = |g: &&Control| g.values[&resource.name][d] >> way & 1 == 1;
                let users = || self.used().map(|(_, g)| g).filter(has);
                let device = resource.shareable >> way & 1 == 1;
                let locked = self.locked_ways(&resource.name, *d) >> way & 1 == 1;
                match (
                    device,
                    users().any(|g| !g.exclusive),
                    users().any(|g| g.exclusive),
                ) {
                    (true, true, _) => 'X',
                    (true, false, _) => 'H',
                    (false, true, _) => 'S',
                    (false, false, true) => 'E',
                    (false, false, false) if locked => 'P',
                    (false, false, false) => '0',
                }
            };
            format!("{d}={}", (0..bits).rev().map(of).collect::<String>())
        };
        let all: Vec<String> = resource.domains.iter().map(domain).collect();
        all.join(";")
    }
}
