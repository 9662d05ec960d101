//! The least that is enough: which means protect a program, given what is known of it and of what
//! runs next to it. `init`, `run` and `plan` without a file, `demo` and `profile` ask here.
//!
//! Pure. No choice may leave the program worse off than nothing done:
//!
//! 1. A weight comes first. It takes nothing from a neighbour while the CPU is not wanted. Named
//!    neighbours get a low one. Where everything else is the neighbour, the program gets a high
//!    one. Next to named neighbours it gets none, however busy other programs are: its clients may
//!    be these, and it would wait for them.
//! 2. CPUs of its own come where a weight is not enough: the other thread of its core was seen to
//!    hurt, or its threads wait although programs of no group are what keeps the CPUs busy. It gets
//!    one for each thread that may work at once, and at most half of the cores. Programs of no
//!    group have to fit on what is left: the program's clients are among them.
//! 3. A limit comes last, for named neighbours only, and where it was seen to help by more than it
//!    takes.
//!
//! What is not known speaks for a weight, and against CPUs of its own and a limit.

use std::collections::BTreeSet;
use std::fmt;

use quell_types::mechanism::Mechanism;
use quell_types::options::CpuWeight;
use quell_types::units::Rate;

use crate::inventory::{Availability, Inventory};

/// A resource hurts when the lower bound of the slowdown is at least this.
pub const HURTS: f64 = 1.25;
/// The weight of a program that everything else is the neighbour of: ten times that of any other
/// cgroup. Its clients keep a tenth of a CPU that it keeps busy.
pub const HIGH: CpuWeight = CpuWeight::Of(1000);
/// The part of the time in which it wants a CPU that a program may wait for one.
const WAITS: f64 = 0.1;
/// How much of the CPUs that are left programs of no group may fill.
const FILLED: f64 = 0.9;

/// What is known of a program and of what runs next to it. What is absent is not known.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Known {
    /// Whether the machine shows all that it can do: Quell runs as root.
    pub root: bool,
    /// Whether neighbours are named. If not, everything else is the neighbour.
    pub named: bool,
    /// How many threads of the program may work at once.
    pub threads: Option<usize>,
    /// The part, 0 to 1, of the time in which the program wants a CPU that it waits for one.
    pub waited: Option<f64>,
    /// CPUs that named neighbours use: 1 is one whole CPU.
    pub named_cpus: Option<f64>,
    /// CPUs that programs of no group use, clients of the program among them.
    pub unnamed_cpus: Option<f64>,
    /// What a program on the other thread of its core does to it.
    pub sibling: Option<Slowdown>,
    /// What memory traffic does to it, a list for each kind: its name, and what was tried.
    pub traffic: Vec<(String, Vec<Tried>)>,
}

/// How many times as long the program took.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Slowdown {
    /// As measured.
    pub found: f64,
    /// The lower bound of its interval.
    pub least: f64,
}

/// A rate of memory traffic that was tried.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Tried {
    /// The rate that was reached.
    pub rate: Rate,
    /// What it did to the program.
    pub slowdown: Slowdown,
}

/// CPUs of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cores {
    /// How many.
    pub count: usize,
    /// Whether the other threads of its cores stay idle.
    pub alone: bool,
}

/// The means that are enough.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Means {
    /// Whether named neighbours get a low weight, which best-effort groups have by default.
    pub low: bool,
    /// Whether the program gets a high weight, [`HIGH`].
    pub high: bool,
    /// CPUs of its own.
    pub cores: Option<Cores>,
    /// The most that all named neighbours together may draw from memory.
    pub limit: Option<Rate>,
}

/// One of the [`Means`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Mean {
    /// A weight.
    Weight,
    /// CPUs of its own.
    Cores,
    /// A limit of memory bandwidth.
    Limit,
}

/// Why a mean is taken, or is not.
#[derive(Clone, Debug, PartialEq)]
pub enum Why {
    /// Everything else is the neighbour.
    Unnamed,
    /// The machine can give no weight.
    NoWeight {
        /// The reason, in a sentence without its end.
        why: String,
    },
    /// The other thread of its core hurts.
    Sibling(Slowdown),
    /// Its threads wait, and named neighbours are not the cause.
    Waits {
        /// The part of the time, 0 to 1.
        waited: f64,
        /// CPUs that programs of no group use.
        unnamed: f64,
    },
    /// Its threads wait, and programs of no group are the cause. A high weight would take from its
    /// clients, if these are among them.
    PerhapsClients {
        /// The part of the time, 0 to 1.
        waited: f64,
        /// CPUs that programs of no group use.
        unnamed: f64,
    },
    /// How many threads work at once, or what programs of no group use, is not known.
    Unknown,
    /// More threads work at once than half of the cores.
    TooFewCores {
        /// Threads that may work at once.
        threads: usize,
        /// Cores of the machine.
        cores: usize,
    },
    /// Programs of no group do not fit on what would be left.
    NotSpared {
        /// CPUs that they use.
        unnamed: f64,
        /// CPUs that would be left.
        left: usize,
    },
    /// Memory traffic hurts.
    Traffic(Harm),
    /// A limit would take more than it helps.
    TakesMore(Harm),
}

