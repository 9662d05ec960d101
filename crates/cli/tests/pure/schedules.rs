//! Scheduling policies on the coarse machine, through the program.

use std::path::Path;
use std::process::Command;

use quell_sim::recorded::built_in;

fn quell(dir: &Path, args: &[&str]) -> std::process::Output {
    Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .current_dir(dir)
        .output()
        .unwrap()
}

/// Sixteen programs under three policies, two seconds each alone.
fn mix() -> String {
    let mut text = String::from(
        "quell = 1\nname = \"mix\"\nbackends = [\"coarse:xeon-e5645\"]\n[measure]\nrounds = 3\nuntil = \"all-once\"\n",
    );
    for (n, program) in built_in().keys().cycle().take(16).enumerate() {
        text += &format!(
            "[subject.p{n}]\nrole = \"best-effort\"\nrun = {{ kind = \"recorded\", program = \"{program}\", alone = \"2s\" }}\n"
        );
    }
    text += "[configuration.solo]\nalone = true\n[configuration.mix]\nname = \"mix/{policy}\"\n[configuration.mix.axis.policy]\n";
    for policy in ["linux", "bandwidth-aware", "fair"] {
        text += &format!(
            "{policy} = {{ scheduler = {{ policy = \"{policy}\", quantum = \"20ms\" }} }}\n"
        );
    }
    text
}

fn compared(dir: &Path, jobs: &str) -> serde_json::Value {
    std::fs::write(dir.join("mix.toml"), mix()).unwrap();
    let out = quell(
        dir,
        &[
            "compare",
            "./mix.toml",
            "--json",
            "--jobs",
            jobs,
            "--out",
            jobs,
        ],
    );
    assert!(out.status.success(), "{out:?}");
    serde_json::from_slice(&out.stdout).unwrap()
}

#[test]
fn a_mix_has_figures_over_all_its_programs_for_any_jobs() {
    let dir = tempfile::tempdir().unwrap();
    let [one, two] = ["1", "2"].map(|jobs| compared(dir.path(), jobs));
    assert!(one == two, "one at a time and two");
    let of = |name: &str| {
        let all = one["configurations"].as_array().unwrap();
        all.iter().find(|c| c["name"] == name).unwrap()["totals"].clone()
    };
    for name in ["mix/linux", "mix/bandwidth-aware", "mix/fair"] {
        let totals = of(name);
        let figure = |figure: &str| totals[figure].as_f64().unwrap();
        assert!(
            figure("avg_ipc") > 0.0 && figure("hm_weighted_ipc") <= 1.0001,
            "{totals}"
        );
        assert!(
            figure("unfairness") >= 1.0 && figure("stp") <= 12.001,
            "{totals}"
        );
        assert!(figure("last_s") >= figure("turnaround_s"), "{totals}");
        assert!(
            totals["ci95"]["stp"].is_array() || totals["ci95"]["stp"].is_object(),
            "{totals}"
        );
    }
    // With the same programs in the same order, fairness is what the policy makes of it.
    let unfairness = |name: &str| of(name)["unfairness"].as_f64().unwrap();
    assert!(unfairness("mix/fair") < unfairness("mix/linux"));
    let against = &of("mix/fair")["against"]["mix/linux"]["unfairness"]["value"];
    assert!(against.as_f64().unwrap() < 1.0, "{against}");
}

#[test]
fn what_the_coarse_machine_cannot_do_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let name = built_in().keys().next().unwrap();
    let subject =
        format!("role = \"best-effort\"\nrun = {{ kind = \"recorded\", program = \"{name}\" }}\n");
    let head = "quell = 1\nbackends = [\"coarse\"]\n[measure]\nrounds = 1\nuntil = \"all-once\"\n[subject.p]\n";
    let fair = "[configuration.fair]\nscheduler.policy = \"fair\"\n";
    for (text, on, told) in [
        (
            format!("{head}{}{fair}", subject.replace(name, "nothing")),
            None,
            "there is no recorded program 'nothing'",
        ),
        (
            format!("{head}{subject}cpus = \"0\"\n{fair}"),
            None,
            "where [scheduler] decides",
        ),
        (
            format!("{head}{subject}{fair}").replace("[\"coarse\"]", "[\"linux\"]"),
            None,
            "runs on the coarse machine",
        ),
        (
            format!("{head}{subject}{fair}"),
            Some("sim:p4080"),
            "use --on coarse",
        ),
        (
            format!("{head}{subject}{fair}"),
            Some("coarse:p4080"),
            "needs [smt]",
        ),
        (
            format!("{head}{subject}[configuration.x]\nscheduler.policy = \"best\"\n"),
            None,
            "best",
        ),
    ] {
        std::fs::write(dir.path().join("e.toml"), &text).unwrap();
        let mut args = vec!["compare", "./e.toml"];
        args.extend(on.into_iter().flat_map(|on| ["--on", on]));
        let out = quell(dir.path(), &args);
        let said = format!(
            "{}{}",
            String::from_utf8_lossy(&out.stdout),
            String::from_utf8_lossy(&out.stderr)
        );
        assert!(said.contains(told), "{told}: {said}");
    }
}

#[test]
fn turns_are_refused_on_linux_by_key() {
    let dir = tempfile::tempdir().unwrap();
    let policy = "quell = 1\n[scheduler]\n[group.a]\nrole = \"best-effort\"\nmatch = [{ comm = \"none\" }]\n";
    std::fs::write(dir.path().join("p.toml"), policy).unwrap();
    let out = quell(dir.path(), &["plan", "./p.toml"]);
    let said = String::from_utf8_lossy(&out.stderr);
    assert!(
        !out.status.success() && said.contains("scheduler"),
        "{said}"
    );
}
