//! Which processes run together (`[scheduler]`): one step for all groups. It promises nothing by
//! itself.

use quell_types::mechanism::Mechanism;
use quell_types::refusal::Remedy;
use quell_types::units::Nanos;

use crate::plan::Setting;

use super::draft::Draft;

const KEY: &str = "scheduler";

pub(super) fn plan(draft: &mut Draft<'_>) {
    let Some(keys) = draft.policy.scheduler else {
        return;
    };
    if keys.quantum < Nanos::millis(1) {
        let remedy = Remedy::set("scheduler.quantum", "200ms");
        let why = format!("a quantum of {} is shorter than 1ms", keys.quantum);
        draft.refuse("scheduler.quantum", why, [remedy]);
        return;
    }
    if let Some(why) = draft.unavailable(Mechanism::Placement) {
        draft.refuse_lacking(Mechanism::Placement, KEY, why, [Remedy::leave_out(KEY)]);
        return;
    }
    let set = Setting::Schedule {
        policy: keys.policy,
        quantum: keys.quantum,
        bound: keys.bound,
    };
    draft.step(None, Mechanism::Placement, set, "as written");
}