/// Memory traffic that hurts, and the rate that does not.
#[derive(Clone, Debug, PartialEq)]
pub struct Harm {
    /// Its name, such as `reads`.
    pub traffic: String,
    /// The lowest rate above which every rate hurts.
    pub above: Rate,
    /// What that rate does.
    pub slowdown: Slowdown,
    /// The most that does not hurt.
    pub most: Rate,
    /// Whether that was tried. Else it is half of the lowest rate that was.
    pub tried: bool,
}

impl Harm {
    /// Whether a limit to `most` helps by more than it takes.
    #[must_use]
    pub fn pays(&self) -> bool {
        pays(
            self.slowdown.least,
            self.above.0 as f64 / self.most.0.max(1) as f64,
        )
    }
}

/// Whether a limit helps by more than it takes: the program gets faster by a larger factor than its
/// neighbours get slower.
#[must_use]
pub fn pays(faster: f64, slower: f64) -> bool {
    faster > slower
}

/// What is chosen, and why.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Choice {
    /// The means.
    pub means: Means,
    /// Why each is taken.
    pub because: Vec<(Mean, Why)>,
    /// What is not taken although it would be, and why.
    pub left_out: Vec<(Mean, Why)>,
}

/// Chooses the least that is enough.
#[must_use]
pub fn choose(machine: &Inventory, known: &Known) -> Choice {
    let mut choice = Choice::default();
    let weightless = no_weight(machine, known);
    let waits = busier_unnamed(known);
    let sibling = known.sibling.filter(|slow| slow.least >= HURTS);
    let needed = match (sibling, &weightless, &waits) {
        (Some(slow), _, _) => Some(Why::Sibling(slow)),
        (None, Some(why), _) => Some(Why::NoWeight { why: why.clone() }),
        (None, None, waits) => waits.clone(),
    };
    if let Some(needed) = needed {
        let alone = sibling.is_some();
        match room(machine, known, alone) {
            Ok(count) => {
                choice.means.cores = Some(Cores { count, alone });
                choice.because.push((Mean::Cores, needed));
            }
            Err(why) => choice.left_out.push((Mean::Cores, why)),
        }
    }
    match weightless {
        Some(why) => choice.left_out.push((Mean::Weight, Why::NoWeight { why })),
        None => {
            choice.means.low = known.named;
            // On CPUs of its own no weight is needed against programs of no group.
            choice.means.high = choice.means.cores.is_none() && !known.named;
            if choice.means.high {
                choice
                    .because
                    .push((Mean::Weight, waits.unwrap_or(Why::Unnamed)));
            } else if let (None, Some(Why::Waits { waited, unnamed })) = (choice.means.cores, waits)
            {
                let why = Why::PerhapsClients { waited, unnamed };
                choice.left_out.push((Mean::Weight, why));
            }
        }
    }
    limit(known, &mut choice);
    choice
}

/// Why no weight can be given. What the machine does not show without root may be there.
fn no_weight(machine: &Inventory, known: &Known) -> Option<String> {
    match machine.mechanisms.get(&Mechanism::Weight) {
        Some(Availability::Yes { .. }) => None,
        Some(Availability::No { why, .. }) => known.root.then(|| why.clone()),
        None => Some("this machine says nothing about weights".to_owned()),
    }
}

/// That its threads wait, where the named neighbours are not the cause.
fn busier_unnamed(known: &Known) -> Option<Why> {
    let (waited, unnamed) = known.waited.zip(known.unnamed_cpus)?;
    let named = if known.named { known.named_cpus? } else { 0.0 };
    let waits = waited >= WAITS && unnamed > named;
    waits.then_some(Why::Waits { waited, unnamed })
}

/// How many CPUs of its own the program can have so that nothing gets worse for it.
fn room(machine: &Inventory, known: &Known, alone: bool) -> Result<usize, Why> {
    let (Some(threads), Some(unnamed)) = (known.threads, known.unnamed_cpus) else {
        return Err(Why::Unknown);
    };
    let usable = machine.cpu_set();
    let cores: BTreeSet<Option<u32>> = machine
        .cpus
        .iter()
        .map(|cpu| cpu.siblings.intersection(&usable).first())
        .collect();
    let cores = cores.len();
    if threads > cores / 2 {
        return Err(Why::TooFewCores { threads, cores });
    }
    let whole = if alone {
        usable.len() / cores.max(1)
    } else {
        1
    };
    let left = usable.len().saturating_sub(threads * whole);
    if unnamed > FILLED * left as f64 {
        return Err(Why::NotSpared { unnamed, left });
    }
    Ok(threads)
}

