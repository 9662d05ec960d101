//! What a program does per cycle and per microsecond, phase by phase: what a scheduler that pairs
//! programs has to know of each alone (`control::schedule`).
//!
//! Counters are read at the edges of windows. A window belongs to the phase before it if its
//! figures are near that phase's. Rates are per microsecond of CPU time, so sleeping changes none.

use quell_control::work::Work;
use quell_types::units::Nanos;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Two figures are near each other if they differ by this part of the larger one at most.
const NEAR: f64 = 0.15;
/// A window in which a program ran for less than this part of the time tells nothing of it.
const LITTLE: u64 = 20;
/// Rates below this part of the largest one are near each other: they hardly matter.
const SMALL: f64 = 0.01;

/// A stretch of a program's work in which it did about the same all the time.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// When it began, in nanoseconds from the beginning of the profile.
    pub from_ns: u64,
    /// When it ended, likewise.
    pub until_ns: u64,
    /// CPU time of the program in it, in nanoseconds.
    pub cpu_ns: u64,
    /// Instructions per core cycle.
    pub ipc: f64,
    /// Lines to and from main memory per microsecond of CPU time.
    pub memory_per_us: f64,
    /// Loads and stores at the first-level cache per microsecond of CPU time.
    pub first_level_per_us: f64,
}

/// The phases of readings with ascending times, at least `window` apart. They tile the time from
/// the first reading to the last. Empty where the program did not run, or where nothing counted
/// its instructions.
#[must_use]
pub fn phases(readings: &[(Nanos, Work)], window: Nanos) -> Vec<Phase> {
    let Some(&(begin, first)) = readings.first() else {
        return Vec::new();
    };
    let mut windows: Vec<(Nanos, Nanos, Work)> = Vec::new();
    let (mut from, mut before) = (begin, first);
    for (n, (at, work)) in readings.iter().enumerate().skip(1) {
        if at.since(from) >= window || n + 1 == readings.len() {
            windows.push((from, *at, work.since(before)));
            (from, before) = (*at, *work);
        }
    }
    let most = windows.iter().map(|(_, _, work)| work.figures());
    let most = most.fold([0.0; 3], |most: [f64; 3], figures| {
        std::array::from_fn(|n| most[n].max(figures[n]))
    });
    let near = |one: Work, other: Work| {
        let pairs = one.figures().into_iter().zip(other.figures()).zip(most);
        pairs.into_iter().all(|((a, b), most)| {
            let larger = a.max(b);
            (a - b).abs() <= (NEAR * larger).max(SMALL * most)
        })
    };
    let mut all: Vec<(Nanos, Nanos, Work)> = Vec::new();
    for (from, until, work) in windows {
        let tells = |work: Work, from: Nanos, until: Nanos| {
            work.cpu_ns >= until.since(from).0 / LITTLE && work.instructions > 0
        };
        match all.last_mut() {
            Some((began, ended, whole))
                if !tells(work, from, until)
                    || !tells(*whole, *began, *ended)
                    || near(*whole, work) =>
            {
                *ended = until;
                *whole = whole.with(work);
            }
            _ => all.push((from, until, work)),
        }
    }
    let all = all.into_iter().filter(|(_, _, work)| work.instructions > 0);
    all.map(|(from, until, work)| {
        let [ipc, memory_per_us, first_level_per_us] = work.figures();
        Phase {
            from_ns: from.since(begin).0,
            until_ns: until.since(begin).0,
            cpu_ns: work.cpu_ns,
            ipc,
            memory_per_us,
            first_level_per_us,
        }
    })
    .collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const WINDOW: Nanos = Nanos::millis(100);

    /// Readings each millisecond of a program that does so much in each.
    fn readings(of: impl Fn(u64) -> Work, millis: u64) -> Vec<(Nanos, Work)> {
        let mut sum = Work::default();
        let mut all = vec![(Nanos::secs(7), sum)];
        for at in 1..=millis {
            sum = sum.with(of(at));
            all.push((Nanos::secs(7).plus(Nanos::millis(at)), sum));
        }
        all
    }

    fn work(ipc: u64, memory: u64) -> Work {
        Work {
            cpu_ns: 1_000_000,
            cycles: 3_000_000,
            instructions: 3_000_000 * ipc,
            memory: 1_000 * memory,
            first_level: 900_000,
        }
    }

    #[test]
    fn two_phases_are_two() {
        let of = |at| if at <= 500 { work(2, 1) } else { work(1, 40) };
        let found = phases(&readings(of, 1_200), WINDOW);
        assert_eq!(found.len(), 2, "{found:?}");
        let [one, two] = [found[0], found[1]];
        assert_eq!((one.from_ns, one.until_ns), (0, 500_000_000));
        assert_eq!((two.from_ns, two.until_ns), (500_000_000, 1_200_000_000));
        assert_eq!([one.ipc, one.memory_per_us], [2.0, 1.0]);
        assert_eq!([two.ipc, two.memory_per_us], [1.0, 40.0]);
        assert_eq!(two.first_level_per_us, 900.0);
    }

    #[test]
    fn sleeping_is_no_phase_and_changes_no_rate() {
        let of = |at| {
            if (at / 300) % 2 == 0 {
                work(2, 30)
            } else {
                Work::default()
            }
        };
        let found = phases(&readings(of, 1_500), WINDOW);
        assert_eq!(found.len(), 1, "{found:?}");
        assert_eq!([found[0].ipc, found[0].memory_per_us], [2.0, 30.0]);
    }

    #[test]
    fn nothing_counted_gives_no_phase() {
        assert_eq!(phases(&[], WINDOW), []);
        assert_eq!(phases(&readings(|_| Work::default(), 300), WINDOW), []);
        let uncounted = |_| Work {
            instructions: 0,
            ..work(1, 1)
        };
        assert_eq!(phases(&readings(uncounted, 300), WINDOW), []);
    }

    proptest! {
        #[test]
        fn phases_tile_the_time_and_lose_no_cpu_time(
            ipcs in proptest::collection::vec(1..6u64, 1..12), memory in 0..50u64,
        ) {
            let of = |at: u64| work(ipcs[(at / 150) as usize % ipcs.len()], memory);
            let all = readings(of, 1_730);
            let found = phases(&all, WINDOW);
            prop_assert_eq!(found[0].from_ns, 0);
            prop_assert_eq!(found[found.len() - 1].until_ns, 1_730_000_000);
            prop_assert!(found.windows(2).all(|w| w[0].until_ns == w[1].from_ns));
            let cpu: u64 = found.iter().map(|phase| phase.cpu_ns).sum();
            prop_assert_eq!(cpu, all[all.len() - 1].1.cpu_ns);
            let least = *ipcs.iter().min().unwrap() as f64;
            let most = *ipcs.iter().max().unwrap() as f64;
            prop_assert!(found.iter().all(|p| p.ipc >= least - 1e-9 && p.ipc <= most + 1e-9));
        }
    }
}
