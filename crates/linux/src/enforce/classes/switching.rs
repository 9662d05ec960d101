//! Ways that switch with the windows of a frame: what the dispatcher writes when a window begins.
//!
//! The journal has the values from before once, not for each switch. The dispatcher writes without
//! resctrl's lock: one line of a control group of Quell's, which other programs leave alone.

use std::collections::BTreeSet;

use quell_control::config::{Fill, Frame};
use quell_kernel::error::{Error, Result};
use quell_kernel::resctrl::Schemata;
use quell_kernel::resctrl::lock::{For, PATIENCE};
use quell_kernel::root::{Access, Files};
use quell_plan::{Plan, Setting};
use quell_types::cpuset::CpuSet;

use super::Classes;
use crate::dispatcher::windows::WayMasks;
use crate::host::Host;

/// The masks that a group has in the windows of a frame.
fn masks(frame: &Frame, group: &str) -> BTreeSet<u64> {
    let own = frame.spans.iter();
    let own = own.filter(|span| span.group.as_deref() == Some(group));
    own.filter_map(|span| Some(span.ways?.mask.0)).collect()
}

/// Whether a group of a plan fills other ways in some of its windows than in others.
pub(super) fn switches(plan: &Plan, group: &str) -> bool {
    plan.steps.iter().any(|step| match &step.set {
        Setting::Windows(frame) => masks(frame, group).len() > 1,
        _ => false,
    })
}

impl Classes {
    /// Records that the ways of a frame's groups switch from now on, and opens what is written.
    pub fn way_masks(&mut self, host: &mut Host, frame: &Frame) -> Result<WayMasks> {
        let mut all = WayMasks::default();
        all.spans.resize(frame.spans.len(), None);
        let groups = frame.groups().into_iter();
        for name in groups.filter(|name| masks(frame, name).len() > 1) {
            let class = self.class_of(name)?;
            let parts = self.begun()?;
            if parts.groups.values().filter(|of| **of == class).count() > 1 || class.name.is_empty()
            {
                return Err(Error::refused_with(
                    format!(
                        "group {name} has other ways in some of its windows, and no class of service is left for it alone"
                    ),
                    "remove control groups that nobody needs (rmdir, `pqos -R`)",
                ));
            }
            let path = class.file("schemata");
            let place = all.files.len();
            let mut named = Schemata::default();
            let spans = frame.spans.iter().zip(&mut all.spans);
            for (span, text) in spans.filter(|(span, _)| span.group.as_ref() == Some(name)) {
                let Some(Fill { level, mask }) = span.ways else {
                    continue;
                };
                let set = Setting::Ways {
                    level,
                    mask,
                    caches_of: CpuSet::new(),
                };
                let lines = parts.lines(&host.files, &set)?;
                *text = Some((place, format!("{lines}\n")));
                named = lines;
            }
            let _lock = parts.resctrl.lock(&host.files, For::Changing, PATIENCE)?;
            let old = class.schemata(&host.files)?.only(&named).to_string();
            host.writer()?.steer(&path, &old)?;
            let file = host.files.open(&path, Access::Write);
            let file = file.map_err(|e| Error::file("open", &path, None, e))?;
            let none = || Error::refused(format!("{path} cannot be kept open"));
            all.files.push(file.ok_or_else(none)?);
        }
        Ok(all)
    }
}

#[cfg(test)]
mod tests {
    use quell_control::config::Span;
    use quell_types::partition::Mask;
    use quell_types::units::Nanos;

    use super::*;

    #[test]
    fn a_groups_masks_are_those_of_its_own_windows() {
        let span = |n: u64, group: &str, mask: Option<u64>| Span {
            start: Nanos::millis(n),
            end: Nanos::millis(n + 1),
            group: Some(group.to_owned()),
            ways: mask.map(|mask| Fill {
                level: 3,
                mask: Mask(mask),
            }),
            budget: None,
        };
        let windows = [
            span(0, "a", Some(3)),
            span(1, "b", Some(4)),
            span(2, "a", Some(0xc)),
            span(3, "b", Some(4)),
            span(4, "c", None),
        ];
        let cpus = CpuSet::from_iter([0]);
        let frame = Frame::new(cpus, Nanos::millis(5), Nanos::micros(1), &windows, None);
        assert_eq!(masks(&frame, "a"), [3, 0xc].into());
        assert_eq!(masks(&frame, "b"), [4].into());
        assert_eq!(masks(&frame, "c"), [].into());
    }
}
