//! What a group moves to and from memory, by counters of the witness's own: the same events as the
//! brakes', of the group's cgroup, but read and never armed.

use std::os::fd::AsFd;
use std::path::Path;

use quell_kernel::perf::{self, Event, EventCode, Scope, Wake};
use quell_types::cpuset::CpuId;
use quell_types::units::{Bytes, LINE_BYTES, Nanos, Rate, Share};

use crate::series::{Allowed, Series};
use quell_types::witness::Fault;

/// How much more than promised a group may move: a brake wakes late, and what is on its way then is
/// moved yet.
const TOLERANCE: Share = Share::percent(25);
/// The time whose traffic a group may move at once, on top of that: a brake that wakes late.
const AT_ONCE: Nanos = Nanos::millis(100);

/// The events of one CPU.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Counted {
    /// The CPU.
    pub cpu: CpuId,
    /// Events that together count cache lines.
    pub events: Vec<EventCode>,
}

/// Open counters of a group.
#[derive(Debug, Default)]
pub(crate) struct Traffic {
    events: Vec<Event>,
    series: Series,
}

impl Traffic {
    /// Counters of the cgroup `dir`, on each of these CPUs.
    ///
    /// # Errors
    /// Why there are none.
    pub fn open(dir: &str, counted: &[Counted]) -> Result<Self, String> {
        let failed = |what: &str, e: &std::io::Error| format!("{what}: {e}");
        let group = perf::cgroup_dir(Path::new(dir)).map_err(|e| failed(dir, &e))?;
        let mut events = Vec::new();
        for of in counted {
            for code in &of.events {
                let scope = Scope::Cgroup(group.as_fd(), of.cpu);
                let event = Event::open(*code, scope, Wake::Never);
                let counter = || format!("a counter of its own on CPU {}", of.cpu);
                events.push(event.map_err(|e| failed(&counter(), &e))?);
            }
        }
        match events.is_empty() {
            true => Err("no CPU of the group has a counter".to_owned()),
            false => Ok(Self {
                events,
                series: Series::default(),
            }),
        }
    }

    /// Judges what was moved since earlier looks.
    ///
    /// # Errors
    /// Why that is not known: another program has taken a counter.
    pub fn judge(&mut self, now: Nanos, most: Rate) -> Result<Option<Fault>, String> {
        let mut lines = 0;
        for event in &self.events {
            let reading = event.read().map_err(|e| e.to_string())?;
            if !reading.running {
                return Err("a counter of the witness's own does not count".to_owned());
            }
            lines += reading.value;
        }
        self.series.add(now, lines.saturating_mul(LINE_BYTES));
        let fault = self.series.judge(Allowed {
            rate: most.0,
            tolerance: TOLERANCE,
            once: most.0 / (1_000_000_000 / AT_ONCE.0),
        });
        Ok(fault.map(|over| Fault::Drew {
            bytes: Bytes(over.used),
            allowed: Bytes(over.allowed),
            span: over.span,
        }))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn without_a_cgroup_or_a_counter_the_reason_is_told() {
        let why = Traffic::open("/nowhere/at/all", &[]).unwrap_err();
        assert!(why.starts_with("/nowhere/at/all: "), "{why}");
        let why = Traffic::open("/", &[]).unwrap_err();
        assert_eq!(why, "no CPU of the group has a counter");
    }
}
