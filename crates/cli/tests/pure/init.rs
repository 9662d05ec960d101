//! `quell init` as scripts call it: no question, no probe, no file overwritten, and what it writes
//! is what `quell plan` plans.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};

use crate::common::{Program, Running, quell, run};
use tempfile::TempDir;

/// A program of a name that no other one has.
fn job(folder: &TempDir, name: &str) -> (Program, String) {
    let path = folder.path().join(name);
    fs::copy("/bin/sleep", &path).unwrap();
    let path = path.to_str().unwrap().to_owned();
    (Program::start(&[&path, "600"]), format!("exe={path}"))
}

/// A folder that every user may write to.
fn folder() -> TempDir {
    let folder = tempfile::tempdir().unwrap();
    fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
    folder
}

fn in_folder(folder: &TempDir, name: &str) -> String {
    folder.path().join(name).to_str().unwrap().to_owned()
}

/// What the last two lines of a policy say to type.
fn commands(text: &str) -> Vec<&str> {
    let mut last: Vec<&str> = text.lines().rev().take(2).collect();
    last.reverse();
    last.into_iter()
        .map(|l| l.trim_start_matches(['#', ' ']))
        .collect()
}

#[test]
fn a_policy_is_written_for_what_runs_and_plans_elsewhere() {
    let folder = folder();
    let (_service, service) = job(&folder, "init-service");
    let (_batch, batch) = job(&folder, "init-batch");
    let out = in_folder(&folder, "policy.toml");
    let args = ["--critical", &service, "--best-effort", &batch];
    let done = run(&[&["init", "--no-probe", "--out", &out], &args[..]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let text = fs::read_to_string(&out).unwrap();
    let [plan, held] = commands(&text)[..] else {
        panic!("{text}");
    };
    assert_eq!(plan, format!("quell plan {out}"));
    assert_eq!(held, format!("sudo quell run {out}"));
    for said in [&done.out, &text] {
        assert!(said.contains(plan) && said.contains(held), "{said}");
    }
    for said in [
        "[group.init-service]",
        "[group.init-batch]",
        "1 process with",
    ] {
        assert!(text.contains(said), "{said}: {text}");
    }
    let planned = run(&["plan", &out]);
    assert_eq!(planned.code, 0, "{planned:?}\n{text}");
    let machine = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/machines/small-vm.toml");
    let there = ["plan", &out, "--json", "--machine"];
    let planned = run(&[&there[..], &[machine.to_str().unwrap()]].concat()).json();
    let steps = planned["steps"].as_array().unwrap();
    let weighed = |s: &serde_json::Value| s["mechanism"] == "weight" && s["group"] == "init-batch";
    assert!(steps.iter().any(weighed), "{planned}");
}

#[test]
fn a_file_that_is_there_stays_as_it_is_unless_forced() {
    let folder = folder();
    let (_service, service) = job(&folder, "init-kept");
    let out = in_folder(&folder, "mine.toml");
    fs::write(&out, "mine").unwrap();
    let args = ["init", "--critical", &service, "--no-probe", "--out", &out];
    run(&args).fails(2, &[&out, "exists", "--force"]);
    assert_eq!(fs::read_to_string(&out).unwrap(), "mine");
    let done = run(&[&args[..], &["--force"]].concat());
    assert_eq!(done.code, 0, "{done:?}");
    let text = fs::read_to_string(&out).unwrap();
    assert!(text.contains("[group.init-kept]"), "{text}");
    // Into no folder: nothing is left, and the file is named.
    let nowhere = [
        "init",
        "--critical",
        &service,
        "--no-probe",
        "--out",
        "/no/such/policy.toml",
    ];
    run(&nowhere).fails(1, &["/no/such/policy.toml", "--out"]);
}

#[test]
fn a_script_that_names_nothing_learns_what_to_type() {
    let folder = folder();
    let out = in_folder(&folder, "policy.toml");
    let (_service, service) = job(&folder, "init-twice");
    let done = run(&["init", "--out", &out]);
    done.fails(
        2,
        &[
            "--critical MATCH",
            "the busiest programs",
            "quell init --critical ",
        ],
    );
    let shown = done
        .err
        .lines()
        .filter(|l| l.starts_with("  ") && l.contains(" CPUs, "));
    assert!((1..=3).contains(&shown.count()), "{}", done.err);
    let none = ["init", "--critical", "comm=init-no-such", "--out", &out];
    run(&none).fails(2, &["comm=init-no-such", "the busiest programs"]);
    let both = [
        "init",
        "--critical",
        &service,
        "--best-effort",
        &service,
        "--out",
        &out,
    ];
    run(&both).fails(2, &["is matched by two groups"]);
    run(&["init", "--critical", "com=x"]).fails(2, &["did you mean 'comm'?"]);
    run(&["init", "--probe", "--no-probe"]).fails(2, &["--no-probe"]);
    assert!(!Path::new(&out).exists());
}

#[test]
fn standard_output_takes_the_policy_alone() {
    let folder = folder();
    let (_service, service) = job(&folder, "init-piped");
    let done = run(&["init", "--critical", &service, "--out", "-"]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("nothing was probed"), "{}", done.err);
    let out = in_folder(&folder, "piped.toml");
    fs::write(&out, &done.out).unwrap();
    let planned = run(&["plan", &out]);
    assert_eq!(planned.code, 0, "{planned:?}\n{}", done.out);
}

#[test]
fn without_root_a_policy_is_written_and_says_what_was_not_seen() {
    if !quell_kernel::is_root() {
        quell_testing::skip("every other test of this file is without root already");
        return;
    }
    let folder = folder();
    let (_service, service) = job(&folder, "init-plain");
    let (_batch, batch) = job(&folder, "init-slow");
    let program: PathBuf = folder.path().join("quell");
    fs::copy(env!("CARGO_BIN_EXE_quell"), &program).unwrap();
    let nobody = |args: &[&str]| {
        let mut command = std::process::Command::new(&program);
        command.args(args).current_dir(folder.path());
        command.env("QUELL_STATE_DIR", folder.path());
        Running::start(command.uid(65_534).gid(65_534)).wait()
    };
    let comm = |s: &str| format!("comm={}", s.rsplit('/').next().unwrap());
    let (service, batch) = (comm(&service), comm(&batch));
    let done = nobody(&[
        "init",
        "--critical",
        &service,
        "--best-effort",
        &batch,
        "--no-probe",
    ]);
    assert_eq!(done.code, 0, "{done:?}");
    assert!(done.err.contains("sudo quell init"), "{}", done.err);
    let text = fs::read_to_string(folder.path().join("policy.toml")).unwrap();
    assert!(text.contains("not run as root"), "{text}");
    let planned = nobody(&["plan", "policy.toml"]);
    assert_eq!(planned.code, 0, "{planned:?}\n{text}");
    assert!(quell().arg("--version").status().unwrap().success());
}
