//! `quell status`: what is held now, for a person and for a script.

use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::Command;

use super::gathered::{allowed, busy};
use crate::common::{Running, eventually, machine, quell, run, status};
use quell_kernel::cgroup::{Cgroups, Controller};
use rustix::process::Signal;

#[test]
fn status_has_a_line_for_each_group_and_promise() {
    let Some(mut machine) = machine() else {
        return;
    };
    let (critical, other) = (busy(), busy());
    machine.remember();
    let nothing = run(&["status"]);
    assert_eq!(nothing.code, 5, "{nothing:?}");
    let policy = format!(
        "quell = 1\non-drift = 'report'\n[group.a]\nrole = 'critical'\ncpus = 1\nmatch = [{{ pid = {} }}]\n\
        [group.b]\nrole = 'best-effort'\nmatch = [{{ pid = {} }}]\n",
        critical.pid(),
        other.pid()
    );
    let policy = machine.file("p.toml", &policy);
    let held = Running::start(quell().args(["run", &policy]));
    eventually("it has its CPU", || allowed(critical.pid()).len() == 1);
    eventually("it holds", || run(&["status"]).code == 0);
    let mut said = run(&["status"]);
    eventually("its CPU is busy", || {
        said = run(&["status"]);
        let of_a = said
            .out
            .lines()
            .map(str::trim_start)
            .find(|l| l.starts_with("a "));
        let used = of_a.and_then(|l| l.split_whitespace().nth(3)?.parse::<f64>().ok());
        used.is_some_and(|used| used > 0.5)
    });
    let line = |name: &str| {
        let mut lines = said.out.lines().map(str::trim_start);
        let line = lines.find(|line| line.starts_with(name));
        line.unwrap_or_else(|| panic!("no line {name}: {said:?}"))
    };
    let words =
        |name: &str| -> Vec<String> { line(name).split_whitespace().map(str::to_owned).collect() };
    let of_a = words("a ");
    assert_eq!(of_a[1], "1", "one process: {said:?}");
    assert_eq!(of_a[2], allowed(critical.pid()).to_string(), "{said:?}");
    assert_eq!(of_a.last().unwrap(), "0", "no drift: {said:?}");
    assert_eq!(words("b ")[1], "1", "{said:?}");
    let promised = said
        .out
        .lines()
        .any(|line| line.contains("holds       a: CPU"));
    assert!(promised, "{said:?}");

    // Another program changes what was set.
    let cgroups = Cgroups::discover(&machine.kernel).unwrap();
    let cpu = cgroups.of(Controller::Cpuset).unwrap();
    let dir = cpu
        .dir_of(&machine.kernel, critical.pid())
        .unwrap()
        .unwrap();
    let file = Path::new(&dir).join("cpuset.cpus");
    let was = fs::read_to_string(&file).unwrap();
    fs::write(&file, allowed(other.pid()).to_string()).unwrap();
    let told = status();
    assert_eq!(told[0]["groups"][0]["drift"], 1, "{told}");
    let drift = told[0]["drift"][0].as_str().unwrap();
    assert!(drift.contains(file.to_str().unwrap()), "{told}");
    eventually("the promise is lost", || run(&["status"]).code == 3);
    let said = run(&["status"]).out;
    assert!(said.contains("LOST") && said.contains("drift"), "{said}");
    fs::write(&file, was.trim()).unwrap();
    held.signal(Signal::TERM);
    assert_eq!(held.wait().code, 3);
    machine.unchanged("after the run");
}

#[test]
fn status_without_root_says_what_it_cannot_see() {
    let Some(mut machine) = machine() else {
        return;
    };
    let critical = busy();
    let program = machine.path("quell");
    fs::copy(env!("CARGO_BIN_EXE_quell"), &program).unwrap();
    fs::set_permissions(machine.folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    machine.remember();
    let pid = format!("pid={}", critical.pid());
    let held = Running::start(quell().args(["run", "--critical", &pid, "--cpus", "1"]));
    eventually("it has its CPU", || allowed(critical.pid()).len() == 1);
    eventually("it holds", || run(&["status"]).code == 0);
    let mut command = Command::new(&program);
    let said = Running::start(command.arg("status").uid(65534).gid(65534)).wait();
    assert_eq!(said.code, 4, "{said:?}");
    assert!(
        said.out
            .contains("CANNOT BE SEEN (its heartbeat is for root"),
        "{said:?}"
    );
    assert!(
        !said.out.contains("DOES NOT HOLD") && !said.out.contains(" 0 entries"),
        "{said:?}"
    );
    assert!(
        !said.out.contains("critical          0"),
        "it has a process: {said:?}"
    );
    held.signal(Signal::TERM);
    assert_eq!(held.wait().code, 0);
    machine.unchanged("after the run");
}
