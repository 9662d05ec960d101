//! Every published map: what of it pages of each size can choose. `QUELL_BLESS=1 cargo test -p
//! quell-types --test pure` writes the text anew.

use std::collections::BTreeSet;
use std::fmt::Write as _;
use std::path::Path;

use quell_types::address::published::{self, Published};
use quell_types::address::{BitFunctions, Colours};

/// All address bits.
const REACH: u64 = (1 << 52) - 1;
const PAGES: [(u32, &str); 4] = [(12, "4KiB"), (14, "16KiB"), (16, "64KiB"), (21, "2MiB")];

fn colours(map: &Published, shift: u32) -> (Colours, Option<Colours>) {
    let sets = map.sets.as_ref();
    let sets = sets.map(|BitFunctions(all)| Colours::new(all, shift));
    (map.map.colours(shift, REACH), sets)
}

fn bits(mask: u64) -> String {
    let bits = (0..64).filter(|bit| mask >> bit & 1 == 1);
    bits.map(|bit| bit.to_string())
        .collect::<Vec<_>>()
        .join("^")
}

fn described(map: &Published) -> String {
    let mut text = format!("{}: {}\n", map.name, map.about());
    if let Some(index) = &map.index {
        let _ = writeln!(text, "  sets are assumed to be plain bits of {index}");
    }
    for (shift, name) in PAGES {
        let (banks, sets) = colours(map, shift);
        let functions: Vec<String> = banks.functions().iter().map(|f| bits(*f)).collect();
        let by = if functions.is_empty() {
            "nothing".to_owned()
        } else {
            functions.join(" ")
        };
        let _ = write!(text, "  {name:>6}: {:>2} colours of banks", banks.count());
        if let Some(sets) = sets {
            let joint = banks.joint(&sets);
            let _ = write!(
                text,
                ", {:>2} of sets, {} bits shared: {} bits together, {} groups apart in both, {} with frames idle",
                sets.count(),
                joint.shared,
                joint.together,
                joint.partitions,
                joint.at_most
            );
        }
        let _ = writeln!(text, "; by {by}");
    }
    text
}

#[test]
fn the_colours_of_every_published_map_are_as_written() {
    let all = published::all();
    let text: Vec<String> = all.iter().map(described).collect();
    let text = text.join("\n");
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/maps.txt");
    if std::env::var_os("QUELL_BLESS").is_some() {
        std::fs::write(&file, &text).unwrap();
    }
    assert_eq!(text, std::fs::read_to_string(&file).unwrap());
}

/// Computed independently before this code was written, for pages of 4 KiB and 2 MiB, or 64 KiB.
#[test]
fn colours_are_those_that_were_computed_elsewhere() {
    for (name, banks, sets, shared, large) in [
        ("raspberry-pi-4", 8, 16, 3, 1),
        ("raspberry-pi-5", 16, 32, 1, 8),
        ("jetson-orin-agx", 32, 32, 0, 1),
        ("i7-8700", 32, 32, 0, 1),
        ("ryzen-9900x", 8, 16, 0, 1),
    ] {
        let map = published::named(name).unwrap();
        let (own, of_sets) = colours(&map, 12);
        let of_sets = of_sets.unwrap();
        let joint = own.joint(&of_sets);
        assert_eq!(
            (own.count(), of_sets.count(), joint.shared),
            (banks, sets, shared),
            "{name}"
        );
        assert_eq!(colours(&map, 21).0.count(), large, "{name}");
    }
    for (name, at_4, at_64, at_2048) in [
        ("xps-13-i5-6200u", 16, 4, 1),
        ("xeon-e3-1220-v5", 16, 8, 1),
        ("xeon-e5-2608l-v3", 8, 8, 2),
        ("i7-8700", 32, 16, 1),
        ("ryzen-9900x", 8, 2, 1),
        ("jetson-orin-agx", 32, 4, 1),
        ("jetson-orin-nano", 16, 2, 1),
        ("jetson-nano", 4, 1, 1),
        ("raspberry-pi-4", 8, 1, 1),
        ("raspberry-pi-5", 16, 8, 8),
        ("raspberry-pi-zero-2", 8, 1, 1),
        ("portege-r835", 16, 4, 1),
        ("e6420-i5-2520m", 16, 4, 1),
        ("xeon-w3553", 32, 8, 2),
    ] {
        let map = published::named(name).unwrap();
        let counts = [12, 16, 21].map(|shift| colours(&map, shift).0.count());
        assert_eq!(counts, [at_4, at_64, at_2048], "{name}");
    }
}

#[test]
fn every_published_map_says_what_it_holds_for() {
    let all = published::all();
    let names: BTreeSet<&str> = all.iter().map(|map| map.name.as_str()).collect();
    assert_eq!(names.len(), all.len());
    for map in &all {
        assert!(
            map.source.contains("drama-pp") && !map.memory.is_empty(),
            "{map:?}"
        );
        assert_eq!(map.sets.is_some(), map.index.is_some(), "{}", map.name);
        assert_eq!(map.map.regions().len(), 1, "{}", map.name);
        let about = map.about();
        assert!(about.contains(&map.memory), "{about}");
    }
    let pi = published::named("raspberry-pi-5").unwrap();
    assert!(
        pi.about()
            .ends_with("firmware: SDRAM_BANKLOW=1, the default"),
        "{}",
        pi.about()
    );
    assert!(published::named("pi").is_none());
}
