//! Colours by a policy: `quell run` moves pages into frames that it holds, and out of reserved
//! colours. Part of the tests of settling.

use super::*;

/// The pages of the program that have frames of the reserved colours, and all of them.
pub(super) fn share(pid: u32) -> (u64, u64) {
    let found = counted(pid);
    (found[2] + found[3], found.iter().sum())
}

/// `quell run` of a policy that reserves two of eight colours for the program. The hoard has at
/// most 256 MiB, so it holds off no neighbour.
fn run_of_colours(machine: &Machine, pid: u32) -> Command {
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\nmatch = [{{ pid = {pid} }}]\n\
        reserve.banks = '2-3'\n[hoard]\nlimit = '256MiB'\nreserve = '1GiB'\npace = '100%'\n\
        longest-stop = '100ms'\n"
    );
    run_of(machine, &policy)
}

/// The events of the one run on record, as far as they are written.
pub(super) fn events(record: &Path) -> Option<String> {
    let run = fs::read_dir(record).ok()?.next()?.ok()?;
    fs::read_to_string(run.path().join("events.jsonl")).ok()
}

/// The events `owners` of a record: for each the bytes of group b's processes, and of those in the
/// groups that reserve the colours.
fn owners(record: &Path) -> Vec<[u64; 2]> {
    let text = events(record).unwrap();
    let events = text
        .lines()
        .map(|line| serde_json::from_str::<serde_json::Value>(line).unwrap());
    let owners = events.filter(|event| event["event"] == "owners");
    let owners = owners.map(|event| {
        let programs = event["programs"].as_array().unwrap();
        assert!(programs.len() <= 10);
        let own = programs.iter().filter(|program| program["group"] == "b");
        let own = own.map(|program| program["private_bytes"].as_u64().unwrap());
        [own.sum(), event["reserving_bytes"].as_u64().unwrap()]
    });
    owners.collect()
}

#[test]
fn a_killed_run_of_colours_leaves_nothing() {
    let Some(mut machine) = able() else {
        return;
    };
    let program = Checked::start(&machine, 16, false);
    machine.remember();
    for round in 0..3 {
        let run = Running::start(&mut run_of_colours(&machine, program.pid()));
        let (before, _) = share(program.pid());
        // In the middle of moving; then while frames are taken; then once all is done.
        let when = |right: u64, all: u64| match round {
            0 => right > before + 200,
            1 => true,
            _ => right * 100 >= all * 95,
        };
        eventually("the moment has come", || {
            let (right, all) = share(program.pid());
            when(right, all)
        });
        send(run.pid(), Signal::KILL);
        assert_eq!(run.wait().code, 137);
        machine.undone_or_restored();
        program.is_intact();
    }
    machine.unchanged("after three deaths");
}

/// `quell run` of a policy that starts a program of 48 MiB and holds 16 MiB of its colours.
fn run_out_of_colours(machine: &Machine, coloured: &str) -> (Command, String) {
    let out = machine.path("found").display().to_string();
    let _ = fs::remove_file(&out);
    let exe = std::env::current_exe().unwrap().display().to_string();
    let set = format!("QUELL_TEST_OUT={out}");
    let role = [
        "--exact",
        "settling::checks_its_memory",
        "--ignored",
        "--nocapture",
    ];
    let words = [&["env", "QUELL_TEST_MIB=48", &set, &exe], &role[..]].concat();
    let policy = format!(
        "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\ncommand = {words:?}\n\
        reserve.banks = '2-3'\ncoloured = '{coloured}'\n\
        [hoard]\nlimit = '16MiB'\nreserve = '1GiB'\npace = '100%'\nlongest-stop = '100ms'\n"
    );
    (run_of(machine, &policy), out)
}

#[test]
fn a_group_that_runs_out_of_colours_spills() {
    let Some(mut machine) = able() else {
        return;
    };
    machine.remember();
    let (mut command, out) = run_out_of_colours(&machine, "spill");
    let mut run = Running::start(&mut command);
    eventually("the program runs", || fs::exists(&out).unwrap());
    eventually("its promise falls", || {
        crate::common::status()
            .to_string()
            .contains("which were used up")
    });
    assert!(run.alive(), "a spill ends nothing");
    let looked = fs::read_to_string(&out).unwrap();
    eventually("it goes on", || fs::read_to_string(&out).unwrap() != looked);
    assert!(fs::read_to_string(&out).unwrap().ends_with(" false"));
    send(run.pid(), Signal::TERM);
    let done = run.wait();
    // A run that has started a program ends as the program did.
    assert_eq!(done.code, 128 + Signal::TERM.as_raw(), "{done:?}");
    machine.unchanged("after a spill");
}

