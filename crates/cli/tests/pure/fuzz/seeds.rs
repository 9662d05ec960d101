//! Valid inputs, from the repository where there are some.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use quell_client::Reader;
use quell_client::layout::SIZE;
use quell_lab::profile::BUILT_IN;
use quell_linux::colours::Declared;
use quell_linux::colours::stored::Stored;
use quell_linux::lease::{FILE, Lease};
use quell_sim::trace::{Kind, Record, Writer};
use quell_types::address::{BankMap, BitFunctions};
use quell_types::journal::Undo;
use quell_types::partition::MapOrigin;
use quell_types::task::TaskId;
use quell_types::units::Nanos;

use crate::fuzz::files;

fn each(all: &[&str]) -> Vec<Vec<u8>> {
    all.iter().map(|text| text.as_bytes().to_vec()).collect()
}

/// The TOML files of a folder of the repository.
fn of(folder: &str) -> Vec<Vec<u8>> {
    let entries = fs::read_dir(files::top().join(folder)).unwrap();
    let paths = entries.map(|entry| entry.unwrap().path());
    let mut all: Vec<PathBuf> = paths
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .collect();
    all.sort();
    all.iter().map(|path| fs::read(path).unwrap()).collect()
}

pub fn quantities() -> Vec<Vec<u8>> {
    each(&[
        "500us",
        "1ms",
        "2s",
        "1.5s",
        "17ns",
        "3min",
        "12.5ms",
        "64KiB",
        "3MiB",
        "2GB",
        "1.5GiB",
        "1TB",
        "7B",
        "600MB/s",
        "2GB/s",
        "1.25GB/s",
        "17B/s",
        "20%",
        "0.5%",
        "150%",
        "99.999%",
        "0.5 LLC",
        "0.5 seen LLC",
        "1 L1",
        "2 L2",
    ])
}

pub fn sets() -> Vec<Vec<u8>> {
    each(&[
        "0,2-3",
        "0-7",
        "0,2,4,6,8,10",
        "8191",
        "ff,ffffffff",
        "00000001,00000000",
        "3",
        "0xff00",
        "0x1",
        "L3:0",
        "L2CODE:1",
        "auto",
        "remaining",
        "any",
        "20%",
        "600MB/s",
    ])
}

pub fn task_match() -> Vec<Vec<u8>> {
    each(&[
        "exe=/usr/bin/redis-server,user=redis",
        "comm=stress-ng",
        "pid=12",
        "arg=--size=\\d{1\\,3}",
        "cgroup=/a/b",
        "unit=redis.service",
        "container=0123456789ab",
    ])
}

pub fn pattern() -> Vec<Vec<u8>> {
    each(&[
        "took ([0-9.]+) ms\nframe 7 took 12.5 ms",
        "([0-9]+)\n17",
        "^x=(\\d+)$\nx=1",
        "(?i)t: *([-+0-9.e]+)\nT:  1e3",
    ])
}

pub fn generator() -> Vec<Vec<u8>> {
    each(&[
        "latency",
        "latency:0.5 LLC",
        "bandwidth:write,size=64MiB,rate=2GB/s",
        "bandwidth",
        "cache-churn:prefetch,flush",
        "parallel-lists:lists=4",
        "periodic",
        "frames-call",
        "requests",
        "file-hog:size=280MiB",
        "detector",
        "stores",
        "lattice",
    ])
    .into_iter()
    .filter(|seed| crate::fuzz::texts::generator(seed) == Ok(true))
    .collect()
}

pub fn lab_key() -> Vec<Vec<u8>> {
    each(&[
        "kernel=6.12",
        "memory=2GiB",
        "cpus=4",
        "smt=true",
        "swap=file",
        "disk-rate=20MB/s",
        "lru=classic",
        "append=isolcpus=1,2",
        "with=/bin/sh",
    ])
}

pub fn policies() -> Vec<Vec<u8>> {
    of("examples")
}

pub fn experiments() -> Vec<Vec<u8>> {
    of("experiments")
}

pub fn captures() -> Vec<Vec<u8>> {
    of("tests/machines")
}

