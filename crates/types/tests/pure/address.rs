//! The linear algebra against enumeration, maps with unequal regions against brute force, and
//! colours as published.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quell_types::address::gf2::{Solutions, Space};
use quell_types::address::{BankMap, Colours, Functions, Ranges, bits, constant, of_index};

fn parity(x: u64) -> u64 {
    u64::from(x.count_ones() & 1)
}

/// All members of the span, by enumeration.
fn span(vectors: &[u64]) -> BTreeSet<u64> {
    (0..1u64 << vectors.len())
        .map(|chosen| {
            vectors
                .iter()
                .enumerate()
                .filter(|(i, _)| chosen >> i & 1 == 1)
                .fold(0, |sum, (_, v)| sum ^ v)
        })
        .collect()
}

/// Small enough to enumerate: at most six vectors over ten coordinates.
fn vectors() -> impl Strategy<Value = Vec<u64>> {
    prop::collection::vec(0..1u64 << 10, 0..6)
}

proptest! {
    #[test]
    fn spaces_are_what_enumeration_says(a in vectors(), b in vectors(), within in 0..1u64 << 10) {
        let (sa, sb) = (Space::spanned(a.clone()), Space::spanned(b.clone()));
        let (ea, eb) = (span(&a), span(&b));
        prop_assert_eq!(1usize << sa.rank(), ea.len());
        for x in 0..1u64 << 10 {
            prop_assert_eq!(sa.contains(x), ea.contains(&x));
            // The smallest vector of the coset.
            prop_assert_eq!(Some(sa.reduce(x)), ea.iter().map(|member| member ^ x).min());
        }
        let both: BTreeSet<u64> = ea.intersection(&eb).copied().collect();
        prop_assert_eq!(span(sa.intersection(&sb).rows()), both);
        let together: Vec<u64> = a.iter().chain(&b).copied().collect();
        prop_assert_eq!(span(sa.sum(&sb).rows()), span(&together));
        let kept: BTreeSet<u64> = ea.iter().copied().filter(|x| x & !within == 0).collect();
        prop_assert_eq!(span(sa.within(within).rows()), kept);
        let orthogonal: BTreeSet<u64> =
            (0..1u64 << 10).filter(|x| x & !within == 0 && a.iter().all(|v| parity(x & v) == 0)).collect();
        prop_assert_eq!(span(sa.orthogonal(within).rows()), orthogonal);
        let apart = sa.independent_of(&sb);
        prop_assert_eq!(apart.intersection(&sb).rank(), 0);
        prop_assert_eq!(apart.sum(&sb), sa.sum(&sb));
        // Reduced form is unique.
        let reversed: Vec<u64> = a.iter().rev().copied().collect();
        prop_assert_eq!(Space::spanned(reversed), sa);
    }

    #[test]
    fn equations_have_the_solutions_that_enumeration_finds(functions in vectors(), value in 0..64u64, within in 0..1u64 << 10) {
        let value = value & ((1 << functions.len()) - 1);
        let expected: Vec<u64> = (0..1u64 << 10)
            .filter(|x| x & !within == 0 && functions.iter().enumerate().all(|(i, f)| parity(x & f) == value >> i & 1))
            .collect();
        let found: Vec<u64> = Solutions::of(&functions, value, within).map(|s| s.iter().collect()).unwrap_or_default();
        prop_assert_eq!(found, expected);
    }

    #[test]
    fn functions_are_parities_however_they_are_evaluated(masks in prop::collection::vec(any::<u64>(), 0..20), sparse in prop::collection::vec((0..64u32, 0..64u32), 0..20), address: u64) {
        let sparse: Vec<u64> = sparse.into_iter().map(|(a, b)| 1 << a | 1 << b).collect();
        for masks in [masks, sparse, bits(12, 30)] {
            let expected = masks.iter().enumerate().fold(0, |n, (i, mask)| n | parity(address & mask) << i);
            prop_assert_eq!(Functions::new(masks).of(address), expected);
        }
    }

    /// A colour decides which values of the functions a page can reach. Pages of one colour reach
    /// the same, and pages of different colours have no value in common.
    #[test]
    fn colours_are_the_classes_of_what_a_page_reaches(functions in prop::collection::vec(0..1u64 << 12, 1..6), page_shift in 0..8u32) {
        let all = Functions::new(functions.clone());
        let colours = Colours::new(&functions, page_shift);
        let mut reached: BTreeMap<u64, BTreeSet<u64>> = BTreeMap::new();
        for frame in 0..1u64 << (12 - page_shift) {
            let reach: BTreeSet<u64> = (0..1 << page_shift).map(|offset| all.of(frame << page_shift | offset)).collect();
            let colour = colours.of_frame(frame);
            prop_assert!(colour < colours.count());
            prop_assert_eq!(reached.entry(colour).or_insert_with(|| reach.clone()), &reach);
        }
        prop_assert_eq!(reached.len() as u64, colours.count());
        let total: usize = reached.values().map(BTreeSet::len).sum();
        let distinct: BTreeSet<u64> = reached.values().flatten().copied().collect();
        prop_assert_eq!(total, distinct.len());
        // The frames of each colour are found without a search.
        for colour in 0..colours.count() {
            let expected: Vec<u64> = (0..1 << (12 - page_shift)).filter(|&f| colours.of_frame(f) == colour).collect();
            let found: Vec<u64> = colours.frames(colour, 12 - page_shift).unwrap().iter().collect();
            prop_assert_eq!(found, expected);
        }
    }
}
/// The published case study: 8 MiB of 16 ways (8192 sets), banks by bits 12, 13, 19, 20 (PALLOC's
/// map of that processor). It has sixteen bank partitions, but only four of bank and cache
/// together.
#[test]
fn two_bits_shared_by_banks_and_sets_leave_four_partitions() {
    let banks = Colours::new(&[1 << 12, 1 << 13, 1 << 19, 1 << 20], 12);
    let sets = Colours::new(&bits(6, 18), 12);
    assert_eq!((banks.count(), sets.count()), (16, 128));
    let joint = banks.joint(&sets);
    assert_eq!((joint.shared, joint.partitions), (2, 4));
    assert_eq!(joint.together, 9);
    assert_eq!(joint.at_most, 16);
}

