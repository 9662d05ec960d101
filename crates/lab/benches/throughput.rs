//! How many accesses per second the emulated processor handles, without QEMU: `cargo bench -p
//! quell-lab`. It uses one thread, and shows the rates by where the lines are.

#![allow(
    clippy::unwrap_used,
    missing_docs,
    reason = "a benchmark ends by panicking"
)]

use std::time::Instant;

use quell_lab::emul::{Machine, Topology};
use quell_lab::profile::Profile;

const ACCESSES: u64 = 10_000_000;

/// The end of a profile's text that has banks.
const BANKS: &str = "[dram]\ncolumn = ['6-12']\nbank = [[13, 17], [14, 18], 15]\nrow = ['16-29']\nhit = 150\nmiss = 200\nconflict = 250\n";

fn main() {
    let plain = toml::to_string(&Profile::load("icelake").unwrap()).unwrap();
    for (banks, text) in [("", plain.clone()), (" and banks", plain + BANKS)] {
        println!("caches{banks}:");
        speeds(&Profile::parse("benchmark", &text).unwrap());
    }
}

fn speeds(profile: &Profile) {
    for (what, size) in [
        ("one line", 64),
        ("first level", 16 << 10),
        ("second level", 128 << 10),
        ("third level", 4 << 20),
        ("memory", 64 << 20),
    ] {
        let topology = Topology {
            sockets: 1,
            cores: 2,
            threads: 1,
        };
        let machine = Machine::new(profile.clone(), topology).unwrap();
        let mut best = f64::INFINITY;
        for _ in 0..5 {
            let began = Instant::now();
            for n in 0..ACCESSES {
                let address = n * 64 % size;
                if !machine.repeats(0, address, false, true) {
                    machine.data(0, address, false, true);
                }
            }
            best = best.min(began.elapsed().as_secs_f64());
        }
        println!(
            "{what:>12}: {:6.1} million accesses/s",
            ACCESSES as f64 / best / 1e6
        );
    }
}