/// Maps of one region and of several, and the file of a declared one.
pub fn address_maps() -> Vec<Vec<u8>> {
    let machine = files::a_machine();
    let declared = Declared {
        origin: MapOrigin::Declared,
        from: "map.txt".to_owned(),
        about: None,
        map: BankMap::parse("12\n30 31").unwrap(),
        sets: BitFunctions::line("6-16").ok(),
    };
    let stored = Stored::new(machine, declared).text().unwrap();
    let mut all = each(&[
        "14 18",
        "6-11",
        "0x7800",
        "14 18\n15 19 # a bit\n\n8 9 12 13 14 15\n",
        "region\nselector 0 6\nselector 0 16\n14 19\n15 20\nregion\nselector 0 6\nselector 1 16\n14 18\nregion\nselector 1 6\n14 17\n",
        "region 0x40 0x0\n13\nregion 0x40 0x40\n14\n15\n",
    ]);
    all.push(stored.into_bytes());
    all
}

pub fn hoards() -> Vec<Vec<u8>> {
    each(&[
        r#"{"colouring":{"functions":["0x4000","0x8000","0x30000"],"large":0},"colours":"4-7","limit":"256MiB","reserve":"1GiB"}"#,
        r#"{"colouring":{"functions":["0x10000"],"large":0,"page":"64KiB"},"colours":"1","limit":"4GiB","reserve":"512MiB"}"#,
        r#""sieve""#,
        r#"{"release":{"pages":64,"cpu":3}}"#,
        r#"{"release":{"pages":64}}"#,
        r#"{"what":"begun","kept":"0B"}"#,
        r#"{"what":{"round":{"round":{"taken":65536,"gained":8192,"kept":8192},"took":"210ms"}},"kept":"32MiB"}"#,
        r#"{"what":{"sieved":{"rounds":3,"took":"1s","cpu":"900ms"}},"kept":"33MiB"}"#,
        r#"{"what":{"gave-up":{"pages":7,"available":"900MiB","stalled":"12%"}},"kept":"30MiB"}"#,
        r#"{"what":{"released":{"pages":64}},"kept":"30MiB"}"#,
        r#"{"what":{"moved":{"pages":2}},"kept":"30MiB"}"#,
    ])
}

pub fn machine_profiles() -> Vec<Vec<u8>> {
    of("crates/sim/profiles")
}

pub fn processor_profiles() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = BUILT_IN
        .iter()
        .map(|(_, text)| text.as_bytes().to_vec())
        .collect();
    let dram = "[dram]\ncolumn = [\"6-11\", 15]\nbank = [\"12-14\"]\nrow = [[16, 17], \"18-29\"]\n\
        hit = 150\nmiss = 200\nconflict = 250\n";
    all.push([all[0].as_slice(), b"\n", dram.as_bytes()].concat());
    all
}

/// The files of the captured machines, each as it is.
pub fn lies() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for (which, machine) in captures().into_iter().enumerate() {
        let machine: toml::Table = toml::from_str(&String::from_utf8(machine).unwrap()).unwrap();
        for (path, says) in machine["files"].as_table().unwrap() {
            if let Some(says) = says.as_str() {
                all.push(format!("{which}\n{path}\n{says}").into_bytes());
            }
        }
    }
    // Several hundred, of which a machine of its own is probed for each.
    let step = all.len().div_ceil(60);
    all.into_iter().step_by(step).collect()
}

pub fn inventories() -> Vec<Vec<u8>> {
    vec![serde_json::to_vec(files::a_machine()).unwrap()]
}

pub fn undo() -> [Undo; 3] {
    [
        Undo::Write {
            path: "/sys/fs/cgroup/a/cpuset.cpus".into(),
            old: "0-3\n".into(),
            new: "1".into(),
        },
        Undo::Cgroup {
            path: "/sys/fs/cgroup/quell.slice".into(),
            heir: "/sys/fs/cgroup".into(),
        },
        Undo::Affinity {
            task: TaskId { pid: 77, start: 5 },
            old: "0-3".parse().unwrap(),
            new: "1".parse().unwrap(),
        },
    ]
}

