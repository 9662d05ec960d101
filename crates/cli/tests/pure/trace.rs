//! `quell trace`: lackey's output becomes a trace, a trace is told of, and what is wrong with
//! either is named with file, place and remedy, and leaves nothing behind.

use std::io::Write;
use std::path::Path;
use std::process::{Command, Output, Stdio};

/// Six instructions; a line is read twice, one is written, and the last access lies across two.
const LACKEY: &str = "==4711== Lackey, an example Valgrind tool\n\
    I  04016d60,3\n L 1000,8\nI  04016d63,5\nI  04016d68,2\n L 1008,8\nI  04016d6a,2\n S 2040,4\n\
    I  04016d6c,1\nI  04016d6d,4\n M 307c,8\n==4711== \n";

fn quell(dir: &Path, args: &[&str], input: &str) -> Output {
    let mut child = Command::new(env!("CARGO_BIN_EXE_quell"))
        .args(args)
        .current_dir(dir)
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    // One that does not read it may have ended already.
    let _ = child.stdin.take().unwrap().write_all(input.as_bytes());
    child.wait_with_output().unwrap()
}

fn text(bytes: &[u8]) -> String {
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// It failed with this code, and said all of this in one line.
fn refused(out: &Output, code: i32, parts: &[&str]) {
    let said = text(&out.stderr);
    assert_eq!(out.status.code(), Some(code), "{said}");
    assert!(parts.iter().all(|part| said.contains(part)), "{said}");
    assert_eq!(said.lines().count(), 1, "{said}");
}

#[test]
fn what_lackey_wrote_becomes_a_trace_from_a_file_or_a_pipe() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    std::fs::write(dir.join("lackey.out"), LACKEY).unwrap();
    let out = quell(dir, &["trace", "import", "lackey.out", "-o", "a.trace"], "");
    assert_eq!(out.status.code(), Some(0), "{out:?}");
    assert!(
        text(&out.stdout).starts_with("a.trace: 4 accesses in "),
        "{out:?}"
    );
    quell(dir, &["trace", "import", "-", "-o", "b.trace"], LACKEY);
    let [a, b] = ["a.trace", "b.trace"].map(|file| std::fs::read(dir.join(file)).unwrap());
    assert!(a == b && a.starts_with(b"QUELLTRC"));

    let out = quell(dir, &["trace", "show", "a.trace"], "");
    let told = text(&out.stdout);
    for part in [
        "a.trace: 4 accesses by 6 instructions",
        "2 read, 1 write, 1 read and write; 1 across two lines",
        "4 lines of 64 bytes, 0.00 MB, on 3 pages",
        "a cache of  32KiB would miss  80.00 % of them",
    ] {
        assert!(told.contains(part), "{part}: {told}");
    }
    let out = quell(dir, &["trace", "show", "--json", "a.trace"], "");
    let told: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(
        (&told["lines"], &told["line_accesses"]),
        (&4.into(), &5.into())
    );
    assert_eq!(told["caches"][3]["misses"], 4);
}

#[test]
fn what_is_not_lackeys_is_reported_with_its_line() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    quell(dir, &["trace", "import", "-", "-o", "a.trace"], LACKEY);
    let before = std::fs::read(dir.join("a.trace")).unwrap();
    let import = |input: &str| quell(dir, &["trace", "import", "-", "-o", "a.trace"], input);
    refused(
        &import("I  04016d60,3\n L 1000,8\nhello world\n"),
        2,
        &["standard input:3", "'hello world'", "--log-file"],
    );
    refused(&import(" L 1000,0\n"), 2, &["standard input:1", "L 1000,0"]);
    refused(
        &import("==1== Lackey\nI  04016d60,3\n"),
        2,
        &["no access in it", "--trace-mem=yes"],
    );
    refused(
        &quell(dir, &["trace", "import", "no.out", "-o", "a.trace"], ""),
        2,
        &["no.out", "No such file", "valgrind --tool=lackey"],
    );
    refused(
        &quell(dir, &["trace", "import", "-", "-o", "no/a.trace"], LACKEY),
        1,
        &["no/a.trace", "No such file", "-o"],
    );
    assert_eq!(std::fs::read(dir.join("a.trace")).unwrap(), before);
    assert_eq!(std::fs::read_dir(dir).unwrap().count(), 1);
}

#[test]
fn a_trace_that_is_damaged_is_told_with_the_byte_and_what_to_do() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    quell(dir, &["trace", "import", "-", "-o", "a.trace"], LACKEY);
    let whole = std::fs::read(dir.join("a.trace")).unwrap();
    let show = |bytes: &[u8]| {
        std::fs::write(dir.join("b.trace"), bytes).unwrap();
        quell(dir, &["trace", "show", "b.trace"], "")
    };
    refused(
        &show(&whole[..20]),
        2,
        &["b.trace: cut off at byte 20", "import it again"],
    );
    let mut damaged = whole.clone();
    *damaged.last_mut().unwrap() ^= 1;
    refused(
        &show(&damaged),
        2,
        &["b.trace: damaged at byte", "checksum", "import it again"],
    );
    refused(
        &show(LACKEY.as_bytes()),
        2,
        &["b.trace: not a trace", "import it"],
    );
    refused(
        &quell(dir, &["trace", "show", "no.trace"], ""),
        2,
        &["no.trace", "quell trace import"],
    );
}

/// The first argument of such an experiment is fine, where it is to run is not.
#[test]
fn a_trace_is_refused_on_this_machine_with_the_reason() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let experiment = "quell = 1\nbackends = [\"sim\"]\n[measure]\nduration = \"1s\"\n\
        [subject.a]\nrole = \"critical\"\nrun = { kind = \"trace\", file = \"a.trace\" }\n\
        [configuration.none]\n";
    std::fs::write(dir.join("e.toml"), experiment).unwrap();
    refused(
        &quell(dir, &["compare", "e.toml", "--on", "linux"], ""),
        2,
        &["e.toml: subject 'a' is a trace", "--on sim", "`command`"],
    );
    let experiment = experiment.replace("\"sim\"", "\"linux\"");
    std::fs::write(dir.join("e.toml"), experiment).unwrap();
    refused(
        &quell(dir, &["compare", "e.toml"], ""),
        2,
        &["e.toml:7:1: subject.a.run", "backends = [\"sim\"]"],
    );
}
