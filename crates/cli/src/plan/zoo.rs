//! The machine zoo: every captured or hand-made machine in `tests/machines` × every example policy
//! is a plan that reads as documentation. `QUELL_BLESS=1 cargo test -p quell --bins` writes them
//! anew after a change that is meant.

use std::path::{Path, PathBuf};

use quell_plan::inventory::{Measured, MeterKind};
use quell_report::{Measurements, Style};
use quell_types::units::{Bytes, Rate};

use super::*;

fn repository() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../..")
}

/// Files of a folder by name, without their extension.
fn files(dir: &str) -> Vec<(String, PathBuf)> {
    let mut found: Vec<(String, PathBuf)> = std::fs::read_dir(repository().join(dir))
        .unwrap()
        .map(|entry| entry.unwrap().path())
        .filter(|path| path.extension().is_some_and(|e| e == "toml"))
        .map(|path| {
            let name = path.file_stem().unwrap().to_str().unwrap().to_owned();
            (name, path)
        })
        .collect();
    found.sort();
    found
}

/// A terminal of 80 columns.
fn eighty() -> Style {
    Style {
        width: 80,
        ..Style::default()
    }
}

/// What `quell plan --steps --all` prints, on stdout or, refused, on stderr.
fn answer(name: &str, path: &Path, machine: &Inventory) -> String {
    let shown = Path::new("examples").join(format!("{name}.toml"));
    let planned = policy(path, false).and_then(|p| {
        let plan = quell_plan::planner::plan_beside(&p, machine, &Solos::new());
        plan.map_err(|all| refused(&all, Some(path), true))
    });
    match planned {
        Ok(plan) => printed(&plan, &Met::default(), Some(&shown), true, eighty()),
        Err(failure) => {
            let text = failure
                .text
                .replace(path.to_str().unwrap(), shown.to_str().unwrap());
            format!("quell: {text}\n")
        }
    }
}

#[test]
fn every_machine_and_every_example_policy_make_a_plan_to_read() {
    let bless = std::env::var_os("QUELL_BLESS").is_some();
    let mut wanted: Vec<(PathBuf, String)> = Vec::new();
    let machines = files("tests/machines");
    assert!(machines.len() >= 10, "{machines:?}");
    for (name, path) in machines {
        let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        let dir = repository().join("tests/machines/plans").join(name);
        wanted.push((
            dir.join("doctor.txt"),
            quell_report::doctor_text(&machine, Measurements::default(), Style::default()),
        ));
        machine::assume(&mut machine);
        for (policy, path) in files("examples") {
            let text = answer(&policy, &path, &machine);
            wanted.push((dir.join(format!("{policy}.txt")), text));
        }
    }
    let plans = repository().join("tests/machines/plans");
    if bless {
        let _ = std::fs::remove_dir_all(&plans);
    }
    let mut wrong = Vec::new();
    for (path, text) in &wanted {
        if bless {
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        }
        if std::fs::read_to_string(path).unwrap_or_default() != *text {
            let short = path.strip_prefix(&plans).unwrap().display();
            wrong.push(format!("{short}; now it reads:\n{text}"));
        }
    }
    assert!(wrong.is_empty(), "differ: {}", wrong.join("\n"));
    let there: usize = std::fs::read_dir(&plans)
        .unwrap()
        .map(|dir| std::fs::read_dir(dir.unwrap().path()).unwrap().count())
        .sum();
    assert_eq!(
        there,
        wanted.len(),
        "plans of machines or policies that are gone"
    );
}

/// The buffers that rates are measured with are multiples of it.
#[test]
fn a_last_level_that_each_core_has_for_itself_is_none() {
    let llc = |name: &str| {
        let file = repository().join(format!("tests/machines/{name}.toml"));
        let machine = captured(&file).unwrap_or_else(|f| panic!("{}", f.text));
        machine.data_caches(machine.cpus[0].id).llc
    };
    assert_eq!(llc("arm-altra"), Bytes(32 << 20));
    assert_eq!(llc("jetson-orin"), Bytes(2 << 20));
    assert_eq!(llc("arm-big-little"), Bytes(3 << 20));
    assert_eq!(llc("smt-off"), Bytes(8 << 20));
}

