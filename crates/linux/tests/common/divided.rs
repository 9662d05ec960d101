//! A machine whose cache is divided, as a folder: resctrl's files are plain ones, and processes are
//! links to those of the running kernel.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::PathBuf;

use quell_kernel::root::Kernel;

/// The machine. It goes with its folder.
pub struct Divided {
    dir: tempfile::TempDir,
}

impl Divided {
    /// One cache of 16 ways, of which the root has all.
    pub fn new() -> Self {
        let machine = Self {
            dir: tempfile::tempdir().unwrap(),
        };
        machine.put(
            "proc/self/mountinfo",
            "36 21 0:33 / /sys/fs/resctrl rw - resctrl resctrl rw\n",
        );
        symlink("/proc/cpuinfo", machine.path("proc/cpuinfo")).unwrap();
        fs::create_dir_all(machine.path("sys/fs")).unwrap();
        symlink("/sys/devices", machine.path("sys/devices")).unwrap();
        for (file, text) in [
            ("cbm_mask", "ffff"),
            ("min_cbm_bits", "1"),
            ("num_closids", "16"),
            ("shareable_bits", "0"),
            ("bit_usage", "0=XXXXXXXXXXXXXXXX"),
        ] {
            machine.put(&format!("sys/fs/resctrl/info/L3/{file}"), text);
        }
        machine.class("", "ffff", &[]);
        machine
    }

    fn path(&self, path: &str) -> PathBuf {
        self.dir.path().join(path)
    }

    fn put(&self, path: &str, text: &str) {
        let path = self.path(path);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, text).unwrap();
    }

    /// Makes a class with this mask and these threads.
    pub fn class(&self, name: &str, mask: &str, tids: &[u32]) {
        let tids: Vec<String> = tids.iter().map(|tid| format!("{tid}\n")).collect();
        for (file, text) in [
            ("schemata", format!("L3:0={mask}\n")),
            ("mode", "shareable\n".to_owned()),
            ("cpus_list", "\n".to_owned()),
            ("tasks", tids.concat()),
            ("mon_data/mon_L3_00/llc_occupancy", "65536\n".to_owned()),
            ("mon_data/mon_L3_00/mbm_total_bytes", "65536\n".to_owned()),
        ] {
            self.put(&format!("sys/fs/resctrl/{name}/{file}"), &text);
        }
    }

    /// Shows a process with its threads as they are now.
    pub fn show(&self, pid: u32) -> Vec<u32> {
        let tasks = fs::read_dir(format!("/proc/{pid}/task")).unwrap();
        let names = tasks.map(|task| task.unwrap().file_name());
        let tids: Vec<u32> = names
            .map(|n| n.to_str().unwrap().parse().unwrap())
            .collect();
        for tid in &tids {
            let _ = symlink(format!("/proc/{tid}"), self.path(&format!("proc/{tid}")));
        }
        tids
    }

    /// The files of the machine.
    pub fn files(&self) -> Kernel {
        Kernel::at(self.dir.path())
    }
}
