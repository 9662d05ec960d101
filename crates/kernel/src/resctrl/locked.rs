//! Memory that stays in a cache: pseudo-locking (Documentation/filesystems/resctrl.rst, "Cache
//! Pseudo-Locking").
//!
//! The kernel takes memory of the size of some ways, fills these ways with it and leaves them out
//! of every mask. The memory is a device. The group has no class of service, tasks or CPUs of its
//! own, and can only be removed.
//!
//! A region must not be removed while a process has it open or mapped. At `rmdir` the kernel then
//! forgets it, and no group can have its ways until the next boot. At `umount` the kernel frees the
//! memory that processes still map (seen with Linux 6.12 and 7.2).

use std::collections::BTreeSet;
use std::time::Duration;

use quell_types::cpuset::CpuSet;

use super::{Group, Mode, Resctrl};
use crate::cpuinfo::Cpuinfo;
use crate::error::{Error, Result};
use crate::root::{Files, gone};

/// Processors on which the kernel locks, as family and model: Broadwell-X, Goldmont and Goldmont
/// Plus. The kernel knows how to disable their prefetchers
/// (`resctrl_arch_get_prefetch_disable_bits`).
const MODELS: [(u32, u32); 3] = [(6, 0x4f), (6, 0x5c), (6, 0x7a)];

/// A region of locked memory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Region {
    /// The group that has locked it.
    pub group: Group,
    /// Size in bytes: that of its ways.
    pub bytes: u64,
    /// The CPUs of its cache. A thread that maps the region has to be confined to them.
    pub cpus: CpuSet,
}

impl Region {
    /// Path of the device of its memory.
    #[must_use]
    pub fn device(&self) -> String {
        device(&self.group.name)
    }
}

fn device(name: &str) -> String {
    format!("/dev/pseudo_lock/{name}")
}

/// Whether the kernel locks on this processor, and with these mount options if it is mounted.
///
/// # Errors
/// Why not, in words.
pub fn possible(files: &dyn Files, mounted: Option<&Resctrl>) -> std::result::Result<(), String> {
    let processor = Cpuinfo::read(files).unwrap_or_default();
    let number = |key| processor.first(key).and_then(|n| n.parse().ok());
    let model = number("cpu family").zip(number("model"));
    if !processor.is_intel() || !model.is_some_and(|m| MODELS.contains(&m)) {
        let which = model.map_or(String::new(), |(family, model)| {
            format!(", and this is family {family}, model {model:#x}")
        });
        return Err(format!(
            "the kernel locks on Broadwell-X, Goldmont and Goldmont Plus only (family 6, models 0x4f, 0x5c, 0x7a){which}"
        ));
    }
    let Some(resctrl) = mounted else {
        return Ok(());
    };
    if resctrl.cdp || resctrl.cdp_l2 {
        return Err(
            "resctrl is mounted with code and data apart, and the kernel does not lock then"
                .to_owned(),
        );
    }
    // The device is listed once resctrl is mounted, where the kernel was built for it. Captures by
    // older versions do not have the file.
    let devices = files.optional("/proc/devices").ok().flatten();
    match devices.is_none_or(|all| all.lines().any(|l| l.ends_with(" pseudo_lock"))) {
        true => Ok(()),
        false => Err(
            "the kernel was built without pseudo-locking (CONFIG_RESCTRL_FS_PSEUDO_LOCK)"
                .to_owned(),
        ),
    }
}

/// The name of the region of this group's directory. `None` where the group has locked none.
#[must_use]
pub fn region_at(files: &dyn Files, dir: &str) -> Option<String> {
    let (_, name) = dir.rsplit_once('/')?;
    let group = Group {
        name: name.to_owned(),
        dir: dir.to_owned(),
    };
    let locked = matches!(group.mode(files), Ok(Some(Mode::PseudoLocked)));
    locked.then_some(group.name)
}

/// The processes that have a region open or mapped, by their descriptors and mappings.
///
/// # Errors
/// When processes cannot be listed.
pub fn holders(files: &dyn Files, name: &str) -> Result<BTreeSet<u32>> {
    let device = device(name);
    let names = |dir: &str| match files.list(dir) {
        Err(e) if gone(&e) => Ok(Vec::new()),
        other => other.map_err(|e| Error::file("list", dir, None, e)),
    };
    let mut found = BTreeSet::new();
    for pid in names("/proc")?.iter().filter_map(|n| n.parse::<u32>().ok()) {
        let dir = format!("/proc/{pid}/fd");
        let open = || {
            let fds = names(&dir).unwrap_or_default();
            let mut links = fds.iter().map(|fd| files.link(&format!("{dir}/{fd}")));
            links.any(|to| to.is_ok_and(|to| names_it(&to, &device)))
        };
        let mapped = || {
            let maps = files.read(&format!("/proc/{pid}/maps"));
            let maps = maps.unwrap_or_default();
            maps.lines()
                .any(|l| l.find('/').is_some_and(|at| names_it(&l[at..], &device)))
        };
        if open() || mapped() {
            found.insert(pid);
        }
    }
    Ok(found)
}

