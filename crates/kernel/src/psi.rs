//! Pressure stall information: how long tasks waited because a resource was short, for the machine
//! and for each v2 cgroup. Documentation/accounting/psi.rst, kernel/sched/psi.c.
//!
//! `total=` is computed again at each read, while the averages move every two seconds. So a loop
//! takes differences of totals. A trigger makes the kernel wake its pollers. Without
//! CAP_SYS_RESOURCE its window is a multiple of two seconds. Before Linux 6.4 it was at least 500
//! ms, and for privileged programs only. So reading has to do without triggers.

use quell_types::units::{Nanos, Share};

use crate::error::{Error, Result};
use crate::root::Files;

/// The resource that tasks wait for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Resource {
    /// Memory: reclaim, refaults, sleeps over `memory.high`.
    Memory,
    /// Disks. First reads of a page count only here.
    Io,
    /// Waiting for a CPU to run on.
    Cpu,
}

impl Resource {
    /// Path of the pressure file of the whole machine.
    #[must_use]
    pub const fn system(self) -> &'static str {
        match self {
            Self::Memory => "/proc/pressure/memory",
            Self::Io => "/proc/pressure/io",
            Self::Cpu => "/proc/pressure/cpu",
        }
    }

    /// Path of the pressure file of the v2 cgroup in `dir`.
    #[must_use]
    pub fn of(self, dir: &str) -> String {
        let name = match self {
            Self::Memory => "memory",
            Self::Io => "io",
            Self::Cpu => "cpu",
        };
        format!("{dir}/{name}.pressure")
    }
}

/// One line of a pressure file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Line {
    /// Share of the last 10 s, as of the last two-second step.
    pub avg10: Share,
    /// Share of the last 60 s.
    pub avg60: Share,
    /// Share of the last 300 s.
    pub avg300: Share,
    /// The total time waited so far.
    pub total: Nanos,
}

/// The lines of a pressure file. Old kernels have no `full` for the CPU.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Psi {
    /// Time in which at least one task waited.
    pub some: Option<Line>,
    /// Time in which all tasks waited.
    pub full: Option<Line>,
}

/// Parses the text of a pressure file.
///
/// # Errors
/// [`Error::Malformed`].
pub fn parse(path: &str, text: &str) -> Result<Psi> {
    let mut psi = Psi::default();
    for line in text.lines() {
        let wrong = || Error::malformed(path, line, "`some avg10=… avg60=… avg300=… total=…`");
        let (kind, rest) = line.split_once(' ').ok_or_else(wrong)?;
        let read = read_line(rest).ok_or_else(wrong)?;
        match kind {
            "some" => psi.some = Some(read),
            "full" => psi.full = Some(read),
            _ => return Err(wrong()),
        }
    }
    if psi == Psi::default() {
        return Err(Error::malformed(path, text, "a line `some` or `full`"));
    }
    Ok(psi)
}

fn read_line(text: &str) -> Option<Line> {
    let mut values = text.split_ascii_whitespace();
    let mut next = |key: &str| values.next()?.strip_prefix(key)?.strip_prefix('=');
    Some(Line {
        avg10: percent(next("avg10")?)?,
        avg60: percent(next("avg60")?)?,
        avg300: percent(next("avg300")?)?,
        total: micros(next("total")?)?,
    })
}

fn micros(text: &str) -> Option<Nanos> {
    text.parse::<u64>().ok()?.checked_mul(1_000).map(Nanos)
}

/// Parses a percentage such as `12.34`, with two decimals.
fn percent(text: &str) -> Option<Share> {
    let (whole, part) = text.split_once('.')?;
    let (whole, part): (u64, u64) = (whole.parse().ok()?, part.parse().ok()?);
    let whole = whole.checked_mul(10_000)?;
    whole.checked_add(part.checked_mul(100)?).map(Share)
}