#[test]
fn a_counter_that_is_off_or_was_not_checked_is_no_meter() {
    let file = repository().join("tests/machines/dual-socket-rdt.toml");
    let text = std::fs::read_to_string(file).unwrap();
    let meter = |text: &str| {
        let capture = Capture::parse(text).unwrap();
        capture.inventory().unwrap().means.meter
    };
    assert!(matches!(meter(&text), MeterKind::Hardware { .. }));
    let off = text.replace("p50 = 1.0", "p50 = 0.4");
    assert_ne!(off, text);
    assert_eq!(meter(&off), MeterKind::Time);
    let (before, after) = text.split_once("[measured.counters]").unwrap();
    let (_, after) = after.split_once("[files]").unwrap();
    assert_eq!(meter(&format!("{before}[files]{after}")), MeterKind::Time);
}

/// A machine of the zoo as its files tell it, without what was measured on it.
fn unmeasured(path: &Path) -> Inventory {
    let text = std::fs::read_to_string(path).unwrap();
    let mut table: toml::Table = text.parse().unwrap();
    table.remove("measured");
    let capture = Capture::parse(&table.to_string()).unwrap();
    capture.inventory().unwrap()
}

/// Rates that `quell run` might measure on a machine, from a small board's to a large server's.
fn measurable(machine: &Inventory) -> Vec<Measured> {
    let mut all = Vec::new();
    for peak in [
        500_000_000u64,
        2_000_000_000,
        10_000_000_000,
        60_000_000_000,
    ] {
        for cpus in [1, 2, machine.cpus.len() as u64] {
            for rest in [0, peak / 50] {
                all.push(Measured {
                    peak_cpu: Rate(peak),
                    sustainable: Rate(peak * cpus),
                    rest: Some(Rate(rest)),
                    assumed: false,
                    ..quell_plan::assumed::rates(machine)
                });
            }
        }
    }
    all
}

#[test]
fn what_run_would_accept_plan_does_not_refuse() {
    let (mut accepted, mut refused) = (0, Vec::new());
    for (name, path) in files("tests/machines") {
        let (captured, before) = (
            captured(&path).unwrap_or_else(|f| panic!("{}", f.text)),
            unmeasured(&path),
        );
        assert!(before.measured.is_none(), "{name}");
        let mut assumed = before.clone();
        machine::assume(&mut assumed);
        let mut measured: Vec<Inventory> = measurable(&before)
            .into_iter()
            .map(|rates| Inventory {
                measured: Some(rates),
                ..before.clone()
            })
            .collect();
        measured.extend(captured.measured.is_some().then_some(captured));
        for (example, path) in files("examples") {
            let policy = policy(&path, false).unwrap_or_else(|f| panic!("{}", f.text));
            let plan = |machine: &Inventory| plan(&policy, None, machine, &Solos::new());
            let run = measured.iter().filter(|m| plan(m).is_ok()).count();
            accepted += run;
            if let (1.., Err(failure)) = (run, plan(&assumed)) {
                refused.push(format!("{name}, {example}: {}", failure.text));
            }
        }
    }
    assert!(accepted > 500, "{accepted}");
    assert!(refused.is_empty(), "{}", refused.join("\n"));
}

#[test]
fn what_rests_on_assumed_rates_is_marked() {
    let path = repository().join("tests/machines/jetson-orin.toml");
    let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
    assert!(machine.measured.is_none());
    machine::assume(&mut machine);
    let example = repository().join("examples/cap-a-neighbour.toml");
    let policy = policy(&example, false).unwrap_or_else(|f| panic!("{}", f.text));
    let plan =
        plan(&policy, None, &machine, &Solos::new()).unwrap_or_else(|f| panic!("{}", f.text));
    let json = serde_json::to_value(&plan).unwrap();
    assert_eq!(json["assumed"]["peak-cpu"], "10GB/s");
    let marked = |list: &str| {
        let all = json[list].as_array().unwrap().iter();
        all.filter(|one| one.get("assumed").is_some())
            .cloned()
            .collect::<Vec<_>>()
    };
    let (steps, promises) = (marked("steps"), marked("promises"));
    assert_eq!((steps.len(), promises.len()), (1, 1), "{json}");
    assert_eq!(promises[0]["promise"]["kind"], "limit-bandwidth");
    assert_eq!(promises[0]["held-by"][0], steps[0]["id"]);
    assert!(
        steps[0]["because"].as_str().unwrap().contains("(assumed)"),
        "{steps:?}"
    );
    let text = printed(
        &plan,
        &Met::default(),
        Some(&example),
        false,
        Style::default(),
    );
    let batch = text.lines().find(|l| l.contains("batch: at most")).unwrap();
    assert!(batch.contains("(assumed)"), "{text}");
    let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(flat.contains("`quell plan --measure`"), "{text}");
}

