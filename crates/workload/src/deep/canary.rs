//! Which CPUs really share a cache, measured by the probe that knows nothing of the topology
//! ([`crate::probe`]). Among the pairs are cases with a known answer, which show how often it errs.

use std::io;

use quell_plan::deep::{Case, Control, Pair, Sharing, Spread};
use quell_plan::inventory::Inventory;
use quell_plan::pairs::{PAIRS, pairs};
use quell_types::cpuset::CpuId;

use super::{Block, Watch};
use crate::Error;
use crate::probe::{self, Probed};

/// Per round of a known case: the probe's score, and whether the round was quiet.
type Rounds = Vec<(Option<f64>, bool)>;

/// How often one pair is probed at least.
const FEWEST: u32 = 5;

/// Probes one pair and the known cases for so many rounds.
///
/// # Errors
/// When a CPU may not be used, memory cannot be had, or `watch` returns false.
pub fn sharing(
    machine: &Inventory,
    a: CpuId,
    b: CpuId,
    rounds: u32,
    mut watch: Watch<'_>,
) -> io::Result<Sharing> {
    let mut block = Block {
        label: "canary",
        from: 0,
        to: 100,
        watch: &mut watch,
    };
    Ok(rounds_of(machine, &[(a, b)], rounds, rounds, &mut block)?)
}

/// Probes the pairs of the machine.
pub(super) fn sharing_of(
    machine: &Inventory,
    rounds: u32,
    block: &mut Block<'_, '_>,
) -> Result<Sharing, Error> {
    let pairs = pairs(machine);
    // All pairs together are probed as often as a few pairs would be.
    let each = (rounds * 4 / u32::try_from(pairs.len().clamp(1, PAIRS)).unwrap_or(1))
        .clamp(FEWEST, rounds.max(FEWEST));
    rounds_of(machine, &pairs, each, rounds, block)
}

fn rounds_of(
    machine: &Inventory,
    pairs: &[(CpuId, CpuId)],
    each: u32,
    rounds: u32,
    block: &mut Block<'_, '_>,
) -> Result<Sharing, Error> {
    let usable: Vec<CpuId> = machine.cpus.iter().map(|c| c.id).collect();
    let siblings: Vec<(CpuId, CpuId)> = machine
        .cpus
        .iter()
        .filter_map(|c| {
            Some((
                c.id,
                c.siblings
                    .iter()
                    .find(|s| *s > c.id && usable.contains(s))?,
            ))
        })
        .collect();
    let turn =
        |of: &[(CpuId, CpuId)], round: u32| of.get(round as usize % of.len().max(1)).copied();
    let mut scores: Vec<Vec<Option<f64>>> = vec![Vec::new(); pairs.len()];
    let mut known: Vec<(Case, Rounds)> = Vec::new();
    let mut note = |case: Case, seen: Probed| {
        let round = (seen.sharing.map(|s| s.score), seen.quiet);
        match known.iter_mut().find(|(c, _)| *c == case) {
            Some((_, all)) => all.push(round),
            None => known.push((case, vec![round])),
        }
    };
    for round in 0..each.max(rounds) {
        block.at(round, each.max(rounds))?;
        if round < each {
            for (pair, scores) in pairs.iter().zip(&mut scores) {
                let seen = probe::two_cpus(pair.0, pair.1).map_err(probing)?;
                scores.push(seen.sharing.map(|s| s.score));
            }
        }
        if round < rounds {
            if let Some(cpu) = usable.get(round as usize % usable.len().max(1)) {
                note(Case::SameCpu, probe::same_cpu(*cpu).map_err(probing)?);
            }
            if let Some((a, b)) = turn(&siblings, round) {
                note(Case::Siblings, probe::two_cpus(a, b).map_err(probing)?);
            }
            if let Some((a, b)) = turn(pairs, round) {
                note(Case::Flushed, probe::flushed(a, b).map_err(probing)?);
            }
        }
    }
    let found = pairs.iter().zip(&scores).map(|((a, b), scores)| {
        let told: Vec<f64> = scores.iter().copied().flatten().collect();
        let number = |n: usize| u32::try_from(n).unwrap_or(u32::MAX);
        Pair {
            a: *a,
            b: *b,
            claimed: machine.llc(*a).is_some_and(|c| c.cpus.contains(*b)),
            score: Spread::of(&told),
            told: number(told.len()),
            probes: number(scores.len()),
        }
    });
    Ok(Sharing {
        pairs: found.collect(),
        controls: known
            .iter()
            .map(|(case, rounds)| Control::of(*case, rounds))
            .collect(),
    })
}

fn probing(e: io::Error) -> Error {
    Error::kernel("probing for a shared cache")(e)
}