/// The published avionics machine: L3 sets by bits 15:7, L2 sets by 13:6. Colouring by 15:12 would
/// shrink the L2, by 15:14 it does not.
#[test]
fn colours_that_spare_the_private_cache() {
    let (l3, l2) = (
        Colours::new(&bits(7, 15), 12),
        Colours::new(&bits(6, 13), 12),
    );
    assert_eq!((l3.count(), l2.count()), (16, 4));
    let sparing = l3.sparing(&l2);
    assert_eq!(sparing.functions(), bits(14, 15));
    // Number of colours = size / (page size × ways): 2 MiB in two interleaved parts of 1 MiB of 32
    // ways.
    assert_eq!(l3.count(), (2 << 20) / (4096 * 32));
}

/// PALLOC's example of a Haswell: bank bits 13^17, 14^18, 15^19, 16^20.
#[test]
fn larger_pages_cost_colours() {
    let functions: Vec<u64> = (13..17).map(|bit| 1 << bit | 1 << (bit + 4)).collect();
    let left = |page_shift| Colours::new(&functions, page_shift).count();
    assert_eq!([12, 14, 16, 21].map(left), [16, 8, 2, 1]);
    // Combinations count: neither function avoids bit 12, but their sum does.
    assert_eq!(
        Colours::new(&[1 << 12 | 1 << 20, 1 << 12 | 1 << 21], 13).functions(),
        [1 << 20 | 1 << 21]
    );
}

/// A map over the address bits 4 to 11: one region, or several that one or two selectors divide.
fn regions() -> impl Strategy<Value = String> {
    let functions = || prop::collection::vec(1..1u64 << 8, 1..4);
    let selectors = prop::collection::vec(1..1u64 << 8, 0..3);
    (selectors, prop::collection::vec(functions(), 4)).prop_map(|(selectors, functions)| {
        let line = |mask: u64| {
            let bits = (0..8)
                .filter(|bit| mask >> bit & 1 == 1)
                .map(|bit| (bit + 4).to_string());
            bits.collect::<Vec<_>>().join(" ")
        };
        let mut text = String::new();
        for (number, functions) in functions.iter().take(1 << selectors.len()).enumerate() {
            text.push_str("region\n");
            for (bit, selector) in selectors.iter().enumerate() {
                text.push_str(&format!(
                    "selector {} {}\n",
                    number >> bit & 1,
                    line(*selector)
                ));
            }
            functions
                .iter()
                .for_each(|f| text.push_str(&format!("{}\n", line(*f))));
        }
        text
    })
}

