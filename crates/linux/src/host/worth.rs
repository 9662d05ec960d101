//! What promises are still worth once something is gone that holds them.

use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Seen;
use quell_record::events::Event;
use quell_record::standing::Cause;
use quell_types::mechanism::Level;

use super::Host;

/// Whether a step limits what its group draws or runs.
pub fn limits(set: &Setting) -> bool {
    matches!(
        set,
        Setting::Regulate(_) | Setting::CpuMax { .. } | Setting::Windows(_)
    )
}

/// A finding for a person, about one group or about all.
pub fn finding(about: About, what: String, group: Option<&str>) -> Seen {
    Seen::Event(Event::finding(about, what, group))
}

impl Host {
    /// Reports the level of the promises that rest on such steps of a group from now on. The
    /// group's own promises get at most `most`. Promises of other groups get none, unless `most` is
    /// [`Level::Enforced`]. Where no promise rests on these steps, reports the cause alone.
    pub fn worth(
        &self,
        group: &str,
        such: &dyn Fn(&Setting) -> bool,
        most: Level,
        because: &Cause,
    ) -> Vec<Seen> {
        let plan = self.plan.iter();
        let told = plan.flat_map(|plan| plan.resting_on(group, such));
        let told = told.map(|(id, held)| {
            let own = held.group == group || most == Level::Enforced;
            let most = if own { most } else { Level::None };
            Seen::Event(Event::Promise {
                id,
                level: held.level.min(most),
                because: because.clone(),
            })
        });
        let told: Vec<Seen> = told.collect();
        if !told.is_empty() {
            return told;
        }
        let what = format!("group {group}: {because}");
        let because = because.clone();
        vec![finding(About::Lost { because }, what, Some(group))]
    }

    /// The same for a group's limit, which keeps that level at most until the end.
    pub fn spoil_limit(&mut self, group: &str, most: Level, because: &Cause) -> Vec<Seen> {
        // A second cause does not take back the first one.
        let least = self.groups.of.get_mut(group).map_or(most, |group| {
            group.limit_most = group.limit_most.min(most);
            group.limit_most
        });
        self.worth(group, &limits, least, because)
    }
}
