//! Bad input and bad surroundings: an error that says what is wrong and what to do, exit 1 or 2,
//! and nothing changed.

use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;

use crate::common::{Done, Program, Running, machine, run};

/// `quell run` with a policy file of this content.
fn run_policy(machine: &crate::common::Machine, content: &str) -> Done {
    run(&["run", &machine.file("p.toml", content)])
}

#[test]
fn what_a_policy_gets_wrong_is_located_and_nothing_is_changed() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let critical = "quell = 1\n[group.a]\nrole = \"critical\"\n";
    let bad: [(&str, &[&str]); 5] = [
        (
            "mach = [{ pid = 1 }]\n",
            &[
                "p.toml:4:1",
                "unknown key 'mach'",
                "group.a",
                "did you mean 'match'",
            ],
        ),
        (
            "match = [{ comm = \"no-such\" }]\nlimit.bandwidth = \"20 furlongs\"\n",
            &[
                "p.toml:5",
                "group.a.limit.bandwidth",
                "20 furlongs",
                "600MB/s",
            ],
        ),
        (
            "match = [{ pid = 1 }]\ncpus = \"900\"\n",
            &["p.toml:5", "group.a.cpus", "CPU 900", "usable: "],
        ),
        (
            "",
            &["p.toml:2", "group.a", "no task can belong to it", "match"],
        ),
        ("match = [{ comm = \"x\"\n", &["p.toml:4"]),
    ];
    for (lines, names) in bad {
        run_policy(&machine, &format!("{critical}{lines}")).fails(2, names);
        machine.unchanged(lines);
    }
    run(&["run", "/no/such/policy.toml"]).fails(2, &["/no/such/policy.toml", "cannot be read"]);
    let both = format!("{critical}[group.b]\nrole = \"best-effort\"\nlimit.bandwidth = \"20%\"\n");
    let both = machine.file("both.toml", &both);
    run(&["run", &both, "--", "true"]).fails(2, &["both.toml", "a, b", "--"]);
    let none = machine.file(
        "none.toml",
        &format!("{critical}match = [{{ comm = \"no-such\" }}]\n"),
    );
    run(&["run", &none, "--", "true"]).fails(2, &["none.toml", "no group is left", "match"]);
}

#[test]
fn unassignable_tasks_are_refused_and_nothing_is_changed() {
    let Some(mut machine) = machine() else {
        return;
    };
    let program = Program::start(&["sleep", "600"]);
    let gone = {
        let mut short = Program::start(&["true"]);
        short.0.wait().unwrap();
        short.pid()
    };
    machine.remember();
    let pid = program.pid();
    let matching = format!("pid={pid}");
    run(&["run", "--critical", &matching, "--best-effort", &matching]).fails(
        2,
        &[
            "two groups",
            &pid.to_string(),
            "sleep",
            "best-effort",
            "critical",
        ],
    );
    machine.unchanged("two groups");
    run(&["run", "--critical", &format!("pid={gone}")]).fails(2, &[&gone.to_string()]);
    machine.unchanged("a process that is gone");
}

#[test]
fn options_that_make_no_sense_are_refused() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let cases: [(&[&str], i32, &[&str]); 16] = [
        (&["run"], 2, &["--critical", "policy file"]),
        (
            &["run", "--critical", "pdi=1"],
            2,
            &["pdi", "did you mean 'pid'"],
        ),
        (
            &["run", "--critical", "pid=1", "--limit", "20%"],
            2,
            &["--limit needs --best-effort"],
        ),
        (
            &["run", "--limit", "20", "--", "true"],
            2,
            &["--limit", "'20'", "20%"],
        ),
        (
            &[
                "run",
                "--limit",
                "120%",
                "--best-effort",
                "comm=x",
                "--",
                "true",
            ],
            2,
            &["--limit: 120% is more than the machine has", "at most 100%"],
        ),
        (
            &[
                "run",
                "--critical",
                "comm=a",
                "--best-effort",
                "comm=b",
                "--",
                "true",
            ],
            2,
            &["both name running tasks", "--"],
        ),
        (
            &["run", "p.toml", "--limit", "20%"],
            2,
            &["--limit", "cannot be used with"],
        ),
        (
            &[
                "run",
                "--best-effort",
                "comm=no-such",
                "--limit",
                "0.01%",
                "--",
                "true",
            ],
            2,
            &["--limit is refused", "0.1%", "help: --limit "],
        ),
        (
            &["plan", "--critical", "pid=1", "--cpus", "900"],
            2,
            &["--cpus is refused", "help: --cpus 1"],
        ),
        (&["plan"], 2, &["name what to protect"]),
        (
            &["run", "--cpus", "900", "--", "true"],
            2,
            &["cpus", "900", "help: --cpus 1"],
        ),
        (&["compare", "no-such"], 2, &["no-such", "neighbour"]),
        (
            &["compare", "neighbour", "--on", "lab:x86"],
            2,
            &["--on", "x86", "icelake"],
        ),
        (
            &["compare", "neighbour", "--on", "lab", "--lab", "cpus=four"],
            2,
            &["--lab cpus=four", "u32"],
        ),
        (
            &["doctor", "--lab", "cpus=4"],
            2,
            &["--lab cpus=4", "--on lab"],
        ),
        (
            &["compare", "neighbour", "--on", "sim:xeon-w3503"],
            2,
            &[
                "no machine profile 'xeon-w3503'",
                "did you mean 'xeon-w3530'?",
            ],
        ),
    ];
    for (args, code, names) in cases {
        run(args).fails(code, names);
    }
}

