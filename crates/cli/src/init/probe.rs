//! The probe of `quell init`: that of `quell profile --probe`, with a stand-in for a program that
//! cannot be started again.
//!
//! The stand-in walks a list as large as the program's memory and does nothing else: each access
//! waits for the one before. A program that computes between its accesses suffers less. One that
//! streams may suffer more, and the policy says so.

use std::fmt;

use quell_plan::inventory::Inventory;
use quell_record::demand::Subject;
use quell_types::units::{Bytes, Nanos};

use super::choose::Probed;
use super::group::Chosen;
use crate::exit::{Result, failed};
use crate::profile::args::Profile;
use crate::profile::probe as profiled;
use crate::target::On;

const ROUNDS: u32 = 3;
/// A cell: its warm-up, its measured span, and starting and ending the programs.
const CELL: Nanos = Nanos::millis(950);
/// Rates and counters, where they were not measured yet.
const RATES: Nanos = Nanos::secs(8);
/// The smallest list, and the largest where the cache's size is not known.
const SIZES: (u64, u64) = (1 << 20, 16 << 20);

/// What a probe costs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Cost {
    /// How long it takes, in seconds.
    pub seconds: u64,
    /// How many times slower another program can get meanwhile; `None` where the rates of the
    /// machine are not known yet.
    pub worst: Option<f64>,
}

impl Cost {
    /// On a machine.
    pub fn of(machine: &Inventory) -> Self {
        let cells = u64::from(profiled::cells(machine) * ROUNDS);
        let rates = if machine.measured.is_none() {
            RATES.0
        } else {
            0
        };
        let ns = cells * CELL.0 + rates;
        // A program shares its CPU with one of ours, and memory with two.
        let worst = machine.measured.as_ref().map(|measured| {
            let drawn = measured.peak_cpu.0 as f64 * machine.cpus.len().min(3) as f64;
            2.0 * (drawn / (measured.sustainable.0 as f64).max(1.0)).max(1.0)
        });
        Self {
            seconds: ns.div_ceil(5_000_000_000) * 5,
            worst,
        }
    }
}

impl fmt::Display for Cost {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "about {} seconds, two CPUs and memory busy; ",
            self.seconds
        )?;
        match self.worst {
            Some(worst) => write!(
                f,
                "meanwhile a program may be up to {worst:.1} times slower"
            ),
            None => f.write_str(
                "meanwhile a program may be 2 times slower from sharing a CPU, and slower still from memory, by how much was not measured",
            ),
        }
    }
}

/// The list that stands for a program with so much memory.
fn stand_in(machine: &Inventory, memory: Bytes) -> Bytes {
    let cpu = machine.cpus.first().map_or(0, |c| c.id);
    let half = match machine.data_caches(cpu).llc.0 / 2 {
        0 => SIZES.1,
        half => half.max(SIZES.0),
    };
    Bytes(memory.0.clamp(SIZES.0, half) >> 20 << 20)
}

/// Probes, and the machine as it was measured for it.
pub fn probe(machine: &Inventory, critical: &Chosen) -> Result<(Probed, Inventory)> {
    let size = stand_in(machine, critical.figures.memory);
    let run = format!("latency:size={size}").parse();
    let subject = Subject::Generator {
        run: run.map_err(failed)?,
    };
    let args = Profile {
        generator: None,
        pid: None,
        matching: Vec::new(),
        span: None,
        on: On::Linux,
        lab: Vec::new(),
        cpus: None,
        probe: true,
        sweep: Vec::new(),
        keep: None,
        within: None,
        rounds: Some(ROUNDS),
        seed: 1,
        out: None,
        html: None,
        json: false,
        show: None,
        command: Vec::new(),
    };
    let all = profiled::probe(&args, &subject)?;
    let (_, machine) = crate::machine::measured()?;
    let stand_in = format!("A stand-in for it, a program that only reads a list of {size},");
    Ok((Probed::Found { stand_in, all }, machine))
}
