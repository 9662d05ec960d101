//! The lab, booted: Debian's kernels on the emulated processor. The checks rely on what the guest's
//! kernel and Intel's `pqos` report, never on the plugin's own account. The guest's programs are
//! this one, in another role (`roles`).
//!
//! Skipped with a message where the lab is not available: no `apt-get`, no mirror, another
//! architecture.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

mod roles;

use std::io::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::time::Duration;

use quell_lab::Error;
use quell_lab::packages::Packages;
use quell_lab::profile::BUILT_IN;
use quell_lab::vm::{Lab, Outcome, Talk};
use quell_policy::lab::{Accelerator, Guest, Lru, Swap};
use quell_types::units::{Bytes, Rate};

/// What the guest's shell scripts share. `role` runs this program in one of its roles, on `$ON`'s
/// CPU.
const WORDS: &str = r#"
R=/sys/fs/resctrl
role() { QUELL_LAB_ROLE="$*" $ON "$EXE" guest --exact --ignored --nocapture | sed -n 's/^.*ROLE //p'; }
"#;

fn lab(script: &str) -> Lab {
    let exe = std::env::current_exe().unwrap();
    let script = format!("EXE={}\n{WORDS}\n{script}", exe.display());
    Lab {
        guest: Guest {
            swap_size: Bytes(256 << 20),
            accelerator: Accelerator::Tcg,
            with: vec![exe.display().to_string()],
            ..Guest::default()
        },
        timeout: Some(Duration::from_secs(300)),
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        ..Lab::default()
    }
}

