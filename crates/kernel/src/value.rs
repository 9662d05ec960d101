//! Compares the content of a kernel file with what was recorded of it.

use std::borrow::Cow;

use quell_types::cpuset::CpuSet;

use crate::msr;
use crate::resctrl::Schemata;
use crate::root::parse_mask;

/// Whether a file has several values (resctrl's `schemata`), of which a write may name some.
#[must_use]
pub fn divided(path: &str) -> bool {
    path.ends_with("/schemata")
}

/// Files with a line for each disk, which begins with the disk's number, and the text of a line
/// with nothing set. Such lines are not shown (cgroup-v2.rst, "IO Interface Files"). A write names
/// one disk.
const PER_DISK: [(&str, &str); 2] = [
    ("/io.max", "rbps=max wbps=max riops=max wiops=max"),
    ("/io.latency", "target=0"),
];

/// The number of the disk that a line of such a file is about.
fn disk<'a>(path: &str, line: &'a str) -> Option<&'a str> {
    let there = PER_DISK.iter().any(|(name, _)| path.ends_with(name));
    line.split(' ').next().filter(|_| there)
}

/// The line of such a file's text about the same disk as `named`.
fn line_of(path: &str, text: &str, named: &str) -> Option<String> {
    let (_, unset) = PER_DISK.iter().find(|(name, _)| path.ends_with(name))?;
    let number = disk(path, named.trim())?;
    let mut lines = text.lines().map(str::trim);
    let found = lines.find(|line| disk(path, line) == Some(number));
    Some(found.map_or_else(|| format!("{number} {unset}"), str::to_owned))
}

/// The part of a file's text that `named` has values for, too. It is the whole text where the file
/// has one value only. Applied to what was read, this is what a write is going to change. Applied
/// to what was recorded, it is what still exists: caches may have gone offline since.
#[must_use]
pub fn only<'a>(path: &str, text: &'a str, named: &str) -> Cow<'a, str> {
    if let Some(line) = line_of(path, text, named) {
        return line.into();
    }
    if !divided(path) {
        return text.into();
    }
    let only = Schemata::parse(text).only(&Schemata::parse(named));
    only.to_string().into()
}

/// Whether a later value replaces all that an earlier one set.
#[must_use]
pub fn covers(path: &str, later: &str, earlier: &str) -> bool {
    if !divided(path) {
        return disk(path, later) == disk(path, earlier);
    }
    Schemata::parse(later).covers(&Schemata::parse(earlier))
}

/// Whether two texts of a file are the same value, however they are spelled. `a` was read, `b` was
/// recorded.
#[must_use]
pub fn same(path: &str, a: &str, b: &str) -> bool {
    let (a, b) = (a.trim(), b.trim());
    if a == b {
        return true;
    }
    if let Some((_, number)) = msr::parse(path) {
        return msr::same(number, a, b);
    }
    if let Some(line) = line_of(path, a, b) {
        // A key that a write does not name stays as it is.
        return b.split(' ').all(|word| line.split(' ').any(|w| w == word));
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if name == "cpuset.cpus.partition" {
        // "root invalid (reason)" is still the recorded "root".
        let kind = |t: &str| t.split(' ').next().unwrap_or_default().to_owned();
        return kind(a) == kind(b);
    }
    if name == "schemata" {
        // Only the values that were written are recorded.
        return Schemata::parse(a).holds(&Schemata::parse(b));
    }
    if name.ends_with("cpumask") || name.ends_with("smp_affinity") {
        return matches!((parse_mask(a), parse_mask(b)), (Some(a), Some(b)) if a == b);
    }
    let list = |t: &str| t.parse::<CpuSet>().ok();
    let is_list = name.starts_with("cpuset.") || name.ends_with("_list");
    is_list && matches!((list(a), list(b)), (Some(a), Some(b)) if a == b)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_disk_is_compared_with_itself_alone() {
        let path = "/cg/io.max";
        let ours = "8:16 rbps=max wbps=1000000 riops=max wiops=max";
        let now = format!("8:0 rbps=5 wbps=max riops=max wiops=max\n{ours}");
        assert!(same(path, &now, ours) && same(path, &now, "8:16 wbps=1000000"));
        assert!(!same(path, &now, "8:16 wbps=1000001"));
        assert!(!same(
            path,
            &now,
            "8:0 rbps=max wbps=max riops=max wiops=max"
        ));
        assert_eq!(only(path, &now, ours), ours);
        let unset = "8:32 rbps=max wbps=max riops=max wiops=max";
        assert!(same(path, &now, unset), "no line: nothing is set");
        assert_eq!(only(path, "", "8:32 wbps=5"), unset);
        assert!(covers(path, ours, "8:16 wbps=1") && !covers(path, ours, "8:0 wbps=1"));
        assert_eq!(only("/cg/io.latency", "", "8:0 target=75"), "8:0 target=0");
        assert!(covers("/cg/cpu.max", "1", "2"));
    }
}
