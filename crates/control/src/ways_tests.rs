//! The controller against a plant: a miss curve per stretch of time, refills that count as misses,
//! and noise.

use quell_types::partition::Mask;
use quell_types::rng::Rng;

use super::*;
use crate::config::Boundary;
use proptest::prelude::*;

const INTERVAL: Nanos = Nanos::millis(1);
const TOLERATED: Rate = Rate(20_000_000);

const NOISE: u32 = 5_000_000;

/// A program that needs `ways` ways. It draws `steep` more for each one that is missing.
#[derive(Clone, Copy, Debug)]
struct Need {
    ways: u32,
    steep: u64,
    always: u64,
}

impl Need {
    fn rate(&self, ways: u32) -> u64 {
        self.always + self.steep * u64::from(self.ways.saturating_sub(ways))
    }
}

struct Plant {
    sizer: Sizer,
    now: Nanos,
    drawn: u64,
    noise: Rng,
    steps: Vec<(u64, Step)>,
    samples: u64,
    /// Samples in which it had fewer ways than it needs.
    short: u64,
}

impl Plant {
    fn new(least: u32, most: u32) -> Self {
        let rules = Rules {
            interval: INTERVAL,
            least,
            most,
            tolerated: TOLERATED,
        };
        Self {
            sizer: Sizer::new(&rules, Nanos(0)),
            now: Nanos(0),
            drawn: 0,
            noise: Rng::new(7),
            steps: Vec::new(),
            samples: 0,
            short: 0,
        }
    }

    /// Takes `samples` samples of a program, with noise of up to a quarter of what is tolerated.
    fn run(&mut self, need: Need, samples: u64) {
        for _ in 0..samples {
            self.now = self.sizer.next();
            let noise = u64::from(self.noise.below(NOISE));
            self.drawn += (need.rate(self.sizer.ways()) + noise) / 1000;
            let before = self.sizer.ways();
            let step = self.sizer.sample(self.now, self.drawn);
            if let Some(step) = step {
                assert_eq!((step.from, step.to), (before, self.sizer.ways()));
                self.steps.push((self.samples, step));
            }
            self.short += u64::from(before < need.ways);
            self.samples += 1;
        }
    }
}

fn need(most: u32) -> impl Strategy<Value = Need> {
    (1..=most, 50_000_000..500_000_000u64, 0..100_000_000u64).prop_map(|(ways, steep, always)| {
        Need {
            ways,
            steep,
            always,
        }
    })
}

proptest! {
    #[test]
    fn it_settles_at_what_is_needed_and_hardly_moves_from_there(
        least in 1..3u32,
        need in need(12),
    ) {
        let mut plant = Plant::new(least, 12);
        plant.run(need, 400);
        let (wanted, short) = (need.ways.max(least), plant.short);
        plant.run(need, 2000);
        // A trial now and then, reverted at the next sample.
        let late: Vec<_> = plant.steps.iter().filter(|(at, _)| *at >= 400).collect();
        prop_assert!(late.len() <= 12, "{late:?}");
        for (_, step) in &late {
            prop_assert!(step.to + 1 >= wanted && step.to <= wanted, "{wanted}: {step:?}");
        }
        prop_assert!(plant.short - short <= 12, "{} of 2000 samples with too few ways", plant.short - short);
    }

    #[test]
    fn it_grows_at_once_when_more_is_needed(small in 1..6u32, large in 7..=12u32) {
        let need = |ways| Need { ways, steep: 60_000_000, always: 1_000_000 };
        let mut plant = Plant::new(1, 12);
        plant.run(need(small), 500);
        let before = plant.samples;
        prop_assert!(plant.sizer.ways() <= small);
        plant.run(need(large), 2);
        prop_assert!(plant.sizer.ways() >= small && plant.sizer.ways() == 12, "{:?}", plant.steps.last());
        prop_assert!(plant.steps.last().is_some_and(|(at, _)| *at <= before + 1));
        plant.run(need(large), 500);
        prop_assert!(plant.sizer.ways() == large || plant.sizer.ways() + 1 == large);
    }

    #[test]
    fn a_program_that_swings_gets_what_it_needs_each_time(
        stretches in proptest::collection::vec((need(12), 60..300u64), 1..8),
        least in 1..3u32,
    ) {
        let mut plant = Plant::new(least, 12);
        for (need, samples) in stretches {
            let first = plant.samples;
            plant.run(need, samples);
            prop_assert!((least..=12).contains(&plant.sizer.ways()));
            let gone = plant.steps.iter().filter(|(at, s)| *at >= first && s.to < s.from).count() as u64;
            prop_assert!(gone <= samples / u64::from(CALM) + 1, "ways are given back slowly");
            for (_, step) in plant.steps.iter().filter(|(at, _)| *at >= first) {
                prop_assert!(step.to > step.from || step.from == step.to + 1, "one by one: {step:?}");
            }
        }
    }

    #[test]
    fn masks_have_no_holes_and_share_nothing(first in 0..4u32, own in 1..8u32, others in 1..8u32, above: bool, ways in 0..12u32) {
        let (mine, theirs) = if above {
            (Mask::run(first, own), Mask::run(first + own, others))
        } else {
            (Mask::run(first + others, own), Mask::run(first, others))
        };
        let boundary = Boundary::between(mine, theirs).unwrap();
        let (a, b) = boundary.at(ways);
        let run = |mask: Mask| mask == Mask::run(mask.0.trailing_zeros(), mask.count());
        prop_assert!(run(a) && run(b), "{a} {b}");
        prop_assert_eq!(a.0 & b.0, 0);
        prop_assert_eq!(a.0 | b.0, mine.0 | theirs.0);
        prop_assert_eq!(a.count(), ways.clamp(1, own));
    }
}

#[test]
fn a_stream_comes_down_to_the_least() {
    let stream = Need {
        ways: 0,
        steep: 0,
        always: 5_000_000_000,
    };
    let mut plant = Plant::new(2, 12);
    plant.run(stream, 200);
    assert_eq!(plant.sizer.ways(), 2);
}

#[test]
fn parts_that_are_not_side_by_side_cannot_move() {
    for (own, others) in [
        (0x0f, 0xf00),
        (0x05, 0xf0),
        (0x0f, 0x0a0),
        (0, 0xf),
        (0xf, 0x3),
    ] {
        assert_eq!(Boundary::between(Mask(own), Mask(others)), None);
    }
}
