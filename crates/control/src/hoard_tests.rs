//! The hoard against an allocator that hands out the frame that was released last first.

use proptest::prelude::*;
use quell_types::rng::Rng;

use super::*;

const PAGE: u64 = 4096;

/// Free frames: the last one is handed out first.
struct Machine {
    free: Vec<u64>,
    /// The frame of each slot.
    slots: Vec<Option<u64>>,
}

impl Machine {
    /// So many frames, in runs as a buddy allocator has them, shuffled.
    fn new(frames: u64, run: u64, seed: u64) -> Self {
        let mut runs: Vec<u64> = (0..frames / run).collect();
        Rng::new(seed).shuffle(&mut runs);
        let free = runs.iter().flat_map(|r| r * run..(r + 1) * run);
        Self {
            free: free.collect(),
            slots: Vec::new(),
        }
    }

    fn memory(&self) -> Memory {
        let free = Bytes(self.free.len() as u64 * PAGE);
        let available = free;
        Memory { free, available }
    }

    fn fill(&mut self, runs: &[Range<usize>]) {
        for at in runs.iter().cloned().flatten() {
            if self.slots.len() <= at {
                self.slots.resize(at + 1, None);
            }
            assert_eq!(self.slots[at], None, "slot {at} has a frame");
            self.slots[at] = Some(self.free.pop().expect("the machine has no memory left"));
        }
    }

    fn empty(&mut self, runs: &[Range<usize>]) {
        for at in runs.iter().cloned().flatten() {
            self.free.push(self.slots[at].take().expect("no frame"));
        }
    }

    fn held(&self) -> u64 {
        self.slots.iter().flatten().count() as u64
    }
}

fn rules(bits: &[u64], colours: &str, limit: u64, reserve: u64) -> Rules {
    Rules {
        colouring: Colouring::of_pages(bits.iter().map(|bit| 1 << bit), 0),
        colours: colours.parse().unwrap(),
        limit: Bytes(limit * PAGE),
        reserve: Bytes(reserve * PAGE),
    }
}

fn colour(rules: &Rules, frame: u64) -> u32 {
    let masks = rules.colouring.functions.iter().zip(0..);
    masks.fold(0, |colour, (mask, bit)| {
        colour | ((((frame * PAGE) & mask.0).count_ones() & 1) << bit)
    })
}

/// One round. Checks what holds at every moment of it.
fn round(slots: &mut Slots, machine: &mut Machine, rules: &Rules) -> Round {
    loop {
        let runs = slots.take(machine.memory(), AT_ONCE);
        if runs.is_empty() {
            break;
        }
        machine.fill(&runs);
        assert_eq!(slots.held(), machine.held());
        assert!(slots.kept() <= rules.pages() && slots.held() <= rules.pages_at_once());
        assert!(slots.count() as u64 <= rules.pages_at_once());
        assert!(machine.memory().free >= rules.reserve);
        assert!(slots.release().is_empty(), "frames were not sorted yet");
    }
    for (first, frames) in machine.slots.clone().chunks(7).enumerate() {
        assert_eq!(slots.sort(first * 7, frames), 0);
    }
    machine.empty(&slots.release());
    assert_eq!(slots.held(), machine.held());
    slots.end_round()
}

fn sieve(slots: &mut Slots, machine: &mut Machine, rules: &Rules) -> Vec<Round> {
    let mut rounds = Vec::new();
    loop {
        let round = round(slots, machine, rules);
        rounds.push(round);
        if !round.again() {
            return rounds;
        }
    }
}

fn only_reserved(slots: &Slots, machine: &Machine, rules: &Rules) {
    let mut kept = vec![0; rules.colouring.count() as usize];
    for frame in machine.slots.iter().flatten() {
        let colour = colour(rules, *frame);
        assert!(rules.colours.contains(colour), "frame {frame} is kept");
        kept[colour as usize] += 1;
    }
    assert_eq!(slots.by_colour(), kept);
}

