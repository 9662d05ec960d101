use proptest::prelude::*;
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::partition::Mask;

use super::*;
use crate::config::{Fill, Span};

const NAMES: [&str; 3] = ["a", "b", "c"];

fn window(start: u64, end: u64, group: &str) -> Span {
    Span {
        start: Nanos(start),
        end: Nanos(end),
        group: Some(group.to_owned()),
        ..Span::default()
    }
}

fn frame(length: u64, guard: u64, windows: &[Span], spare: Option<&str>) -> Frame {
    let cpus = CpuSet::from_iter([1]);
    let spare: Option<GroupId> = spare.map(str::to_owned);
    let (length, guard) = (Nanos(length), Nanos(guard));
    Frame::new(cpus, length, guard, windows, spare.as_ref())
}

/// The group of a time, looked up in the frame itself.
fn owner(frame: &Frame, now: Nanos) -> Option<usize> {
    let into = Nanos(now.0 % frame.length.0);
    let span = frame.spans.iter().find(|s| s.start <= into && into < s.end);
    let group = span.unwrap().group.as_ref()?;
    frame.groups().iter().position(|known| *known == group)
}

/// Frames with windows and gaps of any length, with or without a group for the spare time.
fn frames() -> impl Strategy<Value = Frame> {
    let pieces = prop::collection::vec((0_u64..60, 1_u64..90, 0_usize..3), 1..8);
    (pieces, 0_u64..50, 0_u64..4, prop::option::of(0_usize..3)).prop_map(
        |(pieces, rest, guard, spare)| {
            let (mut at, mut windows) = (0, Vec::new());
            for (gap, length, group) in pieces {
                // Ways of some windows, so that the same group may follow itself.
                let mask = Mask(length % 3);
                windows.push(Span {
                    ways: (!mask.is_empty()).then_some(Fill { level: 3, mask }),
                    ..window(at + gap, at + gap + length, NAMES[group])
                });
                at += gap + length;
            }
            frame(at + rest, guard, &windows, spare.map(|n| NAMES[n]))
        },
    )
}

proptest! {
    /// Every nanosecond of a frame is in exactly one span, and what was asked for is kept.
    #[test]
    fn a_frame_has_no_gap_and_no_overlap(frame in frames()) {
        prop_assert_eq!(frame.spans[0].start, Nanos(0));
        prop_assert_eq!(frame.spans.last().unwrap().end, frame.length);
        for two in frame.spans.windows(2) {
            prop_assert_eq!(two[0].end, two[1].start);
            prop_assert!(!two[0].is_alike(&two[1]));
        }
        let owned: u64 = frame.groups().iter().map(|g| frame.time_of(g).0).sum();
        let idle = frame.spans.iter().filter(|s| s.group.is_none());
        let idle: u64 = idle.map(|s| s.end.since(s.start).0).sum();
        prop_assert_eq!(owned + idle, frame.length.0);
    }

    /// Whatever the caller is late by: at most one group runs, it is the one of that time, and the
    /// next switch lies ahead. Nothing drifts: edges stay at their places in the frame.
    #[test]
    fn late_callers_find_the_group_of_the_time(
        frame in frames(),
        start in 0_u64..100_000,
        lates in prop::collection::vec(prop_oneof![4 => 0_u64..40, 1 => 0_u64..5_000], 1..60),
    ) {
        let mut dispatch = Dispatch::new(&frame, Nanos(start));
        let starts: Vec<u64> = frame.spans.iter().map(|s| s.start.0).collect();
        let mut running = None;
        let mut passed = 0;
        let mut before = Nanos(start);
        for late in lates {
            let next = dispatch.next;
            prop_assert!(next > before && dispatch.due() <= next);
            prop_assert!(starts.contains(&(next.0 % frame.length.0)));
            let now = dispatch.due().plus(Nanos(late));
            let skipped = dispatch.skipped();
            let switch = dispatch.take(now);
            if let Some(stop) = switch.stop {
                prop_assert_eq!(running, Some(stop));
                running = None;
            }
            if let Some(go) = switch.go {
                prop_assert_eq!(running, None);
                running = Some(go);
            }
            let at = now.max(next);
            let span = &frame.spans[switch.span];
            let into = Nanos(at.0 % frame.length.0);
            let same = frame.spans.iter().find(|s| s.start <= into && into < s.end);
            prop_assert!(span.is_alike(same.unwrap()));
            prop_assert_eq!(running, owner(&frame, at));
            prop_assert_eq!(running, dispatch.owner(at));
            prop_assert!(switch.at >= next && switch.at <= at);
            prop_assert!(dispatch.next > at);
            // An edge that was passed over is counted, and no other.
            passed += dispatch.skipped() - skipped;
            prop_assert_eq!(dispatch.skipped() == skipped, switch.at == next);
            before = at;
        }
        prop_assert_eq!(dispatch.skipped(), passed);
    }

    /// A quantile is the exact one, or up to an eighth more.
    #[test]
    fn quantiles_are_an_eighth_too_high_at_most(
        mut all in prop::collection::vec(0_u64..10_000_000, 1..200),
        share in 1_u64..=1_000_000,
    ) {
        let lateness = Lateness::default();
        all.iter().for_each(|late| lateness.note(Nanos(*late)));
        all.sort_unstable();
        let rank = (all.len() as u64 * share).div_ceil(1_000_000).max(1);
        let exact = all[usize::try_from(rank).unwrap() - 1];
        let told = lateness.quantile(Share(share)).0;
        prop_assert!(told >= exact && told <= exact + exact / 8, "{} for {}", told, exact);
        prop_assert_eq!(lateness.most().0, *all.last().unwrap());
    }
}

