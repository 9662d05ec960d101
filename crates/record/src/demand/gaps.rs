//! Few bursts that return at equal distances, of which a spectrum says too little.
//!
//! The chance is that of as many moments at random: n distances, of which the largest is at most
//! 1 + e times the smallest, have it with e^(n−1) × n! ÷ n^n. It follows from the distances being
//! independent and exponential.

use super::comb::Candidate;

/// The distances that are compared.
const FEWEST: usize = 3;
const MOST: usize = 20;
/// What is above this part of the usual maximum is a burst.
const LOUD: f64 = 0.3;
/// Pauses shorter than this part of the series are none, one half after the other.
const LONGEST_GAP: f64 = 1.0 / 6.0;
/// A beginning is known to this part of a bin.
const EXACT: f64 = 0.25;

/// The candidate whose distances are the most equal for their number.
pub(super) fn equal_distances(amounts: &[f64]) -> Option<Candidate> {
    let level = LOUD * usual(amounts)?;
    let mut gap = amounts.len() as f64 * LONGEST_GAP;
    let mut best: Option<Candidate> = None;
    let mut tried = 0.0;
    while gap >= 1.0 {
        tried += 1.0;
        let begins = begins(amounts, level, gap);
        if begins.len() > MOST + 1 {
            break;
        }
        if let Some(candidate) = judged(&begins)
            && best.is_none_or(|b| candidate.chance < b.chance)
        {
            best = Some(candidate);
        }
        gap /= 2.0;
    }
    best.map(|b| Candidate {
        chance: b.chance + f64::ln(tried),
        ..b
    })
}

/// The value at which half of everything drawn is in bins that draw more.
fn usual(amounts: &[f64]) -> Option<f64> {
    let mut ordered = amounts.to_vec();
    ordered.sort_by(|a, b| b.total_cmp(a));
    let half = ordered.iter().sum::<f64>() / 2.0;
    let mut sum = 0.0;
    ordered.into_iter().find(|v| {
        sum += v;
        sum >= half
    })
}

/// Where bursts begin. Two with a shorter pause than `gap` bins between them are one. A burst that
/// is under way at first has no beginning.
fn begins(amounts: &[f64], level: f64, gap: f64) -> Vec<f64> {
    let mut begins = Vec::new();
    let mut last = None;
    let mut before = 0.0;
    for (bin, amount) in amounts.iter().enumerate() {
        if *amount > level {
            if last.is_some_and(|last| (bin - last) as f64 > gap) || (last.is_none() && bin > 0) {
                // The first bin of a burst is drawn in at its end, as far as its amount goes.
                let full = amounts.get(bin + 1).copied().unwrap_or(0.0).max(*amount);
                let part = (amount + before) / full;
                begins.push(bin as f64 + 1.0 - part.min(2.0));
            }
            last = Some(bin);
        }
        before = *amount;
    }
    begins
}

/// The mean distance, and the chance of distances so equal.
fn judged(begins: &[f64]) -> Option<Candidate> {
    let distances: Vec<f64> = begins.windows(2).map(|w| w[1] - w[0]).collect();
    let n = distances.len();
    if !(FEWEST..=MOST).contains(&n) {
        return None;
    }
    let least = distances.iter().copied().fold(f64::INFINITY, f64::min);
    let most = distances.iter().copied().fold(0.0, f64::max);
    let spread = (most - least + EXACT) / least;
    let n = n as f64;
    let ways: f64 = (1..=distances.len()).map(|k| (k as f64 / n).ln()).sum();
    Some(Candidate {
        period: distances.iter().sum::<f64>() / n,
        chance: (n - 1.0) * spread.ln() + ways,
    })
}
