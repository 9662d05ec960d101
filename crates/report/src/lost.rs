//! Promises that were worth less than planned while they were held.

use quell_plan::Plan;
use quell_record::events::Record;
use quell_record::result::CompareResult;
use quell_record::standing::Standing;

use crate::text::count;

/// Of a comparison: a sentence for each, with the configuration.
pub(crate) fn of_cells(result: &CompareResult) -> Vec<String> {
    let all = result.configurations.iter();
    let all = all.flat_map(|c| c.promises.iter().map(move |p| (c, p)));
    all.filter_map(|(configuration, promise)| {
        let lost = promise.lost.as_ref()?;
        Some(format!(
            "{}, group {}: {}: at level {} instead of {} in {}: {}.",
            configuration.name,
            promise.group,
            promise.promise,
            promise.least(),
            promise.level,
            count(lost.cells, "cell"),
            lost.because
        ))
    })
    .collect()
}

/// What the promises of a plan were worth, by the record's events.
pub(crate) fn standing(record: &Record, plan: &Plan) -> Standing {
    let mut standing = Standing::of(plan);
    for stamped in &record.events {
        standing.take(&stamped.event);
    }
    standing
}

/// Of a run: a sentence for each, from the plan and the record's events.
pub(crate) fn of_run(record: &Record) -> Vec<String> {
    let told = |plan: &Plan| {
        let standing = standing(record, plan);
        let all = standing.all().filter_map(|(id, worth)| {
            let held = plan.promise(id)?;
            let because = worth.least_because.as_ref()?;
            let (now, back) = (worth.now, worth.now > worth.least);
            Some(format!(
                "Group {}: {}: at level {} instead of {}{}: {because}.",
                held.group,
                held.promise,
                worth.least,
                worth.planned,
                if back {
                    format!(" for a while, {now} at the end")
                } else {
                    String::new()
                }
            ))
        });
        all.collect::<Vec<_>>()
    };
    record.plans.values().flat_map(told).collect()
}

#[cfg(test)]
mod tests {
    use quell_record::events::{Event, Stamped};
    use quell_record::result::PromiseLost;
    use quell_record::standing::Cause;
    use quell_types::ids::PromiseId;
    use quell_types::mechanism::Level;

    use super::*;
    use crate::sample;

    #[test]
    fn a_promise_lost_in_a_run_is_told_with_what_became_of_it() {
        let mut record = sample::record();
        record.result = None;
        record.plans.retain(|name, _| name == "regulated@10%");
        assert!(of_run(&record).is_empty());
        for (level, because) in [
            (
                Level::None,
                Cause::Unregulated {
                    cpu: 1,
                    why: "its process was killed".into(),
                },
            ),
            (Level::Estimated, Cause::Regulated { cpu: 1 }),
        ] {
            let id = PromiseId(2);
            let event = Event::Promise { id, level, because };
            let at_ns = 14_000_000_000;
            record.events.push(Stamped { at_ns, event });
        }
        assert_eq!(
            of_run(&record),
            [
                "Group neighbour: at most 3.75GB/s: at level none instead of estimated for a while, estimated at the end: CPU 1 is \
                 no longer regulated: its process was killed."
            ]
        );
    }

    #[test]
    fn a_promise_lost_in_a_cell_is_told_with_its_configuration() {
        let mut result = sample::result();
        assert!(of_cells(&result).is_empty() && result.lost().next().is_none());
        let configurations = result.configurations.iter_mut();
        let mut promises = configurations.flat_map(|c| &mut c.promises);
        promises.next().unwrap().lost = Some(PromiseLost {
            cells: 1,
            level: Level::None,
            because: Cause::Evicted,
        });
        let told = of_cells(&result);
        assert!(
            told.len() == 1
                && told[0].contains("at level none instead of")
                && told[0].contains("in 1 cell: locked lines"),
            "{told:?}"
        );
        assert!(!result.as_expected());
    }
}
