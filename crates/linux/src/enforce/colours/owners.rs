//! Which programs have frames of the groups' colours: counted once frames are held, and at the end.

use quell_kernel::error::{Error, Result};
use quell_plan::Setting;
use quell_record::backend::Seen;
use quell_record::events::Event;
use quell_record::owners::{FrameOwners, MOST};

use super::held::Held;
use super::{Colours, about};
use crate::colours::owners::{self, Asked};
use crate::host::Host;

/// Counts them, with the groups of the run.
pub(super) fn count(host: &Host, held: &Held) -> Result<FrameOwners> {
    let rules = &held.rules;
    let mut asked = Asked::new(rules.colouring.clone(), rules.colours.clone());
    asked.keeper = Some((held.hoard.pid(), held.hoard.kept()));
    for name in host.groups.of.keys() {
        let own = host.processes(name)?;
        let own = own.iter().map(|stat| (stat.id.pid, name.clone()));
        asked.groups.extend(own);
    }
    let steps = host.plan.iter().flat_map(|plan| &plan.steps);
    let settled = steps.filter(|step| matches!(step.set, Setting::Settle { .. }));
    asked.reserving = settled.filter_map(|step| step.group.clone()).collect();
    let mut found = owners::of(&host.files, &asked, &mut host.heart())?;
    found.shorten(MOST);
    Ok(found)
}

pub(super) fn unknown(e: &Error) -> String {
    format!("frames of reserved colours in other programs were not counted: {e}")
}

pub(super) fn seen(owners: FrameOwners) -> Seen {
    Seen::Event(Event::Owners { owners })
}

impl Colours {
    /// What is on record of the end: which programs have frames of the groups' colours.
    pub fn last(&mut self, host: &Host) -> Vec<Event> {
        let first = self.owners.take().map(|owners| Event::Owners { owners });
        let last = self.held.as_ref().map(|held| match count(host, held) {
            Ok(owners) => Event::Owners { owners },
            Err(e) => Event::finding(about(), unknown(&e), None),
        });
        first.into_iter().chain(last).collect()
    }
}