/// The policy that `quell run --critical exe=… --best-effort comm=stress-ng --limit 20%` comes to.
const COMMON: &str = "
quell = 1
[group.critical]
role = 'critical'
match = [{ exe = '/usr/bin/redis-server' }]
[group.best-effort]
role = 'best-effort'
match = [{ comm = 'stress-ng' }]
limit.bandwidth = '20%'
";

#[test]
fn the_common_policy_takes_few_lines_of_eighty_columns() {
    let policy = Policy::parse(COMMON, "policy.toml").unwrap();
    let mut planned = 0;
    for (name, path) in files("tests/machines") {
        let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        machine::assume(&mut machine);
        let Ok(plan) = plan(&policy, None, &machine, &Solos::new()) else {
            continue;
        };
        planned += 1;
        let text = printed(
            &plan,
            &Met::default(),
            Some(Path::new("policy.toml")),
            false,
            eighty(),
        );
        let wide = text.lines().find(|l| l.chars().count() > 80);
        assert_eq!(wide, None, "{name}:\n{text}");
        assert!(text.lines().count() <= 21, "{name}:\n{text}");
        let at = |title: &str| text.lines().position(|l| l == title);
        assert!(at("Promises") < at("Cost"), "{name}:\n{text}");
        assert_eq!(at("Steps"), None, "{name}:\n{text}");
        let whole = printed(
            &plan,
            &Met::default(),
            Some(Path::new("policy.toml")),
            true,
            eighty(),
        );
        assert!(whole.lines().any(|l| l == "Steps"), "{name}:\n{whole}");
    }
    assert_eq!(planned, 10, "all machines but the container");
}

/// Removes a dotted key, if it is there.
fn remove(table: &mut toml::Table, keys: &[&str]) {
    match keys {
        [last] => drop(table.remove(*last)),
        [first, rest @ ..] => {
            if let Some(inner) = table.get_mut(*first).and_then(toml::Value::as_table_mut) {
                remove(inner, rest);
            }
        }
        [] => {}
    }
}

/// A policy with a remedy applied; `None` where that is no line of a policy.
fn applied(text: &str, remedy: &Remedy) -> Option<String> {
    let mut table: toml::Table = text.parse().unwrap();
    match remedy {
        Remedy::Set { key, value } => {
            let parsed: toml::Table = format!("value = {value}").parse().unwrap();
            let (mut at, keys) = (&mut table, key.split('.').collect::<Vec<_>>());
            let (last, tables) = keys.split_last().unwrap();
            for name in tables {
                let next = at
                    .entry(*name)
                    .or_insert(toml::Value::Table(toml::Table::new()));
                at = next.as_table_mut().unwrap();
            }
            at.insert((*last).to_owned(), parsed["value"].clone());
        }
        Remedy::LeaveOut { keys } => {
            for key in keys {
                remove(&mut table, &key.split('.').collect::<Vec<_>>());
            }
        }
        _ => return None,
    }
    Some(table.to_string())
}

