//! What a file of the kernel says, compared with what was recorded of it.

use std::borrow::Cow;

use quell_core::cpuset::CpuSet;

use crate::resctrl::Schemata;
use crate::root::parse_mask;

/// Of what was recorded of a file that which is there now: caches may have gone offline since.
#[must_use]
pub fn there<'a>(path: &str, now: &str, recorded: &'a str) -> Cow<'a, str> {
    if !path.ends_with("/schemata") {
        return recorded.into();
    }
    let there = Schemata::parse(recorded).only(&Schemata::parse(now));
    there.to_string().into()
}

/// Whether a file's content is the same value, however it is spelled. `a`: as read; `b`: as recorded.
#[must_use]
pub fn same(path: &str, a: &str, b: &str) -> bool {
    let (a, b) = (a.trim(), b.trim());
    if a == b {
        return true;
    }
    let name = path.rsplit('/').next().unwrap_or(path);
    if name == "cpuset.cpus.partition" {
        // "root invalid (reason)" is still our "root".
        let kind = |t: &str| t.split(' ').next().unwrap_or_default().to_owned();
        return kind(a) == kind(b);
    }
    if name == "schemata" {
        // What is recorded is what was touched.
        return Schemata::parse(a).holds(&Schemata::parse(b));
    }
    if name.ends_with("cpumask") || name.ends_with("smp_affinity") {
        return matches!((parse_mask(a), parse_mask(b)), (Some(a), Some(b)) if a == b);
    }
    let list = |t: &str| t.parse::<CpuSet>().ok();
    let is_list = name.starts_with("cpuset.") || name.ends_with("_list");
    is_list && matches!((list(a), list(b)), (Some(a), Some(b)) if a == b)
}
