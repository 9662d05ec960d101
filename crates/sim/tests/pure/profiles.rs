//! The built-in profiles, what follows from them, and the errors of bad ones.

use std::collections::BTreeSet;

use proptest::prelude::*;
use quell_sim::Machine;
use quell_sim::profile::Profile;
use quell_types::address::Colours;

const W3530: &str = include_str!("../../profiles/xeon-w3530.toml");
const P4080: &str = include_str!("../../profiles/p4080.toml");

fn profile(name: &str) -> Profile {
    Profile::built_in(name).expect("is built in")
}

#[test]
fn every_built_in_profile_is_a_machine_and_tells_its_origins() {
    assert_eq!(Profile::names().count(), 6);
    for name in Profile::names() {
        let profile = profile(name);
        assert_eq!(profile.name, name);
        Machine::new(&profile.description().expect("a real description")).expect("a real machine");
        let origins = profile.origins();
        assert!(
            origins.len() > 7 && origins.iter().any(|origin| origin.assumed),
            "{origins:?}"
        );
        // A section without a source has every number marked as assumed.
        for section in origins.iter().filter(|origin| origin.text == "none") {
            let assumed = origins
                .iter()
                .any(|o| o.section == section.section && o.assumed);
            assert!(assumed, "{name}: {section:?}");
        }
    }
}

/// The partitions that the published studies report of their machines follow from the address bits.
#[test]
fn colours_are_those_that_the_studies_report() {
    let w3530 = profile("xeon-w3530");
    let (banks, sets) = (w3530.bank_colours(12), w3530.set_colours(2, 12));
    assert_eq!(banks.count(), 16);
    assert_eq!(
        banks.joint(&sets).partitions,
        4,
        "bits 12 and 13 are both's"
    );
    assert_eq!(w3530.bank_colours(21).count(), 1, "huge pages leave none");

    let p4080 = profile("p4080");
    let (banks, sets) = (p4080.bank_colours(12), p4080.set_colours(2, 12));
    assert_eq!((banks.count(), sets.count()), (16, 16));
    assert_eq!(banks.joint(&sets).shared, 0);
    // Two of the four set bits belong to the private L2 as well. Four partitions leave it whole.
    assert_eq!(sets.sparing(&p4080.set_colours(1, 12)).count(), 4);

    assert_eq!(profile("cortex-a72").bank_colours(12).count(), 8);
    assert_eq!(profile("cortex-a72").bank_colours(16).count(), 1);
    // Three channels and 12288 sets: pages decide nothing.
    let e5645 = profile("xeon-e5645");
    assert_eq!(
        (
            e5645.bank_colours(12).count(),
            e5645.set_colours(2, 12).count()
        ),
        (1, 1)
    );
}

/// Counts colours: the sets of function values that occur within one page, over many pages.
fn counted(functions: &[u64], page_shift: u32) -> u64 {
    let value = |address: u64| {
        functions.iter().enumerate().fold(0u64, |n, (i, mask)| {
            n | u64::from((address & mask).count_ones() & 1) << i
        })
    };
    // By linearity a page's values are one of them combined with those of its offsets.
    let offsets: BTreeSet<u64> = (0..page_shift).map(|bit| value(1 << bit)).collect();
    let mut span = BTreeSet::from([0]);
    for &offset in &offsets {
        let more: Vec<u64> = span.iter().map(|v| v ^ offset).collect();
        span.extend(more);
    }
    let mut pages = BTreeSet::new();
    let mut seen = BTreeSet::from([0]);
    for bit in page_shift..40 {
        let more: Vec<u64> = seen.iter().map(|v| v ^ value(1 << bit)).collect();
        seen.extend(more);
    }
    for v in seen {
        pages.insert(span.iter().map(|s| v ^ s).min());
    }
    pages.len() as u64
}

#[test]
fn colours_available_are_what_counting_finds_on_every_profile() {
    for name in Profile::names() {
        let profile = profile(name);
        for shift in [12, 14, 16, 21] {
            let mut colours = vec![profile.bank_colours(shift)];
            colours.extend((0..profile.cache.len()).map(|level| profile.set_colours(level, shift)));
            // The functions as the profile has them, not reduced: for pages of one byte.
            let mut whole = vec![profile.bank_colours(0)];
            whole.extend((0..profile.cache.len()).map(|level| profile.set_colours(level, 0)));
            for (colours, whole) in colours.iter().zip(&whole) {
                assert_eq!(
                    colours.count(),
                    counted(whole.functions(), shift),
                    "{name}, 2^{shift}"
                );
            }
        }
    }
}

proptest! {
    #[test]
    fn colours_available_are_what_counting_finds(functions in prop::collection::vec(1u64..1 << 26, 1..7), shift in 10u32..22) {
        prop_assert_eq!(Colours::new(&functions, shift).count(), counted(&functions, shift));
    }
}