/// The bank of an address, from the text alone.
fn bank_on_paper(text: &str, address: u64) -> (usize, Vec<u64>) {
    let odd = |words: &str| -> u64 {
        let bits = words.split_whitespace().map(|w| w.parse::<u32>().unwrap());
        bits.map(|bit| address >> bit & 1).sum::<u64>() % 2
    };
    for (number, region) in text.split("region\n").skip(1).enumerate() {
        let selectors = region.lines().filter_map(|l| l.strip_prefix("selector "));
        let fits = selectors.map(|l| l.split_once(' ').unwrap());
        if fits
            .into_iter()
            .all(|(value, words)| odd(words).to_string() == value)
        {
            let functions = region.lines().filter(|l| !l.starts_with("selector"));
            return (number, functions.map(odd).collect());
        }
    }
    panic!("{text}: {address:#x} is in no region");
}

proptest! {
    /// By brute force over all addresses of up to 10 bits: a function is a colour bit exactly if it
    /// is the same within every page and within every bank.
    #[test]
    fn colours_of_unequal_regions_are_what_enumeration_finds(text in regions(), page in 4..8u32, top in 8..11u32) {
        let Ok(map) = BankMap::parse(&text) else { return Ok(()) };
        let all = 1u64 << top;
        let colours = map.colours(page, all - 1);
        let mut banks: BTreeMap<(usize, Vec<u64>), Vec<u64>> = BTreeMap::new();
        for address in 0..all {
            let (region, bank) = bank_on_paper(&text, address);
            let number = bank.iter().rev().fold(0, |n, bit| n << 1 | bit);
            prop_assert_eq!(map.bank(address), (region, number));
            banks.entry((region, bank)).or_default().push(address);
        }
        let mut found = 0u32;
        for mask in 1..all {
            let constant = mask & ((1 << page) - 1) == 0
                && banks.values().all(|of| of.iter().all(|a| parity(a & mask) == parity(of[0] & mask)));
            let colour = Space::spanned(colours.functions().iter().copied()).contains(mask);
            prop_assert_eq!(constant, colour, "{:#x} of {}", mask, text);
            found += u32::from(constant);
        }
        prop_assert_eq!(u64::from(found) + 1, colours.count());
        let again = BankMap::parse(&map.to_string());
        prop_assert_eq!(again, Ok(map));
    }

    /// By brute force over all pairs of addresses: a function is constant over ranges exactly if no
    /// two addresses of a part differ in it.
    #[test]
    fn functions_are_constant_where_enumeration_says(parts in prop::collection::vec(prop::collection::vec((0..128u64, 0..40u64), 1..4), 1..4), functions in vectors()) {
        let parts: Vec<Ranges> = parts
            .into_iter()
            .map(|all| Ranges::new(all.into_iter().map(|(start, length)| start..start + length)))
            .collect();
        let space = Space::spanned(functions);
        let found = constant(&space, &parts);
        for function in span(space.rows()) {
            let same = parts.iter().all(|part| {
                let mut addresses = part.iter().flat_map(|r| r.clone());
                let Some(first) = addresses.next() else { return true };
                addresses.all(|a| parity(a & function) == parity(first & function))
            });
            prop_assert_eq!(same, found.contains(function), "{:#x}", function);
        }
    }

    #[test]
    fn ranges_have_the_addresses_of_both(a in prop::collection::vec((0..64u64, 0..20u64), 0..5), b in prop::collection::vec((0..64u64, 0..20u64), 0..5)) {
        let ranges = |all: &[(u64, u64)]| Ranges::new(all.iter().map(|(start, length)| *start..start + length));
        let set = |all: &Ranges| -> BTreeSet<u64> { all.iter().flat_map(|r| r.clone()).collect() };
        let (one, two) = (ranges(&a), ranges(&b));
        let both = one.intersection(&two);
        prop_assert_eq!(set(&both), set(&one).intersection(&set(&two)).copied().collect::<BTreeSet<_>>());
        prop_assert_eq!(both.first(), set(&both).first().copied());
        prop_assert_eq!(one.end(), set(&one).last().map_or(0, |last| last + 1));
        // In order, and none that could be one with the next.
        let all: Vec<_> = one.iter().cloned().collect();
        prop_assert!(all.windows(2).all(|pair| pair[0].end < pair[1].start));
    }
}