#[test]
fn a_group_that_is_to_fail_without_colours_ends_the_run() {
    let Some(mut machine) = able() else {
        return;
    };
    machine.remember();
    let (mut command, out) = run_out_of_colours(&machine, "fail");
    let done = Running::start(&mut command).wait();
    assert_ne!(done.code, 0, "{done:?}");
    let why = "no frames of its colours are held any more";
    assert!(done.err.contains(why), "{done:?}");
    // It may have been ended before it said anything.
    let said = fs::read_to_string(&out).unwrap_or_else(|_| " false".to_owned());
    assert!(said.ends_with(" false"), "{said}");
    machine.unchanged("after a failure");
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn a_policy_moves_pages_into_colours_that_it_holds() {
        let Some(mut machine) = able() else {
            return;
        };
        let program = Checked::start(&machine, 16, false);
        machine.remember();
        let record = machine.path("record");
        let mut command = run_of_colours(&machine, program.pid());
        let run = Running::start(command.arg("--out").arg(&record));
        let compaction = || fs::read_to_string("/proc/sys/vm/compact_unevictable_allowed").unwrap();
        eventually("frames are held", || compaction().trim() == "0");
        eventually("its pages have its colours", || {
            let (right, all) = share(program.pid());
            right * 100 >= all * 95
        });
        eventually("it is recorded", || {
            events(&record).is_some_and(|text| text.contains("\"coloured\""))
        });
        send(run.pid(), Signal::TERM);
        let done = run.wait();
        assert_eq!(done.code, 0, "{done:?}");
        assert!(
            done.err.contains("of reserved colours are held"),
            "{done:?}"
        );
        assert!(done.err.contains("had its colours at last"), "{done:?}");
        program.is_intact();
        machine.unchanged("after the run");
    }

    /// The hoard has at most 256 MiB, and programs of no group keep what they have.
    #[test]
    #[ignore = "where its files have changed"]
    fn pages_leave_reserved_colours_if_the_policy_says_so() {
        let Some(mut machine) = able() else {
            return;
        };
        let critical = Checked::start(&machine, 4, false);
        let other = Checked::named(&machine, "other", 16, false);
        machine.remember();
        let size = PAGE as u64;
        for moves in ["none", "groups"] {
            let (before, all) = share(other.pid());
            println!("before: {before} of {all} pages have reserved colours");
            assert!(before * 8 > all, "{before} of {all}");
            let policy = format!(
                "quell = 1\n[group.a]\nrole = 'critical'\ncpus = 'any'\nmatch = [{{ pid = {} }}]\n\
                reserve.banks = '2-3'\n[group.b]\nrole = 'best-effort'\ncpu-weight = 100\n\
                cpus = 'any'\nmatch = [{{ pid = {} }}]\n\
                [hoard]\nlimit = '64MiB'\nreserve = '1GiB'\npace = '100%'\nlongest-stop = '100ms'\n\
                move = '{moves}'\n",
                critical.pid(),
                other.pid()
            );
            let record = machine.path(moves);
            let mut command = run_of(&machine, &policy);
            let run = Running::start(command.arg("--out").arg(&record));
            eventually("the critical program has its colours", || {
                let (right, all) = share(critical.pid());
                right * 100 >= all * 95
            });
            if moves == "none" {
                std::thread::sleep(Duration::from_secs(3));
                let (now, _) = share(other.pid());
                assert!(now.abs_diff(before) <= 64, "{before} before, {now} now");
            } else {
                eventually("the neighbour's pages have left them", || {
                    let (now, all) = share(other.pid());
                    now * 100 < all
                });
                eventually("it is recorded", || {
                    events(&record).is_some_and(|text| text.contains("\"out\":true"))
                });
            }
            send(run.pid(), Signal::TERM);
            let done = run.wait();
            assert_eq!(done.code, 0, "{done:?}");
            let says = done.err.contains("lay outside of reserved colours");
            assert_eq!(says, moves == "groups", "{done:?}");
            assert!(
                done.err.contains("frames of reserved colours 2-3"),
                "{done:?}"
            );
            critical.is_intact();
            other.is_intact();
            let owners = owners(&record);
            println!("{moves}: {owners:?} bytes of b and of a");
            assert_eq!(owners.len(), 2, "{owners:?}: {done:?}");
            assert!((owners[0][0] / size).abs_diff(before) <= 64, "{owners:?}");
            // The critical program has 4 MiB.
            assert!(owners[1][1] > 7 << 19, "{owners:?}");
            // Where nothing is moved it stays at a quarter.
            let left = owners[1][0] / size;
            assert_eq!(left * 20 < all, moves == "groups", "{owners:?}");
        }
        machine.unchanged("after both runs");
    }
}