/// The total times waited so far, of which a loop takes differences.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Totals {
    /// Time in which at least one task waited.
    pub some: Nanos,
    /// Time in which all tasks waited; 0 where the file has no such line.
    pub full: Nanos,
}

/// The totals of a pressure file. No other field is parsed.
///
/// # Errors
/// [`Error::Malformed`].
pub fn totals(path: &str, text: &str) -> Result<Totals> {
    let total = |kind: &str| {
        text.lines().find_map(|line| {
            let rest = line.strip_prefix(kind)?.strip_prefix(' ')?;
            micros(rest.rsplit_once("total=")?.1.trim())
        })
    };
    let some =
        total("some").ok_or_else(|| Error::malformed(path, text, "a line `some … total=…`"))?;
    Ok(Totals {
        some,
        full: total("full").unwrap_or_default(),
    })
}

/// Reads a pressure file. `None` where the kernel has no PSI (CONFIG_PSI), where it is off, or off
/// for this cgroup (`cgroup.pressure`). `psi=1` on the kernel's command line turns it on.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn read(files: &dyn Files, path: &str) -> Result<Option<Psi>> {
    match files.optional(path) {
        Ok(Some(text)) => parse(path, &text).map(Some),
        Ok(None) => Ok(None),
        Err(e) if e.errno() == Some(libc::EOPNOTSUPP) => Ok(None),
        Err(e) => Err(e),
    }
}

/// Whether the kernel reports any pressure. The files may exist and refuse to be opened
/// (EOPNOTSUPP).
#[must_use]
pub fn is_reported(files: &dyn Files) -> bool {
    files.read(Resource::Memory.system()).is_ok()
}

/// The windows that a trigger may have here.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Windows {
    /// Any window up to ten seconds.
    Any,
    /// From 500 ms on (before Linux 6.4).
    HalfSecond,
    /// Multiples of two seconds, because CAP_SYS_RESOURCE is missing.
    TwoSeconds,
    /// No trigger at all; with the reason.
    None(String),
}

/// Tries which triggers a pressure file accepts. Each trigger ends with its write.
#[must_use]
pub fn windows(files: &dyn Files, path: &str) -> Windows {
    let ask = |stall_us: u64, window_us: u64| {
        files.write(path, &format!("some {stall_us} {window_us}\n"))
    };
    if ask(10_000, 20_000).is_ok() {
        return Windows::Any;
    }
    if ask(100_000, 500_000).is_ok() {
        return Windows::HalfSecond;
    }
    match ask(100_000, 2_000_000) {
        Ok(()) => Windows::TwoSeconds,
        Err(e) => Windows::None(e.to_string()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_kernels_text_is_read_and_anything_else_is_named() {
        let text = "some avg10=1.02 avg60=0.30 avg300=100.00 total=17\nfull avg10=0.00 avg60=0.00 avg300=0.00 total=5\n";
        let psi = parse("/p", text).unwrap();
        let some = psi.some.unwrap();
        assert_eq!((some.avg10, some.avg300), (Share(10_200), Share::WHOLE));
        assert_eq!(some.total, Nanos::micros(17));
        assert_eq!(psi.full.unwrap().total, Nanos::micros(5));
        let both = totals("/p", text).unwrap();
        assert_eq!(
            (both.some, both.full),
            (Nanos::micros(17), Nanos::micros(5))
        );
        let only_some = text.lines().next().unwrap();
        assert_eq!(totals("/p", only_some).unwrap().full, Nanos(0));
        assert!(parse("/p", only_some).unwrap().full.is_none());
        for wrong in [
            "",
            "some",
            "some avg10=1 avg60=0.00 avg300=0.00 total=1",
            "x avg10=0.00 avg60=0.00 avg300=0.00 total=1",
        ] {
            let error = parse("/proc/pressure/io", wrong).unwrap_err().to_string();
            assert!(error.contains("/proc/pressure/io reads"), "{error}");
        }
        assert!(totals("/p", "full total=5").is_err());
    }
}