pub fn journals() -> Vec<Vec<u8>> {
    (0..=3).map(|n| files::written(&undo()[..n])).collect()
}

pub fn leases() -> Vec<Vec<u8>> {
    let page = |records| {
        let folder = tempfile::tempdir().unwrap();
        let _lease = Lease::create(folder.path(), records, Nanos::secs(1)).unwrap();
        fs::read(folder.path().join(FILE)).unwrap()
    };
    [0, 1, 4].map(page).to_vec()
}

/// A run's and a comparison's record, on the simulated machine.
const EXPERIMENT: &str = r#"
quell    = 1
name     = "small"
title    = "Small enough to be damaged"
backends = ["sim"]
[measure]
rounds    = 2
duration  = "1s"
simulated = { rounds = 2, warmup = "1ms", duration = "2ms" }
[subject.victim]
role    = "critical"
cpus    = 1
run     = { kind = "latency", size = "64KiB" }
primary = "latency_ns"
[subject.neighbour]
role    = "best-effort"
cpus    = 1
run     = { kind = "bandwidth", operation = "write", size = "512KiB" }
primary = "bandwidth_mb_s"
[configuration.solo]
alone = true
[configuration.regulated]
group.victim.cpus = 1
group.neighbour.limit.bandwidth = "20%"
"#;

/// A machine that is quick to simulate: two cores of one miss at a time, small caches.
fn tiny() -> String {
    let path = files::top().join("crates/sim/profiles/xeon-w3530.toml");
    let mut text = fs::read_to_string(path).unwrap();
    for (from, to) in [
        ("count = 4", "count = 2"),
        ("mhz = 2800", "mhz = 1000"),
        ("misses = 10", "misses = 1"),
        ("size = \"32KiB\"", "size = \"8KiB\""),
        ("size = \"256KiB\"", "size = \"32KiB\""),
        ("size = \"8MiB\"", "size = \"128KiB\""),
        ("cores = 4", "cores = 2"),
        ("set = [\"6-18\"]", "set = [\"6-12\"]"),
        ("transit = \"10ns\"", "transit = \"500ns\""),
    ] {
        assert!(text.contains(from), "{from}");
        text = text.replacen(from, to, 1);
    }
    text
}

fn below(folder: &Path, at: &Path, all: &mut Vec<(String, String)>) {
    for entry in fs::read_dir(at).unwrap() {
        let path = entry.unwrap().path();
        if path.is_dir() {
            below(folder, &path, all);
        } else if let Ok(text) = fs::read_to_string(&path) {
            let name = path.strip_prefix(folder).unwrap().display().to_string();
            all.push((name, text));
        }
    }
}

/// The files of a record but its page, by name.
pub fn recorded() -> &'static [(String, String)] {
    static ALL: OnceLock<Vec<(String, String)>> = OnceLock::new();
    ALL.get_or_init(|| {
        let folder = tempfile::tempdir().unwrap();
        fs::write(folder.path().join("tiny.toml"), tiny()).unwrap();
        fs::write(folder.path().join("small.toml"), EXPERIMENT).unwrap();
        let done = Command::new(env!("CARGO_BIN_EXE_quell"))
            .args([
                "compare",
                "small.toml",
                "--on",
                "sim:./tiny.toml",
                "--out",
                "out",
            ])
            .current_dir(folder.path())
            .output()
            .unwrap();
        assert!(done.status.success(), "{done:?}");
        let record = fs::read_dir(folder.path().join("out"))
            .unwrap()
            .next()
            .unwrap();
        let record = record.unwrap().path();
        let mut all = Vec::new();
        below(&record, &record, &mut all);
        all.retain(|(name, _)| name != "report.html");
        all.sort();
        all
    })
}

pub fn records() -> Vec<Vec<u8>> {
    let all = recorded().iter();
    all.map(|(name, text)| format!("{name}\n{text}").into_bytes())
        .collect()
}

