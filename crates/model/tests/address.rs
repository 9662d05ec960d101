//! The linear algebra against enumeration, and maps as published.

use std::collections::{BTreeMap, BTreeSet};

use proptest::prelude::*;
use quell_model::address::gf2::{Solutions, Space};
use quell_model::address::{AddressMap, Colours, Field, Fields, Functions, Location, bits};

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

    #[test]
    fn every_line_has_a_place_of_its_own(mut rows in prop::collection::vec(0..1u64 << 8, 8), line in 0..1u64 << 8) {
        // A random invertible map over eight bits: lower triangle plus the identity.
        for (i, row) in rows.iter_mut().enumerate() {
            *row = (*row & ((1 << i) - 1) | 1 << i) << 6;
        }
        let fields = Fields { line_shift: 6, channel: rows[..1].to_vec(), rank: vec![], bank: rows[1..4].to_vec(), row: rows[4..7].to_vec(), column: rows[7..].to_vec(), channels_in_turn: 1 };
        let map = AddressMap::new(fields).unwrap();
        let places: BTreeSet<_> = (0..1u64 << 8).map(|l| map.locate(l << 6)).map(|p| (p.channel, p.rank, p.bank, p.row, p.column)).collect();
        prop_assert_eq!(places.len(), 1 << 8);
        prop_assert_eq!(map.address(map.locate(line << 6)), Some(line << 6));
    }
}

#[test]
fn channels_in_turn_are_evened_out_and_found_again() {
    let fields = Fields {
        channels_in_turn: 3,
        ..Fields::plain(6, &[(Field::Column, 7), (Field::Bank, 3), (Field::Row, 4)]).bank_xor_row()
    };
    let map = AddressMap::new(fields).unwrap();
    assert_eq!(map.channels(), 3);
    for line in 0..3 << 14 {
        let place = map.locate(line << 6);
        assert_eq!(u64::from(place.channel), line % 3);
        assert_eq!(map.address(place), Some(line << 6));
    }
    assert_eq!(
        map.address(Location {
            channel: 3,
            ..Location::default()
        }),
        None
    );
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

#[test]
fn impossible_maps_name_the_function() {
    let plain = || Fields::plain(6, &[(Field::Column, 7), (Field::Bank, 3), (Field::Row, 4)]);
    for (fields, text) in [
        (
            Fields {
                rank: vec![1 << 13],
                ..plain()
            },
            "bank function: 0x2000 is zero or the XOR of others",
        ),
        (
            Fields {
                bank: vec![1 << 5],
                ..plain()
            },
            "bank function: 0x20 uses bits below the line size",
        ),
        (
            Fields {
                channels_in_turn: 3,
                channel: vec![1 << 30],
                ..plain()
            },
            "use one of them",
        ),
        (
            Fields {
                row: vec![0],
                ..plain()
            },
            "row function: 0x0 is zero",
        ),
    ] {
        let error = AddressMap::new(fields).unwrap_err().to_string();
        assert!(error.contains(text), "{error}");
    }
}
