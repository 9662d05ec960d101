//! Address maps recovered by timing, on machines whose functions are known: published maps replayed
//! with a fifth of outliers, random functions, and machines where nothing can be recovered.

use std::convert::Infallible;

use proptest::prelude::*;
use quell_types::address::gf2::Space;
use quell_types::address::published;
use quell_types::address::recovery::{Lines, Pool, Recovery, Verdict, recover};
use quell_types::partition::Mask;
use quell_types::rng::SplitMix;

const USUAL_NS: f64 = 180.0;
const CONFLICT_NS: f64 = 230.0;

/// Sixteen banks.
const BANKS: [u64; 4] = [
    1 << 14 | 1 << 18,
    1 << 15 | 1 << 19,
    1 << 16 | 1 << 20,
    1 << 17 | 1 << 21,
];

/// A machine of 2^`bits` bytes with these banks and rows of 32 KiB.
struct Machine {
    functions: Space,
    bits: u32,
    outliers: f64,
    spread_ns: f64,
    random: SplitMix,
}

impl Machine {
    fn new(functions: &[u64], bits: u32) -> Self {
        Self {
            functions: Space::spanned(functions.iter().copied()),
            bits,
            outliers: 0.2,
            spread_ns: 4.0,
            random: SplitMix::new(11),
        }
    }

    fn memory(&self) -> Space {
        Space::spanned((0..self.bits).map(|bit| 1 << bit))
    }

    /// Pages of 2^`shift` bytes anywhere in its memory.
    fn pool(&mut self, pages: usize, shift: u32) -> Pool {
        let all = 1 << (self.bits - shift);
        Pool::new(
            (0..pages)
                .map(|_| self.random.below(all) << shift)
                .collect(),
            shift,
        )
    }

    fn part(&mut self) -> f64 {
        self.random.below(1 << 40) as f64 / (1u64 << 40) as f64
    }

    /// The time of a pair whose addresses differ so. One of so many is an outlier: as of the other
    /// kind, or disturbed.
    fn time(&mut self, difference: u64) -> f64 {
        let odd = |f: &u64| (difference & f).count_ones() & 1 == 1;
        let mut conflict = !self.functions.rows().iter().any(odd) && difference >> 15 != 0;
        let mut disturbed = 0.0;
        if self.part() < self.outliers {
            match self.part() < 0.3 {
                true => conflict = !conflict,
                false => disturbed = 2000.0 * self.part().powi(2),
            }
        }
        let noise = (0..6).map(|_| self.part() - 0.5).sum::<f64>() * 1.41 * self.spread_ns;
        disturbed + noise + if conflict { CONFLICT_NS } else { USUAL_NS }
    }

    fn recover(mut self, pool: &Pool) -> Recovery {
        let memory = self.memory();
        let oracle = &mut |lines: Lines| Ok::<f64, Infallible>(self.time(pool.difference(lines)));
        recover(pool, &memory, 5, oracle).unwrap()
    }
}

/// The span that a recovery found. `None`: none.
fn span(found: &Recovery) -> Option<Space> {
    match &found.verdict {
        Verdict::Map { functions, .. } => Some(Space::spanned(functions.iter().map(|f| f.0))),
        _ => None,
    }
}

#[test]
fn published_maps_are_recovered_with_a_fifth_of_outliers() {
    for published in published::all() {
        let functions = published.map.single().unwrap().to_vec();
        let highest = functions.iter().map(|f| f.ilog2()).max().unwrap();
        for shift in [12, 21] {
            let mut machine = Machine::new(&functions, (highest + 1).max(32));
            let pool = machine.pool(4096, shift);
            let known = machine.functions.clone();
            let found = machine.recover(&pool);
            assert_eq!(span(&found), Some(known), "{}: {found:?}", published.name);
            let Verdict::Map { confidence, .. } = found.verdict else {
                panic!("{found:?}")
            };
            assert!(confidence > 0.95, "{}: {found:?}", published.name);
        }
    }
}

/// Any line is in conflict with half or a quarter of all others.
#[test]
fn few_banks_are_no_slow_lines() {
    for functions in [&[1 << 14 | 1 << 18][..], &[1 << 13, 1 << 14 | 1 << 20]] {
        for seed in 0..3 {
            let mut machine = Machine::new(functions, 32);
            machine.random = SplitMix::new(seed);
            let pool = machine.pool(4096, 12);
            let (memory, known) = (machine.memory(), machine.functions.clone());
            let guest = machine.pool(4096, 12);
            for seen in [&pool, &guest] {
                let oracle =
                    &mut |lines: Lines| Ok::<f64, Infallible>(machine.time(pool.difference(lines)));
                let found = recover(seen, &memory, 5, oracle).unwrap();
                match std::ptr::eq(seen, &guest) {
                    true => assert!(matches!(found.verdict, Verdict::Hidden { .. }), "{found:?}"),
                    false => assert_eq!(span(&found).as_ref(), Some(&known), "{found:?}"),
                }
            }
        }
    }
}

