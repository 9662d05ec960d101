//! What a policy could ask for, given what a program draws.
//!
//! Rules:
//!
//! - Bursts that return after a period are units of work, and something waits for each. The reserve
//!   is the peak, since at the mean a burst takes peak ÷ mean times as long.
//! - Without a period no millisecond is known to matter more than another. The mean lets the work
//!   be done in time.
//! - CPU time is no amount of traffic: it leads to no reserve.
//! - A weight or CPUs of its own are what [`choose`] takes. Neighbours are named where there is a
//!   reserve.
//! - A rate that the machine does not sustain is not proposed.

use std::fmt::Write;

use quell_plan::choose::{HIGH, Known, Means, choose};
use quell_plan::inventory::Inventory;
use quell_types::units::Rate;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Burst, Figures, Quantity, Subject};

/// The name of the group that the policy has for the program's neighbours.
const OTHERS: &str = "others";

/// Which figure of the demand a proposed reserve is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Basis {
    /// The largest bin: bursts return, and something waits for each.
    Peak,
    /// The mean over all bins: no bursts return.
    Mean,
    /// Nothing: there is no amount to reserve.
    None,
}

/// What a policy could ask for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Proposal {
    /// Which figure of the demand the reserve is.
    pub basis: Basis,
    /// The proposed reserve of memory bandwidth. Absent where there is nothing to reserve.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reserve: Option<Rate>,
    /// The reasons, in sentences.
    pub because: String,
    /// The policy, as TOML that `quell plan` reads.
    pub policy: String,
}

/// What a proposal is made from.
#[derive(Clone, Copy, Debug)]
pub struct Sought<'a> {
    /// The program that the profile is of.
    pub subject: &'a Subject,
    /// What the profile counted.
    pub quantity: Quantity,
    /// The figures of all series together.
    pub total: &'a Figures,
    /// The bursts that return, if there are any.
    pub burst: Option<&'a Burst>,
    /// What all CPUs of the machine sustain together, if that was measured.
    pub sustainable: Option<Rate>,
    /// The machine.
    pub machine: &'a Inventory,
    /// Whether Quell runs as root. Else the machine seems to offer less than it does.
    pub root: bool,
}

/// Proposes a policy for one program.
#[must_use]
pub fn proposal(sought: &Sought<'_>) -> Proposal {
    let (basis, reserve, because) = reserve(sought);
    Proposal {
        policy: policy(sought, reserve, &because),
        basis,
        reserve,
        because,
    }
}

fn reserve(sought: &Sought<'_>) -> (Basis, Option<Rate>, String) {
    if sought.quantity == Quantity::CpuTime {
        let because = "CPU time says when the program works and not what it moves, so there is no amount to reserve. What can be \
                       done without counters: give it a weight."
            .to_owned();
        return (Basis::None, None, because);
    }
    let rate = |mb_s: f64| Rate::measured(mb_s * 1e6);
    let (mean, peak) = (rate(sought.total.mean), rate(sought.total.peak));
    let too_much = |wanted: Rate| sought.sustainable.filter(|most| wanted > *most);
    match sought.burst {
        _ if peak == Rate(0) => {
            let because = "It draws nothing from memory: there is nothing to reserve.".to_owned();
            (Basis::None, None, because)
        }
        Some(burst) => match too_much(peak) {
            None => {
                let because = format!(
                    "It works in bursts, one every {:.1} ms: somebody waits for each, so the reserve is the largest millisecond. At the mean \
                     ({mean}) a burst of {:.1} ms could take up to {:.0} ms.",
                    burst.period_ms,
                    burst.length_ms,
                    burst.length_ms * sought.total.peak / sought.total.mean,
                );
                (Basis::Peak, Some(peak), because)
            }
            Some(most) => {
                let because = format!(
                    "It works in bursts, one every {:.1} ms, and would want its peak; but {peak} is more than the {most} that this machine \
                     sustains. The mean is proposed: bursts will be late beside others.",
                    burst.period_ms
                );
                (Basis::Mean, Some(mean), because)
            }
        },
        None => {
            let because = format!(
                "Nothing in it returns, so no millisecond is known to matter more than another: the mean lets the work be done in time. A program \
                 with deadlines wants its peak, {peak}."
            );
            match too_much(mean) {
                None => (Basis::Mean, Some(mean), because),
                Some(most) => {
                    let because = format!(
                        "It draws {mean} in the mean, more than the {most} that this machine is known to sustain for all CPUs: no reserve of \
                         that could be kept."
                    );
                    (Basis::None, None, because)
                }
            }
        }
    }
}

