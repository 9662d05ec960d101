use super::*;
use crate::root::Kernel;
use std::path::Path;

fn write(root: &Path, path: &str, text: &str) {
    let path = root.join(path);
    std::fs::create_dir_all(path.parent().unwrap()).unwrap();
    std::fs::write(path, text).unwrap();
}

#[test]
fn a_name_that_all_arm_processors_have_is_none() {
    let cpuinfo = |implementer: &str, part: &str| {
        Cpuinfo(format!(
            "CPU implementer\t: {implementer}\nCPU part\t: {part}"
        ))
    };
    let any = || Some("ARMv8 Processor rev 1 (v8l)".to_owned());
    assert_eq!(model(any(), &cpuinfo("0x41", "0xd42")), "Cortex-A78AE");
    // A part of another maker, and no part at all: only the name is left.
    assert_eq!(Some(model(any(), &cpuinfo("0x4e", "0x004"))), any());
    assert_eq!(Some(model(any(), &Cpuinfo::default())), any());
    let own = Some("Own".to_owned());
    assert_eq!(model(own, &cpuinfo("0x41", "0xd42")), "Own");
    assert_eq!(model(None, &cpuinfo("0x41", "0xd0c")), "Neoverse-N1");
}

#[test]
fn lists_that_no_machine_has_are_refused() {
    let refused = |path: &str, text: &str| {
        let dir = machine();
        write(dir.path(), path, text);
        let read = read(&Kernel::at(dir.path()), None);
        read.unwrap_err().to_string()
    };
    let siblings = "sys/devices/system/cpu/cpu0/topology/thread_siblings_list";
    assert!(refused(siblings, "0-8191").contains("the threads of a core, at most 128"));
    let dir = machine();
    write(dir.path(), "sys/devices/system/node/online", "0-1\n");
    write(dir.path(), "sys/devices/system/node/node0/cpulist", "0-3\n");
    write(dir.path(), "sys/devices/system/node/node1/cpulist", "3\n");
    let error = read(&Kernel::at(dir.path()), None).unwrap_err().to_string();
    assert!(error.contains("in no other memory node"), "{error}");
}

fn machine() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let root = dir.path();
    write(root, "sys/devices/system/cpu/online", "0-3\n");
    for cpu in 0..4 {
        let at = format!("sys/devices/system/cpu/cpu{cpu}");
        let core = cpu / 2 * 2;
        write(
            root,
            &format!("{at}/topology/thread_siblings_list"),
            &format!("{core}-{}\n", core + 1),
        );
        write(root, &format!("{at}/topology/physical_package_id"), "0\n");
        write(root, &format!("{at}/cache/index3/level"), "3\n");
        write(root, &format!("{at}/cache/index3/type"), "Unified\n");
        write(root, &format!("{at}/cache/index3/size"), "49152K\n");
        write(
            root,
            &format!("{at}/cache/index3/ways_of_associativity"),
            "12\n",
        );
        write(root, &format!("{at}/cache/index3/shared_cpu_list"), "0-3\n");
    }
    write(root, "sys/devices/system/node/online", "0\n");
    write(root, "sys/devices/system/node/node0/cpulist", "0-3\n");
    write(
        root,
        "sys/devices/system/node/node0/meminfo",
        "Node 0 MemTotal:  1024 kB\n",
    );
    write(
        root,
        "proc/cpuinfo",
        "vendor_id : Genuine\nmodel name : Fast CPU\nmicrocode : 0x2b\nflags : fpu hypervisor\n",
    );
    write(root, "proc/sys/kernel/osrelease", "6.18.1-x\n");
    write(root, "proc/sys/kernel/sched_rt_period_us", "1000000\n");
    write(root, "proc/sys/kernel/sched_rt_runtime_us", "950000\n");
    dir
}