#[test]
fn every_suggested_line_gives_a_plan_or_another_refusal() {
    let (mut lines, mut wrong) = (0, Vec::new());
    for (name, path) in files("tests/machines") {
        let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        machine::assume(&mut machine);
        for (example, path) in files("examples") {
            let text = std::fs::read_to_string(&path).unwrap();
            let plan = |text: &str| {
                let policy = Policy::parse(text, "policy.toml");
                policy.map(|p| quell_plan::planner::plan(&p, &machine))
            };
            let Err(refusals) = plan(&text).unwrap() else {
                continue;
            };
            for refusal in refusals {
                let remedies = &refusal.remedies;
                if !remedies.iter().any(Remedy::is_exact) {
                    wrong.push(format!("{name}, {example}: nothing exact helps: {refusal}"));
                }
                for (remedy, policy) in remedies
                    .iter()
                    .filter_map(|r| Some((r, applied(&text, r)?)))
                {
                    lines += 1;
                    match plan(&policy) {
                        Ok(Ok(_)) => {}
                        Ok(Err(now)) if !now.contains(&refusal) => {}
                        Ok(Err(_)) => {
                            wrong.push(format!("{name}, {example}: {remedy}: the same: {refusal}"))
                        }
                        Err(e) => wrong.push(format!("{name}, {example}: {remedy}: {e:?}")),
                    }
                }
            }
        }
    }
    assert!(lines > 50, "{lines}");
    assert!(wrong.is_empty(), "{}", wrong.join("\n"));
}

#[test]
fn doctor_begins_with_a_verdict_and_says_each_reason_once() {
    for (name, path) in files("tests/machines") {
        let machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        let text = quell_report::doctor_text(&machine, Measurements::default(), eighty());
        let (_, body) = text.split_once("\n\n").unwrap();
        let (verdict, _) = body.split_once("\n\n").unwrap();
        let verdict = verdict.replace('\n', " ");
        let sentences = verdict.matches(". ").count() + usize::from(verdict.ends_with('.'));
        assert_eq!(sentences, 2, "{name}: {verdict}");
        assert!(verdict.contains(" promise "), "{name}: {verdict}");
        let flat = text.split_whitespace().collect::<Vec<_>>().join(" ");
        for available in machine.mechanisms.values() {
            if let quell_plan::inventory::Availability::No { why, .. } = available {
                let why = why.split_whitespace().collect::<Vec<_>>().join(" ");
                assert_eq!(flat.matches(&why).count(), 1, "{name}: {why}\n{text}");
            }
        }
    }
}

/// Which example plans on which machine, and why the others do not, as a page.
fn table() -> (String, usize) {
    let (mut rows, mut refused, mut all) = (String::new(), 0, 0);
    for (name, path) in files("tests/machines") {
        let mut machine = captured(&path).unwrap_or_else(|f| panic!("{}", f.text));
        machine::assume(&mut machine);
        for (example, path) in files("examples") {
            all += 1;
            let policy = policy(&path, false).unwrap_or_else(|f| panic!("{}", f.text));
            let Err(refusals) = quell_plan::planner::plan(&policy, &machine) else {
                continue;
            };
            refused += 1;
            let lacks =
                |r: &&Refusal| matches!(r.cause, Cause::Rights | Cause::Machine | Cause::NotBuilt);
            let first = refusals.iter().filter(lacks).min_by_key(|r| r.cause);
            let first = first.unwrap_or_else(|| {
                panic!("{name} has what {example} takes, and refuses: {refusals:?}")
            });
            rows.push_str(&format!(
                "| {name} | {example} | `{}` | {} |\n",
                first.key, first.why
            ));
        }
    }
    let page = format!(
        "# Which example policies do not plan, and why\n\n\
         {} of {all} pairs of a machine of the zoo and an example policy have a plan. These {refused} have none, since the \
         machine or this version lacks something. The first reason of each is here, all of them in `plans/`.\n\n\
         | machine | policy | key | why |\n|---|---|---|---|\n{rows}",
        all - refused
    );
    (page, refused)
}

#[test]
fn every_example_plans_where_the_mechanism_is() {
    let (page, refused) = table();
    let file = repository().join("tests/machines/refusals.md");
    if std::env::var_os("QUELL_BLESS").is_some() {
        std::fs::write(&file, &page).unwrap();
    }
    assert_eq!(std::fs::read_to_string(&file).unwrap_or_default(), page);
    assert!(refused < 48, "{refused}");
}
