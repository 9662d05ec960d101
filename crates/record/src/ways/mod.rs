//! Which classes may fill which ways of which cache, over time. Samples of the machine become
//! changes ([`Change`], events of a record). Changes become lanes ([`Timeline`]), and lanes become
//! findings ([`findings()`]).
//!
//! Terms are those of [`quell_types::partition`] and resctrl
//! (Documentation/filesystems/resctrl.rst). A *class* is a control group; that of all other tasks
//! is [`ROOT`]. A *place* is one cache, or one memory controller, of a resource. A thread's own
//! class takes precedence over that of its CPU, which takes precedence over the root.
//!
//! Hardware counts how much of a cache a class has, never in which ways. Lanes therefore show which
//! class may fill a way, not what lies in it.

mod fillers;
mod findings;
mod lanes;
mod runs;
mod words;

#[cfg(test)]
mod findings_tests;
#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::Mask;
use quell_types::units::UnitError;

pub use fillers::{Filler, Filling, Who};
pub use findings::{Finding, Kind, findings};
pub use lanes::{Block, Fill, Sampled, Stretch, ThreadLane, ThreadPosition, Timeline, Ways, rate};
pub use runs::{CoreRan, Ran, Run, ThreadRan};

/// The class of every task that is in no other, as resctrl's root group.
pub const ROOT: &str = "/";

/// One cache, or memory controller, of a resource: `L3:0`, `L2CODE:3`, `MB:1`. The number is the
/// kernel's.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Place {
    /// As in schemata: `L3`, `L3CODE`, `L3DATA`, `L2`, `MB`, …
    pub resource: String,
    /// The kernel's number of the cache or controller.
    pub id: u32,
}

quell_types::text_unit!(Place, "a place such as L3:0");

impl Place {
    /// The place of a resource such as `L3` with the number `id`.
    #[must_use]
    pub fn new(resource: &str, id: u32) -> Self {
        Self {
            resource: resource.to_owned(),
            id,
        }
    }

    /// Where the kernel counts what this place holds: code and data of a cache are counted
    /// together.
    #[must_use]
    pub fn counted(&self) -> Self {
        let resource = &self.resource;
        let bare = resource
            .strip_suffix("CODE")
            .or_else(|| resource.strip_suffix("DATA"));
        Self::new(bare.unwrap_or(resource), self.id)
    }
}

impl fmt::Display for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.resource, self.id)
    }
}

impl FromStr for Place {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let read = || {
            let (resource, id) = text.rsplit_once(':')?;
            (!resource.is_empty()).then_some(Self::new(resource, id.parse().ok()?))
        };
        read().ok_or_else(|| UnitError {
            text: text.to_owned(),
            wanted: Self::WANTED,
        })
    }
}

/// A cache that can be divided.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Cache {
    /// Resource and number of the cache.
    pub place: Place,
    /// Bits of a mask; each stands for the same part of the cache.
    pub bits: u32,
    /// Size of the whole cache in bytes.
    pub bytes: u64,
    /// The CPUs that use it.
    pub cpus: CpuSet,
    /// Bits that a mask must have at least.
    pub least: u32,
    /// Bits that others than CPUs (devices) fill, too.
    #[serde(default)]
    pub shareable: Mask,
}

impl Cache {
    /// The mask of all ways.
    #[must_use]
    pub fn whole(&self) -> Mask {
        Mask::run(0, self.bits)
    }

    /// Bytes of the cache that `bits` ways are.
    #[must_use]
    pub fn part(&self, bits: u32) -> u64 {
        self.bytes * u64::from(bits) / u64::from(self.bits.max(1))
    }
}

/// How a class shares its ways with others.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Mode {
    /// Masks of other classes may overlap with its own.
    #[default]
    Shareable,
    /// The kernel refuses masks that overlap with its own.
    Exclusive,
    /// Its ways are about to be locked.
    PseudoLocksetup,
    /// What is in its ways stays there, and no class fills them.
    PseudoLocked,
}