/// The policy: the program as a critical group. Its neighbours are not known and are left to be
/// filled in. Without them a reserve is worth nothing, and the planner refuses it.
fn policy(sought: &Sought<'_>, reserve: Option<Rate>, because: &str) -> String {
    let name = sought.subject.name();
    let mut out = String::from("# Proposed by `quell profile`. Look at it with `quell plan`.\n");
    out.push_str("quell = 1\n");
    let quoted = |text: &str| toml::Value::from(text).to_string();
    let _ = write!(
        out,
        "name  = {0}\n\n[group.{name}]\nrole  = \"critical\"\n",
        quoted(&name)
    );
    match sought.subject {
        Subject::Command { command } => {
            let words: Vec<String> = command.iter().map(|w| quoted(w)).collect();
            let _ = writeln!(out, "command = [{}]", words.join(", "));
        }
        Subject::Tasks { matching } => {
            let tables = matching.iter().filter_map(|m| {
                let table = toml::Table::try_from(m).ok()?;
                Some(toml::Value::Table(table).to_string())
            });
            let tables: Vec<String> = tables.collect();
            let _ = writeln!(out, "match = [{}]", tables.join(", "));
        }
        Subject::Generator { .. } => {
            let _ = writeln!(
                out,
                "# The program that the generator stands for:\nmatch = [{{ comm = {} }}]",
                quoted(&name)
            );
        }
    }
    let known = Known {
        root: sought.root,
        named: reserve.is_some(),
        ..Known::default()
    };
    first(&mut out, choose(sought.machine, &known).means);
    if sought.quantity == Quantity::CpuTime {
        #[expect(
            clippy::cast_sign_loss,
            clippy::cast_possible_truncation,
            reason = "a number of CPUs: positive and small"
        )]
        let cpus = (sought.total.p99.ceil() as u32).max(1);
        let _ = writeln!(
            out,
            "# 99 of 100 milliseconds did with {cpus} CPU{0}. Where its clients and all others can spare \
             {1}: cpus = {cpus}.",
            if cpus == 1 { "" } else { "s" },
            if cpus == 1 { "it" } else { "these" }
        );
    }
    for line in because.split(". ") {
        let _ = writeln!(out, "# {}.", line.trim_end_matches('.'));
    }
    if let Some(reserve) = reserve {
        let _ = writeln!(out, "reserve.bandwidth = \"{reserve}\"");
    }
    let others = if name == OTHERS { "neighbours" } else { OTHERS };
    let lines = [
        format!("[group.{others}]"),
        "role  = \"best-effort\"".to_owned(),
        "match = [{ comm = \"NAME\" }]".to_owned(),
    ];
    out.push('\n');
    if reserve.is_some() {
        out.push_str(
            "# Everybody else is held to what the reserve leaves, if they are named here. What protects more is a limit.bandwidth of theirs.\n",
        );
        out.push_str(&lines.join("\n"));
        out.push('\n');
    } else {
        out.push_str(
            "# What protects more is a low weight for the programs that disturb it. Name them:\n",
        );
        for line in &lines {
            let _ = writeln!(out, "# {line}");
        }
    }
    out
}

/// What comes first: the weight, or CPUs of its own.
fn first(out: &mut String, means: Means) {
    match means.cores {
        Some(cores) => {
            let _ = writeln!(out, "cpus  = {}", cores.count);
        }
        None => out.push_str("cpus  = \"any\"\n"),
    }
    if means.high {
        let _ = writeln!(
            out,
            "# Where it wants a CPU it goes before everything else.\ncpu-weight = {HIGH}"
        );
    }
}