#[test]
fn a_core_of_an_unknown_kind_is_the_slowest() {
    let dir = machine();
    let tiers = |units: &[(&str, &str)]| -> Vec<u32> {
        for (unit, cpus) in units {
            let path = format!("sys/bus/event_source/devices/{unit}/cpus");
            write(dir.path(), &path, cpus);
        }
        let found = read(&Kernel::at(dir.path()), None).unwrap();
        found.cpus.iter().map(|cpu| cpu.tier).collect()
    };
    assert_eq!(tiers(&[]), [0; 4]);
    let two = [("cpu_core", "0-1\n"), ("cpu_atom", "2\n")];
    assert_eq!(tiers(&two), [0, 0, 1, 2]);
    assert_eq!(tiers(&[("cpu_lowpower", "3\n")]), [0, 0, 1, 2]);
}

#[test]
fn memory_that_no_cpu_is_next_to_is_a_node() {
    let dir = machine();
    let node = "sys/devices/system/node";
    write(dir.path(), &format!("{node}/online"), "0-1\n");
    write(dir.path(), &format!("{node}/node1/cpulist"), "\n");
    let memory = "Node 1 MemTotal:  2048 kB\n";
    write(dir.path(), &format!("{node}/node1/meminfo"), memory);
    let found = read(&Kernel::at(dir.path()), None).unwrap();
    let far = &found.nodes[1];
    assert_eq!((far.memory, far.cpus.is_empty()), (Bytes(2 << 20), true));
}

#[test]
fn a_machine_in_a_folder() {
    let dir = machine();
    let kernel = Kernel::at(dir.path());
    let found = read(&kernel, Some(&"0-2".parse().unwrap())).unwrap();
    assert_eq!(found.cpus.len(), 3, "CPU 3 is not ours");
    assert_eq!(found.cpus[2].siblings.to_string(), "2-3");
    assert_eq!(found.caches.len(), 1, "one cache, seen from every CPU");
    assert_eq!(
        (found.caches[0].size, found.caches[0].ways),
        (Bytes(48 << 20), Some(12))
    );
    assert_eq!(found.nodes[0].memory, Bytes(1 << 20));
    // The node's file lacks what was added since the boot.
    write(dir.path(), "proc/meminfo", "MemTotal: 3072 kB\n");
    let added = read(&kernel, None).unwrap();
    assert_eq!(added.nodes[0].memory, Bytes(3 << 20));
    assert_eq!(found.identity.model, "Fast CPU");
    assert_eq!(found.identity.microcode.as_deref(), Some("0x2b"));
    assert_eq!(found.identity.hypervisor.as_deref(), Some("unknown"));
    write(
        dir.path(),
        "sys/devices/system/clocksource/clocksource0/available_clocksource",
        "tsc kvm-clock \n",
    );
    let found = read(&kernel, None).unwrap();
    assert_eq!(found.identity.hypervisor.as_deref(), Some("KVM"));
}

#[test]
fn the_second_level_cache_is_found_among_the_others() {
    let dir = machine();
    let cpu3 = "3".parse().unwrap();
    let kernel = Kernel::at(dir.path());
    assert_eq!(largest_l2(&kernel, &cpu3).unwrap(), None);
    let files = [(0, "2", "Instruction", "4M"), (1, "2", "Unified", "1280K")];
    for (index, level, kind, size) in files {
        let at = format!("sys/devices/system/cpu/cpu3/cache/index{index}");
        write(dir.path(), &format!("{at}/level"), level);
        write(dir.path(), &format!("{at}/type"), kind);
        write(dir.path(), &format!("{at}/size"), size);
    }
    assert_eq!(largest_l2(&kernel, &cpu3).unwrap(), Some(Bytes(1280 << 10)));
}

#[test]
fn a_malformed_cache_is_an_error_with_its_path() {
    let dir = machine();
    write(
        dir.path(),
        "sys/devices/system/cpu/cpu1/cache/index3/size",
        "lots\n",
    );
    let error = read(&Kernel::at(dir.path()), None).unwrap_err().to_string();
    assert!(
        error.contains("cpu1/cache/index3/size reads 'lots'"),
        "{error}"
    );
}

#[test]
fn the_nmi_watchdog_is_named() {
    let dir = machine();
    assert!(counter_users(&Kernel::at(dir.path())).unwrap().is_empty());
    write(dir.path(), "proc/sys/kernel/nmi_watchdog", "1\n");
    assert!(counter_users(&Kernel::at(dir.path())).unwrap()[0].contains("nmi_watchdog=0"));
}
