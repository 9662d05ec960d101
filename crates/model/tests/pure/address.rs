//! DRAM locations of addresses, and back.

use std::collections::BTreeSet;

use proptest::prelude::*;
use quell_model::address::{AddressMap, Field, Fields, Location};

proptest! {
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
