//! What promises are worth once something that holds them is gone.

use quell_plan::Setting;
use quell_record::about::About;
use quell_record::backend::Seen;
use quell_record::events::Event;
use quell_record::standing::Cause;
use quell_types::mechanism::Level;

use super::Host;

/// Whether a step limits what its group draws or runs.
pub fn limits(set: &Setting) -> bool {
    matches!(set, Setting::Regulate(_) | Setting::CpuMax { .. })
}

/// Something that a person should know, of a group or of all.
pub fn finding(about: About, what: String, group: Option<&str>) -> Seen {
    Seen::Event(Event::finding(about, what, group))
}

impl Host {
    /// Tells what the promises that rest on such steps of a group are worth from now on: its own
    /// ones at most `most`, and those of others nothing where that is less than planned. Where no
    /// promise rests on them, that it happened.
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

    /// The same of a group's limit, which is worth no more than that until the end.
    pub fn spoil_limit(&mut self, group: &str, most: Level, because: &Cause) -> Vec<Seen> {
        if let Some(group) = self.groups.of.get_mut(group) {
            group.limit_most = group.limit_most.min(most);
        }
        self.worth(group, &limits, most, because)
    }
}
