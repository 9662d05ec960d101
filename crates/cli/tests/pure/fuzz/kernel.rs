//! What the kernel writes: every file says the same, and every reader reads it.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use quell_kernel::cgroup::{self, Cgroups, Controller, Hierarchy, Version};
use quell_kernel::cpu_accounting::Ledger;
use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::memory::{self, Memory};
use quell_kernel::resctrl::{Resctrl, Schemata, groups, info, locked, processor, schemata};
use quell_kernel::root::{Files, parse_mask};
use quell_kernel::tasks::{self, Matcher};
use quell_kernel::{
    cached_file, cgroup_limits, cgroup_tree, cpuset, fair, freezer, identity, io as io_files, irq,
    maps, msr, node_memory, oom, paging, pmu, procfs, psi, real_time, remaining, self_usage,
    sysctl, topology, traceable, value, vm, workqueue, zram,
};
use quell_linux::ways::Looker;
use quell_types::cpuset::CpuSet;
use quell_types::ids::PromiseId;
use quell_types::options::CpuWeight;
use quell_types::partition::{Colouring, Mask};
use quell_types::task::{TaskId, TaskMatch};
use quell_types::units::{Bytes, Nanos, Share};
use quell_witness::{Claim, Disks, Party, What, Witness};

use crate::fuzz::texts::text;

/// Every file there is says the same, every directory has the same names in it.
struct Everywhere {
    says: String,
    names: Vec<String>,
    /// The mounts are as they should be, so that the readers behind them are reached.
    mounted: bool,
}

const MOUNTS: &str = "24 30 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw\n\
    25 30 0:23 / /sys/fs/resctrl rw - resctrl resctrl rw,cdp\n";

fn refused<T>() -> io::Result<T> {
    Err(io::ErrorKind::PermissionDenied.into())
}

impl Files for Everywhere {
    fn read(&self, path: &str) -> io::Result<String> {
        match self.mounted && path.ends_with("/mountinfo") {
            true => Ok(MOUNTS.to_owned()),
            false => Ok(self.says.clone()),
        }
    }
    fn write(&self, _: &str, _: &str) -> io::Result<()> {
        refused()
    }
    fn list(&self, _: &str) -> io::Result<Vec<String>> {
        Ok(self.names.clone())
    }
    fn mkdir(&self, _: &str) -> io::Result<()> {
        refused()
    }
    fn rmdir(&self, _: &str) -> io::Result<()> {
        refused()
    }
    fn exists(&self, _: &str) -> bool {
        true
    }
    fn mode(&self, _: &str) -> io::Result<u32> {
        Ok(0o644)
    }
    fn link(&self, _: &str) -> io::Result<String> {
        Ok(self.says.clone())
    }
    fn affinity(&self, _: u32) -> io::Result<CpuSet> {
        Ok(CpuSet::default())
    }
    fn scheduler(&self, _: u32) -> io::Result<i32> {
        Ok(0)
    }
    fn set_affinity(&self, _: u32, _: &CpuSet) -> io::Result<()> {
        refused()
    }
    fn signal(&self, _: TaskId, _: i32) -> io::Result<()> {
        refused()
    }
}

fn hierarchy(version: Version) -> Hierarchy {
    Hierarchy {
        version,
        mount: "/sys/fs/cgroup".into(),
        top: "/".into(),
        controllers: vec!["memory".into()],
        own: "/".into(),
    }
}

pub fn kernel_file(input: &[u8]) -> Result<bool, String> {
    let says = text(input);
    for mounted in [false, true] {
        let files = Everywhere {
            says: says.clone(),
            names: vec!["1".into(), "cpu0".into(), "L3".into()],
            mounted,
        };
        processes(&files);
        machine(&files, &says);
        cgroups(&files, &says);
        divided(&files);
        witnessed(files);
    }
    Ok(true)
}