impl Mode {
    /// The word that resctrl writes.
    #[must_use]
    pub const fn name(self) -> &'static str {
        match self {
            Self::Shareable => "shareable",
            Self::Exclusive => "exclusive",
            Self::PseudoLocksetup => "pseudo-locksetup",
            Self::PseudoLocked => "pseudo-locked",
        }
    }
}

/// What the kernel counts for a class at a place.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Figures {
    /// Bytes of the cache that it has now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub occupancy: Option<u64>,
    /// Bytes from and to memory since the count began: a line for every miss, and what is written
    /// back.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<u64>,
}

/// The settings and counts of a class at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Class {
    /// How it shares its ways (resctrl's `mode`).
    pub mode: Mode,
    /// Where it may fill which ways.
    pub masks: BTreeMap<Place, Mask>,
    /// Bandwidth allocation by memory controller: percent, or the other unit that the kernel takes.
    pub throttles: BTreeMap<Place, u64>,
    /// Its CPUs: tasks of the root class belong to it while they run there.
    pub cpus: CpuSet,
    /// What the kernel counts of it, by place.
    pub figures: BTreeMap<Place, Figures>,
}

/// A thread: of a program that is watched, or of one with threads in classes other than the root's;
/// or one that ran.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Thread {
    /// Number of its process.
    pub pid: u32,
    /// Its name, as `/proc/PID/task/TID/comm` has it.
    pub name: String,
    /// The class it was put into.
    pub class: String,
    /// The CPU it ran on last.
    pub cpu: CpuId,
    /// Only included because it ran: nothing is set for its process, and it is not watched.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub passing: bool,
}

/// A register that differs from what the kernel reports: a program has written it behind the
/// kernel's back.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Register {
    /// Where: of a cache that CPU's, read on it.
    pub cpu: CpuId,
    /// The address of the register (MSR).
    pub number: u32,
    /// What it is (`the mask of class /`).
    pub of: String,
    /// The class that it belongs to, where it is one's.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub class: Option<String>,
    /// What the kernel believes is in it.
    pub kernel: u64,
    /// The value that was read from it.
    pub register: u64,
}

/// One sample of the machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// The classes, by name.
    pub classes: BTreeMap<String, Class>,
    /// Threads, by thread number.
    pub threads: BTreeMap<u32, Thread>,
    /// By thread number: what it has missed in the last-level cache since it was counted first.
    pub misses: BTreeMap<u32, u64>,
    /// Registers that differ from what the kernel believes.
    pub registers: BTreeSet<Register>,
}

