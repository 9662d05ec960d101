//! Random mixes of requesters.

use quell_model::address::Location;
use quell_model::dram::{Config, Timing};

use super::driver::{COLUMN_BITS, ROW_BITS, map};
use super::{both, percent, theirs, xorshift};

/// One of the requesters in a mix: runs of lines in a row, then a jump within some of the banks.
struct Requester {
    run: u64,
    left: u64,
    writes: u64,
    banks: u32,
    at: Location,
}

/// A memory and its load, drawn from `seed`.
struct Mix {
    name: String,
    base: Config,
    ranks: u32,
    outstanding: u64,
    seed: u64,
}

impl Mix {
    fn draw(seed: u64) -> Self {
        let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        let mut below = |n: u64| (xorshift(&mut state) >> 20) % n;
        let (name, base) = match below(4) {
            0 => ("DDR3-1066", Config::ddr3(Timing::ddr3_1066())),
            1 => ("DDR3-1333", Config::ddr3(Timing::ddr3_1333())),
            2 => ("DDR4-2400", Config::ddr4(Timing::ddr4_2400())),
            _ => ("DDR4-3200", Config::ddr4(Timing::ddr4_3200())),
        };
        let ranks = 1 + below(2) as u32;
        let outstanding = 1 + below(40);
        let name = format!("mix {seed}: {name}, {ranks} rank(s), {outstanding} outstanding");
        Self {
            name,
            base,
            ranks,
            outstanding,
            seed: xorshift(&mut state),
        }
    }

    fn requests(&self, config: &Config) -> Box<dyn FnMut(u64) -> (u64, bool)> {
        let (map, mut seed) = (map(config), self.seed);
        let (all, ranks) = (config.banks, config.ranks);
        let mut draw = move |n: u64| (xorshift(&mut seed) >> 20) % n;
        let mut requesters: Vec<Requester> = (0..1 + draw(4))
            .map(|_| Requester {
                run: 1 << draw(8),
                left: 0,
                writes: draw(51),
                banks: 1 << draw(u64::from(all.ilog2()) + 1),
                at: Location::default(),
            })
            .collect();
        Box::new(move |_| {
            let who = draw(requesters.len() as u64) as usize;
            let r = &mut requesters[who];
            if r.left == 0 {
                r.left = r.run;
                r.at = Location {
                    channel: 0,
                    rank: draw(u64::from(ranks)) as u32,
                    bank: draw(u64::from(r.banks)) as u32,
                    row: draw(1 << ROW_BITS) as u32,
                    column: draw(1 << COLUMN_BITS) as u32,
                };
            } else {
                r.at.column = (r.at.column + 1) & ((1 << COLUMN_BITS) - 1);
            }
            r.left -= 1;
            (map.address(r.at).unwrap(), draw(100) < r.writes)
        })
    }
}

#[test]
fn random_mixes_agree() {
    const MIXES: u64 = 200;
    let mut off: Vec<(f64, String)> = (0..MIXES)
        .map(|seed| {
            let mix = Mix::draw(seed);
            let with = theirs(&mix.base, mix.ranks);
            let make = || mix.requests(&with.0);
            let (ours, reference) = both("mix", &with, 6_000, mix.outstanding, &make);
            (percent(ours.period, reference.period), mix.name)
        })
        .collect();
    off.sort_by(|a, b| a.0.abs().total_cmp(&b.0.abs()));
    let within = off
        .iter()
        .filter(|(percent, _)| percent.abs() <= 10.0)
        .count();
    let mean = off.iter().map(|(percent, _)| percent).sum::<f64>() / MIXES as f64;
    let median = off[off.len() / 2].0.abs();
    println!("{within} of {MIXES} within 10 %, mean {mean:+.1} %, median {median:.1} % off");
    assert!(within as u64 * 100 >= MIXES * 95, "{off:#?}");
}
