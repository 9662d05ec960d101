//! Machine profiles that are wrong, at the command line: every command that takes one exits with 2
//! and says where, why and what to do. No root.

use std::path::Path;
use std::process::Command;

const PROFILE: &str = include_str!("../../../sim/profiles/xeon-w3530.toml");

const POLICY: &str = "quell = 1\n[group.a]\nrole = \"critical\"\ncpus = 1\ncommand = [\"true\"]\n";

/// Its exit code and what it says on stderr.
fn quell(dir: &Path, args: &[&str]) -> (Option<i32>, String) {
    let mut command = Command::new(env!("CARGO_BIN_EXE_quell"));
    let out = command.args(args).current_dir(dir).output().unwrap();
    (out.status.code(), String::from_utf8(out.stderr).unwrap())
}

/// What all commands that take a machine say of this one.
#[track_caller]
fn refused(dir: &Path, machine: &str) -> String {
    let [one, two, three] = [
        ["compare", "neighbour", "--on", machine],
        ["plan", "p.toml", "--on", machine],
        ["doctor", "--on", machine, "--json"],
    ]
    .map(|args| quell(dir, &args));
    assert_eq!(one.0, Some(2), "{machine}: {}", one.1);
    assert!(one == two && two == three, "{one:?}\n{two:?}\n{three:?}");
    one.1
}

#[test]
fn a_profiles_mistakes_are_reported_with_place_and_remedy() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.toml"), POLICY).unwrap();
    // What is replaced, by what, and every line that is said of it.
    let cases: &[(&str, &str, &[&str])] = &[
        (
            "misses = 10",
            "miss = 10",
            &[
                "11:1: unknown key 'miss' in cores; did you mean 'misses'?",
                "7:2: cores.misses is missing",
            ],
        ),
        (
            "size = \"32KiB\"",
            "size = \"32ms\"",
            &["17:8: cache[0].size: '32ms' is not a size such as 64KiB, 3MiB or 2GB"],
        ),
        (
            "slice = \"3ms\"",
            "slice = \"3MiB\"",
            &["85:9: os.slice: '3MiB' is not a duration such as 500us, 1ms or 2s"],
        ),
        (
            "count = 4",
            "count = -4",
            &["8:9: cores.count: integer '-4' is not a whole number from 0 to 4294967295"],
        ),
        (
            "\"cpu-max\"",
            "\"cpu-mx\"",
            &[
                "92:53: mechanisms.available[4]: 'cpu-mx' is not one of weight, cores, bandwidth, ways, sets, banks, pseudo-lock, mba, memory, paging, stop, placement, cpu-max, io-max, io-latency, io-weight, windows; did you mean 'cpu-max'?",
            ],
        ),
        (
            "size = \"32KiB\"",
            "size = \"100KB\"",
            &[
                "17:8: cache[0].size: cache geometry: 100000 bytes are not a whole number of sets of 8 ways of 64 bytes; correct size, ways, line or the functions",
            ],
        ),
        (
            "size = \"8MiB\"",
            "size = \"6MiB\"",
            &[
                "38:8: cache[2].size: 8192 sets by the functions of 16 ways of 64 bytes are 8388608 bytes, not 6291456; correct size, ways or the functions",
            ],
        ),
        (
            "ways = 16",
            "ways = 65",
            &["39:8: cache[2].ways: 65: 1 to 64 are possible"],
        ),
        (
            "set = [\"6-18\"]",
            "set = [\"6-17\", [6, 7]]",
            &[
                "45:7: cache[2].set: function 0xc0 is the XOR of others: half of the sets would stay empty; remove or change it",
            ],
        ),
        (
            "row = [\"15-18\", \"21-31\"]",
            "row = [\"15-18\", \"21-30\"]",
            &[
                "50:8: memory.size: the functions tell 2GiB apart, not 4GiB; every address bit from 6 up must be in channel, rank, bank, row or column",
            ],
        ),
        (
            "row = [\"15-18\", \"21-31\"]",
            "row = [\"15-18\", \"21-30\", 20]",
            &[
                "56:7: memory.row: row function: 0x100000 is zero or the XOR of others: two lines would have the same location; remove or change it",
            ],
        ),
        (
            "count = 4",
            "count = 65",
            &["8:9: cores.count: 65: 1 to 64 are possible"],
        ),
        (
            "count = 4\nthreads = 1",
            "count = 40\nthreads = 2",
            &[
                "8:9: cores.count: 40 cores of 2 threads: at most 64 threads are possible; give fewer cores, or fewer threads each",
            ],
        ),
        (
            "count = 4",
            "count = = 4",
            &["8:9: extra `=`, expected nothing"],
        ),
    ];
    for (from, to, lines) in cases {
        assert!(PROFILE.contains(from), "{from}");
        std::fs::write(dir.path().join("bad.toml"), PROFILE.replacen(from, to, 1)).unwrap();
        let expected: Vec<String> = lines.iter().map(|l| format!("./bad.toml:{l}\n")).collect();
        let expected = format!("quell: {}", expected.concat());
        assert_eq!(refused(dir.path(), "sim:./bad.toml"), expected, "{to}");
    }
}

#[test]
fn a_profile_that_is_not_there_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    std::fs::write(dir.path().join("p.toml"), POLICY).unwrap();
    for (machine, said) in [
        ("sim:./none.toml", "./none.toml: No such file"),
        ("sim:./none.toml", "name a profile that can be read"),
        ("sim:/", "/: Is a directory"),
        ("sim:xeon-w3350", "did you mean 'xeon-w3530'?"),
        ("sim:z80", "there are xeon-w3530, p4080"),
        ("sim:z80", "such as ./z80.toml"),
        (
            "simulated",
            "write linux, sim, sim:PROFILE, sim:./FILE.toml, coarse, lab or lab:PROFILE",
        ),
    ] {
        let told = refused(dir.path(), machine);
        assert!(told.contains(said), "{machine}: {told}");
    }
}

#[test]
fn how_many_cells_at_a_time_is_refused_where_it_makes_no_sense() {
    let dir = tempfile::tempdir().unwrap();
    for (on, jobs, said) in [
        ("sim", "0", "1 or more"),
        ("sim", "many", "1 or more"),
        (
            "linux",
            "2",
            "one after the other; leave it out, or use --on sim",
        ),
        (
            "linux",
            "1",
            "one after the other; leave it out, or use --on sim",
        ),
    ] {
        let (code, told) = quell(
            dir.path(),
            &["compare", "neighbour", "--on", on, "--jobs", jobs],
        );
        assert_eq!(code, Some(2), "{told}");
        assert!(told.contains("--jobs") && told.contains(said), "{told}");
    }
}