/// What has changed from one sample to the next.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "what")]
pub enum Change {
    /// The caches of the machine, before any other change.
    Machine {
        /// Its caches that can be divided.
        caches: Vec<Cache>,
        /// Only the processor's registers were read, since resctrl was not mounted. CPUs have
        /// classes then.
        #[serde(default, skip_serializing_if = "std::ops::Not::not")]
        registers: bool,
    },
    /// A class was made.
    Appeared {
        /// Name of the class.
        class: String,
    },
    /// A class was removed.
    Vanished {
        /// Name of the class.
        class: String,
    },
    /// A class may fill other ways than before.
    Mask {
        /// Name of the class.
        class: String,
        /// The cache whose ways they are.
        place: Place,
        /// The mask before. Absent where there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<Mask>,
        /// The mask now. Absent where there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<Mask>,
    },
    /// The bandwidth allocation of a class was changed.
    Throttle {
        /// Name of the class.
        class: String,
        /// The memory controller that the allocation is for.
        place: Place,
        /// The allocation before, in percent or the other unit that the kernel takes. Absent where
        /// there was none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<u64>,
        /// The allocation now, in the same unit. Absent where there is none.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<u64>,
    },
    /// A class shares its ways otherwise than before.
    Mode {
        /// Name of the class.
        class: String,
        /// The mode of the class before.
        from: Mode,
        /// The mode of the class now.
        to: Mode,
    },
    /// A class has other CPUs than before.
    Cpus {
        /// Name of the class.
        class: String,
        /// The CPUs of the class before.
        from: CpuSet,
        /// The CPUs of the class now.
        to: CpuSet,
    },
    /// A thread was seen first, or in another class or on another CPU than before.
    Thread {
        /// Number of the thread.
        tid: u32,
        /// The thread, as it is now.
        #[serde(flatten)]
        is: Thread,
        /// The class it was in before, where that has changed.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        from: Option<String>,
    },
    /// A thread is not seen any more.
    Ended {
        /// Number of the thread.
        tid: u32,
    },
    /// Counts of a class at one place.
    Sample {
        /// Name of the class.
        class: String,
        /// The cache, or memory controller.
        place: Place,
        /// Bytes in the cache, and traffic so far.
        #[serde(flatten)]
        figures: Figures,
    },
    /// What a thread has missed in the last-level cache.
    Misses {
        /// Number of the thread.
        tid: u32,
        /// Misses since it was counted first. Absent where it is not counted any more.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        misses: Option<u64>,
    },
    /// Which threads ran on a CPU since the sample before, by its context switches.
    Ran {
        /// The CPU.
        cpu: CpuId,
        /// The runs, in order of time.
        runs: Vec<Run>,
    },
    /// Context switches since the sample before are missing: they came faster than they were read,
    /// or there was no memory for more.
    Lost {
        /// How many, at least.
        switches: u64,
    },
    /// A register differs from what the kernel believes.
    Differs {
        /// The register and both values.
        #[serde(flatten)]
        register: Register,
    },
    /// A register no longer differs from what the kernel reports.
    Agrees {
        /// The register and the values that differed.
        #[serde(flatten)]
        register: Register,
    },
}

/// The changes that lead from `before` to `after`.
#[must_use]
pub fn changes(before: &Snapshot, after: &Snapshot) -> Vec<Change> {
    let mut all = Vec::new();
    for class in before.classes.keys() {
        if !after.classes.contains_key(class) {
            let class = class.clone();
            all.push(Change::Vanished { class });
        }
    }
    let none = Class::default();
    for (name, class) in &after.classes {
        let was = before.classes.get(name).unwrap_or_else(|| {
            let class = name.clone();
            all.push(Change::Appeared { class });
            &none
        });
        of_class(name, was, class, &mut all);
    }
    for tid in before.threads.keys() {
        if !after.threads.contains_key(tid) {
            all.push(Change::Ended { tid: *tid });
        }
    }
    for (tid, thread) in &after.threads {
        let was = before.threads.get(tid);
        if was == Some(thread) {
            continue;
        }
        all.push(Change::Thread {
            tid: *tid,
            is: thread.clone(),
            from: was
                .map(|was| was.class.clone())
                .filter(|class| *class != thread.class),
        });
    }
    let counted: BTreeSet<&u32> = before.misses.keys().chain(after.misses.keys()).collect();
    for tid in counted {
        let misses = after.misses.get(tid).copied();
        if misses != before.misses.get(tid).copied() {
            all.push(Change::Misses { tid: *tid, misses });
        }
    }
    let gone = before.registers.difference(&after.registers);
    all.extend(gone.cloned().map(|register| Change::Agrees { register }));
    let new = after.registers.difference(&before.registers);
    all.extend(new.cloned().map(|register| Change::Differs { register }));
    all
}

/// Places of both maps, each once.
fn places<'a, T>(
    one: &'a BTreeMap<Place, T>,
    other: &'a BTreeMap<Place, T>,
) -> BTreeSet<&'a Place> {
    one.keys().chain(other.keys()).collect()
}

