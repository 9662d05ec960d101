//! What runs on the CPU of a limited group: a program without a limit, and another limited group.

use super::*;

/// A program without a limit runs on the CPU of a limited group. A stop of the group does not stop
/// the program: it does at least the work that half of the CPU gives it. The group stays within its
/// limit.
pub fn a_program_beside_a_limited_group_runs_on(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let span = Nanos(4 * duration.0);
    for part in [0.2, 0.5] {
        let what = format!("a program next to a group with a limit of {part}, of its rate alone");
        within(arm, &what, (0.45, 1.05), &mut |arm| {
            confined(arm, "a", &first, None);
            let id = streaming(arm, "a", &first);
            let free = rate(&measured(arm, id, warmup, span));
            arm.backend().undo().unwrap();
            confined(arm, "b", &first, None);
            arm.prefer();
            let id = started(arm, &subject("b", BUSY, Some(&first)));
            let alone = rate(&measured(arm, id, warmup, span));
            arm.backend().undo().unwrap();
            let limit = regulation(arm, &first, meter, of(free * part), of(free));
            confined(arm, "a", &first, Some(limit));
            confined(arm, "b", &first, None);
            let program = started(arm, &subject("b", BUSY, Some(&first)));
            let stream = streaming(arm, "a", &first);
            let both = measured_together(arm, [stream, program], warmup, span);
            arm.backend().undo().unwrap();
            let [stream, program] = both.map(|measured| rate(&measured));
            let of_limit = stream / (free * part);
            println!(
                "limit {part}: the group {of_limit:.3} of it, the program {:.3}",
                program / alone
            );
            match of_limit <= 1.05 + arm.noise().0 {
                true => program / alone,
                false => f64::NAN,
            }
        });
    }
}

/// Two groups are regulated on the same CPU. Neither exceeds its own limit, and neither is bound by
/// the limit of the second one.
pub fn two_limited_groups_on_a_cpu_have_a_budget_each(arm: &mut dyn Arm) {
    let Some(meter) = arm.meter() else { return };
    if !offers(arm, Mechanism::Bandwidth) {
        return;
    }
    let (first, _) = divided(arm);
    let (warmup, duration) = arm.spans();
    let span = Nanos(4 * duration.0);
    let parts = [0.15, 0.3];
    let what = "the stream with the larger limit, of it";
    within(arm, what, (0.75, 1.05), &mut |arm| {
        confined(arm, "a", &first, None);
        let id = streaming(arm, "a", &first);
        let free = rate(&measured(arm, id, warmup, span));
        arm.backend().undo().unwrap();
        let names = ["a", "b"];
        for (name, part) in names.iter().zip(parts) {
            let limit = regulation(arm, &first, meter, of(free * part), of(free));
            confined(arm, name, &first, Some(limit));
        }
        let both = names.map(|name| streaming(arm, name, &first));
        let both = measured_together(arm, both, warmup, span);
        arm.backend().undo().unwrap();
        let of_limits = [0, 1].map(|n| rate(&both[n]) / (free * parts[n]));
        println!("of their limits {parts:?}: {of_limits:.3?}");
        let (noise, _) = arm.noise();
        match (0.5 - noise..=1.05 + noise).contains(&of_limits[0]) {
            true => of_limits[1],
            false => f64::NAN,
        }
    });
}
