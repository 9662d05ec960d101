//! Turns of processes by `[scheduler]`: what a step does, and how the turns were taken.

use quell_control::config::Scheduling;
use quell_record::quanta::{GroupTurns, Turns};
use quell_types::cpuset::CpuSet;

use crate::plan::on;
use crate::text::{count, list, number, thousands};
use crate::windows::late;

/// The step that lets processes take turns, in words.
pub(crate) fn described(by: &Scheduling) -> String {
    let (policy, quantum) = (by.policy.name(), by.quantum);
    let decided = format!("let {policy} decide each {quantum} who runs");
    if by.groups.is_empty() {
        return decided;
    }
    let cores = by.cores.iter();
    let cpus = cores.fold(CpuSet::new(), |all, core| all.union(core));
    let groups: Vec<String> = by.groups.keys().cloned().collect();
    format!("{decided} of {} on {}", list(&groups), on(&cpus))
}

/// What turns cost the groups that take them.
pub(crate) fn cost(by: &Scheduling) -> String {
    let groups: Vec<String> = by.groups.keys().cloned().collect();
    format!(
        "processes of {} are frozen for up to {} quanta of {}, or for a turn of all",
        list(&groups),
        by.bound,
        by.quantum
    )
}

/// How turns were taken: a line for each group, one for how exactly, and one for what it cost.
pub(crate) fn taken(turns: &Turns) -> Vec<String> {
    let mut lines: Vec<String> = turns.groups.iter().map(group).collect();
    let mut exact = format!(
        "{} quanta, late by {}; a switch took {}",
        thousands(&turns.quanta.to_string()),
        late(turns.late),
        late(turns.switch)
    );
    if turns.skipped > 0 {
        exact += &format!(
            "; {} were passed over",
            thousands(&turns.skipped.to_string())
        );
    }
    if turns.unparked > 0 {
        let times = count(u32::try_from(turns.unparked).unwrap_or(u32::MAX), "time");
        exact += &format!(
            "; {times} a process had not stopped after a quantum (it was in the kernel, or got no CPU)"
        );
    }
    if turns.uncounted > 0 {
        let times = count(u32::try_from(turns.uncounted).unwrap_or(u32::MAX), "time");
        exact += &format!("; {times} the counters of a process could not be read");
    }
    lines.push(exact);
    let of_wall = |ns: u64| number(ns as f64 * 100.0 / turns.wall_ns.max(1) as f64);
    let mut cost = format!("the dispatcher took {} % of a CPU", of_wall(turns.own_ns));
    if let Some(idle) = turns.idle_ns {
        cost += &format!(
            "; CPUs were idle for {} % of the time while a process waited",
            of_wall(idle)
        );
    }
    lines.push(cost);
    lines
}

fn group(of: &GroupTurns) -> String {
    let all = (of.ran_ns + of.waited_ns).max(1);
    format!(
        "{}: {} process{} took turns, ran {} % of their time and waited {} ms at most at once",
        of.group,
        thousands(&of.processes.to_string()),
        if of.processes == 1 { "" } else { "es" },
        number(of.ran_ns as f64 * 100.0 / all as f64),
        number(of.longest_wait_ns as f64 / 1e6)
    )
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_control::config::ProgramDemand;
    use quell_record::windows::Late;
    use quell_types::options::SchedulerPolicy;
    use quell_types::units::Nanos;

    #[test]
    fn turns_read_as_who_decides_and_where() {
        let mut by = Scheduling {
            policy: SchedulerPolicy::Fair,
            quantum: Nanos::millis(200),
            bound: 4,
            cores: vec!["0-1".parse().unwrap(), "2-3".parse().unwrap()],
            groups: [("batch".to_owned(), ProgramDemand::default())].into(),
            counted: false,
            sustainable: None,
            peak_cpu: None,
        };
        let told = "let fair decide each 200ms who runs of batch on CPUs 0-3";
        assert_eq!(described(&by), told);
        assert_eq!(
            cost(&by),
            "processes of batch are frozen for up to 4 quanta of 200ms, or for a turn of all"
        );
        by.groups.clear();
        assert_eq!(described(&by), "let fair decide each 200ms who runs");
    }

    #[test]
    fn figures_of_turns_are_shares_of_the_time() {
        let late = Late {
            p50_ns: 2_000,
            p99_ns: 9_000,
            most_ns: 41_500,
        };
        let group = GroupTurns {
            group: "batch".to_owned(),
            processes: 6,
            ran_ns: 20_000_000_000,
            waited_ns: 40_000_000_000,
            longest_wait_ns: 401_000_000,
        };
        let all = Turns {
            quanta: 1_500,
            late,
            switch: late,
            unparked: 1,
            wall_ns: 10_000_000_000,
            own_ns: 4_000_000,
            idle_ns: Some(10_000_000),
            groups: vec![group],
            ..Turns::default()
        };
        assert_eq!(
            taken(&all),
            [
                "batch: 6 processes took turns, ran 33.3 % of their time and waited 401 ms at most at once",
                "1,500 quanta, late by 2.00 µs p50, 9.00 µs p99, 41.5 µs at most; a switch took \
                 2.00 µs p50, 9.00 µs p99, 41.5 µs at most; 1 time a process had not stopped after a quantum (it was in the kernel, or got no CPU)",
                "the dispatcher took 0.0400 % of a CPU; CPUs were idle for 0.10 % of the time while a process waited"
            ]
        );
    }
}
