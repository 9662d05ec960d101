//! The access patterns by what they touch, and the frames by their published demand.

use std::collections::HashSet;

use quell_policy::workload::{Banks, Order, Store, Touch};
use quell_sim::access::{Access, Effect, LINE};
use quell_sim::pattern::{Churn, Frames, Lattice, ParallelLists, Pattern, Stage, Stores, Stream};

fn take(pattern: &mut Pattern, n: usize) -> Vec<Access> {
    (0..n).map(|_| pattern.next_access()).collect()
}

fn lines(accesses: &[Access]) -> HashSet<u64> {
    accesses.iter().map(|a| a.address / LINE).collect()
}

#[test]
fn lists_go_through_every_line_once_a_round() {
    for mut pattern in [
        Pattern::latency(1 << 16, 3),
        Pattern::latency_in_order(1 << 16),
    ] {
        let round = take(&mut pattern, 1024);
        assert_eq!(lines(&round).len(), 1024);
        assert!(round.iter().all(|a| a.dependent && !a.write));
        assert_eq!(take(&mut pattern, 1024), round);
    }
}

#[test]
fn parallel_lists_share_the_memory_and_wait_once_a_round() {
    for lists in [1, 7, 64] {
        let mut pattern =
            Pattern::ParallelLists(ParallelLists::new(1 << 16, lists, 1).expect("enough"));
        let steps = 1024 / lists * lists;
        let round = take(&mut pattern, steps);
        assert_eq!(lines(&round).len(), steps, "{lists} lists");
        let waits = round.iter().filter(|a| a.dependent).count();
        assert_eq!(waits, steps / lists);
    }
    let error = ParallelLists::new(64, 2, 1)
        .expect_err("one line")
        .to_string();
    assert!(error.starts_with("2 lists over 1 lines"), "{error}");
    assert!(ParallelLists::new(1 << 20, 65, 1).is_err());
}

#[test]
fn parallel_lists_keep_to_the_banks_chosen() {
    let banks = Banks::new(vec![1 << 13, 1 << 14], vec![1, 2]).expect("a real choice");
    // Physical memory in reverse order, page by page.
    let physical = |at: u64| Some((255 - (at >> 12)) << 12 | at & 0xfff);
    let lists = ParallelLists::in_banks(1 << 20, 1 << 19, 8, 1, &banks, physical).expect("enough");
    let round = take(&mut Pattern::ParallelLists(lists), 8192);
    assert_eq!(lines(&round).len(), 8192, "half of all lines");
    assert!(
        round
            .iter()
            .all(|a| physical(a.address).is_some_and(|at| banks.wants(at)))
    );
    let too_many = ParallelLists::in_banks(1 << 20, 1 << 20, 8, 1, &banks, physical);
    let error = too_many.expect_err("half of them").to_string();
    assert!(
        error.starts_with("16384 lines wanted in the banks, and of 16384 lines taken only 8192"),
        "{error}"
    );
}

#[test]
fn churn_and_stores_stay_in_their_buffers() {
    let touches = [Touch::Read, Touch::Write, Touch::Flush, Touch::Prefetch];
    let churn = Churn::new(1 << 16, &touches, Order::Random, 1);
    let round = take(&mut Pattern::Churn(churn), 20_480);
    assert_eq!(lines(&round).len(), 1024);
    assert_eq!(round.iter().filter(|a| a.write).count(), 5_120, "a quarter");
    let block: Vec<bool> = round.iter().map(|a| a.effect == Effect::Flush).collect();
    assert!(
        (0..64).all(|n| block[n] == (32..48).contains(&n)),
        "{block:?}"
    );
    let in_order = Churn::new(1 << 16, &[Touch::Read], Order::Sequential, 1);
    let round = take(&mut Pattern::Churn(in_order), 2048);
    assert!((0..2048).all(|n| round[n].address == n as u64 % 1024 * LINE));
}

