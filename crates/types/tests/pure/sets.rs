//! The sets of a cache, recovered from what drives lines out, on caches whose functions are known:
//! linear and hashed ones with a fifth of wrong answers, and caches where nothing can be recovered.

use std::collections::BTreeSet;
use std::convert::Infallible;

use proptest::prelude::*;
use quell_types::address::gf2::Space;
use quell_types::address::recovery::{Pool, Reread, SetRecovery, Shape, Verdict, recover_sets};
use quell_types::address::{Colours, Functions, bits};
use quell_types::rng::SplitMix;

const KEPT_NS: f64 = 40.0;
const LOST_NS: f64 = 95.0;

/// A cache with these functions of its sets in a machine of 2^`bits` bytes.
struct Cache {
    functions: Vec<u64>,
    ways: usize,
    bits: u32,
    wrong: f64,
    random: SplitMix,
}

impl Cache {
    fn new(functions: &[u64], ways: usize) -> Self {
        Self {
            functions: functions.to_vec(),
            ways,
            bits: 34,
            wrong: 0.2,
            random: SplitMix::new(3),
        }
    }

    fn shape(&self) -> Shape {
        Shape {
            pages: (self.ways << self.functions.len()) / 64,
            ways: self.ways,
            nearer: 4,
        }
    }

    fn memory(&self) -> Space {
        Space::spanned((0..self.bits).map(|bit| 1 << bit))
    }

    /// Pages anywhere in its memory.
    fn pool(&mut self, pages: usize) -> Pool {
        let mut all = BTreeSet::new();
        while all.len() < pages {
            all.insert(self.random.below(1 << (self.bits - 12)) << 12);
        }
        let mut all: Vec<u64> = all.into_iter().collect();
        for at in (1..all.len()).rev() {
            all.swap(at, self.random.below(at as u64 + 1) as usize);
        }
        Pool::new(all, 12)
    }

    fn part(&mut self) -> f64 {
        self.random.below(1 << 40) as f64 / (1u64 << 40) as f64
    }

    /// The time of a re-read whose line `same` lines of its set were read after. One of so many is
    /// wrong: as of the other kind, or disturbed.
    fn time(&mut self, same: usize) -> f64 {
        let mut lost = same >= self.ways;
        let mut disturbed = 0.0;
        if self.part() < self.wrong {
            match self.part() < 0.5 {
                true => lost = !lost,
                false => disturbed = 500.0 * self.part(),
            }
        }
        disturbed + 5.0 * self.part() + if lost { LOST_NS } else { KEPT_NS }
    }

    /// What is recovered where the cache sees the addresses of `host`, and the program those of
    /// `seen`. Sets are numbered by `set`.
    fn recover_by(mut self, seen: &Pool, host: &Pool, set: impl Fn(u64) -> u64) -> SetRecovery {
        let (memory, shape) = (self.memory(), self.shape());
        let probe = &mut |question: &Reread<'_>| {
            let of = |line: u64| set(host.physical(line));
            let victim = of(question.victim);
            let lines = question.others.iter().chain(question.clearing);
            let mut same: Vec<u64> = lines.copied().filter(|line| of(*line) == victim).collect();
            same.sort_unstable();
            same.dedup();
            Ok::<Option<f64>, Infallible>(Some(self.time(same.len())))
        };
        recover_sets(seen, &memory, &shape, 5, probe).unwrap()
    }

    fn recover(mut self) -> SetRecovery {
        let pool = self.pool(4 * self.shape().pool());
        let set = Functions::new(self.functions.clone());
        self.recover_by(&pool, &pool, |address| set.of(address))
    }
}

/// The span of the colours of pages of 2^`shift` bytes that a recovery found. `None`: no map.
fn found(recovery: &SetRecovery, shift: u32) -> Option<Space> {
    let colours = recovery.colours(shift)?;
    Some(Space::spanned(colours.functions().iter().copied()))
}

fn known(functions: &[u64], shift: u32) -> Option<Space> {
    let colours = Colours::new(functions, shift);
    Some(Space::spanned(colours.functions().iter().copied()))
}