proptest! {
    #[test]
    fn only_frames_of_reserved_colours_are_kept(
        first in 12u64..18,
        bits in 1u64..5,
        reserved in 1u32..,
        limit in 1u64..6_000,
        reserve in 1u64..4_000,
        run in 1u64..64,
        seed in any::<u64>(),
    ) {
        let functions: Vec<u64> = (first..first + bits).collect();
        let all = (1u32 << (1 << bits)) - 1;
        let colours: CpuSet = (0..32).filter(|c| reserved & all & 1 << c != 0).collect();
        let mut rules = rules(&functions, "0", limit, reserve);
        rules.colours = colours;
        prop_assume!(rules.refusal().is_none());
        let mut machine = Machine::new(4096, run, seed);
        let mut slots = Slots::new(&rules).unwrap();
        let rounds = sieve(&mut slots, &mut machine, &rules);
        only_reserved(&slots, &machine, &rules);
        // Each round but the last one gains a hundredth.
        prop_assert!(rounds.len() < 1000, "{}", rounds.len());
        prop_assert_eq!(rounds.iter().map(|r| r.gained).sum::<u64>(), slots.kept());
    }

    #[test]
    fn a_shrinking_hoard_keeps_its_colours_level(
        kept in proptest::collection::vec(0u64..200, 1..12),
        pages in 0u64..1_500,
    ) {
        let all: u64 = kept.iter().sum();
        let shares = shares(&kept, pages);
        let left: Vec<u64> = kept.iter().zip(&shares).map(|(n, share)| n - share).collect();
        prop_assert_eq!(shares.iter().sum::<u64>(), pages.min(all));
        // Of no colour is more left than of another one that gave something up, and one page.
        let gave = left.iter().zip(&shares).filter(|(_, share)| **share > 0);
        let least = gave.map(|(left, _)| *left).min();
        if let Some(least) = least {
            prop_assert!(left.iter().all(|n| *n <= least + 1), "{left:?} of {kept:?}");
        }
    }

    #[test]
    fn pressure_is_answered_before_the_reserve_is_used(
        limit in 100u64..3_000,
        reserve in 1u64..600,
        used in 0u64..4_000,
        stalled in 0u64..100,
        seed in any::<u64>(),
    ) {
        let rules = rules(&[14, 15], "1,2", limit, reserve);
        let mut machine = Machine::new(4096, 16, seed);
        let mut slots = Slots::new(&rules).unwrap();
        sieve(&mut slots, &mut machine, &rules);
        let kept = slots.kept();
        let used = used.min(machine.free.len() as u64);
        machine.free.truncate(machine.free.len() - usize::try_from(used).unwrap());
        let short = machine.memory().available < rules.reserve;
        let near = machine.memory().available.0 < rules.reserve.0 * 2;
        let pages = slots.pressed(machine.memory(), Share::percent(stalled));
        let runs = slots.give_up(pages, None);
        prop_assert_eq!(runs.iter().map(|r| r.len() as u64).sum::<u64>(), pages);
        machine.empty(&runs);
        only_reserved(&slots, &machine, &rules);
        prop_assert!(slots.kept() == 0 || machine.memory().available >= rules.reserve);
        prop_assert!(short || pages == 0 || (stalled >= 10 && near), "{pages} of {kept}");
    }
}