/// The cache of the repository, as in `make test`, unless the environment names another.
fn packages() -> Option<Packages> {
    if !cfg!(target_arch = "x86_64") {
        quell_testing::skip("its packages are for x86-64");
        return None;
    }
    let packages = Packages::new(|line| eprintln!("{line}")).unwrap();
    match packages
        .qemu()
        .and_then(|_| packages.tools())
        .and_then(|_| packages.kernel("7.2"))
    {
        Ok(_) => Some(packages),
        Err(Error::Unavailable(reason)) => {
            quell_testing::skip(reason);
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// The guest's output, by the first word of each line.
struct Said(String, Outcome);

impl Said {
    #[track_caller]
    fn word(&self, key: &str) -> &str {
        let line = self
            .0
            .lines()
            .find_map(|line| line.strip_prefix(key)?.strip_prefix(' '));
        line.unwrap_or_else(|| panic!("the guest did not say '{key}': {}", self.0))
            .trim()
    }

    #[track_caller]
    fn number(&self, key: &str) -> f64 {
        let word = self.word(key);
        word.parse().unwrap_or_else(|_| panic!("{key} {word}"))
    }
}

fn run(lab: &Lab, packages: &Packages) -> Said {
    let gathered = lab.gather(packages);
    let (outcome, output, errors) = gathered.unwrap_or_else(|e| panic!("{e}"));
    println!(
        "{output}{errors}booted in {:?}: {:?}",
        outcome.booted,
        outcome.report.as_ref().map(|r| r.accesses)
    );
    Said(output, outcome)
}

#[test]
#[ignore = "no test: the program that the tests below run inside the virtual machine"]
fn guest() {
    roles::play(&std::env::var("QUELL_LAB_ROLE").unwrap());
}

#[test]
fn a_command_comes_back_with_its_output_status_and_files() {
    let Some(packages) = packages() else { return };
    let out = tempfile::tempdir().unwrap();
    let mut lab = lab(
        r"echo release $(uname -r); echo cpus $(nproc); echo lru $(cat /sys/kernel/mm/lru_gen/enabled)
        echo threads $(cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list)
        echo swap $(sed -n '2s/^\(\S*\).*/\1/p' /proc/swaps); echo psi $(grep -c total= /proc/pressure/memory)
        echo controllers $(cat /sys/fs/cgroup/cgroup.controllers)
        dd if=/dev/zero of=/disk/file bs=1M count=8 conv=fsync 2>/dev/null; echo seconds $(cut -d' ' -f1 /proc/uptime)
        echo 3 >/proc/sys/vm/drop_caches; dd if=/disk/file of=/dev/null bs=1M 2>/dev/null; echo later $(cut -d' ' -f1 /proc/uptime)
        echo a word >&2; mkdir /out/deep; echo left >/out/deep/behind; exit 7",
    );
    let guest = &mut lab.guest;
    (guest.smt, guest.lru, guest.swap) = (true, Some(Lru::Classic), Swap::Zram);
    (guest.disk, guest.disk_rate) = (Some(Bytes(64 << 20)), Some(Rate(4 << 20)));
    lab.out = Some(out.path().to_owned());
    let said = run(&lab, &packages);
    assert_eq!(said.1.status, 7);
    assert!(said.word("release").starts_with("7.2."), "{}", said.0);
    assert_eq!(said.word("cpus"), "2");
    assert_eq!(said.word("threads"), "0-1");
    assert_eq!(said.word("lru"), "0x0000");
    assert_eq!(said.word("swap"), "/dev/zram0");
    assert_eq!(said.word("psi"), "2");
    for controller in ["cpuset", "cpu", "io", "memory", "pids"] {
        assert!(
            said.word("controllers").split(' ').any(|c| c == controller),
            "{controller}"
        );
    }
    // 8 MiB at 4 MiB/s, less what QEMU lets through in bursts.
    let took = said.number("later") - said.number("seconds");
    assert!(took > 1.0, "{took} s: the disk is not held to its rate");
    let left = std::fs::read_to_string(out.path().join("deep/behind")).unwrap();
    assert_eq!(left, "left\n");
    assert!(!said.0.contains("a word"), "errors are apart");
}

fn fails(lab: &Lab, packages: &Packages) -> String {
    let talk = Talk {
        output: &mut Vec::new(),
        errors: &mut Vec::new(),
        stop: &mut || None,
    };
    lab.run(packages, talk).unwrap_err().to_string()
}

#[test]
fn what_cannot_be_is_said() {
    let Some(packages) = packages() else { return };
    let mut lab = lab("true");
    let said = |change: &dyn Fn(&mut Lab), with: &str| {
        let mut changed = lab.clone();
        change(&mut changed);
        let e = fails(&changed, &packages);
        assert!(e.contains(with), "'{with}' is not in: {e}");
    };
    said(&|lab| lab.guest.kernel = "5.4".to_owned(), "there are 7.");
    said(&|lab| lab.guest.kernel = "newest".to_owned(), "6.12");
    said(
        &|lab| (lab.guest.cpus, lab.guest.smt) = (3, true),
        "whole cores",
    );
    said(
        &|lab| lab.command = vec!["no-such-program".to_owned()],
        "no-such-program: neither",
    );
    said(
        &|lab| lab.guest.with = vec!["/no/such".to_owned()],
        "/no/such",
    );
    lab.timeout = Some(Duration::from_secs(5));
    let out = tempfile::tempdir().unwrap();
    lab.out = Some(out.path().to_owned());
    lab.command = ["sh", "-c", "echo so far >/out/found; sleep 1000"]
        .map(str::to_owned)
        .to_vec();
    let e = fails(&lab, &packages);
    assert!(e.contains("did not end within 5 s"), "{e}");
    // The files it had left are brought out all the same.
    let found = std::fs::read_to_string(out.path().join("found")).unwrap();
    assert_eq!(found, "so far\n");
}

/// A listener that reads one piece of output.
struct Listener<'a> {
    heard: &'a AtomicBool,
    leaves: bool,
}

impl Write for Listener<'_> {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.leaves && self.heard.load(Relaxed) {
            return Err(std::io::ErrorKind::BrokenPipe.into());
        }
        self.heard.store(true, Relaxed);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_command_ends_by_our_signal_and_with_its_listener() {
    let Some(packages) = packages() else { return };
    let status = |script: &str, leaves: bool| {
        let out = tempfile::tempdir().unwrap();
        let mut lab = lab(script);
        lab.out = Some(out.path().to_owned());
        let heard = AtomicBool::new(false);
        let mut told = false;
        let talk = Talk {
            output: &mut Listener {
                heard: &heard,
                leaves,
            },
            errors: &mut Vec::new(),
            stop: &mut || {
                let tell = !leaves && !told && heard.load(Relaxed);
                told |= tell;
                tell.then_some(15)
            },
        };
        let outcome = lab.run(&packages, talk).unwrap_or_else(|e| panic!("{e}"));
        (outcome.status, out.path().join("left").exists())
    };
    let goes_on = "touch /out/left; while :; do echo word; sleep 0.1; done";
    assert_eq!(status(goes_on, false), (128 + 15, true));
    // SIGPIPE ended it.
    assert_eq!(status(goes_on, true), (128 + 13, true));
    // A command that has something to revert does that first.
    let careful = "trap 'touch /out/left; exit 5' TERM; echo word; while :; do sleep 0.1; done";
    assert_eq!(status(careful, false), (5, true));
}

/// Eight banks with rows of 8 KiB.
const BANKS: &str = "[dram]\ncolumn = ['6-12']\nbank = ['13-15']\nrow = ['16-29']\nhit = 150\nmiss = 200\nconflict = 250\n";

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    #[test]
    #[ignore = "where its files have changed"]
    fn linux_divides_and_counts_on_the_emulated_processor() {
        super::divides_and_counts();
    }
}