/// Caches by name: the functions of their sets and their ways.
fn caches() -> Vec<(&'static str, Vec<u64>, usize)> {
    let hash = |bits: &[u32]| bits.iter().fold(0, |mask, bit| mask | 1u64 << bit);
    vec![
        ("plain, 8 colours", bits(6, 14), 8),
        ("plain, 32 colours", bits(6, 16), 16),
        ("four colours of twenty ways", bits(6, 13), 20),
        (
            "hashed slices",
            [
                bits(6, 14),
                vec![
                    hash(&[6, 10, 14, 17, 20, 24, 28]),
                    hash(&[7, 11, 15, 21, 29]),
                ],
            ]
            .concat(),
            12,
        ),
        (
            "slices that every page has",
            [bits(8, 15), vec![hash(&[6, 20, 23]), hash(&[7, 21, 24])]].concat(),
            8,
        ),
        (
            "two lines of a page that differ together",
            [bits(8, 15), vec![hash(&[6, 7, 25]), hash(&[7, 16])]].concat(),
            8,
        ),
    ]
}

#[test]
fn sets_are_recovered_with_a_fifth_of_wrong_answers() {
    for (name, functions, ways) in caches() {
        for wrong in [0.0, 0.2] {
            let mut cache = Cache::new(&functions, ways);
            cache.wrong = wrong;
            let recovery = cache.recover();
            for shift in [12, 14, 16] {
                let found = found(&recovery, shift);
                assert_eq!(
                    found,
                    known(&functions, shift),
                    "{name} {wrong}: {recovery:?}"
                );
            }
            assert_eq!(
                recovery.ways,
                u32::try_from(ways).ok(),
                "{name}: {recovery:?}"
            );
            let Verdict::Map { confidence, .. } = recovery.verdict else {
                panic!("{name}: {recovery:?}")
            };
            assert!(confidence > 0.95, "{name}: {recovery:?}");
        }
    }
}

#[test]
fn sets_behind_other_frames_are_hidden() {
    let functions = bits(6, 15);
    // A host gives its guest pages of 4 KiB anywhere, or neighbours that share all but their
    // highest two colour bits.
    for common in [0, 2] {
        let mut cache = Cache::new(&functions, 8);
        let host = cache.pool(cache.shape().pool());
        let mut random = SplitMix::new(9);
        let pages = (0..host.pages() as u64).map(|page| {
            let same = host.physical(page << 12) & ((1 << (12 + common)) - 1);
            (random.below(1 << 20) << (12 + common) | same) & ((1 << 34) - 1)
        });
        let guest = Pool::new(pages.collect(), 12);
        let set = Functions::new(functions.clone());
        let recovery = cache.recover_by(&guest, &host, |address| set.of(address));
        let Verdict::Hidden {
            common: seen,
            in_turn: None,
        } = &recovery.verdict
        else {
            panic!("{recovery:?}")
        };
        assert_eq!(seen.len(), common, "{recovery:?}");
        assert!(recovery.figures.again.right > 20, "{recovery:?}");
    }
}

#[test]
fn sets_in_turn_are_hidden_and_named() {
    let mut cache = Cache::new(&bits(6, 14), 8);
    let pool = cache.pool(4 * 96);
    // 768 sets, which 1536 would be: three times a power of two.
    let recovery = cache.recover_by(&pool, &pool, |address| (address >> 6) % 768);
    let Verdict::Hidden { common, in_turn } = &recovery.verdict else {
        panic!("{recovery:?}")
    };
    assert_eq!(common.len(), 2, "{recovery:?}");
    assert_eq!(in_turn.map(|n| n % 3), Some(0), "{recovery:?}");
}

#[test]
fn caches_that_drive_nothing_out_are_flat() {
    // The pool is smaller than what the cache holds.
    let mut cache = Cache::new(&bits(6, 16), 16);
    let pool = cache.pool(200);
    let set = Functions::new(bits(6, 16));
    let recovery = cache.recover_by(&pool, &pool, |address| set.of(address));
    assert_eq!(recovery.verdict, Verdict::Flat, "{recovery:?}");
}

#[test]
fn a_larger_cache_behind_is_not_taken_for_this_one() {
    // Four times what is reported: only the larger part of the pool drives lines out.
    let mut cache = Cache::new(&bits(6, 14), 8);
    let pool = cache.pool(1024);
    let behind = bits(6, 16);
    let set = Functions::new(behind.clone());
    let recovery = cache.recover_by(&pool, &pool, |address| set.of(address));
    assert_eq!(recovery.verdict, Verdict::Flat, "{recovery:?}");
    assert!(recovery.figures.together.right > 90, "{recovery:?}");
}

