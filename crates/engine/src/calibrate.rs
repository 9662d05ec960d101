//! What a stop costs: the CPU time charged to a stopped group in which it cannot have moved a byte.
//!
//! Between the end of a budget and the throttler's first instruction lie an interrupt, a wake-up and a switch, on virtual
//! machines with their exits; after the stop comes the way back. The time meter charges all of it to the group at the peak
//! rate, so that short budgets would yield far less than their cap. The cost is measured once per machine: a stream at
//! the peak operation, throttled hard; CPU time charged per stop, less the time its bytes take at the rate it reaches
//! unthrottled just before. Only nine tenths of the smallest value seen are credited, so that the bound stays one.

use quell_core::backend::{
    Action, Backend, BackendError, Measurement, Program, Seen, SubjectId, SubjectSpec,
};
use quell_core::inventory::{Availability, Inventory};
use quell_core::mechanism::Mechanism;
use quell_core::plan::{Meter, Regulation, Setting, Step, StepId};
use quell_core::record::Event;
use quell_core::units::{Lines, Nanos, Rate, Share};
use quell_core::workload::{Operation, Pages, Size, Workload};

const GROUP: &str = "calibration";
const PERIOD: Nanos = Nanos::millis(1);
const SHARE: Share = Share::percent(20);
/// Spans under throttling, and their length.
const SPANS: u32 = 8;
const SPAN: Nanos = Nanos::millis(150);
/// Fewer stops than this in a span tell nothing.
const FEWEST: u64 = 20;

/// Measures it; `None` where the regulator cannot run, or nothing could be told.
///
/// # Errors
/// What the backend answers; everything is undone then, too.
pub fn stop_cost(
    backend: &mut dyn Backend,
    machine: &Inventory,
) -> Result<Option<Nanos>, BackendError> {
    let available = matches!(
        machine.mechanisms.get(&Mechanism::Bandwidth),
        Some(Availability::Yes { .. })
    );
    if !available || !machine.means.time_meter {
        return Ok(None);
    }
    let measured = measure(backend, machine);
    let undone = backend.undo();
    let cost = measured?;
    undone?;
    Ok(cost)
}

fn measure(backend: &mut dyn Backend, machine: &Inventory) -> Result<Option<Nanos>, BackendError> {
    let (Some(rates), Some(cpu)) = (&machine.measured, machine.cpus.last()) else {
        return Ok(None);
    };
    let rate_of =
        |operation: &Operation| rates.by_operation.get(operation.name()).map_or(0, |r| r.0);
    let Some(operation) = Operation::ALL.into_iter().max_by_key(rate_of) else {
        return Ok(None);
    };
    let step = |id, mechanism, set| Step {
        id: StepId(id),
        group: Some(GROUP.to_owned()),
        mechanism,
        set,
        because: "measuring what a stop costs".to_owned(),
    };
    let cpus = [cpu.id].into_iter().collect();
    let budget = Lines::at(rates.peak_cpu.part(SHARE), PERIOD);
    let regulation = Regulation {
        cpus,
        budget,
        period: PERIOD,
        meter: Meter::Time,
        peak: rates.peak_cpu,
        stop_cost: Nanos(0),
        longest: Nanos::millis(5),
    };
    backend.apply(&step(
        1,
        Mechanism::Cores,
        Setting::Gather {
            matching: Vec::new(),
        },
    ))?;
    let stream = backend.start(&SubjectSpec {
        name: GROUP.to_owned(),
        group: GROUP.to_owned(),
        program: Program::Generator(Workload::Bandwidth {
            operation,
            size: Size::Llc(4.0),
            pages: Pages::Base,
            rate: None,
        }),
        cpus: Some(regulation.cpus.clone()),
        env: std::collections::BTreeMap::new(),
        capture: true,
    })?;
    watch(
        backend,
        |seen| matches!(seen, Seen::Ready(id) if *id == stream),
    )?;
    let mut free = 0f64;
    for _ in 0..3 {
        let (span, _) = go(backend, stream)?;
        free = free.max(rate(&span));
    }
    backend.apply(&step(
        2,
        Mechanism::Bandwidth,
        Setting::Regulate(regulation),
    ))?;
    // The first span begins with a full budget; it is not counted.
    go(backend, stream)?;
    let mut costs = Vec::new();
    for _ in 0..SPANS {
        let (span, (stops, lines)) = go(backend, stream)?;
        if stops >= FEWEST && free > 0.0 {
            let charged = lines.time_at(rates.peak_cpu).0 as f64;
            let moving = span.bytes as f64 / free * 1e9;
            costs.push((charged - moving) / stops as f64);
        }
    }
    Ok(credited(&costs, budget, rates.peak_cpu))
}

