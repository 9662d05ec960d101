//! The address maps of the simulated machines, recovered by timing alone.

use quell_sim::banks::{Pairs, Shown};
use quell_sim::board::Board;
use quell_sim::profile::Profile;
use quell_types::address::gf2::Space;
use quell_types::address::recovery::{Recovery, Verdict};
use quell_types::rng::SplitMix;

fn recovered(name: &str, shown: Shown, seed: u64) -> Recovery {
    let board = Board::of(Profile::built_in(name).expect("is built in")).expect("is possible");
    Pairs::new(&board, shown, seed)
        .expect("has memory")
        .recover(seed)
}

/// What chooses the bank: its functions, and those of rank and channel.
fn known(name: &str) -> Space {
    let memory = Profile::built_in(name).expect("is built in").memory;
    let functions = [memory.channel.0, memory.rank.0, memory.bank.0].concat();
    Space::spanned(functions)
}

#[test]
fn maps_of_all_profiles_are_recovered_exactly() {
    for name in Profile::names() {
        let memory = Profile::built_in(name).expect("is built in").memory;
        let found = recovered(name, Shown::Host, 1);
        match &found.verdict {
            Verdict::Map {
                functions,
                confidence,
            } => {
                let span = Space::spanned(functions.iter().map(|f| f.0));
                assert_eq!(span, known(name), "{name}: {found:?}");
                assert!(*confidence > 0.95, "{name}: {found:?}");
            }
            // Channels in turn are no function of bits.
            Verdict::Hidden { in_turn, .. } => {
                assert!(memory.channels_in_turn > 1, "{name}: {found:?}");
                let turns = in_turn.expect("the turns are seen");
                assert_eq!(turns % memory.channels_in_turn, 0, "{name}: {found:?}");
            }
            _ => panic!("{name}: {found:?}"),
        }
    }
}

#[test]
fn hidden_and_visible_maps_are_told_apart_blind() {
    let mut random = SplitMix::new(2026);
    for seed in 0..4 {
        // Of two machines one is virtual. Which one is drawn.
        let first = random.below(2) == 0;
        for is_first in [true, false] {
            let guest = first == is_first;
            let shown = if guest { Shown::Guest } else { Shown::Host };
            let found = recovered("xeon-w3530", shown, seed);
            match &found.verdict {
                Verdict::Map { functions, .. } if !guest => {
                    let span = Space::spanned(functions.iter().map(|f| f.0));
                    assert_eq!(span, known("xeon-w3530"));
                }
                Verdict::Hidden { .. } if guest => {}
                _ => panic!("{shown:?}: {found:?}"),
            }
        }
    }
}
