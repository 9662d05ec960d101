//! What `quell init` knows of the programs that a policy is written for: values, and their
//! spelling.

use quell_types::task::TaskMatch;
use quell_types::units::Bytes;

/// A thread that ran less than one part of so many of the busiest one's time does not count as
/// busy.
const BUSY: u64 = 20;
/// The least CPU time of a busy thread, in nanoseconds.
const LEAST_NS: u64 = 10_000_000;

/// CPU time of a thread, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ThreadUse {
    /// Since it was started.
    pub ran_ns: u64,
    /// While it was watched.
    pub lately_ns: u64,
    /// How long it was ready to run and did not, while it was watched.
    pub waited_ns: u64,
}

/// What a set of processes used.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Figures {
    /// How many there are.
    pub processes: u32,
    /// Their threads.
    pub threads: Vec<ThreadUse>,
    /// Resident memory; pages that several processes share count for each.
    pub memory: Bytes,
    /// Page faults that waited for a disk while it was watched.
    pub major_faults: u64,
    /// How long it was watched, in nanoseconds.
    pub span_ns: u64,
}

impl Figures {
    /// Both together.
    pub fn with(&self, other: &Self) -> Self {
        Self {
            processes: self.processes + other.processes,
            threads: self.threads.iter().chain(&other.threads).copied().collect(),
            memory: Bytes(self.memory.0.saturating_add(other.memory.0)),
            major_faults: self.major_faults + other.major_faults,
            span_ns: self.span_ns.max(other.span_ns),
        }
    }

    fn lately(&self) -> u64 {
        self.threads.iter().map(|t| t.lately_ns).sum()
    }

    /// CPUs used while it was watched: 1 is one whole CPU.
    pub fn cpus(&self) -> f64 {
        self.lately() as f64 / self.span_ns.max(1) as f64
    }

    /// The part, 0 to 1, of the time in which its threads wanted a CPU that they waited for one.
    /// `None` if they wanted none.
    pub fn waited(&self) -> Option<f64> {
        let ran = self.lately();
        let waited: u64 = self.threads.iter().map(|t| t.waited_ns).sum();
        (ran + waited >= LEAST_NS).then(|| waited as f64 / (ran + waited) as f64)
    }

    /// So many threads may work at once, at least 1: those that did the work so far. Of a program
    /// that hardly ran yet, all of them.
    pub fn busy(&self) -> usize {
        let most = self.threads.iter().map(|t| t.ran_ns).max().unwrap_or(0);
        let least = (most / BUSY).max(LEAST_NS);
        let lately = (self.span_ns / BUSY).max(LEAST_NS);
        let busy = |t: &&ThreadUse| t.ran_ns >= least || t.lately_ns > lately;
        let busy = match self.threads.iter().filter(busy).count() {
            0 => self.threads.len(),
            busy => busy,
        };
        // Threads that have ended meanwhile are not seen any more.
        let used = self.lately().div_ceil(self.span_ns.max(1));
        busy.max(usize::try_from(used).unwrap_or(usize::MAX)).max(1)
    }

    /// Its part of a machine's CPUs and of its memory, added: 0 to 2.
    pub fn share(&self, cpus: usize, memory: Bytes) -> f64 {
        self.cpus() / cpus.max(1) as f64 + self.memory.0 as f64 / memory.0.max(1) as f64
    }
}

/// A group of the policy to be written.
#[derive(Clone, Debug, PartialEq)]
pub struct Chosen {
    /// Its name in the policy.
    pub name: String,
    /// Its tasks.
    pub matching: Vec<TaskMatch>,
    /// What it used.
    pub figures: Figures,
}

fn keys(table: &TaskMatch) -> Vec<(&'static str, String)> {
    let pid = table.pid.map(|p| p.to_string());
    let all = [
        ("pid", pid.as_ref()),
        ("exe", table.exe.as_ref()),
        ("comm", table.comm.as_ref()),
        ("arg", table.arg.as_ref()),
        ("user", table.user.as_ref()),
        ("cgroup", table.cgroup.as_ref()),
        ("unit", table.unit.as_ref()),
        ("container", table.container.as_ref()),
    ];
    all.into_iter()
        .filter_map(|(key, value)| Some((key, value?.clone())))
        .collect()
}

/// A match table as the command line takes it: `exe=/usr/bin/x,comm=y`.
pub fn spelled(table: &TaskMatch) -> String {
    let all = keys(table).into_iter();
    let all = all.map(|(key, value)| format!("{key}={}", value.replace(',', "\\,")));
    all.collect::<Vec<_>>().join(",")
}

/// A match table as TOML: `{ exe = "/usr/bin/x" }`.
pub fn as_toml(table: &TaskMatch) -> String {
    let all = keys(table).into_iter().map(|(key, value)| match key {
        "pid" => format!("{key} = {value}"),
        _ => format!("{key} = {}", toml::Value::from(value)),
    });
    format!("{{ {} }}", all.collect::<Vec<_>>().join(", "))
}

/// A name for the group of these tables: letters, digits, `-` and `_`.
pub fn name_of(tables: &[TaskMatch], taken: &[String]) -> String {
    let first = tables.first();
    let text = first.and_then(|t| {
        let stem = |text: &String| {
            let last = text.rsplit('/').next().unwrap_or(text);
            last.strip_suffix(".service").unwrap_or(last).to_owned()
        };
        let container = t.container.as_ref().map(|id| format!("container-{id}"));
        let named = t.unit.as_ref().map(stem);
        let named = named.or_else(|| t.comm.as_ref().map(stem)).or(container);
        let named = named.or_else(|| t.exe.as_ref().map(stem));
        named.or_else(|| t.cgroup.as_ref().or(t.user.as_ref()).map(stem))
    });
    let fit = |c: char| {
        if c.is_ascii_alphanumeric() || c == '_' {
            c
        } else {
            '-'
        }
    };
    let text: String = text.unwrap_or_default().chars().map(fit).take(48).collect();
    let text = text.trim_matches('-');
    let text = match text {
        "" => "program",
        "rest" => "rest-program",
        other => other,
    };
    let mut numbered = (2..).map(|n| format!("{text}-{n}"));
    let mut name = text.to_owned();
    while taken.contains(&name) {
        name = numbered.next().unwrap_or_default();
    }
    name
}
