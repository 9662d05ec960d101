//! What the whole machine waited for and read from disks during a span. Where the kernel does not
//! report it, there is no value.

use quell_kernel::psi::{self, Resource, Totals};
use quell_kernel::root::Files;
use quell_kernel::vm::{self, Paging};
use quell_policy::workload::{MEMORY_FULL, MEMORY_SOME, PAGE_INS, REFAULTS};

/// The machine's counts at one moment.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Machine {
    at_ns: u64,
    waited: Option<Totals>,
    paging: Option<Paging>,
}

impl Machine {
    pub(super) fn read(files: &dyn Files, at_ns: u64) -> Self {
        let text = |path: &str| files.read(path).ok();
        let memory = Resource::Memory.system();
        Self {
            at_ns,
            waited: text(memory).and_then(|text| psi::totals(memory, &text).ok()),
            paging: text(vm::VMSTAT).and_then(|text| vm::paging(&text).ok()),
        }
    }

    /// The metrics of the time since `then`, each with its value.
    pub(super) fn since(&self, then: &Self) -> Vec<(&'static str, f64)> {
        let span = self.at_ns.saturating_sub(then.at_ns).max(1) as f64;
        let mut values = Vec::new();
        if let (Some(now), Some(then)) = (self.waited, then.waited) {
            values.push((MEMORY_SOME, now.some.since(then.some).0 as f64 / span));
            values.push((MEMORY_FULL, now.full.since(then.full).0 as f64 / span));
        }
        if let (Some(now), Some(then)) = (self.paging, then.paging) {
            let rate = |now: u64, then: u64| now.saturating_sub(then) as f64 / span * 1e9;
            values.push((PAGE_INS, rate(now.files, then.files)));
            values.push((REFAULTS, rate(now.refaults, then.refaults)));
        }
        values
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_kernel::root::Kernel;

    #[test]
    fn counts_become_shares_and_rates_of_the_span() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        let put = |path: &str, text: String| {
            let path = dir.path().join(path.trim_start_matches('/'));
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        let page = rustix::param::page_size() as u64 >> 10;
        let state = |some_us: u64, full_us: u64, pages: u64, refaults: u64| {
            let line =
                |kind, total| format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total={total}\n");
            put(
                "/proc/pressure/memory",
                line("some", some_us) + &line("full", full_us),
            );
            let kib = pages * page;
            put(
                "/proc/vmstat",
                format!("workingset_refault_file {refaults}\npgpgin {kib}\npswpin 0\n"),
            );
        };
        let none = Machine::read(&kernel, 0);
        state(1_000_000, 500_000, 100, 10);
        let then = Machine::read(&kernel, 1_000_000_000);
        state(1_500_000, 700_000, 300, 50);
        let now = Machine::read(&kernel, 3_000_000_000);
        let expected = [
            (MEMORY_SOME, 0.25),
            (MEMORY_FULL, 0.1),
            (PAGE_INS, 100.0),
            (REFAULTS, 20.0),
        ];
        assert_eq!(now.since(&then), expected);
        assert_eq!(now.since(&none), []);
    }
}
