//! Which caches show in a curve of latency against size, as `lat_mem_rd` (lmbench) draws it, and
//! how that compares with what the kernel claims.
//!
//! A level is a plateau: sizes over an octave or more with a latency within a quarter. It ends
//! where the latency leaves that range. For a list in random order that is some 7 % beyond the
//! cache's size if lines are replaced at random. It is at the cache's size if the oldest line is
//! replaced. Plateaus about as slow as the largest size are memory.

use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::knee::rising;
use super::tidy;

/// A plateau's latencies lie within this factor.
const FLAT: f64 = 1.25;
/// A plateau spans sizes of at least this factor.
const OCTAVE: f64 = 1.9;
/// A plateau's end belongs to the smallest cache of which it is at most this multiple.
const BEYOND: f64 = 1.6;
/// A plateau at least this slow, relative to the largest size, is memory: no cache saves so little.
const MEMORY: f64 = 0.65;
/// Less than this part of a claimed cache is worth a note.
const MISSING: f64 = 0.5;

/// A cache that the kernel reports, and what was measured of it.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LevelSeen {
    /// Level of the cache: 1, 2, 3, …
    pub level: u32,
    /// The size that the kernel reports.
    pub claimed: Bytes,
    /// The largest size that was as fast as this cache. Absent: no size was.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub seen: Option<Bytes>,
    /// Nanoseconds per access on its plateau. Absent when no plateau was found.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub latency_ns: Option<f64>,
}

/// How what was seen of a cache compares with the claim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Seen {
    /// About the size claimed.
    AsClaimed,
    /// Clearly less: other users take the rest, or the hypervisor lets this machine use only a
    /// part.
    Smaller,
    /// Clearly more than claimed.
    Larger,
    /// No size was served by this cache alone.
    NotAtAll,
}

impl LevelSeen {
    /// How what was seen compares with the claim.
    #[must_use]
    pub fn verdict(&self) -> Seen {
        let Some(seen) = self.seen else {
            return Seen::NotAtAll;
        };
        match seen.0 as f64 / self.claimed.0.max(1) as f64 {
            part if part < MISSING => Seen::Smaller,
            part if part > BEYOND => Seen::Larger,
            _ => Seen::AsClaimed,
        }
    }
}

/// What the curve `(size, nanoseconds)` shows of the claimed caches `(level, size)`. The curve
/// ascends by size, the caches by level.
#[must_use]
pub fn levels(points: &[(Bytes, f64)], claimed: &[(u32, Bytes)]) -> Vec<LevelSeen> {
    let mut found: Vec<LevelSeen> = claimed
        .iter()
        .map(|(level, size)| LevelSeen {
            level: *level,
            claimed: *size,
            seen: None,
            latency_ns: None,
        })
        .collect();
    let mut plateaus = plateaus(points);
    let memory = points.last().map_or(0.0, |(_, ns)| *ns);
    plateaus.retain(|(_, ns)| *ns < MEMORY * memory);
    let last = found.len().saturating_sub(1);
    for (end, latency) in plateaus {
        let fits = |level: &LevelSeen| level.claimed.0 as f64 * BEYOND >= end.0 as f64;
        let index = found.iter().position(fits).unwrap_or(last);
        if let Some(level) = found.get_mut(index) {
            // A part of a cache may be nearer than the rest, so it has several plateaus. The last
            // one says how much there is, the first one how fast it can be.
            level.seen = Some(end);
            level.latency_ns.get_or_insert(tidy(latency));
        }
    }
    found
}

/// The plateaus: where each ends, and its median latency.
fn plateaus(points: &[(Bytes, f64)]) -> Vec<(Bytes, f64)> {
    let fit = rising(&points.iter().map(|p| p.1).collect::<Vec<f64>>());
    let size = |i: usize| points[i].0.0 as f64;
    let end_at = |from: usize, level: f64| {
        let inside = fit[from..].iter().take_while(|ns| **ns <= FLAT * level);
        from + inside.count().saturating_sub(1)
    };
    let mut found = Vec::new();
    let mut begin = 0;
    while begin < fit.len() {
        let end = end_at(begin, fit[begin]);
        if size(end) < OCTAVE * size(begin) {
            begin += 1;
            continue;
        }
        // The start of the plateau may be the rest of a rise. Its middle is taken as the level,
        // until that no longer moves its end.
        let mut end = end;
        let level = loop {
            let level = fit[usize::midpoint(begin, end)];
            match end_at(begin, level) {
                further if further > end => end = further,
                _ => break level,
            }
        };
        found.push((points[end].0, level));
        begin = end + 1;
    }
    found
}

#[cfg(test)]
mod tests {
    #![expect(clippy::cast_sign_loss, reason = "sizes are positive")]

    use super::*;
    use proptest::prelude::*;

    /// Three sizes per octave, from 8 KiB to 256 MiB.
    fn sizes() -> impl Iterator<Item = f64> {
        (0..=45).map(|i| 8192.0 * 2f64.powf(f64::from(i) / 3.0))
    }