/// What is kept of a run: its plan, what that is worth, what programs say; and other JSON.
pub fn run_state() -> Vec<Vec<u8>> {
    let mut all = vec![serde_json::to_vec(files::a_plan()).unwrap()];
    all.extend(each(&[
        r#"{"job":{"bytes_per_unit":64,"working_set":128}}"#,
        r#"{"metrics":{"latency_ns":[1.5,2.0]},"window_ns":1000000,"bytes":64,"duration_ns":2000000}"#,
    ]));
    let measured = files::a_machine().measured.as_ref().unwrap();
    all.push(serde_json::to_vec(measured).unwrap());
    all.push(serde_json::to_vec(&files::a_machine().fingerprint(None)).unwrap());
    let events = recorded().iter().find(|(name, _)| name == "events.jsonl");
    let lines = events.unwrap().1.lines().skip(1).step_by(5).take(8);
    all.extend(lines.map(|line| line.as_bytes().to_vec()));
    all
}

pub fn traces() -> Vec<Vec<u8>> {
    let record = |kind, address, size, instructions| Record {
        kind,
        address,
        size,
        instructions,
    };
    let all = [
        record(Kind::Load, 4096, 8, 1),
        record(Kind::Store, 1 << 46, 64, 100),
        record(Kind::Modify, 4104, 4, 1 << 20),
    ];
    let written = |n: usize| {
        let mut writer = Writer::new(Vec::new()).unwrap();
        all[..n].iter().for_each(|one| writer.push(*one).unwrap());
        writer.finish().unwrap()
    };
    (0..=3).map(written).collect()
}

pub fn lackey() -> Vec<Vec<u8>> {
    each(&[
        "==12== Lackey\nI  04016d60,3\n L 1ffeffe7e0,8\nI  04016d63,5\n S 1ffeffe7d8,8\n M 0421c7cc,4\n",
        " L 0,1\n",
    ])
}

/// Lines as kernels write them, of each file that is read as a whole.
pub fn kernel_files() -> Vec<Vec<u8>> {
    each(&[
        "1234 (a (b) c) S 1 1234 1234 0 -1 4194560 4297 159 30 0 12 5 0 0 20 0 3 0 8243 12345344 880 18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0 0 0 0 0 0 0 0 0",
        "Name:\tsh\nUmask:\t0022\nState:\tS (sleeping)\nTgid:\t77\nPid:\t77\nUid:\t1000\t1000\t1000\t1000\nVmLck:\t       0 kB\nVmRSS:\t    1200 kB\nCpus_allowed:\tff\nCpus_allowed_list:\t0-7\n",
        "12:cpuset:/a/b\n5:cpu,cpuacct:/\n1:name=systemd:/user.slice\n0::/user.slice/session-1.scope\n",
        "24 30 0:22 / /sys/fs/cgroup/cpuset rw,nosuid - cgroup cgroup rw,cpuset\n31 30 0:27 / /sys/fs/cgroup/unified rw - cgroup2 cgroup2 rw\n40 30 0:30 / /sys/fs/resctrl rw - resctrl resctrl rw,mba_MBps\n",
        "cpuset cpu io memory hugetlb pids\n",
        "0-3,8-11\n",
        "ff,ffffffff\n",
        "nr_periods 10\nnr_throttled 3\nthrottled_usec 1200\n",
        "max 100000\n",
        "populated 1\nfrozen 0\n",
        "domain threaded\n",
        "processor\t: 0\nvendor_id\t: GenuineIntel\ncpu family\t: 6\nmodel\t\t: 106\nmodel name\t: Intel(R) Xeon(R)\nflags\t\t: fpu vme hypervisor rdt_a cat_l3\n",
        "cpu  10 0 20 30 0 0 0 4 0 0\ncpu0 10 0 20 30 0 0 0 4 0 0\nintr 5 0 5\nctxt 7\nbtime 1\n",
        "           CPU0       CPU1       \n  0:         10          0   IO-APIC   2-edge      timer\nNMI:          1          2   Non-maskable interrupts\n",
        "some avg10=0.00 avg60=0.00 avg300=0.00 total=0\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=0\n",
        "MemTotal:       24684084 kB\nMemFree:        23055652 kB\nMemAvailable:   23668632 kB\nSwapTotal:  0 kB\n",
        "Node 0, zone   Normal\n  pages free     1\n        min      21\n        low      26\n        high     31\n",
        "Node 0, zone    DMA32\n        spanned  258048\n        present  258048\n  start_pfn:           4096\nNode 1, zone   Normal\n        spanned  9\n  start_pfn:           300000\n",
        "10 21\n",
        "55d0c000-55d0d000 r-xp 00001000 08:01 1234   /usr/bin/a\n7f000000-7f100000 rw-s 00000000 00:01 9 /dev/zero (deleted)\n7ffc0000-7ffe0000 rw-p 00000000 00:00 0 [stack]\n",
        "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize:               2048 kB\nAnonHugePages:      2048 kB\n",
        "anon 1\nfile 20\nshmem 4\nfile_mapped 5\nactive_file 6\nunevictable 7\nworkingset_refault_file 9\n",
        "low 1\nhigh 2\nmax 3\noom 4\noom_kill 5\n",
        "8:0 rbytes=10 wbytes=1 rios=1 wios=1 dbytes=5 dios=1\n",
        "8:0 rbps=10 wbps=max riops=max wiops=max\n",
        "event=0x2e,umask=0x41\n",
        "config:0-7,32-35\n",
        "6.12.9-arch1-1\n",
        "32K\n",
        "123456 7890 12\n",
        "8ca3b5f2-6bb1-4dd1-8a41-0e2b2a3f4b5c\n",
        "root:x:0:0:root:/root:/bin/sh\na:x:1000:1000::/home/a:/bin/sh\n",
        "L3:0=ffff;1=ffff\nMB:0=100;1=90\n",
        "res:/part\nmon:\n",
        "ffff\n",
        "llc_occupancy\nmbm_total_bytes\nmbm_local_bytes\n",
        "[mbm_event]\ndefault\n",
        "shareable\n",
    ])
}