proptest! {
    /// Seconds of a machine on which other programs use memory as they like: the hoard gives way in
    /// each second, and takes frames when it may.
    #[test]
    fn a_hoard_grows_again_slowly_and_leaves_the_reserve(
        limit in 100u64..2_000,
        reserve in 8u64..400,
        used in proptest::collection::vec((0u64..3_500, 1usize..150), 1..12),
        seed in any::<u64>(),
    ) {
        let rules = rules(&[14, 15], "1,2", limit, reserve);
        let mut machine = Machine::new(4096, 16, seed);
        let mut slots = Slots::new(&rules).unwrap();
        sieve(&mut slots, &mut machine, &rules);
        let mut regrowth = Regrowth::new(rules.reserve, slots.kept_bytes());
        let part = slots.kept();
        let mut programs = Vec::new();
        let (mut gave, mut sieved) = (None, None);
        let seconds = used.iter().flat_map(|(pages, seconds)| vec![*pages; *seconds]);
        for (second, wanted) in seconds.enumerate() {
            let now = Nanos::secs(second as u64);
            while programs.len() as u64 > wanted {
                machine.free.extend(programs.pop());
            }
            while (programs.len() as u64) < wanted && !machine.free.is_empty() {
                programs.extend(machine.free.pop());
                let pages = slots.pressed(machine.memory(), Share(0));
                if pages > 0 {
                    machine.empty(&slots.give_up(pages, None));
                    regrowth.gave_up();
                    gave = Some(now);
                }
            }
            if !regrowth.is_due(now, machine.memory(), slots.kept_bytes()) {
                continue;
            }
            prop_assert!(gave.is_some());
            let calm = |before: Option<Nanos>| before.is_none_or(|at| now >= at.plus(CALM));
            prop_assert!(calm(gave) && calm(sieved), "{gave:?} {sieved:?} {now:?}");
            sieved = Some(now);
            // Each round checks that the reserve stays free.
            sieve(&mut slots, &mut machine, &rules);
            only_reserved(&slots, &machine, &rules);
            let again = regrowth.sieved(slots.kept_bytes());
            prop_assert_eq!(again, (part - slots.kept().min(part)) * 100 <= part);
            prop_assert_eq!(again, !regrowth.is_shrunk());
            prop_assert_eq!(slots.pressed(machine.memory(), Share(0)), 0);
        }
    }
}

#[test]
fn a_minute_of_calm_comes_before_each_sieve() {
    let mut regrowth = Regrowth::new(Bytes(1000), Bytes(3000));
    let mut due = |at, available, held| {
        let memory = Memory {
            free: Bytes(available),
            available: Bytes(available),
        };
        regrowth.is_due(Nanos::secs(at), memory, Bytes(held))
    };
    assert!(
        !due(1, 9000, 3000) && !due(100, 9000, 2970),
        "nothing lacks"
    );
    assert!(!due(200, 1250, 2969) && !due(259, 1250, 2969));
    // A second in which too little is available begins the minute anew.
    assert!(!due(260, 1249, 2969) && !due(261, 1250, 2969));
    assert!(!due(320, 1250, 2969) && due(321, 1250, 2969));
    assert!(!due(380, 1250, 2969) && due(381, 1250, 2969));
    assert!(!regrowth.sieved(Bytes(2970)), "nothing was lost");
    // The kernel moves few frames, again and again.
    assert!(!regrowth.moved(Bytes(2970)));
    assert!(regrowth.moved(Bytes(2969)) && !regrowth.moved(Bytes(2960)));
    // Each sieve that does not suffice doubles the wait, up to 16 minutes.
    let memory = Memory {
        free: Bytes(1250),
        available: Bytes(1250),
    };
    let mut at = 400;
    assert!(!regrowth.is_due(Nanos::secs(at), memory, Bytes(0)));
    for minutes in [1, 2, 4, 8, 16, 16, 16] {
        at += minutes * 60;
        assert!(!regrowth.is_due(Nanos::secs(at - 1), memory, Bytes(0)));
        assert!(regrowth.is_due(Nanos::secs(at), memory, Bytes(0)));
        assert!(!regrowth.sieved(Bytes(2969)) && regrowth.is_shrunk());
    }
    assert!(regrowth.sieved(Bytes(2970)) && !regrowth.is_shrunk());
}

proptest! {
    #[test]
    fn free_memory_is_looked_at_before_it_can_be_used_up(
        reserve in 1u64..1 << 22,
        available in 0u64..1 << 24,
    ) {
        let slots = Slots::new(&rules(&[14], "1", 1024, reserve)).unwrap();
        let memory = Memory { free: Bytes(0), available: Bytes(available * PAGE) };
        let wait = slots.next_look(memory);
        prop_assert!(wait >= Nanos::millis(50) && wait <= Nanos::secs(1));
        let used = (4_u64 << 30) as f64 * wait.as_secs_f64();
        let left = (available * PAGE) as f64 - used;
        prop_assert!(wait == Nanos::millis(50) || left + 1.0 >= (2 * reserve * PAGE) as f64);
    }
}

