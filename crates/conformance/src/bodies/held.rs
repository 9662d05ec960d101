//! What a machine reports while it holds a plan.

use quell_plan::Plan;
use quell_record::about::About;
use quell_record::backend::HoldOptions;
use quell_record::events::Event;
use quell_record::standing::Standing;
use quell_types::ids::PromiseId;
use quell_types::options::OnDrift;

use super::*;
use crate::until;

fn hold(arm: &mut dyn Arm, plan: &Plan, on_drift: OnDrift) {
    let how = HoldOptions { on_drift };
    arm.backend().hold(plan, how).unwrap();
    for step in &plan.steps {
        arm.backend().apply(step).unwrap();
    }
}

/// A promise that is no longer held is reported by its number in the plan, with its level and the
/// cause. Until then nothing is reported about it.
pub fn a_promise_lost_while_held_is_told_by_its_number(arm: &mut dyn Arm) {
    let Some(plan) = arm.breakable() else { return };
    hold(arm, &plan, OnDrift::Repair);
    let mut standing = Standing::of(&plan);
    let (_, duration) = arm.spans();
    let end = arm.backend().now().plus(duration);
    let mut seen = Vec::new();
    while arm.backend().wait(end, &mut seen).unwrap() < end {}
    let promises = |one: &Seen| matches!(one, Seen::Event(Event::Promise { .. }));
    assert!(!seen.iter().any(promises), "{seen:?}");
    arm.break_promise();
    let event = until(arm, |one| match one {
        Seen::Event(event @ Event::Promise { .. }) => Some(event.clone()),
        _ => None,
    });
    assert!(standing.take(&event), "{event:?} changes nothing");
    assert!(!standing.holds() && standing.was_lost(), "{event:?}");
    let worth = standing.worth(PromiseId(1)).unwrap();
    assert!(worth.because.is_some());
    arm.backend().undo().unwrap();
}

/// Another program changes a setting, which is reported. Then the setting is restored, or left, or
/// the hold ends, as asked for.
pub fn drift_is_answered_as_asked(arm: &mut dyn Arm) {
    for on_drift in [OnDrift::Repair, OnDrift::Report, OnDrift::Stop] {
        let Some(plan) = arm.meddled_with() else {
            return;
        };
        hold(arm, &plan, on_drift);
        arm.meddle();
        assert!(arm.is_meddled());
        let what = until(arm, |one| match one {
            Seen::Event(Event::Finding {
                what,
                about: About::Drift { .. },
                ..
            }) => Some(what.clone()),
            _ => None,
        });
        assert_eq!(arm.is_meddled(), on_drift != OnDrift::Repair, "{what}");
        if on_drift == OnDrift::Stop {
            until(arm, |one| matches!(one, Seen::Stop(0)).then_some(()));
        }
        arm.backend().undo().unwrap();
    }
}