#[test]
fn stores_visit_a_line_per_stride_with_the_words_it_leaves() {
    let of = |stride, operation| {
        let mut stores = Pattern::Stores(Stores::new(1 << 16, stride, operation));
        take(&mut stores, 40)
    };
    let wide = of(4096, Store::Plain);
    assert_eq!(lines(&wide).len(), 16);
    assert!(wide.iter().all(|a| a.write && a.address % 4096 == 0));
    let words = of(16, Store::Plain);
    assert!((0..40).all(|n| words[n].address == n as u64 * 16));
    let past = of(8, Store::NonTemporal);
    assert!(
        past.iter()
            .zip(0..)
            .all(|(a, n)| a.effect == Effect::Past && a.compute == 7 && a.address == n * LINE)
    );
    // A visit has two words and a request.
    let flushed = of(32, Store::Flush);
    assert!(flushed.chunks(3).all(|visit| {
        visit[0].write
            && visit
                .last()
                .is_some_and(|a| visit.len() < 3 || a.effect == Effect::Flush && !a.write)
    }));
    assert_eq!(Stores::new(1 << 16, 32, Store::Flush).accesses(), 3);
}

#[test]
fn a_copy_loads_from_the_first_half_and_stores_into_the_second() {
    for past in [false, true] {
        let mut copy = Pattern::Stream(Stream::copy(1 << 13, past));
        let round = take(&mut copy, 128);
        assert_eq!(lines(&round).len(), 128);
        for pair in round.chunks(2) {
            assert!(!pair[0].write && pair[1].write);
            assert_eq!(pair[1].address, pair[0].address + (1 << 12));
            let effect = if past { Effect::Past } else { Effect::Use };
            assert_eq!((pair[0].effect, pair[1].effect), (Effect::Use, effect));
        }
        assert_eq!(take(&mut copy, 128), round);
    }
    let mut past = Pattern::Stream(Stream::past(1 << 13));
    assert!(
        take(&mut past, 128)
            .iter()
            .all(|a| a.effect == Effect::Past)
    );
}

#[test]
fn the_lattice_reads_one_grid_and_writes_one_in_38_streams() {
    let bytes = 38 * 64 * LINE;
    let mut pattern = Pattern::Lattice(Lattice::new(bytes, 100));
    let sweep = take(&mut pattern, 38 * 64);
    assert_eq!(lines(&sweep).len(), 38 * 64, "every line once");
    let half = bytes / 2;
    assert!(sweep.iter().all(|a| a.write == (a.address >= half)));
    assert_eq!(
        sweep.iter().map(|a| u64::from(a.compute)).sum::<u64>(),
        64 * 100
    );
    let back = take(&mut pattern, 38 * 64);
    assert!(
        back.iter().all(|a| a.write == (a.address < half)),
        "then the other way"
    );
}

/// Published: mean demand over a second, and the peak of a millisecond, alone. Measured here on a
/// core that never waits.
#[test]
fn frames_draw_the_published_demand() {
    const CLOCK: u64 = 357;
    for stage in [Stage::Call, Stage::Display] {
        let mut frames = Pattern::Frames(Frames::new(stage, 64 << 20, (CLOCK, 0), 9));
        let period = frames.period().expect("frames are due");
        let (mut due, mut now, mut busiest, mut bytes) = (0, 0, vec![0u64; 10_100], 0);
        let mut units = 0;
        while units <= 300 {
            let access = frames.next_access();
            if access.begins {
                now = now.max(due);
                due += period;
                units += 1;
            }
            if units <= 300 {
                now += (u64::from(access.compute) + 1) * CLOCK;
                bytes += LINE;
                busiest[usize::try_from(now / 1_000_000_000).expect("small")] += LINE;
            }
        }
        let (mean, peak) = stage.demand();
        let found = bytes as f64 / 10.0;
        assert!(
            (found / mean as f64 - 1.0).abs() < 0.02,
            "{stage:?}: {found} bytes/s, {mean} published"
        );
        let most = busiest.iter().copied().max().unwrap_or(0) as f64 * 1000.0;
        assert!(
            (most / peak as f64 - 1.0).abs() < 0.02,
            "{stage:?}: {most} bytes/s, {peak} published"
        );
    }
}

#[test]
fn equal_seeds_give_equal_streams() {
    let digest = |seed| {
        let mut frames = Pattern::Frames(Frames::new(Stage::Display, 1 << 24, (357, 0), seed));
        take(&mut frames, 1_000_000)
            .iter()
            .filter(|a| a.begins)
            .count() as u64
            * 1_000_003
            + take(&mut frames, 1).first().map_or(0, |a| a.address)
    };
    assert_eq!(digest(1), digest(1));
    let churn = |seed| {
        let churn = Churn::new(1 << 20, &[Touch::Write], Order::Random, seed);
        take(&mut Pattern::Churn(churn), 1000)
    };
    assert_eq!(churn(4), churn(4));
    assert_ne!(churn(4), churn(5));
}