/// Unequal modules as drama-pp recovered them (two of 4 GB and one of 8 GB): bit 6 chooses the
/// channel, so every page has lines of both, and what is left to colours is nothing.
#[test]
fn unequal_modules_leave_what_all_regions_share() {
    let text = "# Piecewise DRAM bank mapping\nregion\nselector 0 6\nselector 0 16\n14 19\n15 20\n17 21\n18 22\n\n\
                region\nselector 0 6\nselector 1 16\n14 18\n15 19\n17 20\n\nregion\nselector 1 6\n14 17\n15 18\n16 19\n";
    let map = BankMap::parse(text).unwrap();
    assert_eq!(map.regions().len(), 3);
    assert_eq!(map.single(), None);
    assert_eq!(map.bank(0), (0, 0));
    assert_eq!(map.bank(1 << 14 | 1 << 20), (0, 0b11));
    assert_eq!(map.bank(1 << 16 | 1 << 17), (1, 0b100));
    assert_eq!(map.bank(1 << 6 | 1 << 16), (2, 0b100));
    assert_eq!(map.colours(12, u64::MAX >> 12).count(), 1);
    // The same regions chosen by bits above the page: whole pages lie in one.
    let text = text
        .replace("selector 0 6", "selector 0 30")
        .replace("selector 1 6", "selector 1 30");
    let map = BankMap::parse(&text).unwrap();
    assert_eq!(map.colours(12, u64::MAX >> 12).functions(), [1 << 30]);
    let below = map.colours(12, (1 << 30) - 1);
    assert_eq!(
        below.functions(),
        [1 << 16],
        "the third region has no memory"
    );
}

#[test]
fn maps_that_describe_no_memory_are_refused_with_the_line() {
    for (text, why) in [
        ("", "no function chooses a bank"),
        ("# nothing\n\n", "no function chooses a bank"),
        ("14 18\nx\n", "line 2: 'x' is not different address bits"),
        (
            "14 18\n15\n14 15 18\n",
            "'14 15 18' follows from the lines before it",
        ),
        ("12\n12\n", "'12' follows"),
        ("0-20", "21 functions"),
        ("selector 0 6\n14\n", "line 1: a selector comes after"),
        ("region\nselector 2 6\n14\n", "line 2: a selector is 0 or 1"),
        ("region\nselector 0\n14\n", "line 2: a selector is 0 or 1"),
        ("region 0x40\n14\n", "line 1: a region is"),
        ("region 0x40 0x80\n14\n", "only bits of the mask"),
        ("region 0x0 0x0\n14\n", "the mask has bits"),
        ("region\nselector 0 6\n14\n", "leave addresses out"),
        (
            "region 0x40 0x0\n14\nregion 0x40 0x0\n15\n",
            "region 2 has addresses of a region before it",
        ),
        (
            "region\nselector 0 6\nselector 1 6\n14\n",
            "region 1: no address fits",
        ),
        (
            "region 0x40 0x0\n14\nregion 0x40 0x40\n",
            "region 2: no function",
        ),
        (
            "region 0x40 0x0\n6\nregion 0x40 0x40\n14\n",
            "region 1: '6' follows",
        ),
    ] {
        let said = BankMap::parse(text).unwrap_err();
        assert!(said.contains(why), "{text:?}: {said}");
    }
    assert!(BankMap::new(vec![1 << 12]).is_ok());
    assert!(BankMap::new(vec![1 << 60]).is_err());
}

#[test]
fn functions_of_bits_that_memory_lacks_are_no_colours() {
    let map = BankMap::parse("12\n30\n31\n32\n").unwrap();
    assert_eq!(map.colours(12, (1 << 33) - 1).count(), 16);
    assert_eq!(map.colours(12, (1 << 32) - 1).count(), 8);
    assert_eq!(map.colours(12, (1 << 30) - 1).count(), 2);
    assert_eq!(map.colours(14, (1 << 30) - 1).count(), 1);
}

#[test]
fn the_index_of_a_cache_is_above_its_lines() {
    assert_eq!(of_index(64, 2048), bits(6, 16));
    assert!(of_index(64, 1).is_empty());
    assert!(of_index(64, 12288).is_empty() && of_index(0, 64).is_empty());
}
