//! The kernel's reason for a refusal (`info/last_cmd_status`), and what to do about it.
//!
//! Until some kernel after 6.12 making groups and giving CPUs did not empty the status first. So
//! the earlier text is separated from the new one.

use super::Resctrl;
use crate::error::{Error, Result};
use crate::root::Files;

/// A part of the kernel's text (kernels differ in the rest), and what to do.
const ADVICE: [(&str, &str); 19] = [
    (
        "Out of CLOSIDs",
        "every class of service is in use: remove a control group that nobody needs (rmdir, `pqos -R`)",
    ),
    (
        "Out of RMIDs",
        "every monitoring id is in use, or waits until its lines have left the cache: remove monitor groups, wait, or raise \
         info/L3_MON/max_threshold_occupancy",
    ),
    (
        "No space on",
        "exclusive and locked groups have all ways: make one of them smaller, or shareable",
    ),
    (
        "non-consecutive",
        "name ways in one piece: this processor takes no mask with holes",
    ),
    (
        "bits in the mask",
        "name more ways: info/*/min_cbm_bits is the least",
    ),
    (
        "Mask out of range",
        "name some of the ways in info/*/cbm_mask",
    ),
    ("out of range", "info/MB tells the least value, and steps"),
    (
        "in hierarchy",
        "the kernel locks one region in a cache and those above and below it: remove the group that has one (its mode is \
         pseudo-locked)",
    ),
    (
        "exceeds maximum size",
        "the kernel locks 4 MiB in one piece at most: lock less, in fewer ways",
    ),
    (
        "Unable to allocate memory",
        "the kernel has no free memory of that size in one piece: `echo 1 > /proc/sys/vm/compact_memory`, or lock less",
    ),
    (
        "Cannot change pseudo-locked",
        "it can only be removed (rmdir), once nobody has its device open",
    ),
    (
        "pseudo-locked",
        "what is locked stays until its group is removed: name other ways",
    ),
    (
        "Overlaps with exclusive",
        "another group has some of these ways to itself: see the files mode and schemata of the groups",
    ),
    (
        "verlaps",
        "another group, or a device (info/*/shareable_bits), has some of these ways, and the group is exclusive: give the \
         others less first",
    ),
    ("No task", "the task has ended"),
    (
        "to different control group",
        "a monitor group takes tasks of its own control group only: move the task there first",
    ),
    ("resource name", "it is not among the resources in info"),
    (
        "Pseudo-locking not supported",
        "the kernel locks on Broadwell-X, Goldmont and Goldmont Plus only: reserve ways instead",
    ),
    (
        "CPU",
        "name CPUs that are online; the default group keeps those that no other group has",
    ),
];

/// The part of the status text that the last command added. If the text is the same as before, it
/// is this command's where the kernel processed the command (`heard`). Every kernel empties the
/// status at writes, and where a command does not, its text is appended once more.
fn fresh<'a>(before: Option<&str>, now: &'a str, heard: bool) -> Option<&'a str> {
    let rest = before.and_then(|b| now.strip_prefix(b)).unwrap_or(now);
    let rest = rest.trim_start_matches("; ");
    match rest.is_empty() {
        true => heard.then_some(now),
        false => Some(rest),
    }
}

impl Resctrl {
    /// Runs `act` below the mount. An error gets the kernel's text and what to do.
    ///
    /// # Errors
    /// Those of `act`.
    pub fn explained<T>(&self, files: &dyn Files, act: impl FnOnce() -> Result<T>) -> Result<T> {
        let before = self.last_status(files);
        act().map_err(|e| self.explain(files, before.as_deref(), e))
    }

    fn explain(&self, files: &dyn Files, before: Option<&str>, error: Error) -> Error {
        let Error::File {
            action,
            path,
            tried,
            source,
            remedy,
        } = error
        else {
            return error;
        };
        let now = self.last_status(files);
        // Access was refused before resctrl processed the command. The text is from an earlier
        // command.
        let heard = !matches!(
            source.raw_os_error(),
            Some(libc::ENOENT | libc::ENODEV | libc::EACCES)
        );
        let said = now.as_deref().and_then(|now| fresh(before, now, heard));
        let remedy = match said {
            Some(said) => {
                let advice = ADVICE.iter().find(|(words, _)| said.contains(words));
                let advice = advice.map(|(_, advice)| format!(": {advice}"));
                Some(format!("resctrl says '{said}'{}", advice.unwrap_or_default()))
            }
            None => match source.raw_os_error() {
                Some(libc::EBUSY) if action == "make" => Some(
                    "monitoring ids wait until their lines have left the cache: try again in a moment, or raise \
                     info/L3_MON/max_threshold_occupancy"
                        .to_owned(),
                ),
                Some(libc::EINVAL) => Some("resctrl does not say why; a domain that is not there is one reason".to_owned()),
                _ => remedy,
            },
        };
        Error::File {
            action,
            path,
            tried,
            source,
            remedy,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_same_words_again_are_of_the_command_that_was_heard() {
        let fresh = |before, now, heard| fresh(before, now, heard).unwrap_or("-");
        assert_eq!(fresh(None, "a", true), "a");
        assert_eq!(fresh(Some("a"), "b", true), "b");
        assert_eq!(fresh(Some("a"), "a; b", true), "b");
        assert_eq!(fresh(Some("a"), "a; a", true), "a");
        assert_eq!(fresh(Some("a"), "a", true), "a");
        assert_eq!(fresh(Some("a"), "a", false), "-");
    }
}
