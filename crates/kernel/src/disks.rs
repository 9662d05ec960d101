//! The disks of the machine (`/sys/block`).

use crate::root::Files;

/// A disk of `/sys/block`, with its name there.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Disk {
    /// Its name.
    pub name: String,
    /// Device number, as `MAJOR:MINOR`.
    pub number: String,
}

/// Each device in `/sys/block` with hardware behind it. So traffic through a device mapper or a
/// loop device is counted once.
#[must_use]
pub fn disks(files: &dyn Files) -> Vec<Disk> {
    let names = files.list("/sys/block").unwrap_or_default();
    let disks = names.into_iter().filter_map(|name| {
        let dir = format!("/sys/block/{name}");
        let number = files.text(&format!("{dir}/dev")).ok()?;
        files
            .exists(&format!("{dir}/device"))
            .then_some(Disk { name, number })
    });
    disks.collect()
}

#[cfg(test)]
mod tests {
    use std::fs;

    use super::*;
    use crate::root::Kernel;

    #[test]
    fn disks_are_what_has_hardware_behind_it() {
        let root = tempfile::tempdir().unwrap();
        for (name, number, device) in [("vda", "254:0", true), ("loop0", "7:0", false)] {
            let dir = root.path().join("sys/block").join(name);
            fs::create_dir_all(&dir).unwrap();
            fs::write(dir.join("dev"), format!("{number}\n")).unwrap();
            if device {
                fs::create_dir(dir.join("device")).unwrap();
            }
        }
        let found = disks(&Kernel::at(root.path()));
        let found: Vec<(&str, &str)> = found.iter().map(|d| (&*d.name, &*d.number)).collect();
        assert_eq!(found, [("vda", "254:0")]);
    }
}
