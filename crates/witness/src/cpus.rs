//! How CPUs spent the time between two looks, from `/proc/stat`.

use std::collections::BTreeMap;

use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Nanos;

use crate::alone::{CpuUse, idled};

/// The shortest span that is judged: the kernel counts busy time in ticks of up to 10 ms.
const SHORTEST: Nanos = Nanos::millis(500);

/// The times of all CPUs, from look to look.
#[derive(Debug, Default)]
pub(crate) struct CpuTimes {
    /// When the times were read from which differences are counted.
    since: Option<Nanos>,
    before: BTreeMap<CpuId, CpuUse>,
    /// Differences at the last look, and their span. `None`: it was the first look, or too soon.
    between: Option<(BTreeMap<CpuId, CpuUse>, Nanos)>,
    /// CPUs that had a line at the last look. `None` without the file.
    present: Option<CpuSet>,
}

impl CpuTimes {
    /// Reads the times. A look that comes too soon after the last one leaves the span open.
    pub fn look(&mut self, files: &dyn Files, now: Nanos) {
        let ticks = rustix::param::clock_ticks_per_second();
        self.between = None;
        // What makes no sense is as good as missing.
        let Some(times) = procfs::cpu_times(files, ticks).ok().flatten() else {
            self.present = None;
            self.since = None;
            return;
        };
        let uses: BTreeMap<CpuId, CpuUse> = times
            .iter()
            .map(|t| {
                let used = CpuUse {
                    busy: t.busy_ns,
                    idle: t.idle_ns,
                    other: [t.softirq_ns, t.steal_ns]
                        .into_iter()
                        .fold(t.irq_ns, u64::saturating_add),
                };
                (t.cpu, used)
            })
            .collect();
        self.present = Some(uses.keys().copied().collect());
        let span = self.since.map(|since| now.since(since));
        if span.is_some_and(|span| span < SHORTEST) {
            return;
        }
        self.between = span.map(|span| {
            let less = |(cpu, now): (&CpuId, &CpuUse)| {
                let before = self.before.get(cpu)?;
                let used = CpuUse {
                    busy: now.busy.saturating_sub(before.busy),
                    idle: now.idle.saturating_sub(before.idle),
                    other: now.other.saturating_sub(before.other),
                };
                Some((*cpu, used))
            };
            (uses.iter().filter_map(less).collect(), span)
        });
        self.since = Some(now);
        self.before = uses;
    }

    /// The use of each CPU between the last two looks, and their span.
    pub fn between(&self) -> Option<(&BTreeMap<CpuId, CpuUse>, Nanos)> {
        self.between.as_ref().map(|(uses, span)| (uses, *span))
    }

    /// Whether one of several CPUs idled.
    pub fn any_idle(&self, cpus: &CpuSet) -> bool {
        self.between().is_some_and(|(uses, span)| {
            let idles = |cpu| uses.get(&cpu).is_some_and(|used| idled(used, span));
            cpus.len() > 1 && cpus.iter().any(idles)
        })
    }

    /// The first of these CPUs that has no line. `None` where all have one, or there is no file.
    pub fn missing(&self, cpus: &CpuSet) -> Option<CpuId> {
        let present = self.present.as_ref()?;
        cpus.iter().find(|cpu| !present.contains(*cpu))
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn differences_are_counted_from_look_to_look() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let put = |text: &str| std::fs::write(dir.path().join("proc/stat"), text).unwrap();
        let mut times = CpuTimes::default();
        let cpus: CpuSet = "0-1".parse().unwrap();
        times.look(&kernel, Nanos::secs(1));
        assert_eq!(times.missing(&cpus), None, "no file says nothing");
        put("cpu0 10 0 0 100\ncpu1 0 0 0 5\n");
        times.look(&kernel, Nanos::secs(2));
        assert!(times.between().is_none() && !times.any_idle(&cpus));
        put("cpu0 50 0 20 100 0 3 0 2\n");
        times.look(&kernel, Nanos::millis(2_100));
        assert!(times.between().is_none(), "too soon");
        times.look(&kernel, Nanos::secs(3));
        let (uses, span) = times.between().unwrap();
        let ms = |n: u64| n * 1_000_000;
        let expected = CpuUse {
            busy: ms(600),
            idle: 0,
            other: ms(50),
        };
        assert_eq!(*uses, BTreeMap::from([(0, expected)]));
        assert_eq!(span, Nanos::secs(1));
        assert_eq!(times.missing(&cpus), Some(1));
        put("cpu0 50 0 20 195 0 3 0 2\ncpu1 0 0 0 5\n");
        times.look(&kernel, Nanos::secs(4));
        assert!(times.any_idle(&cpus) && !times.any_idle(&CpuSet::one(0)));
        put("cpu0 x\n");
        times.look(&kernel, Nanos::secs(5));
        assert!(times.between().is_none() && times.missing(&cpus).is_none());
    }
}
