//! The LRU caches of many sizes against the cache model, access by access, and the profile of made
//! up programs.

use proptest::prelude::*;
use quell_model::cache::{Cache, Geometry, Policy, Stack, Traffic};
use quell_model::demand::{LINE, Plan, Profiler, Touch, WORDS};

/// In lines. The cache model has at most 64 ways, which a fully associative cache needs.
const SIZES: [usize; 7] = [1, 2, 3, 8, 9, 33, 64];

#[derive(Clone, Copy, Debug)]
enum Act {
    Access { line: u64, write: bool },
    WriteBack { line: u64 },
}

fn acts() -> impl Strategy<Value = Vec<Act>> {
    // Few and many lines, so that each of the sizes is full and is not.
    let line = prop_oneof![0..4u64, 0..20u64, 0..100u64];
    let act = (line, 0..8u8).prop_map(|(line, kind)| match kind {
        0 => Act::WriteBack { line },
        1 | 2 => Act::Access { line, write: true },
        _ => Act::Access { line, write: false },
    });
    prop::collection::vec(act, 1..600)
}

proptest! {
    #[test]
    fn lru_of_many_sizes_is_the_cache_model(acts in acts()) {
        let mut stack = Stack::new(&SIZES).unwrap();
        let mut caches = SIZES.map(|ways| {
            let geometry = Geometry::plain(ways as u64 * LINE, u32::try_from(ways).unwrap(), LINE);
            Cache::new(&geometry.unwrap(), Policy::Lru, 1).unwrap()
        });
        let mut past = [0; SIZES.len()];
        for act in acts {
            match act {
                Act::Access { line, write } => {
                    let hits = caches.each_mut().map(|cache| cache.access(line * LINE, write, 0).0);
                    let first = hits.iter().position(|hit| *hit).unwrap_or(SIZES.len());
                    prop_assert_eq!(stack.access(line, write), first);
                }
                Act::WriteBack { line } => {
                    stack.write_back(line);
                    for (cache, past) in caches.iter_mut().zip(&mut past) {
                        *past += u64::from(!cache.mark_dirty(line * LINE));
                    }
                }
            }
        }
        let expected: Vec<Traffic> = caches
            .iter()
            .zip(past)
            .map(|(cache, past)| {
                let counts = cache.counts(0);
                Traffic {
                    misses: counts.misses,
                    evictions: counts.evictions,
                    writebacks: counts.writebacks + past,
                }
            })
            .collect();
        prop_assert_eq!(stack.take_traffic(), expected);
    }
}

#[test]
fn impossible_cache_sizes_are_refused() {
    for sizes in [&[][..], &[0, 1], &[2, 2], &[3, 2], &[1; 17]] {
        assert!(Stack::new(sizes).is_err(), "{sizes:?}");
    }
}

fn profiler(window: u64) -> Profiler {
    Profiler::new(Plan {
        window,
        sizes: vec![512 << 10, 2 << 20],
        share: 1,
    })
    .expect("invariant: these caches can be")
}

fn touch(index: u64, address: u64, write: bool) -> Touch {
    Touch {
        index,
        address,
        write,
    }
}

fn nothing(_: u64) -> [u64; WORDS] {
    [0; WORDS]
}

#[test]
fn a_walk_misses_the_caches_that_are_smaller() {
    // A MiB, line by line, four times: two instructions per access.
    let lines = (1 << 20) / LINE;
    let mut profiler = profiler(2 * lines);
    for n in 0..4 * lines {
        profiler.block(2);
        profiler.access(touch(1, n % lines * LINE, true), nothing);
    }
    let windows = profiler.windows().to_vec();
    assert_eq!(windows.len(), 4);
    let cold = windows[0].sizes[1];
    assert_eq!((cold.misses, cold.evictions), (lines, 0));
    for window in &windows[1..] {
        assert_eq!((window.instructions, window.stores), (2 * lines, lines));
        assert_eq!((window.first, window.second), (lines, lines));
        assert_eq!(window.evictions, window.writebacks);
        // It misses half a MiB always, and two never.
        assert_eq!(window.sizes[0].misses, lines);
        assert_eq!(window.sizes[0].writebacks, lines);
        assert_eq!(window.sizes[1], Traffic::default());
    }
}

#[test]
fn what_repeats_a_line_hits_the_first_level() {
    let mut profiler = profiler(1000);
    profiler.block(4);
    for (index, write) in [(0, false), (1, true), (2, true), (3, false)] {
        profiler.access(touch(index, 4096 + 8 * index, write), nothing);
    }
    // The second piece of a wide access counts once.
    profiler.access(touch(3, 4096 + 56, false), nothing);
    let window = &profiler.windows()[0];
    assert_eq!((window.loads, window.stores), (2, 2));
    assert_eq!((window.first, window.second), (1, 1));
}

/// Misses and epochs of lines far apart, of which one begins every so many instructions.
fn epochs(step: u64, pointers: bool) -> (u64, u64) {
    let mut profiler = profiler(1 << 40);
    let place = |n: u64| (n + 1) << 20;
    for n in 0..100 {
        profiler.block(step);
        let next = if pointers { place(n + 1) } else { 0 };
        profiler.access(touch(0, place(n) + 8, false), |_| [next; WORDS]);
    }
    let far = profiler.windows()[0].far;
    (far.misses, far.epochs)
}

#[test]
fn misses_are_under_way_together_within_reach() {
    // All buffers are full after ten.
    assert_eq!(epochs(1, false), (100, 10));
    // Four of them are within 128 instructions of the first.
    assert_eq!(epochs(32, false), (100, 25));
    assert_eq!(epochs(128, false), (100, 100));
}

#[test]
fn misses_that_follow_a_pointer_are_not_together() {
    assert_eq!(epochs(1, true), (100, 100));
}

#[test]
fn a_walk_is_fetched_ahead() {
    let lines = 1000;
    let mut profiler = profiler(1 << 40);
    for n in 0..lines {
        profiler.block(200);
        // Up and down, far from each other.
        profiler.access(touch(0, (1 << 30) + n * LINE, false), nothing);
        profiler.access(touch(1, (1 << 31) - n * LINE, false), nothing);
    }
    let window = &profiler.windows()[0];
    assert_eq!((window.second, window.far.misses), (2 * lines, 2 * lines));
    // The first two lines of each.
    assert_eq!(window.far.epochs, 2);
}