#[test]
fn two_windows_alternate_a_guard_ahead() {
    let ms = |n: u64| n * 1_000_000;
    let windows = [window(0, ms(4), "control"), window(ms(4), ms(9), "batch")];
    let frame = frame(ms(10), 200_000, &windows, None);
    assert_eq!(frame.groups(), ["control", "batch"]);
    assert_eq!(frame.time_of("batch"), Nanos::millis(5));
    let mut dispatch = Dispatch::new(&frame, Nanos(ms(95)));
    let mut switch = || {
        let due = dispatch.due();
        let at = dispatch.take(due);
        (due.0, at.at.0, at.stop, at.go)
    };
    assert_eq!(switch(), (ms(99) - 200_000, ms(99), None, None));
    assert_eq!(switch(), (ms(100) - 200_000, ms(100), None, Some(0)));
    assert_eq!(switch(), (ms(104) - 200_000, ms(104), Some(0), Some(1)));
    assert_eq!(switch(), (ms(109) - 200_000, ms(109), Some(1), None));
}

#[test]
fn a_group_that_gets_other_ways_is_stopped_for_them() {
    let fill = |mask| {
        let mask = Mask(mask);
        Some(Fill { level: 3, mask })
    };
    let windows = [
        Span {
            ways: fill(0xf),
            ..window(0, 4_000, "a")
        },
        Span {
            ways: fill(0x3),
            ..window(4_000, 8_000, "a")
        },
        Span {
            ways: fill(0x3),
            ..window(8_000, 9_000, "a")
        },
        window(9_000, 10_000, "b"),
    ];
    let frame = frame(10_000, 10, &windows, None);
    assert_eq!(frame.spans.len(), 3);
    let mut dispatch = Dispatch::new(&frame, Nanos(9_500));
    let mut switch = || {
        let switch = dispatch.take(dispatch.due());
        (switch.span, switch.stop, switch.go)
    };
    assert_eq!(switch(), (0, None, Some(0)));
    assert_eq!(switch(), (1, Some(0), Some(0)));
    assert_eq!(switch(), (2, Some(0), Some(1)));
    assert_eq!(switch(), (0, Some(1), Some(0)));
}

#[test]
fn a_pause_of_a_million_frames_is_one_switch() {
    let windows = [window(0, 4_000, "a"), window(4_000, 10_000, "b")];
    let frame = frame(10_000, 100, &windows, None);
    let mut dispatch = Dispatch::new(&frame, Nanos(0));
    assert_eq!(dispatch.take(dispatch.due()).go, Some(1));
    let much_later = Nanos(1_000_000 * 10_000 + 500);
    let switch = dispatch.take(much_later);
    assert_eq!((switch.stop, switch.go), (Some(1), Some(0)));
    assert_eq!(switch.at, Nanos(1_000_000 * 10_000));
    assert_eq!(dispatch.skipped(), 2 * 999_999);
}

#[test]
fn spare_time_that_is_too_short_for_a_window_stays_idle() {
    let windows = [window(0, 300, "a"), window(350, 600, "b")];
    let spared = frame(1_000, 10, &windows, Some("c"));
    let told: Vec<_> = spared.spans.iter().map(|s| s.group.as_deref()).collect();
    assert_eq!(told, [Some("a"), None, Some("b"), Some("c")]);
    let whole = frame(1_000, 10, &[window(0, 1_000, "a")], None);
    let mut dispatch = Dispatch::new(&whole, Nanos(10));
    assert_eq!(dispatch.take(dispatch.due()).go, Some(0));
    let again = dispatch.take(dispatch.due());
    assert_eq!((again.stop, again.go), (None, None));
}