#[test]
fn without_root_it_looks_but_does_not_touch() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    // Where everybody may execute it, wherever it was built.
    let program = machine.path("quell");
    std::fs::copy(env!("CARGO_BIN_EXE_quell"), &program).unwrap();
    std::fs::set_permissions(machine.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    let nobody = |args: &[&str]| {
        let mut command = Command::new(&program);
        Running::start(command.args(args).uid(65534).gid(65534)).wait()
    };
    for args in [
        &["run", "--", "true"][..],
        &["run", "--critical", "comm=no-such"],
    ] {
        nobody(args).fails(2, &["a weight is refused", "needs root", "CAP_SYS_ADMIN"]);
    }
    assert_eq!(nobody(&["doctor"]).code, 0);
    let policy = machine.file(
        "p.toml",
        "quell = 1\n[group.a]\nrole = \"critical\"\nmatch = [{ comm = \"x\" }]\n",
    );
    let plan = nobody(&["plan", &policy]);
    assert!([0, 2].contains(&plan.code), "{plan:?}");
    let status = nobody(&["status"]);
    assert_eq!(status.code, 5, "{status:?}");
}

/// `quell ARGS` in a mount namespace of its own, after `prepare`; `None`, said aloud, where there
/// is none to be had.
fn hidden(prepare: &str, args: &str) -> Option<Done> {
    let usable = Command::new("unshare").args(["-m", "true"]).status();
    if !usable.is_ok_and(|s| s.success()) {
        quell_testing::skip("no private mount namespace (unshare -m)");
        return None;
    }
    let script = format!("{prepare} && exec \"$QUELL\" {args}");
    let mut command = Command::new("unshare");
    command
        .args(["-m", "--propagation", "private", "sh", "-c", &script])
        .env("QUELL", env!("CARGO_BIN_EXE_quell"));
    Some(Running::start(&mut command).wait())
}

#[test]
fn missing_kernel_interfaces_are_named_and_nothing_is_changed() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let cases: [(&str, &[i32], &str); 4] = [
        // Without cgroups tasks are pinned one by one, which is said.
        (
            "umount -l -R /sys/fs/cgroup",
            &[0],
            "no cpuset hierarchy is mounted",
        ),
        // An interface that is empty offers nothing: done without.
        ("mount -t tmpfs none /proc/irq", &[0], ""),
        ("mount -t tmpfs none /sys", &[125], "/sys is not a sysfs"),
        ("mount -t tmpfs none /proc", &[125], "/proc"),
    ];
    for (prepare, codes, names) in cases {
        let Some(done) = hidden(prepare, "run --cpus auto -- true") else {
            return;
        };
        eprintln!(
            "{prepare}: {} {}",
            done.code,
            done.err.lines().last().unwrap_or_default()
        );
        assert!(codes.contains(&done.code), "{prepare}: {done:?}");
        assert!(done.err.contains(names), "{prepare}: {done:?}");
        assert!(!done.err.contains("panicked"), "{prepare}: {done:?}");
        machine.unchanged(prepare);
    }
}

#[test]
fn a_full_or_read_only_run_folder_is_named_and_nothing_changes() {
    let Some(mut machine) = machine() else {
        return;
    };
    machine.remember();
    let mount = |options: &str| format!("mount -t tmpfs -o {options} none /run/quell");
    let full = |pages: u32| {
        format!(
            "{} && head -c {}k /dev/zero > /run/quell/fill",
            mount("size=64k"),
            64 - 4 * pages
        )
    };
    let read_only = mount("size=64k,ro");
    for pages in 0..6 {
        let Some(done) = hidden(&full(pages), "run -- true") else {
            return;
        };
        eprintln!(
            "{pages} free pages: {} {}",
            done.code,
            done.err.lines().last().unwrap_or_default()
        );
        if done.code != 0 {
            done.fails(125, &["/run/quell", "No space left", "free space"]);
        }
        machine.unchanged("a full disk");
        if pages == 0 {
            assert_ne!(done.code, 0, "the disk was not full");
        }
    }
    if let Some(done) = hidden(&read_only, "run -- true") {
        done.fails(125, &["/run/quell", "Read-only"]);
    }
}
