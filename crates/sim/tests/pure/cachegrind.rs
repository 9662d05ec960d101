//! The cache model against cachegrind's on real programs. Valgrind's lackey records a program, and
//! Quell's importer reads the record. The model must miss as often as cachegrind does on the same
//! program with the same geometry.
//!
//! What cachegrind counts (Valgrind manual, "Cachegrind", and its `cg_sim.c`):
//! - An access across two lines is one access, and one miss if either line misses.
//! - What reads and writes the same place is one read.
//! - An access longer than a line counts as one of a line's length.
//! - The last level is asked where the first one missed. It holds instructions as well as data.
//!
//! So instruction fetches are replayed, too: the importer counts them, and lackey's own lines give
//! their addresses. Both tools see the same addresses: valgrind places programs itself, and the
//! environment is fixed.
use std::fs::{self, File};
use std::io::{BufRead, BufReader, Cursor};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use quell_model::cache::{Cache, Geometry, Policy};
use quell_sim::trace::{Kind, Reader, import_lackey};

const LINE: u64 = 64;

/// Size and ways: of the first level for instructions, of that for data, of the last level.
type Levels = [(u64, u32); 3];

const GEOMETRIES: [Levels; 3] = [
    [(32 << 10, 8), (32 << 10, 8), (256 << 10, 16)],
    [(16 << 10, 4), (8 << 10, 2), (128 << 10, 8)],
    [(8 << 10, 2), (4 << 10, 1), (64 << 10, 4)],
];

/// Of instruction fetches, reads and writes: how many there were, and how many missed the first and
/// the last level.
type Counts = [[u64; 3]; 3];

/// An access to a first level and the last level behind it.
fn access(first: &mut Cache, last: &mut Cache, address: u64, size: u64, counts: &mut [u64; 3]) {
    let size = size.min(LINE);
    let misses = |cache: &mut Cache| {
        let (begin, end) = (address / LINE, (address + size - 1) / LINE);
        let missed = !cache.access(begin * LINE, false, 0).0;
        (begin != end && !cache.access(end * LINE, false, 0).0) || missed
    };
    counts[0] += 1;
    if misses(first) {
        counts[1] += 1;
        counts[2] += u64::from(misses(last));
    }
}

/// The addresses and sizes of lackey's instruction fetches.
fn fetches(lackey: &Path) -> impl Iterator<Item = (u64, u64)> {
    let lines = BufReader::new(File::open(lackey).unwrap()).lines();
    lines.filter_map(|line| {
        let line = line.unwrap();
        let (address, size) = line.strip_prefix("I  ")?.split_once(',').unwrap();
        let address = u64::from_str_radix(address, 16).unwrap();
        Some((address, size.parse().unwrap()))
    })
}

/// The counts of the model.
fn modelled(lackey: &Path, trace: &[u8], levels: &Levels, policy: Policy) -> Counts {
    let [mut instructions, mut data, mut last] = levels.map(|(size, ways)| {
        Cache::new(&Geometry::plain(size, ways, LINE).unwrap(), policy, 1).unwrap()
    });
    let mut counts = Counts::default();
    let [fetched, read, written] = &mut counts;
    let mut fetches = fetches(lackey);
    for record in Reader::new(Cursor::new(trace), "a.trace").unwrap() {
        let record = record.unwrap();
        for _ in 0..record.instructions {
            let (address, size) = fetches.next().unwrap();
            access(&mut instructions, &mut last, address, size, fetched);
        }
        let counts = match record.kind {
            Kind::Load | Kind::Modify => &mut *read,
            Kind::Store => &mut *written,
        };
        access(
            &mut data,
            &mut last,
            record.address,
            record.size.into(),
            counts,
        );
    }
    for (address, size) in fetches {
        access(&mut instructions, &mut last, address, size, fetched);
    }
    counts
}

/// Runs a program under a valgrind tool, always in the same environment. False if it failed.
fn under(tool: &[String], program: &[String]) -> bool {
    let status = Command::new("valgrind")
        .args(tool)
        .args(program)
        .env_clear()
        .envs([("LC_ALL", "C"), ("PATH", "/usr/bin:/bin")])
        .stdin(Stdio::null())
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .status();
    status.is_ok_and(|status| status.success())
}

