//! Traces survive the way through a file, damage is found, and lackey's output is read.

use std::io::Cursor;

use proptest::prelude::*;
use quell_sim::trace::{Damaged, Kind, Reader, Record, Writer, import_lackey};

fn written(records: &[Record]) -> Vec<u8> {
    let mut writer = Writer::new(Vec::new()).expect("memory can be written");
    for &record in records {
        writer.push(record).expect("memory can be written");
    }
    writer.finish().expect("memory can be written")
}

fn read(bytes: &[u8]) -> Result<Vec<Record>, Damaged> {
    Reader::new(Cursor::new(bytes), "a.trace")?.collect()
}

fn record() -> impl Strategy<Value = Record> {
    let kind = prop_oneof![Just(Kind::Load), Just(Kind::Store), Just(Kind::Modify)];
    let address = prop_oneof![any::<u64>(), 0..4096u64, Just(u64::MAX)];
    (
        kind,
        address,
        1..=65536u32,
        prop_oneof![0..100u64, any::<u64>()],
    )
        .prop_map(|(kind, address, size, instructions)| Record {
            kind,
            address,
            size,
            instructions,
        })
}

proptest! {
    #[test]
    fn what_is_written_is_read(records in prop::collection::vec(record(), 0..200)) {
        prop_assert_eq!(read(&written(&records)).expect("whole"), records);
    }

    #[test]
    fn every_damage_is_found(records in prop::collection::vec(record(), 1..50), place in any::<prop::sample::Index>(), flip in 1u8..) {
        let mut bytes = written(&records);
        let at = place.index(bytes.len());
        bytes[at] ^= flip;
        prop_assert!(read(&bytes).is_err(), "byte {} of {}", at, bytes.len());
    }

    #[test]
    fn every_cut_is_found(records in prop::collection::vec(record(), 1..50), place in any::<prop::sample::Index>()) {
        let bytes = written(&records);
        let length = place.index(bytes.len());
        let error = read(&bytes[..length]).expect_err("is cut").to_string();
        prop_assert!(error.contains("cut off at byte") || length == 0, "{}", error);
    }

    #[test]
    fn nonsense_is_refused_and_never_panics(mut bytes in prop::collection::vec(any::<u8>(), 0..300), ours in any::<bool>()) {
        if ours {
            bytes.splice(..0, *b"QUELLTRC\x01\0\0\0\0\0\0\0");
        }
        prop_assert!(read(&bytes).is_err());
    }
}

#[test]
fn neighbouring_accesses_take_three_bytes_each() {
    let records: Vec<Record> = (0..1000)
        .map(|n| Record {
            kind: Kind::Load,
            address: 0x7fff_0000 + n * 8,
            size: 8,
            instructions: 3,
        })
        .collect();
    let length = written(&records).len();
    assert!(length < 3 * 1000 + 16 + 16, "{length}");
}

#[test]
fn errors_name_file_place_and_remedy() {
    let good = written(&[Record {
        kind: Kind::Store,
        address: 64,
        size: 8,
        instructions: 1,
    }]);
    let error = |bytes: &[u8]| read(bytes).expect_err("is bad").to_string();
    assert!(error(b"\x7fELF and so on").contains("a.trace: not a trace of Quell's"));
    assert!(error(b"").contains("not a trace"));
    let mut newer = good.clone();
    newer[8] = 2;
    assert!(error(&newer).contains("version 2 of the trace format; this Quell reads version 1"));
    let mut last = good.clone();
    *last.last_mut().expect("not empty") ^= 1;
    assert!(
        error(&last).contains("damaged at byte 22: the checksum is not that of the records"),
        "{}",
        error(&last)
    );
    assert!(error(&[&good[..], b"!"].concat()).contains("bytes follow the end"));
    assert!(
        error(&good[..18]).contains("a.trace: cut off at byte 18, in the middle of a record"),
        "{}",
        error(&good[..18])
    );
}

#[test]
fn lackeys_output_is_imported_and_other_lines_are_told() {
    let text = "==4711== Lackey, an example Valgrind tool\n==4711== \nI  04016d60,3\n S 1ffeffe7e8,8\nI  04016d63,5\nI  04017b70,2\n L 1ffeffe7e0,8\n M 0421c7cc,4\n\n==4711== Counted\n";
    let mut bytes = Vec::new();
    let count = import_lackey(Cursor::new(text), "lackey.out", &mut bytes).expect("is lackey's");
    let expected = |kind, address, size, instructions| Record {
        kind,
        address,
        size,
        instructions,
    };
    assert_eq!(count, 3);
    assert_eq!(
        read(&bytes).expect("whole"),
        [
            expected(Kind::Store, 0x1f_feff_e7e8, 8, 1),
            expected(Kind::Load, 0x1f_feff_e7e0, 8, 2),
            expected(Kind::Modify, 0x0421_c7cc, 4, 0),
        ]
    );
    let error = |text: &str| {
        import_lackey(Cursor::new(text.to_owned()), "lackey.out", Vec::new())
            .expect_err("is bad")
            .to_string()
    };
    assert!(
        error("I  04016d60,3\nhello world\n")
            .starts_with("lackey.out:2: 'hello world' is not a line of")
    );
    assert!(error(" L 10,0\n").starts_with("lackey.out:1:"));
    assert!(error(" L xyz,8\n").starts_with("lackey.out:1:"));
    assert!(error("I  04016d60,3\n").contains("no access in it"));
    // A line without end is cut into pieces. It is not read into memory whole.
    assert!(error(&"x".repeat(1 << 20)).starts_with("lackey.out:1:"));
}

#[test]
fn an_access_across_lines_is_one_per_line() {
    let record = Record {
        kind: Kind::Modify,
        address: 0x103c,
        size: 8,
        instructions: 5,
    };
    let accesses: Vec<_> = record
        .accesses()
        .map(|a| (a.address, a.write, a.compute, a.instructions))
        .collect();
    let expected = [(0x1000, true, 4, Some(5)), (0x1040, true, 0, Some(0))];
    assert_eq!(accesses, expected);
}

/// A real program, recorded and read back, has as many accesses as valgrind wrote.
#[test]
fn a_real_program_can_be_recorded() {
    let folder = std::path::Path::new(env!("CARGO_TARGET_TMPDIR"));
    let log = folder.join("lackey.out");
    let run = std::process::Command::new("valgrind")
        .args(["--tool=lackey", "--trace-mem=yes", "--basic-counts=no"])
        .arg(format!("--log-file={}", log.display()))
        .arg("/bin/true")
        .status();
    if !run.is_ok_and(|status| status.success()) {
        quell_testing::skip("valgrind is not installed or does not run here");
        return;
    }
    let text = std::fs::read(&log).expect("valgrind wrote it");
    let mut bytes = Vec::new();
    let count = import_lackey(&text[..], "lackey.out", &mut bytes).expect("is lackey's");
    let data = text
        .split(|&b| b == b'\n')
        .filter(|line| line.starts_with(b" "))
        .count();
    assert!(count > 10_000 && count == data as u64, "{count} of {data}");
    assert_eq!(read(&bytes).expect("whole").len() as u64, count);
    assert!(
        bytes.len() * 4 < text.len(),
        "{} of {} bytes",
        bytes.len(),
        text.len()
    );
}
