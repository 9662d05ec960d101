//! How much of the machine other programs use while something is measured.

use std::fmt;

use quell_kernel::root::Kernel;
use quell_kernel::{procfs, rt, self_usage};
use quell_types::units::Nanos;

/// Below this share of the machine's CPU time other programs are not worth a word.
const LITTLE: f64 = 0.1;

/// CPU time of all programs, and of this process with its children.
#[derive(Clone, Copy)]
pub struct Others {
    at: Nanos,
    cpus: usize,
    all: Nanos,
    own: Nanos,
}

impl Others {
    /// The times so far. `None` where the kernel does not tell.
    pub fn now() -> Option<Self> {
        let files = Kernel::new().ok()?;
        let times = procfs::cpu_times(&files, rustix::param::clock_ticks_per_second()).ok()??;
        Some(Self {
            at: rt::now(),
            cpus: times.len(),
            all: Nanos(times.iter().map(|time| time.busy_ns).sum()),
            own: self_usage::with_children(),
        })
    }

    /// What other programs used since an earlier moment.
    pub fn since(self, before: Self) -> Share {
        let others = (self.all.since(before.all)).since(self.own.since(before.own));
        let whole = self.at.since(before.at).0.saturating_mul(self.cpus as u64);
        Share(others.0 as f64 / whole.max(1) as f64)
    }
}

/// A share of the machine's CPU time.
#[derive(Clone, Copy, PartialEq)]
pub struct Share(f64);

impl Share {
    /// Whether it may be seen in what was measured.
    pub fn matters(self) -> bool {
        self.0 >= LITTLE
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "other programs used {:.0} % of this machine's CPU time meanwhile, so that rounds differ more; \
             end them and measure again",
            self.0 * 100.0
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_this_process_used_is_no_other_programs() {
        let of = |at, all, own| Others {
            at: Nanos(at),
            cpus: 2,
            all: Nanos(all),
            own: Nanos(own),
        };
        let before = of(1_000, 50_000, 3_000);
        let share = |all: u64, own: u64| of(2_000, 50_000 + all, 3_000 + own).since(before);
        assert_eq!(share(1_500, 500).0, 0.5);
        assert!(share(1_500, 500).matters() && !share(1_500, 1_400).matters());
        // The kernel counts both in ticks of its own.
        assert_eq!(share(1_000, 1_010).0, 0.0);
        let said = share(1_500, 500).to_string();
        assert!(said.contains("other programs used 50 %"), "{said}");
    }
}