/// The counts of cachegrind.
fn cachegrind(folder: &Path, program: &[String], levels: &Levels) -> Counts {
    let out = folder.join("cachegrind.out");
    let mut tool = vec!["--tool=cachegrind".to_owned(), "--cache-sim=yes".to_owned()];
    for (name, (size, ways)) in ["I1", "D1", "LL"].iter().zip(levels) {
        tool.push(format!("--{name}={size},{ways},{LINE}"));
    }
    tool.push(format!("--cachegrind-out-file={}", out.display()));
    assert!(under(&tool, program), "cachegrind of {program:?} failed");
    let text = fs::read_to_string(out).unwrap();
    let words = |start: &str| -> Vec<&str> {
        let line = text.lines().find_map(|line| line.strip_prefix(start));
        line.unwrap().split_whitespace().collect()
    };
    let (events, sums) = (words("events:"), words("summary:"));
    let of = |event: &str| -> u64 {
        let place = events.iter().position(|e| *e == event).unwrap();
        sums[place].parse().unwrap()
    };
    [
        ["Ir", "I1mr", "ILmr"],
        ["Dr", "D1mr", "DLmr"],
        ["Dw", "D1mw", "DLmw"],
    ]
    .map(|row| row.map(of))
}

/// The largest relative difference between corresponding counts.
fn apart(model: &Counts, witness: &Counts) -> f64 {
    let pairs = model.iter().flatten().zip(witness.iter().flatten());
    pairs
        .map(|(a, b)| a.abs_diff(*b) as f64 / (*b).max(1) as f64)
        .fold(0.0, f64::max)
}

/// A folder with files of fixed names, and a text of fixed bytes.
fn material(name: &str) -> (PathBuf, PathBuf) {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("cachegrind-{name}"));
    let _ = fs::remove_dir_all(&folder);
    fs::create_dir_all(folder.join("names")).unwrap();
    for number in 0..100u32 {
        let name = format!("file-{}", number.wrapping_mul(2_654_435_761) >> 8);
        fs::write(folder.join("names").join(name), "").unwrap();
    }
    let text = folder.join("text");
    let words = (0..600u32).map(|n| format!("{}\n", n.wrapping_mul(2_654_435_761) >> 12));
    fs::write(&text, words.collect::<String>()).unwrap();
    (folder, text)
}

/// Records a program, compares it in every geometry, and shows that a model of another cache would
/// fail.
fn compare(name: &str, program: impl Fn(&Path, &Path) -> Vec<String>) {
    let (folder, text) = material(name);
    let program = program(&folder.join("names"), &text);
    let installed = Command::new("valgrind").arg("--version").output().is_ok();
    if !installed || !Path::new(&program[0]).exists() {
        let absent = if installed { &program[0] } else { "valgrind" };
        quell_testing::skip(format_args!("{absent} is not installed"));
        return;
    }
    let lackey = folder.join("lackey.out");
    let tool = [
        "--tool=lackey".to_owned(),
        "--trace-mem=yes".to_owned(),
        "--basic-counts=no".to_owned(),
        format!("--log-file={}", lackey.display()),
    ];
    assert!(under(&tool, &program), "lackey of {program:?} failed");
    let mut trace = Vec::new();
    let from = BufReader::new(File::open(&lackey).unwrap());
    import_lackey(from, "lackey.out", &mut trace).unwrap();
    for levels in &GEOMETRIES {
        let witness = cachegrind(&folder, &program, levels);
        let model = modelled(&lackey, &trace, levels, Policy::Lru);
        println!("{name} {levels:?}: model {model:?}, cachegrind {witness:?}");
        assert!(
            apart(&model, &witness) <= 0.01,
            "{name} {levels:?}: model {model:?}, cachegrind {witness:?}"
        );
    }
    // The comparison can fail: caches half as large, and another policy, give other counts.
    let levels = &GEOMETRIES[0];
    let witness = cachegrind(&folder, &program, levels);
    let smaller = levels.map(|(size, ways)| (size / 2, ways / 2));
    let other = modelled(&lackey, &trace, &smaller, Policy::Lru);
    assert!(apart(&other, &witness) > 0.05, "{name}: {other:?}");
    let other = modelled(&lackey, &trace, levels, Policy::TreePlru);
    assert!(apart(&other, &witness) > 0.01, "{name}: {other:?}");
    let _ = fs::remove_dir_all(&folder);
}

#[test]
fn listing_a_folder_misses_as_often_as_in_cachegrind() {
    compare("ls", |names, _| {
        vec!["/bin/ls".to_owned(), names.display().to_string()]
    });
}

#[test]
fn sorting_a_file_misses_as_often_as_in_cachegrind() {
    compare("sort", |_, text| {
        vec!["/usr/bin/sort".to_owned(), text.display().to_string()]
    });
}

#[test]
fn compressing_a_file_misses_as_often_as_in_cachegrind() {
    compare("gzip", |_, text| {
        let gzip = "/usr/bin/gzip".to_owned();
        vec![gzip, "-c".to_owned(), text.display().to_string()]
    });
}
