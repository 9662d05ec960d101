//! The access patterns by what they touch, and the frames by their published demand.

use std::collections::HashSet;

use quell_policy::workload::{Banks, Order, Store, Touch};
use quell_sim::access::{Access, Effect, LINE};
use quell_sim::pattern::{
    Churn, FPS, Frames, Lattice, PASSES, ParallelLists, Pattern, Piece, Stage, Stores, Stream,
    Times,
};

fn take(pattern: &mut Pattern, n: usize) -> Vec<Access> {
    (0..n).map(|_| pattern.next_access()).collect()
}

fn size(n: u64) -> usize {
    usize::try_from(n).expect("small")
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

const TIMES: Times = Times {
    clock: 357,
    cached: 0,
    memory: 0,
};
const BUFFERS: u64 = 64 << 20;
const SET: u64 = 512 << 10;

/// Published: mean demand over a second, and the peak of a millisecond, alone. Measured here on a
/// core that never waits, without the accesses to the working set.
#[test]
fn frames_draw_the_published_demand() {
    for (stage, set) in [(Stage::Call, SET), (Stage::Display, 0)] {
        let mut frames = Frames::new(stage, BUFFERS, set, TIMES);
        let (mean, peak) = stage.demand();
        let of_a_second = (stage.lines() * FPS * LINE) as f64;
        assert!((of_a_second / mean as f64 - 1.0).abs() < 0.001, "{stage:?}");
        let accesses = frames.add(Piece::Frame(stage.lines()));
        let mut pattern = Pattern::Frames(frames);
        let all = take(&mut pattern, size(accesses));
        let streamed: Vec<_> = all.iter().filter(|a| a.address < BUFFERS).collect();
        assert_eq!(streamed.len() as u64, stage.lines());
        assert_eq!(accesses - stage.lines(), set / LINE * PASSES);
        let cycles: u64 = streamed.iter().map(|a| u64::from(a.compute) + 1).sum();
        let found = (stage.lines() * LINE) as f64 * 1e12 / (cycles * TIMES.clock) as f64;
        assert!(
            (found / peak as f64 - 1.0).abs() < 0.02,
            "{stage:?}: {found} bytes/s, {peak} published"
        );
    }
}

#[test]
fn a_working_set_is_gone_over_evenly_and_copied_to() {
    let mut frames = Frames::new(Stage::Call, BUFFERS, SET, TIMES);
    let lines = Stage::Call.lines();
    let frame = frames.add(Piece::Frame(lines));
    let copied = frames.add(Piece::Copy {
        lines: 19,
        compute: 500,
    });
    assert_eq!(copied, 19);
    let mut pattern = Pattern::Frames(frames);
    let all = take(&mut pattern, size(frame));
    let of_set = |a: &&Access| a.address >= BUFFERS;
    let half = all.iter().take(all.len() / 2).filter(of_set).count() as u64;
    assert!(half.abs_diff(SET / LINE * PASSES / 2) <= 1, "{half}");
    let copy = take(&mut pattern, size(copied));
    assert!(copy.iter().all(|a| a.address >= BUFFERS));
    assert_eq!((copy[0].compute, copy[1].compute), (500, 0));
}

#[test]
fn equal_seeds_give_equal_streams() {
    let churn = |seed| {
        let churn = Churn::new(1 << 20, &[Touch::Write], Order::Random, seed);
        take(&mut Pattern::Churn(churn), 1000)
    };
    assert_eq!(churn(4), churn(4));
    assert_ne!(churn(4), churn(5));
}