/// The witness says something of each claim, whatever it reads.
fn witnessed(files: Everywhere) {
    let cpus: CpuSet = "1".parse().unwrap();
    let all = [
        What::Alone { cpus: cpus.clone() },
        What::CpuTime {
            share: Share::percent(50),
            period: Nanos::millis(100),
            tolerance: Share::percent(5),
        },
        What::Weight {
            weight: CpuWeight::Idle,
            levels: None,
        },
        What::Windows {
            cpus: cpus.clone(),
            frame: Nanos::millis(10),
            groups: vec![("a".to_owned(), Nanos::millis(4))],
        },
        What::Memory { most: Bytes(1) },
        What::Ways {
            level: 3,
            mask: Mask(3),
            shared_with: Vec::new(),
        },
        What::WayRegisters {
            level: 3,
            mask: Mask(3),
            shared_with: Vec::new(),
        },
        What::Colours {
            colouring: Colouring::of_pages([0x1000], 0),
            colours: cpus.clone(),
            at_birth: false,
        },
        What::Kept { size: Bytes(1) },
        What::Locked,
        What::Pages { large: true },
        What::Stall {
            most: Share::percent(10),
        },
        What::Disks(Disks::Weight(100)),
    ];
    let count = all.len();
    let claims = (1..).map(PromiseId).zip(all).map(|(id, what)| Claim {
        id,
        group: "a".to_owned(),
        what,
    });
    let party = Party {
        name: "a".to_owned(),
        homes: vec!["/sys/fs/cgroup/a".to_owned()],
        cpus,
        ..Party::default()
    };
    let claims = claims.collect();
    let mut witness = Witness::new(Arc::new(files), claims, vec![party], BTreeSet::new());
    for second in 1..=4 {
        assert_eq!(witness.look(Nanos::secs(second)).len(), count);
    }
}

fn processes(files: &Everywhere) {
    let _ = procfs::stat(files, 1);
    let _ = procfs::schedstat(files, 1);
    let _ = procfs::moved(files, 1);
    let _ = procfs::processes(files);
    let _ = procfs::threads(files, 1);
    let _ = procfs::process_of(files, 1);
    let _ = procfs::users(files, 1);
    let _ = quell_kernel::reading::arguments(files, 1);
    let _ = procfs::executable(files, 1);
    let _ = procfs::memberships(files, "1");
    let _ = procfs::boot_id(files);
    let _ = procfs::alive(files, TaskId { pid: 1, start: 1 });
    let _ = procfs::ancestry(files, 1);
    let _ = maps::of(files, 1);
    let _ = oom::score(files, 1);
    let _ = oom::adjustment(files, 1);
    let _ = self_usage::own(files);
    let _ = real_time::bound(files, [1].into_iter(), 2);
    let _ = paging::mappings_of(files, 1);
    let _ = paging::sizes(files, 1);
    let _ = paging::large_pages(files);
    let _ = traceable::obstacle(files, 1);
    let _ = traceable::thread(files, TaskId { pid: 1, start: 1 });
    let _ = fair::exempt(files, &["/sys/fs/cgroup/a".into()]);
    let _ = fair::replaced_by(files);
    let _ = Ledger::new(0).sample(files, &["/sys/fs/cgroup/a".into()]);
    let cpus: CpuSet = "0-1".parse().unwrap();
    if let Ok(left) = remaining::remaining_on(files, &cpus, &BTreeSet::new()) {
        let _ = left.sentences(&cpus);
    }
    let _ = identity::person(files, 100_000);
    for table in ["exe=/bin/a", "user=a", "arg=x", "unit=a.service", "comm=a"] {
        let table: TaskMatch = table.parse().unwrap();
        let Ok(matcher) = Matcher::new(files, "a", std::slice::from_ref(&table)) else {
            continue;
        };
        let _ = tasks::matched(files, std::slice::from_ref(&matcher), 1);
        let _ = tasks::assign(files, &[matcher], &BTreeSet::new(), &mut || {});
        let _ = tasks::cgroups_of(
            files,
            &[table],
            &procfs::processes(files).unwrap_or_default(),
        );
    }
}