/// No conflict with such a page is drawn, so that all conflicts agree in the bit.
#[test]
fn a_bit_that_few_pages_differ_in_is_none_of_the_bank() {
    for few in [8, 64] {
        let mut machine = Machine::new(&BANKS, 32);
        let low = |machine: &mut Machine| machine.random.below(1 << 19) << 12;
        let mut pages: Vec<u64> = (0..4096).map(|_| low(&mut machine)).collect();
        pages.iter_mut().take(few).for_each(|page| *page |= 1 << 31);
        let known = machine.functions.clone();
        let found = machine.recover(&Pool::new(pages, 12));
        assert_eq!(span(&found), Some(known), "{few} pages: {found:?}");
    }
}

#[test]
fn frames_behind_other_frames_are_hidden() {
    // A host gives its guest pages of 4 KiB or 2 MiB anywhere.
    for (shift, common) in [(12, 0), (21, 3)] {
        let mut machine = Machine::new(&BANKS, 34);
        let (host, guest) = (machine.pool(4096, shift), machine.pool(4096, shift));
        let memory = machine.memory();
        let oracle =
            &mut |lines: Lines| Ok::<f64, Infallible>(machine.time(host.difference(lines)));
        let found = recover(&guest, &memory, 5, oracle).unwrap();
        let Verdict::Hidden {
            common: seen,
            in_turn: None,
        } = &found.verdict
        else {
            panic!("{found:?}")
        };
        assert_eq!(seen.len(), common, "{found:?}");
        // What all conflicts have in common is true, and not enough.
        let known = Space::spanned(BANKS);
        assert!(seen.iter().all(|f| known.contains(f.0)));
        assert!(found.figures.again.right > 30, "{found:?}");
        assert!(
            common == 0 || found.figures.together.right < 80,
            "{found:?}"
        );
    }
}

/// Something slows all accesses down, a tenth of the time, for twice as long as a pair is timed.
#[test]
fn what_slows_everything_down_for_a_while_is_no_conflict() {
    for is_guest in [false, true] {
        let mut machine = Machine::new(&BANKS, 34);
        let (host, guest) = (machine.pool(4096, 12), machine.pool(4096, 12));
        let (memory, known) = (machine.memory(), machine.functions.clone());
        let seen = if is_guest { &guest } else { &host };
        let mut calls = 0;
        let oracle = &mut |lines: Lines| {
            calls += 1;
            let slowed = if calls % 400 < 40 { 50.0 } else { 0.0 };
            Ok::<f64, Infallible>(machine.time(host.difference(lines)) + slowed)
        };
        let found = recover(seen, &memory, 5, oracle).unwrap();
        assert!(found.figures.passing > 0, "{found:?}");
        match is_guest {
            true => assert!(
                matches!(&found.verdict, Verdict::Hidden { common, .. } if common.is_empty()),
                "{found:?}"
            ),
            false => assert_eq!(span(&found), Some(known), "{found:?}"),
        }
    }
}

#[test]
fn controllers_in_turn_are_hidden_and_named() {
    let mut machine = Machine::new(&[1 << 13, 1 << 14 | 1 << 18], 33);
    let pool = machine.pool(4096, 12);
    let memory = machine.memory();
    let oracle = &mut |(a, b): Lines| {
        let line = |address| pool.physical(address) >> 6;
        let (a, b) = (line(a), line(b));
        let difference = ((a / 3) << 6) ^ ((b / 3) << 6);
        // One of another controller is never in conflict.
        let bank = if a % 3 == b % 3 { difference } else { 1 << 13 };
        Ok::<f64, Infallible>(machine.time(bank))
    };
    let found = recover(&pool, &memory, 5, oracle).unwrap();
    let Verdict::Hidden { in_turn, .. } = found.verdict else {
        panic!("{found:?}")
    };
    assert_eq!(in_turn, Some(3));
}

#[test]
fn noise_and_flat_times_give_no_map() {
    let functions = [1 << 13, 1 << 14, 1 << 15 | 1 << 20];
    let mut flat = Machine::new(&functions, 32);
    flat.functions = Space::spanned((0..32).map(|bit| 1 << bit));
    let pool = flat.pool(4096, 12);
    let found = flat.recover(&pool);
    assert_eq!(found.verdict, Verdict::Flat, "{found:?}");
    for (spread_ns, outliers) in [(120.0, 0.2), (60.0, 0.2), (4.0, 0.7)] {
        let mut noisy = Machine::new(&functions, 32);
        let pool = noisy.pool(4096, 12);
        (noisy.spread_ns, noisy.outliers) = (spread_ns, outliers);
        let found = noisy.recover(&pool);
        assert_eq!(
            found.verdict,
            Verdict::Noisy,
            "{spread_ns} {outliers}: {found:?}"
        );
    }
}