/// Nine tenths of the smallest cost, never more than half a budget.
fn credited(costs: &[f64], budget: Lines, peak: Rate) -> Option<Nanos> {
    let least = costs.iter().copied().reduce(f64::min)?;
    let most = budget.time_at(peak).0 as f64 / 2.0;
    let cost = (least * 0.9).clamp(0.0, most);
    #[expect(
        clippy::cast_sign_loss,
        clippy::cast_possible_truncation,
        reason = "clamped to a small positive range"
    )]
    let cost = Nanos(cost as u64);
    (cost.0 > 0).then_some(cost)
}

fn rate(span: &Measurement) -> f64 {
    span.bytes as f64 / span.duration_ns.max(1) as f64 * 1e9
}

/// One span: what the stream measured, and the stops and lines of its CPU meanwhile.
fn go(
    backend: &mut dyn Backend,
    stream: SubjectId,
) -> Result<(Measurement, (u64, Lines)), BackendError> {
    backend.act(&Action::Go {
        subject: stream,
        warmup: Nanos(0),
        duration: SPAN,
    })?;
    let mut stops = 0;
    let mut lines = 0;
    let mut result = None;
    watch(backend, |seen| {
        match seen {
            Seen::Event(Event::Throttle {
                throttles,
                lines: moved,
                ..
            }) => {
                stops += throttles;
                lines += moved;
            }
            Seen::Result(_, measurement) => result = Some(measurement.clone()),
            _ => {}
        }
        matches!(seen, Seen::Result(..))
    })?;
    result
        .map(|r| (r, (stops, Lines(lines))))
        .ok_or_else(|| BackendError("the stream reported nothing".to_owned()))
}

/// Waits until `enough` says so of something seen.
fn watch(
    backend: &mut dyn Backend,
    mut enough: impl FnMut(&Seen) -> bool,
) -> Result<(), BackendError> {
    let by = backend.now().plus(Nanos::secs(20));
    let mut seen = Vec::new();
    while backend.now() < by {
        backend.wait(backend.now().plus(Nanos::millis(500)), &mut seen)?;
        for one in seen.drain(..) {
            match &one {
                Seen::Stop(_) => return Err(BackendError("interrupted".to_owned())),
                Seen::Exited(_, status, _) => {
                    return Err(BackendError(format!(
                        "the stream ended with status {status}"
                    )));
                }
                Seen::Revoked(why) => return Err(BackendError(why.clone())),
                _ => {}
            }
            if enough(&one) {
                return Ok(());
            }
        }
    }
    Err(BackendError(
        "the stream did not answer within 20 s".to_owned(),
    ))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_smallest_cost_counts_and_only_nine_tenths_of_it() {
        let peak = Rate(64_000_000_000);
        assert_eq!(
            credited(&[50_000.0, 40_000.0, 60_000.0], Lines(200_000), peak),
            Some(Nanos(36_000))
        );
    }

    #[test]
    fn nothing_is_credited_where_nothing_was_lost() {
        let peak = Rate(64_000_000_000);
        assert_eq!(credited(&[-500.0, 3_000.0], Lines(200_000), peak), None);
        assert_eq!(credited(&[], Lines(200_000), peak), None);
    }

    #[test]
    fn a_credit_never_exceeds_half_a_budget() {
        assert_eq!(
            credited(&[1e9], Lines(200_000), Rate(64_000_000_000)),
            Some(Nanos(100_000))
        );
    }
}