fn machine(files: &Everywhere, says: &str) {
    let _ = topology::read(files, None);
    let _ = topology::online(files);
    let _ = topology::counter_users(files);
    let _ = topology::cache_number(files, 0, 3);
    let _ = topology::release_number(says);
    let _ = pmu::discover(files).map(|all| all.len());
    let _ = Cpuinfo::read(files).map(|all| (all.is_intel(), all.is_guest(), all.has("rdt_a")));
    let _ = procfs::cpu_times(files, 100);
    let _ = irq::numbers(files);
    let _ = irq::served(files, 0);
    let _ = irq::count(files);
    let _ = workqueue::mask(files);
    let _ = sysctl::read(files, "vm.swappiness");
    let _ = vm::meminfo(says);
    let _ = zram::mm_stat(says);
    let _ = zram::Devices::open(files).map(|mut devices| devices.read(files));
    let _ = vm::memory(files);
    let _ = vm::amount(says, "MemTotal:");
    let _ = vm::huge_pages(files, 1 << 21);
    let _ = vm::watermarks(files);
    let _ = vm::paging(says);
    let _ = node_memory::ranges(files, 4096);
    let _ = node_memory::near(files, 1, &[0, 1]);
    let _ = psi::read(files, "/proc/pressure/memory");
    let _ = psi::totals("/x", says);
    let _ = psi::is_reported(files);
    let _ = says.parse::<CpuSet>();
    let _ = msr::parse(says).map(|(cpus, number)| msr::path(&cpus, number));
    let _ = msr::value(says).map(msr::class_in);
    let _ = parse_mask(says);
}

fn cgroups(files: &Everywhere, says: &str) {
    let _ = cgroup::populated(files, "/sys/fs/cgroup/x");
    let _ = cgroup::mounts(files);
    if let Ok(all) = Cgroups::discover(files) {
        let _ = all.own_cpus(files);
        let _ = cpuset::kind(files, &all);
        let _ = all.of(Controller::Memory).map(|h| h.dir_of(files, 1));
    }
    for version in [Version::V1, Version::V2] {
        let memory = Memory::of(&hierarchy(version), "/sys/fs/cgroup/a");
        let _ = memory.parse_stat(says);
        let _ = cgroup_limits::limits(files, &hierarchy(version), "/sys/fs/cgroup/a");
        let _ = memory::amount("/x", says);
        let _ = cgroup::effective_cpus(files, &hierarchy(version), "/sys/fs/cgroup/a");
    }
    let _ = io_files::moved("/x", says);
    let _ = freezer::is_frozen(says);
    let _ = cached_file::keyed(says, "anon");
    let _ = cgroup_tree::listed(says).count();
    let _ = cgroup_tree::tasks(files, "/sys/fs/cgroup/a").len();
    for path in [
        "/a/io.max",
        "/a/cpuset.cpus",
        "/r/schemata",
        "/proc/irq/1/smp_affinity",
        "/dev/cpu/0/msr/0xc8f",
        "/a/x",
    ] {
        let _ = value::same(path, says, "8:0 rbps=1");
        let _ = value::covers(path, says, says);
        let _ = value::only(path, says, says);
    }
}

fn divided(files: &Everywhere) {
    let _ = processor::partitions(files);
    let _ = groups::membership(files, 1);
    let _ = info::cache("L3CODE");
    let found = Resctrl::find(files).ok().flatten();
    let _ = locked::possible(files, found.as_ref());
    let _ = locked::holders(files, "a");
    let Some(resctrl) = found else { return };
    let _ = resctrl
        .info(files)
        .map(|info| (info.classes(), info.bandwidth().is_some()));
    let _ = resctrl.last_status(files);
    let _ = resctrl.owners(files, &["L3"]);
    let _ = resctrl.used(files);
    for group in resctrl.groups(files).unwrap_or_default() {
        let _ = group.mode(files);
        let _ = group.sizes(files);
        let _ = group.tasks(files);
        let _ = group.cpus(files);
        let _ = group.monitors(files);
        let _ = group.data(files);
    }
    if let Ok(mut looker) = Looker::new(files, false) {
        let _ = looker.sample(files, None);
    }
}

pub fn schemata(input: &[u8]) -> Result<bool, String> {
    let text = text(input);
    let read = Schemata::parse(&text);
    let written = read.to_string();
    let again = Schemata::parse(&written);
    if again != read {
        return Err(format!(
            "{text:?} is {read:?}, its {written:?} is {again:?}"
        ));
    }
    let _ = schemata::sizes(&text);
    // As undoing does it.
    let (back, theirs) = read.back(&again, &read);
    let _ = (back.is_empty(), theirs.to_string());
    if !read.covers(&read) || !read.holds(&read) {
        return Err(format!("{text:?} does not hold what it says"));
    }
    let _ = read.only(&again).with(&again);
    Ok(!read.is_empty())
}
