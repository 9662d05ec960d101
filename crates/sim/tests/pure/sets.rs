//! The sets of the simulated machines' caches, recovered by eviction alone.

use std::time::Instant;

use quell_plan::deep::targets;
use quell_record::backend::{Backend, Probe};
use quell_sim::Sim;
use quell_sim::banks::Shown;
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_sim::sets::Rereads;
use quell_types::address::gf2::Space;
use quell_types::address::recovery::{SetRecovery, Verdict};

/// What is recovered of each cache of a profile, and its level.
fn recovered(name: &str, shown: Shown, seed: u64) -> Vec<(u32, SetRecovery)> {
    let board = Board::of(Profile::built_in(name).expect("is built in")).expect("is possible");
    let mut backend = Sim::new(board.clone(), seed).expect("is possible");
    let machine = backend.inventory(Probe::Fast).expect("is simulated");
    let all = targets(&machine.caches, 0)
        .into_iter()
        .map(|(cache, shape)| {
            let begin = Instant::now();
            let mut rereads = Rereads::new(&board, shape, shown, seed).expect("has memory");
            let found = rereads.recover(seed);
            println!("{name} L{} {:?} {found:?}", cache.level, begin.elapsed());
            (cache.level, found)
        });
    all.collect()
}

#[test]
fn sets_of_all_profiles_are_recovered_exactly() {
    for name in Profile::names() {
        let profile = Profile::built_in(name).expect("is built in");
        for (level, found) in recovered(name, Shown::Host, 1) {
            let level = level as usize - 1;
            let cache = &profile.cache[level];
            let sets = cache.size.0 / cache.line / u64::from(cache.ways);
            assert_eq!(found.ways, Some(cache.ways), "{name}: {found:?}");
            match &found.verdict {
                Verdict::Map { confidence, .. } => {
                    let colours = found.colours(12).expect("is a map");
                    let known = profile.set_colours(level, 12);
                    assert_eq!(colours.functions(), known.functions(), "{name}: {found:?}");
                    assert!(*confidence > 0.95, "{name}: {found:?}");
                }
                // A remainder is no function of bits. What its power of two leaves is.
                Verdict::Hidden { common, in_turn } => {
                    assert!(!sets.is_power_of_two(), "{name}: {found:?}");
                    let low = (12..6 + sets.trailing_zeros()).map(|bit| 1u64 << bit);
                    let common = Space::spanned(common.iter().map(|mask| mask.0));
                    assert_eq!(common, Space::spanned(low), "{name}: {found:?}");
                    assert_eq!(in_turn.map(|n| n % 3), Some(0), "{name}: {found:?}");
                }
                _ => panic!("{name}: {found:?}"),
            }
        }
    }
}

#[test]
fn sets_behind_other_frames_are_hidden() {
    for (level, found) in recovered("xeon-w3530", Shown::Guest, 3) {
        let hidden = matches!(&found.verdict, Verdict::Hidden { common, .. } if common.is_empty());
        assert!(hidden, "L{level}: {found:?}");
    }
}
