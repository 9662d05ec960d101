use proptest::prelude::*;
use quell_types::pages::total;

use super::*;

fn colouring() -> Colouring {
    // Bit 12, and the parity of bits 13 and 16.
    Colouring::of_pages([1 << 12, 1 << 13 | 1 << 16], 0)
}

fn set(text: &str) -> CpuSet {
    text.parse().unwrap()
}

#[test]
fn right_frames_are_those_of_the_colours() {
    let right = RightFrames::new(&colouring(), &set("1-2")).unwrap();
    // Colour = bit 0 of the frame, and bit 1 xor bit 4 of the frame.
    let expected =
        |frame: u64| [1, 2].contains(&((frame & 1) | (frame >> 1 ^ frame >> 4) << 1 & 2));
    assert!((0..64).all(|frame| right.has(frame) == expected(frame)));
    assert_eq!(right.rarity(), 2);
    for none in ["", "4", "0-4"] {
        assert_eq!(RightFrames::new(&colouring(), &set(none)), None, "{none}");
    }
}

fn states() -> impl Strategy<Value = Vec<PageState>> {
    let one = prop_oneof![
        1 => Just(PageState::Fixed),
        3 => Just(PageState::Right),
        4 => Just(PageState::Wrong),
    ];
    proptest::collection::vec(one, 0..400)
}

proptest! {
    #[test]
    fn chunks_cover_every_wrong_page_once(states in states(), most in 1u64..64, first in 0u64..9) {
        let end = first + states.len() as u64;
        let state = |page: u64| states[usize::try_from(page - first).unwrap()];
        let (mut at, mut covered) = (first, Vec::new());
        while let Some(chunk) = chunk(at, &states[usize::try_from(at - first).unwrap()..], most) {
            prop_assert!(chunk.next > at && chunk.next <= end);
            prop_assert!(total(&chunk.runs) <= most && chunk.runs.len() <= MOST_RUNS);
            let mut last = None;
            for run in &chunk.runs {
                prop_assert!(run.first >= at && run.end() <= chunk.next);
                // Ascending, and something is between two runs.
                prop_assert!(last.is_none_or(|last| last < run.first));
                last = Some(run.end());
                prop_assert_eq!(state(run.first), PageState::Wrong);
                prop_assert_eq!(state(run.end() - 1), PageState::Wrong);
                let mut right = 0;
                for page in run.first..run.end() {
                    match state(page) {
                        PageState::Wrong => { covered.push(page); right = 0; }
                        PageState::Right => right += 1,
                        PageState::Fixed => prop_assert!(false, "page {} cannot be moved", page),
                    }
                    prop_assert!(right <= BRIDGE);
                }
            }
            at = chunk.next;
        }
        let wrong: Vec<u64> = (first..end).filter(|page| state(*page) == PageState::Wrong).collect();
        prop_assert_eq!(covered, wrong);
    }

    /// With a constant cost per page and per stop, no stop but the first ones of an overrun is
    /// longer than allowed, and the share of time is kept. Where a stop alone takes too long, it is
    /// used for some pages all the same.
    #[test]
    fn stops_stay_within_their_bounds(each in 200u64..40_000, fixed in 0u64..5_000_000) {
        let pace = Pace::default();
        let mut pacer = Pacer::new(pace);
        let (mut stopped, mut elapsed) = (0u64, 0u64);
        for stop in 0..200 {
            let moving = each * pacer.pages();
            let lasted = fixed + moving;
            if stop > 8 {
                let allowed = pace.longest.0.max(fixed + pace.longest.0 / 4);
                prop_assert!(lasted <= allowed, "{} pages take {} ns", pacer.pages(), lasted);
            }
            let rest = pacer.after(pacer.pages(), Nanos(lasted), Nanos(moving));
            stopped += lasted;
            elapsed += lasted + rest.0;
        }
        let share = stopped as f64 / elapsed as f64;
        prop_assert!((share - pace.share.as_f64()).abs() < 1e-4, "{}", share);
        // As many as fit, within a factor of two.
        let room = pace.longest.0.saturating_sub(fixed).max(pace.longest.0 / 4);
        let most = MOST_PAGES.min(room / each);
        prop_assert!(pacer.pages() * 3 >= most, "{} of {}", pacer.pages(), most);
    }
}

/// Pages and the rest cost up to three times what they mostly do, and one stop in 30 is held up for
/// half of the longest one. One in a hundred stops is longer than allowed.
#[test]
fn about_one_stop_in_a_hundred_is_longer_than_allowed() {
    let mut state = 1u64;
    // Xorshift, below 1000.
    let mut random = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        (state >> 11) % 1000
    };
    let longest = Pace::default().longest;
    let mut pacer = Pacer::new(Pace::default());
    let (mut longer, mut moved) = (0, 0);
    for stop in 0..20_000 {
        // In thousandths: mostly little more than 1000, and up to 3000.
        let often = |random: u64| 1000 + 2 * (random.pow(6) / 1_000_000_000_000_000);
        let held_up = if random() < 33 { 1_000_000 } else { 0 };
        let moving = Nanos(8 * often(random()) * pacer.pages());
        let besides = Nanos(400 * often(random()) + held_up);
        let pages = pacer.pages();
        let _ = pacer.after(pages, moving.plus(besides), moving);
        if stop >= 1000 {
            longer += u32::from(moving.plus(besides) > longest);
            moved += pages;
        }
    }
    assert!((95..290).contains(&longer), "{longer} of 19,000");
    assert!(moved > 19_000 * 20, "{moved}");
}

#[test]
fn a_slow_stop_makes_chunks_smaller_and_an_empty_one_does_not() {
    let mut pacer = Pacer::new(Pace::default());
    let before = pacer.pages();
    let _ = pacer.after(0, Nanos::micros(300), Nanos(0));
    assert_eq!(pacer.pages(), before);
    let _ = pacer.after(before, Nanos::millis(30), Nanos::millis(30));
    assert_eq!(pacer.pages(), 1);
    // The last chunk of a mapping is smaller, and says nothing of larger ones.
    let mut pacer = Pacer::new(Pace::default());
    let _ = pacer.after(1, Nanos(100), Nanos(100));
    assert_eq!(pacer.pages(), before);
    let whole = Pace {
        share: Share::WHOLE,
        ..Pace::default()
    };
    assert_eq!(
        Pacer::new(whole).after(9, Nanos::millis(1), Nanos(0)),
        Nanos(0)
    );
}
