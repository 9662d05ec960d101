//! Mechanisms that are a setting of one group: a body for each, and their list.

use super::*;

/// The bodies of this file, for [`conformance!`](crate::conformance).
#[macro_export]
macro_rules! mechanisms {
    ($arm:path) => {
        $crate::conformance!($arm: a_limit_of_cpu_time_is_held);
    };
}

/// A third of a CPU's time is not more than that, and not much less.
pub fn a_limit_of_cpu_time_is_held(arm: &mut dyn Arm) {
    if !offers(arm, Mechanism::CpuMax) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let work = |arm: &mut dyn Arm, share: Option<Share>| {
        gather(arm, "a");
        confine(arm, "a", &first, false);
        if let Some(share) = share {
            let period = Nanos(duration.0.min(100_000_000) / 4).max(Nanos::millis(1));
            let set = Setting::CpuMax { share, period };
            arm.backend()
                .apply(&step("a", Mechanism::CpuMax, set))
                .unwrap();
        }
        arm.prefer();
        let id = started(arm, &subject("a", BUSY, Some(&first)));
        let found = rate(&measured(arm, id, warmup, Nanos(3 * duration.0)));
        arm.backend().undo().unwrap();
        found
    };
    // A span that is no whole number of periods has a part of one more.
    within(arm, "work, of its share", (0.6, 1.2), &mut |arm| {
        let free = work(arm, None);
        work(arm, Some(Share::percent(33))) / free / 0.33
    });
}