#[test]
fn answers_that_are_often_wrong_are_noise() {
    for wrong in [0.7, 0.9] {
        let mut cache = Cache::new(&bits(6, 14), 8);
        cache.wrong = wrong;
        let recovery = cache.recover();
        let none = [Verdict::Noisy, Verdict::Flat];
        assert!(none.contains(&recovery.verdict), "{wrong}: {recovery:?}");
    }
}

#[test]
fn pages_that_are_neighbours_are_narrow() {
    let cache = Cache::new(&bits(6, 14), 8);
    let pages = (0..cache.shape().pool() as u64).map(|n| 7 << 30 | n << 12);
    let pool = Pool::new(pages.collect(), 12);
    let set = Functions::new(bits(6, 14));
    let recovery = cache.recover_by(&pool, &pool, |address| set.of(address));
    assert!(
        matches!(recovery.verdict, Verdict::Narrow { .. }),
        "{recovery:?}"
    );
}

#[test]
fn a_search_ends_when_its_time_is_over() {
    let mut cache = Cache::new(&bits(6, 14), 8);
    let pool = cache.pool(cache.shape().pool());
    let (memory, shape) = (cache.memory(), cache.shape());
    let mut left = 300;
    let probe = &mut |question: &Reread<'_>| {
        left -= 1;
        let time = cache.time(question.others.len() / 8);
        Ok::<Option<f64>, Infallible>((left > 0).then_some(time))
    };
    let recovery = recover_sets(&pool, &memory, &shape, 5, probe).unwrap();
    assert_eq!(recovery.verdict, Verdict::Noisy);
    assert!(
        recovery.figures.over && recovery.figures.times == 300,
        "{recovery:?}"
    );
}

#[test]
fn a_question_reads_in_both_directions_and_far_away_last() {
    let (others, clearing) = ([0x1000, 0x2000], [0x3000, 0x4000]);
    let question = Reread {
        victim: 0x40,
        others: &others,
        clearing: &clearing,
    };
    let read: Vec<u64> = question.between().collect();
    let up = [0x1000, 0x2000, 0x3000, 0x4000];
    let down = [0x2000, 0x1000, 0x4000, 0x3000];
    assert_eq!(read, [&up[..], &down[..], &up[..], &[0x840]].concat());
    let flushed: BTreeSet<u64> = question.lines().collect();
    assert!(
        read.iter()
            .chain([&0x40])
            .all(|line| flushed.contains(line))
    );
}

/// Functions of sets: bits within a page, some of them hashed with higher ones, and up to four
/// hashes of higher bits, some with bits within a page.
fn functions() -> impl Strategy<Value = Vec<u64>> {
    let mask = |bits: BTreeSet<u32>| bits.into_iter().fold(0, |mask, bit| mask | 1u64 << bit);
    let high = prop::collection::btree_set(12..34u32, 1..7).prop_map(mask);
    let mixed =
        (high.clone(), any::<bool>()).prop_map(|(high, mixed)| if mixed { high } else { 0 });
    // Each doubles the pages that lines at one place of them need.
    let low = prop::collection::vec(mixed, 2).prop_map(|mixed| [mixed, vec![0; 4]].concat());
    let with = (high, 0..64u64).prop_map(|(high, low)| high | low << 6);
    (low, prop::collection::vec(with, 2..6)).prop_filter_map("dependent", |(low, with)| {
        let low = low.iter().zip(6..).map(|(high, bit)| 1u64 << bit | high);
        let all: Vec<u64> = low.chain(with).collect();
        (Space::spanned(all.iter().copied()).rank() as usize == all.len()).then_some(all)
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    /// No map but the right one is found.
    #[test]
    fn random_sets_are_recovered(functions in functions(), seed: u64) {
        let mut cache = Cache::new(&functions, 12);
        cache.random = SplitMix::new(seed);
        let recovery = cache.recover();
        match &recovery.verdict {
            Verdict::Map { .. } => {
                prop_assert_eq!(found(&recovery, 12), known(&functions, 12), "{:?}", recovery);
            }
            verdict => {
                let none = [Verdict::Noisy, Verdict::Flat];
                prop_assert!(none.contains(verdict), "{:?}", recovery);
            }
        }
    }
}