/// A sieve that releases a frame at once gets it back at once.
#[test]
fn frames_are_held_until_all_are_sorted() {
    let rules = rules(&[13, 14], "3", 1 << 20, 256);
    let mut machine = Machine::new(32_768, 4, 1);
    let total = machine.free.iter().filter(|f| colour(&rules, **f) == 3);
    let total = total.count();
    let mut naive = 0;
    let mut free = machine.free.clone();
    for _ in 0..32_768 - 256 {
        let frame = free.pop().unwrap();
        match colour(&rules, frame) {
            3 => naive += 1,
            _ => free.push(frame),
        }
    }
    let mut slots = Slots::new(&rules).unwrap();
    let rounds = sieve(&mut slots, &mut machine, &rules);
    assert!(naive < 8, "{naive}");
    assert!(slots.kept() as usize > total - 256, "{rounds:?}");
    // What another program gets afterwards has other colours.
    let stream = machine.free.iter().rev().take(20_000);
    assert_eq!(stream.filter(|f| colour(&rules, **f) == 3).count(), 0);
}

/// The limit is of what is kept: with less than what is free, nearly as much is kept.
#[test]
fn a_hoard_with_a_limit_keeps_as_much() {
    for (colours, limit) in [("3", 1000), ("0,2", 1000), ("0-2", 3000), ("1", 8000)] {
        let rules = rules(&[13, 14], colours, limit, 256);
        let mut machine = Machine::new(32_768, 4, 7);
        let mut slots = Slots::new(&rules).unwrap();
        let rounds = sieve(&mut slots, &mut machine, &rules);
        assert!(slots.kept() <= limit && rounds.len() <= 4, "{rounds:?}");
        assert!(slots.kept() * 100 >= limit * 97, "{colours}: {rounds:?}");
    }
}

#[test]
fn a_frame_that_moved_is_released_and_counted() {
    let rules = rules(&[12], "1", 64, 1);
    let mut machine = Machine::new(512, 2, 3);
    let mut slots = Slots::new(&rules).unwrap();
    sieve(&mut slots, &mut machine, &rules);
    let kept = slots.kept();
    assert!(kept >= 16, "{kept}");
    // The kernel has moved three pages: to a wrong frame, to another right one, out of memory.
    let held: Vec<usize> = (0..machine.slots.len())
        .filter(|at| machine.slots[*at].is_some())
        .collect();
    let mut frames = machine.slots.clone();
    frames[held[0]] = Some(600);
    frames[held[1]] = Some(601);
    frames[held[2]] = None;
    assert_eq!(slots.sort(0, &frames), 2);
    let runs = slots.release();
    let released: Vec<usize> = runs.into_iter().flatten().collect();
    assert_eq!(released, [held[0], held[2]]);
    assert_eq!(slots.kept(), kept - 2);
    // The slots are filled again first.
    let runs = slots.take(
        Memory {
            free: Bytes(3 * PAGE),
            available: Bytes(3 * PAGE),
        },
        AT_ONCE,
    );
    let lowest = runs.first().unwrap().start;
    let still = |at: &usize| held.contains(at) && !released.contains(at);
    assert_eq!(lowest, (0..).find(|at| !still(at)).unwrap());
}

#[test]
fn rules_without_a_hoard_are_refused() {
    let fine = rules(&[14, 15, 16], "4-7", 65_536, 1024);
    assert_eq!(fine.refusal(), None);
    let refused = |change: &dyn Fn(&mut Rules)| {
        let mut rules = fine.clone();
        change(&mut rules);
        Slots::new(&rules).unwrap_err()
    };
    type Change<'a> = &'a dyn Fn(&mut Rules);
    let cases: [(Change<'_>, &str); 7] = [
        (&|r| r.colours = "8".parse().unwrap(), "colours 0-7"),
        (&|r| r.colours = CpuSet::new(), "colours 0-7"),
        (&|r| r.colours = "0-7".parse().unwrap(), "all 8 colours"),
        (&|r| r.colouring.functions.clear(), "2^0 colours"),
        (&|r| r.colouring.page = Bytes(0), "no size of a page"),
        (&|r| r.limit = Bytes(4095), "less than a page"),
        (&|r| r.reserve = Bytes(0), "no memory stays"),
    ];
    for (change, says) in cases {
        let why = refused(change);
        assert!(why.contains(says), "{why}");
    }
}