/// The smallest limit that is needed and pays.
fn limit(known: &Known, choice: &mut Choice) {
    let harms = known.traffic.iter();
    let harms: Vec<Harm> = harms
        .filter_map(|(name, tried)| harm(name, tried))
        .collect();
    let (paying, dear): (Vec<Harm>, Vec<Harm>) = harms.into_iter().partition(Harm::pays);
    let strictest = |all: Vec<Harm>| all.into_iter().min_by_key(|harm| harm.most);
    match (strictest(paying), strictest(dear)) {
        (Some(harm), _) if known.named => {
            choice.means.limit = Some(harm.most);
            choice.because.push((Mean::Limit, Why::Traffic(harm)));
        }
        (Some(_), _) => choice.left_out.push((Mean::Limit, Why::Unnamed)),
        (None, Some(harm)) => choice.left_out.push((Mean::Limit, Why::TakesMore(harm))),
        (None, None) => {}
    }
}

/// The rate above which memory traffic hurts, and the one below it that does not.
fn harm(traffic: &str, tried: &[Tried]) -> Option<Harm> {
    const STEP: u64 = 1_000_000;
    let mut tried = tried.to_vec();
    tried.sort_by_key(|one| one.rate);
    // A rate below one that does not hurt does not hurt either: something else disturbed it.
    let harmless = tried.iter().rposition(|one| one.slowdown.least < HURTS);
    let worst = tried.get(harmless.map_or(0, |n| n + 1))?;
    let below = harmless.and_then(|n| tried.get(n)).map(|one| one.rate);
    let below = below.filter(|rate| *rate < worst.rate);
    let most = below.unwrap_or(Rate(worst.rate.0 / 2));
    Some(Harm {
        traffic: traffic.to_owned(),
        above: worst.rate,
        slowdown: worst.slowdown,
        most: Rate((most.0 / STEP).max(1) * STEP),
        tried: below.is_some(),
    })
}

impl fmt::Display for Why {
    /// A sentence or two. "It" is the program.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Unnamed => f.write_str(
                "No neighbour is named. A low weight or a limit needs one (--best-effort).",
            ),
            Self::NoWeight { why } => {
                write!(f, "A weight would come first, but: {why}.")
            }
            Self::Sibling(slow) => write!(
                f,
                "It took {:.2} times as long next to a program on the other thread of its core.",
                slow.found
            ),
            Self::Waits { waited, unnamed } => write!(
                f,
                "Its threads waited for {:.0} % of the time in which they wanted a CPU, and programs \
                 of no group used {unnamed:.2} CPUs. No low weight reaches these.",
                waited * 100.0
            ),
            Self::PerhapsClients { waited, unnamed } => write!(
                f,
                "A high one: its threads waited for {:.0} % of the time in which they wanted a CPU, \
                 and programs of no group used {unnamed:.2} CPUs. Clients of it among them would get \
                 less, and it would wait for these. Name those that are not (--best-effort).",
                waited * 100.0
            ),
            Self::Unknown => f.write_str(
                "How many threads of it work at once, or how many CPUs its clients need, is not \
                 known. On too few CPUs it would be slower than with nothing done.",
            ),
            Self::TooFewCores { threads, cores } => {
                let (half, s) = (cores / 2, if *cores == 1 { "" } else { "s" });
                let many = match threads {
                    1 => "One thread of it".to_owned(),
                    n => format!("{n} threads of it"),
                };
                let is = if half == 1 { "is" } else { "are" };
                write!(
                    f,
                    "{many} may work at once, and half of the {cores} core{s} here {is} {half}. On \
                     fewer CPUs than it uses it would be slower than with nothing done."
                )
            }
            Self::NotSpared { unnamed, left } => write!(
                f,
                "Programs of no group used {unnamed:.2} CPUs, and {left} would be left for them. Its \
                 clients may be among them, and it would wait for these."
            ),
            Self::Traffic(harm) => write!(f, "{harm}"),
            Self::TakesMore(harm) => write!(
                f,
                "{harm} Such a limit would slow the neighbours by more than it speeds this program \
                 up."
            ),
        }
    }
}

impl fmt::Display for Harm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let megabytes = |rate: Rate| rate.0 / 1_000_000;
        write!(
            f,
            "It took {:.2} times as long next to {} MB/s of {}.",
            self.slowdown.found,
            megabytes(self.above),
            self.traffic
        )?;
        match self.tried {
            true => write!(
                f,
                " The next lower rate that was reached, {} MB/s, did not hurt (less than {HURTS} \
                 times).",
                megabytes(self.most)
            ),
            false => f.write_str(" No lower rate is known not to hurt; half of it is taken."),
        }
    }
}

#[cfg(test)]
mod tests;