pub fn schemata() -> Vec<Vec<u8>> {
    each(&[
        "L3:0=ffff;1=ffff\nMB:0=100;1=90\n",
        "    L3CODE:0=f\n    L3DATA:0=0ff0\n",
        "L2:0=uninitialized\n",
        "SMBA:0=2048\n",
        "X:0=a,b\n",
    ])
}

/// (%rdi); -8(%rbp); 0x12345678(%rbx); 16(%r8,%r12,8); 0x100(,%rdx,2).
pub fn operands() -> Vec<Vec<u8>> {
    let all: [&[u8]; 5] = [
        &[0, 0x3f],
        &[0, 0x7d, 0xf8],
        &[0, 0xbb, 0x78, 0x56, 0x34, 0x12],
        &[0x43, 0x7c, 0xe0, 16],
        &[0, 0x3c, 0x55, 0, 1, 0, 0],
    ];
    all.map(<[u8]>::to_vec).to_vec()
}

/// Sessions that a program has written into.
pub fn sessions() -> Vec<Vec<u8>> {
    let reader = Reader::create(Some(std::time::Duration::from_millis(16))).unwrap();
    let file = fs::File::from(reader.file().try_clone_to_owned().unwrap());
    let mut page = vec![0; SIZE];
    std::os::unix::fs::FileExt::read_exact_at(&file, &mut page, 0).unwrap();
    let mut all = vec![page.clone()];
    // Three units, as docs/client.md says they are written.
    let mut put = |at: usize, word: u64| page[at..at + 8].copy_from_slice(&word.to_ne_bytes());
    put(64, 77);
    put(72, 64);
    put(80, 128);
    for n in 0..3u64 {
        let at = 4096 + 32 * usize::try_from(n).unwrap();
        put(at, n + 1);
        put(at + 8, 1_000_000 * (n + 1));
        put(at + 16, 900_000);
        put(at + 24, 1_000_000);
    }
    put(128, 3);
    all.push(page);
    // A short one is laid over an empty session.
    all.push(all[1][..4096 + 96].to_vec());
    all
}