/// One boot for all of it, since each takes some ten seconds.
fn divides_and_counts() {
    let Some(packages) = packages() else { return };
    let mut lab = lab(r#"
        echo flags $(grep -m1 ^flags /proc/cpuinfo)
        echo info $(ls $R/info)
        echo size $(cat /sys/devices/system/cpu/cpu0/cache/index3/size)

        # Intel's own tool, and the kernel's view of what it did.
        pqos -e 'llc:1=0x00f0;llc:2=0xff00;mba:2=50' >/tmp/pqos 2>&1 || cat /tmp/pqos
        echo pqos $(pqos -s | sed -n 's/.*COS1 => MASK *//p')
        echo kernel $(sed -n 's/ *L3:0=//p' $R/COS1/schemata)
        pqos -a 'core:1=1' >/dev/null
        echo association $(cat $R/COS1/cpus_list)
        pqos -R >/dev/null; rmdir $R/COS* 2>/dev/null

        # Four ways of 512 KiB.
        mkdir $R/part $R/rest $R/rest/mon_groups/first
        # What the kernel runs for it is in the cache from here on.
        role walk 1048576 1 $R/rest $R/rest/mon_groups/first >/dev/null
        rmdir $R/rest/mon_groups/first
        echo L3:0=00f0 >$R/part/schemata
        for size in 1024 1536 2048 8192; do
            mkdir $R/part/mon_groups/m$size
            role walk $((size << 10)) 4 $R/part $R/part/mon_groups/m$size
        done
        rmdir $R/part/mon_groups/*

        # A list that fits beside a stream that does not.
        echo L3:0=ffff >$R/part/schemata
        ON="taskset 1"
        echo alone $(role list 2097152 6 $R/part)
        QUELL_LAB_ROLE="stream 33554432 $R/rest" taskset 2 "$EXE" guest --exact --ignored >/dev/null 2>&1 &
        stream=$!
        until [ -n "$(cat $R/rest/tasks)" ]; do sleep 0.1; done
        echo shared $(role list 2097152 6 $R/part $R/rest)
        echo L3:0=00ff >$R/part/schemata; echo L3:0=ff00 >$R/rest/schemata
        role list 2097152 2 $R/part $R/rest >/dev/null
        echo divided $(role list 2097152 6 $R/part $R/rest)
        { kill $stream; wait $stream; } 2>/dev/null; ON=

        # A class that is delayed.
        echo full $(role rate 33554432 $R/rest)
        echo MB:0=10 >$R/rest/schemata
        echo delayed $(role rate 33554432 $R/rest)

        ON="taskset 1"
        echo banks $(role banks 33554432)
        ON=
        echo instructions $(role instructions 20000000)
        lab-watch off; echo unwatched $(role instructions 20000000)
        lab-watch on; echo watched $(role instructions 20000000)
        role sample 20000
        dmesg | grep -i 'Performance Events' | sed 's/^.*Performance/driver Performance/'

        # Code and data apart.
        rmdir $R/part $R/rest; umount $R; mount -t resctrl -o cdp resctrl $R || echo no cdp
        echo apart $(ls $R/info)
        mkdir $R/part $R/part/mon_groups/m; echo L3DATA:0=0003 >$R/part/schemata
        echo data $(role walk 4194304 2 $R/part $R/part/mon_groups/m)
        "#);
    let folder = tempfile::tempdir().unwrap();
    let profile = folder.path().join("profile.toml");
    let (_, icelake) = BUILT_IN.iter().find(|of| of.0 == "icelake").unwrap();
    std::fs::write(&profile, format!("{icelake}\n{BANKS}")).unwrap();
    lab.guest.profile = Some(profile.display().to_string());
    lab.console = Some(PathBuf::from("/dev/null"));
    let said = run(&lab, &packages);
    assert_eq!(said.1.status, 0);
    assert!(
        said.1.booted < Duration::from_secs(90),
        "{:?}",
        said.1.booted
    );
    for flag in [
        "rdt_a",
        "cat_l3",
        "cdp_l3",
        "mba",
        "cqm_occup_llc",
        "cqm_mbm_total",
        "arch_perfmon",
    ] {
        assert!(said.word("flags").split(' ').any(|f| f == flag), "{flag}");
    }
    assert_eq!(said.word("info"), "L3 L3_MON MB last_cmd_status");
    assert_eq!(said.word("size"), "8192K");
    assert_eq!(said.word("pqos"), "0xf0");
    assert_eq!(said.word("kernel").trim_start_matches('0'), "f0");
    assert_eq!(said.word("association"), "1");
    assert!(said.word("apart").contains("L3CODE") && said.word("apart").contains("L3DATA"));

    let within = |what: &str, value: f64, of: f64, share: f64| {
        assert!(
            (value - of).abs() <= share * of,
            "{what}: {value}, not {of}"
        );
    };
    for kib in [1024u32, 1536, 2048, 8192] {
        let bytes = f64::from(kib.min(2048)) * 1024.0;
        within(
            "occupancy",
            said.number(&format!("occupancy {}", kib << 10)),
            bytes,
            // With lines of the kernel's. A way more or less would be a quarter.
            0.08,
        );
    }
    within(
        "data of two ways",
        said.word("data")
            .split(' ')
            .next_back()
            .unwrap()
            .parse()
            .unwrap(),
        1_048_576.0,
        0.05,
    );
    // Misses per access.
    let [alone, shared, divided] = ["alone", "shared", "divided"].map(|key| said.number(key));
    assert!(
        shared > alone + 0.9,
        "the stream does not hurt: {alone} alone, {shared} beside it"
    );
    assert!(
        (divided - alone).abs() < 0.05,
        "{alone} alone, {divided} with ways of its own"
    );
    let slowed = said.number("delayed") / said.number("full");
    assert!(
        slowed < 0.5,
        "10 % of bandwidth leaves {slowed} of the rate"
    );
    // Two streams in one bank close each other's rows. In two banks they do not. Cycles per access.
    let banks = said.word("banks").split(' ').map(|n| n.parse().unwrap());
    let [one, two] = banks.collect::<Vec<f64>>()[..] else {
        panic!("{}", said.word("banks"))
    };
    within("a row that is closed costs", one - two, 100.0, 0.15);
    let report = said.1.report.as_ref().unwrap();
    assert_eq!(report.banks.len(), 8);
    assert!(
        report.banks.iter().all(|bank| bank.conflicts > 32768),
        "{:?}",
        report.banks
    );
    assert!(said.word("driver").contains("Intel PMU driver"));
    within(
        "instructions",
        said.number("instructions"),
        40_000_000.0,
        0.01,
    );
    assert!(said.number("unwatched") < 400_000.0, "{}", said.0);
    within("watched", said.number("watched"), 40_000_000.0, 0.01);
    // As many overflows as are due. A few are late when it ends, and one interrupt may stand for
    // two.
    let due = said.number("misses") / 20_000.0;
    assert!(due > 50.0, "{due} overflows are due");
    within("overflows", said.number("samples"), due, 0.1);
}