#[test]
fn lines_that_are_far_away_are_no_conflicts() {
    let functions = [
        1 << 13,
        1 << 14 | 1 << 20,
        1 << 15 | 1 << 21,
        1 << 16 | 1 << 22,
    ];
    let mut machine = Machine::new(&functions, 33);
    let pool = machine.pool(4096, 12);
    let (memory, known) = (machine.memory(), machine.functions.clone());
    // One page of 32 takes longer, next to any other.
    let far = |address: u64| (address >> 12) % 32 == 7;
    let oracle = &mut |lines: Lines| {
        let more = if far(lines.0) || far(lines.1) {
            180.0
        } else {
            0.0
        };
        Ok::<f64, Infallible>(machine.time(pool.difference(lines)) + more)
    };
    let found = recover(&pool, &memory, 5, oracle).unwrap();
    assert_eq!(span(&found), Some(known), "{found:?}");
    assert!(found.figures.slow_lines > 10, "{found:?}");
}

/// As on a virtual machine: times vary, and one line of 32 is as slow as a conflict would be.
#[test]
fn slow_lines_alone_are_flat() {
    let mut machine = Machine::new(&[], 33);
    machine.functions = Space::spanned((0..33).map(|bit| 1 << bit));
    machine.spread_ns = 14.0;
    let pool = machine.pool(4096, 12);
    let memory = machine.memory();
    let slow = |address: u64| (address >> 6).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 59 == 0;
    let oracle = &mut |lines: Lines| {
        let is_slow = slow(lines.0) || slow(lines.1);
        let more = if is_slow { 60.0 } else { 0.0 };
        Ok::<f64, Infallible>(machine.time(pool.difference(lines)) + more)
    };
    let found = recover(&pool, &memory, 5, oracle).unwrap();
    assert_eq!(found.verdict, Verdict::Flat, "{found:?}");
    assert!(found.figures.slow_lines > 1_000, "{found:?}");
}

#[test]
fn a_pool_of_neighbours_is_narrow() {
    let machine = Machine::new(&[1 << 13, 1 << 14 | 1 << 31], 33);
    let pool = Pool::new((0..4096).map(|n| 7 << 30 | n << 12).collect(), 12);
    let found = machine.recover(&pool);
    let Verdict::Narrow { missing } = found.verdict else {
        panic!("{found:?}")
    };
    assert_eq!(
        missing,
        (24..33).map(|bit| Mask(1 << bit)).collect::<Vec<_>>()
    );
}

/// Up to seven random functions of up to seven bits each, among the bits 6 to 33.
fn functions() -> impl Strategy<Value = Vec<u64>> {
    let function = prop::collection::vec(6..34u32, 1..8);
    let mask = |bits: Vec<u32>| bits.into_iter().fold(0, |mask, bit| mask | 1u64 << bit);
    prop::collection::vec(function.prop_map(mask), 2..8)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn random_functions_are_recovered(functions in functions(), seed: u64, large: bool) {
        let mut machine = Machine::new(&functions, 34);
        machine.random = SplitMix::new(seed);
        let pool = machine.pool(4096, if large { 21 } else { 12 });
        let known = machine.functions.clone();
        let found = machine.recover(&pool);
        prop_assert_eq!(span(&found), Some(known), "{:?}", found);
    }
}

proptest! {
    // Most of the time goes into a search for a map that is not there.
    #![proptest_config(ProptestConfig::with_cases(4))]
    /// Functions of bits that the host's pages keep are the guest's, too. No other map is told.
    #[test]
    fn frames_behind_frames_give_no_wrong_map(functions in functions(), seed: u64, large: bool) {
        let shift = if large { 21 } else { 12 };
        let mut machine = Machine::new(&functions, 34);
        machine.random = SplitMix::new(seed);
        let (host, guest) = (machine.pool(4096, shift), machine.pool(4096, shift));
        let (memory, known) = (machine.memory(), machine.functions.clone());
        let oracle =
            &mut |lines: Lines| Ok::<f64, Infallible>(machine.time(host.difference(lines)));
        let found = recover(&guest, &memory, 5, oracle).unwrap();
        let kept = known.rows().iter().all(|f| f >> shift == 0);
        prop_assert_eq!(span(&found), kept.then_some(known), "{:?}", found);
    }
}