/// Number of checks whether a program that has locked memory open has ended, and the pause in
/// between: together about a second.
const LOOKS: u32 = 20;
const PAUSE: Duration = Duration::from_millis(50);

/// Removes a group that holds locked memory, once no process has it open. Calls `alive` while it
/// waits. `Ok(false)`: it was gone.
///
/// # Errors
/// Which process has it open, or the kernel's reason, in a sentence.
pub fn remove(
    files: &dyn Files,
    dir: &str,
    region: &str,
    alive: &dyn Fn(),
) -> std::result::Result<bool, String> {
    let mut looks = 1;
    while let Some(pid) = holders(files, region).map_err(|e| e.to_string())?.first() {
        if looks == LOOKS {
            return Err(format!(
                "{dir} stays: process {pid} has {} open or mapped, and its ways would be lost for good; when it has ended, `quell \
                 restore` removes it",
                device(region)
            ));
        }
        looks += 1;
        std::thread::sleep(PAUSE);
        alive();
    }
    match files.rmdir(dir) {
        Ok(()) => Ok(true),
        Err(e) if gone(&e) => Ok(false),
        Err(e) => Err(format!("{dir} could not be removed: {e}")),
    }
}

/// Whether a path, as the kernel prints it, is the device's.
fn names_it(path: &str, device: &str) -> bool {
    path.strip_suffix(" (deleted)").unwrap_or(path) == device
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn put(dir: &tempfile::TempDir, path: &str, text: &str) {
        let path = dir.path().join(path);
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(path, text).unwrap();
    }

    #[test]
    fn the_kernels_list_of_processors_decides_and_how_it_is_mounted() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let cpu = |vendor: &str, model: u32| {
            let text = format!(
                "vendor_id\t: {vendor}\ncpu family\t: 6\nmodel\t\t: {model}\nmodel name\t: A CPU\n"
            );
            put(&dir, "proc/cpuinfo", &text);
        };
        let mounted = Resctrl::at("/r");
        let why = |mounted: Option<&Resctrl>| possible(&kernel, mounted).err().unwrap_or_default();
        for model in [0x4f, 0x5c, 0x7a] {
            cpu("GenuineIntel", model);
            assert_eq!(why(Some(&mounted)), "");
        }
        let code_data = Resctrl {
            cdp_l2: true,
            ..mounted.clone()
        };
        assert!(why(Some(&code_data)).contains("code and data apart"));
        put(&dir, "proc/devices", "Character devices:\n  1 mem\n");
        assert!(why(Some(&mounted)).contains("built without"));
        // resctrl is not mounted, so the device has no number yet.
        assert_eq!(why(None), "");
        put(
            &dir,
            "proc/devices",
            "Character devices:\n  1 mem\n240 pseudo_lock\n",
        );
        assert_eq!(why(Some(&mounted)), "");
        cpu("GenuineIntel", 0x6a);
        assert!(
            why(None).ends_with("and this is family 6, model 0x6a"),
            "{}",
            why(None)
        );
        cpu("AuthenticAMD", 0x4f);
        assert!(why(None).contains("Broadwell-X"));
        put(&dir, "proc/cpuinfo", "processor : 0\n");
        assert!(why(None).ends_with("0x7a)"), "{}", why(None));
    }

    #[test]
    fn who_has_a_region_open_or_mapped_is_found() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let open = |pid: u32, to: &str| {
            put(&dir, &format!("proc/{pid}/fd/.keep"), "");
            let link = dir.path().join(format!("proc/{pid}/fd/3"));
            std::os::unix::fs::symlink(to, link).unwrap();
        };
        open(7, "/dev/pseudo_lock/a");
        open(8, "/dev/pseudo_lock/ab");
        open(9, "/dev/null");
        let map =
            |of: &str| format!("7f00-7f01 rw-s 00000000 00:06 12    {of}\n7f02-7f03 rw-p 0:0 0\n");
        put(&dir, "proc/9/maps", &map("/dev/pseudo_lock/a (deleted)"));
        put(&dir, "proc/10/maps", &map("/dev/pseudo_lock/b"));
        put(&dir, "proc/self/maps", &map("/dev/pseudo_lock/a"));
        assert_eq!(holders(&kernel, "a").unwrap(), BTreeSet::from([7, 9]));
        assert_eq!(holders(&kernel, "c").unwrap(), BTreeSet::new());
    }
}
