//! What a file of the kernel says, compared with what was recorded of it.

use std::borrow::Cow;

use quell_core::cpuset::CpuSet;

use crate::resctrl::Schemata;
use crate::root::parse_mask;

/// Whether a file has a value for each of many things (resctrl's `schemata`), of which a write may name some.
#[must_use]
pub fn divided(path: &str) -> bool {
    path.ends_with("/schemata")
}

/// Of a file's text, what `named` has a value for, too; all of it where there is one value only. So of what was read what a write is to
/// change, and of what was recorded what is there now: caches may have gone offline since.
#[must_use]
pub fn only<'a>(path: &str, text: &'a str, named: &str) -> Cow<'a, str> {
    if !divided(path) {
        return text.into();
    }
    let only = Schemata::parse(text).only(&Schemata::parse(named));
    only.to_string().into()
}

/// Whether a later value stands for all that an earlier one set.
#[must_use]
pub fn covers(path: &str, later: &str, earlier: &str) -> bool {
    !divided(path) || Schemata::parse(later).covers(&Schemata::parse(earlier))
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