fn of_class(name: &str, was: &Class, is: &Class, all: &mut Vec<Change>) {
    let class = || name.to_owned();
    if was.mode != is.mode {
        all.push(Change::Mode {
            class: class(),
            from: was.mode,
            to: is.mode,
        });
    }
    for place in places(&was.masks, &is.masks) {
        let (from, to) = (was.masks.get(place), is.masks.get(place));
        if from != to {
            all.push(Change::Mask {
                class: class(),
                place: place.clone(),
                from: from.copied(),
                to: to.copied(),
            });
        }
    }
    for place in places(&was.throttles, &is.throttles) {
        let (from, to) = (was.throttles.get(place), is.throttles.get(place));
        if from != to {
            all.push(Change::Throttle {
                class: class(),
                place: place.clone(),
                from: from.copied(),
                to: to.copied(),
            });
        }
    }
    if was.cpus != is.cpus {
        all.push(Change::Cpus {
            class: class(),
            from: was.cpus.clone(),
            to: is.cpus.clone(),
        });
    }
    for place in places(&was.figures, &is.figures) {
        let figures = is.figures.get(place).copied().unwrap_or_default();
        if was.figures.get(place) != Some(&figures) {
            all.push(Change::Sample {
                class: class(),
                place: place.clone(),
                figures,
            });
        }
    }
}

fn put<T>(map: &mut BTreeMap<Place, T>, place: &Place, value: Option<T>) {
    match value {
        Some(value) => map.insert(place.clone(), value),
        None => map.remove(place),
    };
}

impl Snapshot {
    /// Applies a change. A class that is not known yet begins with it.
    pub fn apply(&mut self, change: &Change) {
        match change {
            Change::Machine { .. } | Change::Ran { .. } | Change::Lost { .. } => {}
            Change::Appeared { class } => {
                self.class(class);
            }
            Change::Vanished { class } => {
                self.classes.remove(class);
            }
            Change::Mask {
                class, place, to, ..
            } => put(&mut self.class(class).masks, place, *to),
            Change::Throttle {
                class, place, to, ..
            } => put(&mut self.class(class).throttles, place, *to),
            Change::Mode { class, to, .. } => self.class(class).mode = *to,
            Change::Cpus { class, to, .. } => self.class(class).cpus = to.clone(),
            Change::Thread { tid, is, .. } => {
                self.threads.insert(*tid, is.clone());
            }
            Change::Ended { tid } => {
                self.threads.remove(tid);
            }
            Change::Misses { tid, misses } => {
                match misses {
                    Some(misses) => self.misses.insert(*tid, *misses),
                    None => self.misses.remove(tid),
                };
            }
            Change::Sample {
                class,
                place,
                figures,
            } => {
                let none = *figures == Figures::default();
                put(
                    &mut self.class(class).figures,
                    place,
                    (!none).then_some(*figures),
                );
            }
            Change::Differs { register } => {
                self.registers.insert(register.clone());
            }
            Change::Agrees { register } => {
                self.registers.remove(register);
            }
        }
    }

    fn class(&mut self, name: &str) -> &mut Class {
        self.classes.entry(name.to_owned()).or_default()
    }

    /// Whether a thread or a CPU belongs to a class. Always so for the root class, which has all
    /// other tasks.
    #[must_use]
    pub fn has_members(&self, class: &str) -> bool {
        class == ROOT
            || self.threads.values().any(|t| t.class == class)
            || self.classes.get(class).is_some_and(|c| !c.cpus.is_empty())
    }

    /// The class that decides which ways a thread's lines may fill.
    #[must_use]
    pub fn class_of<'a>(&'a self, thread: &'a Thread) -> &'a str {
        if thread.class != ROOT {
            return &thread.class;
        }
        let mut by_cpu = self.classes.iter();
        by_cpu
            .find(|(name, class)| *name != ROOT && class.cpus.contains(thread.cpu))
            .map_or(ROOT, |(name, _)| name)
    }
}
