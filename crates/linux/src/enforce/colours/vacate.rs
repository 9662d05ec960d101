//! Pages of groups that reserve no colours leave the colours that others reserve, where the policy
//! allows it.
//!
//! - They get free frames of the colours that are left. The hoard releases none for them.
//! - It happens only while more memory is available than the reserve and what a settler may hold:
//!   the hoard does not give way because of it.
//! - No promise rests on it. A process whose pages cannot be moved is reported, and stays.

use quell_kernel::error::{Error, Result};
use quell_kernel::vm;
use quell_plan::Setting;
use quell_types::units::Bytes;

use super::process::Wanting;
use super::{Applied, Colours};
use crate::colours::settle::Wanted;
use crate::host::Host;

/// The most memory that a settler holds to find frames, and the part of the reserve.
const HOLD: Bytes = Bytes(32 << 20);
const PART: u64 = 8;

/// The most processes that are named.
const NAMED: usize = 10;

/// What is reported of a process whose pages are not moved: the one with this number among those of
/// the group. `None` where enough were named.
pub(super) fn stays(group: &str, pid: u32, why: &str, number: usize) -> Option<String> {
    match number {
        ..=NAMED => Some(format!(
            "group {group}: pages of process {pid} stay in reserved colours: {why}"
        )),
        _ => (number == NAMED + 1).then(|| {
            format!("group {group}: pages of more than {NAMED} processes stay in reserved colours")
        }),
    }
}

/// Why too little memory is available to find frames. `None`: there is enough, or a hoard releases
/// frames.
pub(super) fn lack(host: &Host, group: &Wanting) -> Result<Option<String>> {
    let Some(reserve) = group.unheld else {
        return Ok(None);
    };
    let memory = vm::memory(&host.files)?.unwrap_or_default();
    let least = reserve.0.saturating_add(2 * group.wanted.hold.0);
    Ok((memory.available.0 < least).then(|| {
        format!(
            "{} of memory are available, and {} are needed to find other frames without using the reserve",
            memory.available,
            Bytes(least)
        )
    }))
}

impl Colours {
    /// Begins to move a group's pages out of reserved colours.
    pub(super) fn vacate(&mut self, host: &mut Host, name: &str, set: &Setting) -> Applied {
        let Setting::Vacate {
            colouring,
            colours,
            pace,
            longest,
            ..
        } = set
        else {
            return Ok(None);
        };
        let Some(held) = &self.held else {
            return Err(Error::refused(format!("group {name}: no frames are held")));
        };
        let wanted = Wanted {
            colouring: colouring.clone(),
            colours: colours.clone(),
            longest: *longest,
            pace: *pace,
            hold: HOLD.min(Bytes(held.rules.reserve.0 / PART)),
        };
        let reserve = held.rules.reserve;
        self.follow(host, name, wanted, None, Some(reserve))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ten_processes_are_named_and_more_are_one_line() {
        let said = (1..=15).filter_map(|pid| {
            let number = usize::try_from(pid).unwrap();
            stays("b", pid, "it is traced", number)
        });
        let said: Vec<String> = said.collect();
        assert_eq!(said.len(), 11);
        assert_eq!(
            said[9],
            "group b: pages of process 10 stay in reserved colours: it is traced"
        );
        assert!(said[10].contains("more than 10 processes"), "{}", said[10]);
    }
}