    /// The latency of a random list over a hierarchy in which each level keeps any line of the list
    /// with the same likelihood.
    fn hierarchy(caches: &[(f64, f64)], memory: f64) -> Vec<(Bytes, f64)> {
        sizes()
            .map(|size| {
                let mut served = 0.0;
                let mut ns = 0.0;
                for (capacity, latency) in caches {
                    let hit = (capacity / size).min(1.0);
                    ns += (hit - served).max(0.0) * latency;
                    served = hit.max(served);
                }
                (Bytes(size as u64), ns + (1.0 - served) * memory)
            })
            .collect()
    }

    const KIB: f64 = 1024.0;
    const MIB: f64 = 1024.0 * KIB;

    fn claimed() -> [(u32, Bytes); 3] {
        [
            (1, Bytes(48 << 10)),
            (2, Bytes(1280 << 10)),
            (3, Bytes(48 << 20)),
        ]
    }

    fn seen(points: &[(Bytes, f64)]) -> Vec<Seen> {
        levels(points, &claimed())
            .iter()
            .map(LevelSeen::verdict)
            .collect()
    }

    #[test]
    fn a_quiet_machine_shows_the_caches_it_claims() {
        let curve = hierarchy(
            &[(48.0 * KIB, 1.6), (1.25 * MIB, 5.0), (48.0 * MIB, 25.0)],
            100.0,
        );
        assert_eq!(seen(&curve), [Seen::AsClaimed; 3]);
        let found = levels(&curve, &claimed());
        assert!(
            (4.3..5.5).contains(&found[1].latency_ns.unwrap()),
            "{found:?}"
        );
    }

    #[test]
    fn a_last_level_cache_taken_by_others_is_seen_to_be_smaller() {
        let curve = hierarchy(
            &[(48.0 * KIB, 1.6), (1.25 * MIB, 5.0), (12.0 * MIB, 25.0)],
            100.0,
        );
        assert_eq!(seen(&curve)[2], Seen::Smaller);
        let found = levels(&curve, &claimed())[2].seen.unwrap();
        assert!((10 << 20..16 << 20).contains(&found.0), "{found}");
    }

    #[test]
    fn a_last_level_cache_of_which_nothing_is_left_is_not_seen() {
        let curve = hierarchy(&[(48.0 * KIB, 1.6), (1.25 * MIB, 5.0)], 100.0);
        assert_eq!(
            seen(&curve),
            [Seen::AsClaimed, Seen::AsClaimed, Seen::NotAtAll]
        );
    }

    #[test]
    fn a_plateau_as_slow_as_memory_is_no_cache() {
        let seen = |ns: f64| {
            let fast = (0..4).map(|i| (Bytes(8192 << i), ns));
            let slow = (4..8).map(|i| (Bytes(8192 << i), 100.0));
            let curve: Vec<(Bytes, f64)> = fast.chain(slow).collect();
            levels(&curve, &[(1, Bytes(65536))])[0].seen
        };
        assert_eq!(seen(64.0), Some(Bytes(65536)));
        assert_eq!(seen(65.0), None);
    }

    #[test]
    fn nothing_is_made_of_nothing() {
        assert!(levels(&[], &[]).is_empty());
        assert_eq!(seen(&[]), [Seen::NotAtAll; 3]);
        assert!(levels(&hierarchy(&[(48.0 * KIB, 1.6)], 90.0), &[]).is_empty());
    }

    proptest! {
        #[test]
        fn sizes_are_found_within_a_grid_step_or_two_under_noise(
            l1 in 32.0f64..64.0, l2 in 0.5f64..2.0, l3 in 16.0f64..64.0, noise in proptest::collection::vec(0.97f64..1.03, 46),
        ) {
            let mut curve = hierarchy(&[(l1 * KIB, 1.5), (l2 * MIB, 5.0), (l3 * MIB, 25.0)], 100.0);
            curve.iter_mut().zip(&noise).for_each(|(p, n)| p.1 *= n);
            let claim = [(1, l1 * KIB), (2, l2 * MIB), (3, l3 * MIB)].map(|(l, s)| (l, Bytes(s as u64)));
            for level in levels(&curve, &claim) {
                let part = level.seen.unwrap().0 as f64 / level.claimed.0 as f64;
                // A size between two points of the grid, and two steps of the root of two down, or
                // one up.
                prop_assert!((0.35..1.6).contains(&part), "{level:?}");
            }
        }

        #[test]
        fn any_curve_is_survived(ns in proptest::collection::vec(0.1f64..1e4, 0..60), nan in 0usize..200) {
            let mut points: Vec<(Bytes, f64)> = ns.iter().enumerate().map(|(i, n)| (Bytes(4096 << (i / 3)), *n)).collect();
            if let Some(point) = points.get_mut(nan) {
                point.1 = f64::NAN;
            }
            prop_assert_eq!(levels(&points, &claimed()).len(), 3);
        }
    }
}
