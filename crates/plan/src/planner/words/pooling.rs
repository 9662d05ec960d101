//! Sentences about budgets that go together.

use quell_control::config::Regulation;
use quell_types::options::{After, Split};
use quell_types::units::{LINE_BYTES, Nanos};

pub const GIVEN_AWAY: &str = "a loop holds it, after the fact; budget that a group lent may be in use for the rest of \
    the period in which it wakes (a counted miss)";
pub const CHANGES_NOTHING: &str = "regulator.reclaim and regulator.after change nothing here: no group has a budget from \
    reserves (limits that are written are held as written)";
pub const NOT_BEYOND_IDLE: &str = "without reclaim nothing beyond the budgets is shared while any regulated CPU has budget \
    left, idle CPUs included";

/// What a step does besides holding a budget.
pub fn because(held: &Regulation) -> String {
    let mut text = String::new();
    if held.split == Split::Demand {
        text.push_str("; then again and again by what each CPU draws");
    }
    let Some(pooling) = &held.pooling else {
        return text;
    };
    if pooling.reclaim {
        let (weighs, kib) = (pooling.predictor, pooling.quantum.0 * LINE_BYTES / 1024);
        text.push_str(&format!(
            "; what a CPU is predicted not to draw (newest period weighs {weighs}) goes to other CPUs, {kib} KiB at a time, \
             and comes back when it is needed"
        ));
    }
    text.push_str(match pooling.after {
        After::Wait => "",
        After::Spare => "; once all budgets are spent all run on until the period ends",
        After::Proportional => "; once all budgets are spent a new period begins at once",
    });
    if pooling.after != After::Wait && !pooling.idle.is_counted() {
        text.push_str(", CPUs that drew nothing in the last period left out");
    }
    text
}

/// `capped`: whether all budgets are caps.
pub fn interrupted(on: &str, period: Nanos, capped: bool) -> String {
    let idle = if capped {
        ""
    } else {
        ", the critical ones too"
    };
    let dear = if period < Nanos::millis(1) {
        "; at such a period that alone may take tens of percent of a CPU"
    } else {
        ""
    };
    format!(
        "the budgets of {on} are pooled: each of these CPUs is interrupted at the start of every period ({period}), idle or \
         not{idle}{dear}"
    )
}