#[test]
fn segments_become_ways() {
    let apollolake = profile("apollolake");
    let ways = apollolake
        .mechanisms
        .ways
        .as_ref()
        .expect("has cache allocation");
    assert_eq!(ways.fill_mask(0b1, 16), 0b11);
    assert_eq!(ways.fill_mask(0b1111_0000, 16), 0xff00);
    assert_eq!(ways.fill_mask(0xff, 16), 0xffff);
}

#[test]
fn an_unknown_name_is_told_the_near_one() {
    let error = Profile::built_in("p4081")
        .expect_err("is not built in")
        .to_string();
    assert_eq!(error, "no machine profile 'p4081'; did you mean 'p4080'?");
}

/// What is reported of a profile in which `from` was replaced by `to`.
fn said(text: &str, from: &str, to: &str) -> String {
    assert!(text.contains(from), "{from:?} is not in the profile");
    let problems = Profile::parse(&text.replacen(from, to, 1), "bad.toml").expect_err("is wrong");
    problems.iter().map(|p| format!("{p}\n")).collect()
}

#[test]
fn unknown_keys_and_wrong_types_are_refused_with_their_place() {
    let told = said(W3530, "misses = 10", "miss = 10");
    assert!(
        told.contains("bad.toml:11:1: unknown key 'miss' in cores; did you mean 'misses'?"),
        "{told}"
    );
    let told = said(W3530, "size = \"4GiB\"", "size = 4");
    assert!(told.contains("memory.size"), "{told}");
    let told = said(W3530, "rank = [20]", "rank = [60]");
    assert!(
        told.contains("address bit 60: bits 0 to 51 exist"),
        "{told}"
    );
    let told = said(W3530, "rank = [20]", "rank = [[13, 13]]");
    assert!(told.contains("bit 13 twice"), "{told}");
    let told = said(W3530, "[\"12-13\", 19]", "[\"13-12\", 19]");
    assert!(told.contains("a run such as \"6-11\""), "{told}");
}

#[test]
fn impossible_machines_are_refused_with_their_place() {
    for (from, to, expected) in [
        (
            "size = \"8MiB\"",
            "size = \"9MiB\"",
            "are 8388608 bytes, not 9437184",
        ),
        (
            "set = [\"6-18\"]",
            "set = [\"5-17\"]",
            "0x20 is zero or uses bits within the line",
        ),
        (
            "rank = [20]",
            "rank = [21]",
            "two lines would have the same location",
        ),
        (
            "size = \"4GiB\"",
            "size = \"2GiB\"",
            "the functions tell 4GiB apart, not 2GiB",
        ),
        (
            "cores = 4\nreplacement",
            "cores = 3\nreplacement",
            "4 cores do not divide",
        ),
        ("count = 4", "count = 0", "1 to 64 are possible"),
        ("entries = 512", "entries = 511", "511 entries"),
        ("name = \"L2\"", "name = \"L1\"", "'L1' twice"),
        (
            "set = [\"6-18\"]",
            "set = [\"6-36\"]",
            "lines by the functions of sets and slices: at most 16777216",
        ),
        (
            "bank = [\"12-13\", 19]",
            "channels-in-turn = 4294967295\nbank = [\"12-13\", 19]",
            "banks in all channels and ranks: at most 65536",
        ),
    ] {
        let told = said(W3530, from, to);
        assert!(
            told.contains(expected) && told.starts_with("bad.toml:"),
            "{from} -> {to}: {told}"
        );
    }
    for (from, to, expected) in [
        ("segments = 32", "segments = 20", "20 of 32 ways"),
        (
            "cache = \"L3\"",
            "cache = \"L4\"",
            "'L4' is not one of L1, L2, L3",
        ),
        (
            "\"ways\", \"sets\"",
            "\"sets\"",
            "described, but not in 'available'",
        ),
        (
            "with = [\"sets\", \"banks\"]",
            "with = [\"mba\"]",
            "excludes 'mba', which is not in 'available'",
        ),
        (
            "with = [\"sets\", \"banks\"]",
            "without = [\"sets\", \"banks\"]",
            "unknown key 'without' in mechanisms.exclusion[0]; known here: mechanism, with, reason",
        ),
    ] {
        let told = said(P4080, from, to);
        assert!(told.contains(expected), "{from} -> {to}: {told}");
    }
}

#[test]
fn a_number_without_origin_is_refused() {
    let told = said(W3530, "source = \"none\"", "source = \" \"");
    assert!(told.contains("counters.source: is empty"), "{told}");
    let told = said(W3530, "assumed = { threads =", "assumed = { thread =");
    assert!(
        told.contains("cores.assumed.thread: is no key of this section; did you mean 'threads'?"),
        "{told}"
    );
    let told = said(
        W3530,
        "assumed = { delay = \"an interrupt",
        "assumed = { delay = \"\" } # \"",
    );
    assert!(told.contains("gives no reason"), "{told}");
}
