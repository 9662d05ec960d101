use proptest::prelude::*;

use super::*;

fn cpus(text: &str) -> CpuSet {
    text.parse().unwrap()
}

/// A thread of no group.
fn thread(tid: u32, may: &str) -> Thread {
    Thread {
        tid,
        pid: tid,
        comm: format!("t{tid}"),
        cpus: cpus(may),
        ..Thread::default()
    }
}

fn own(tid: u32, may: &str) -> Thread {
    Thread {
        groups: vec![0],
        ..thread(tid, may)
    }
}

fn on(cpu: CpuId, ran: u64, thread: Thread) -> Thread {
    Thread {
        last_cpu: Some(cpu),
        spent: Some(Spent { ran, waited: 0 }),
        ..thread
    }
}

fn told(fault: Option<Fault>) -> String {
    fault.map_or_else(String::new, |fault| fault.to_string())
}

#[test]
fn a_thread_that_may_run_there_is_a_stranger() {
    let threads = [own(1, "2-3"), thread(2, "0-1"), thread(3, "0-2")];
    let fault = stranger(&cpus("2-3"), &[0], &threads);
    assert_eq!(told(fault), "process 3 (t3) may run on CPU 2");
    assert_eq!(stranger(&cpus("2-3"), &[0], &threads[..2]), None);
}

#[test]
fn one_that_ran_there_is_named_first() {
    let threads = [
        thread(1, "0-3"),
        on(0, 900, thread(2, "0-3")),
        on(3, 5, thread(3, "0-3")),
        on(3, 0, thread(4, "0-3")),
    ];
    let fault = stranger(&cpus("2-3"), &[0], &threads);
    let expected = "process 3 (t3) ran on CPU 3, and so may 3 more threads of other programs";
    assert_eq!(told(fault), expected);
    // Found running at the first look, without a time to compare with.
    let running = Thread {
        last_cpu: Some(2),
        running: true,
        ..thread(9, "2")
    };
    let fault = stranger(&cpus("2-3"), &[0], &[running]);
    assert_eq!(told(fault), "process 9 (t9) ran on CPU 2");
}

#[test]
fn threads_of_another_group_are_strangers_too() {
    let other = Thread {
        groups: vec![1],
        ..thread(5, "any".replace("any", "0-3").as_str())
    };
    assert!(stranger(&cpus("1"), &[0], std::slice::from_ref(&other)).is_some());
    let both = Thread {
        groups: vec![0, 1],
        ..other
    };
    assert_eq!(stranger(&cpus("1"), &[0], &[both]), None);
}

#[test]
fn the_kernels_threads_are_no_strangers() {
    let kernel = Thread {
        exempt: true,
        ..thread(5, "0-3")
    };
    assert_eq!(stranger(&cpus("1"), &[0], &[kernel]), None);
}

#[test]
fn a_thread_of_the_group_has_to_be_on_its_cpus() {
    let judge = |may: &str, party: &str| {
        told(elsewhere(
            &cpus("2-3"),
            &cpus(party),
            0,
            &[own(1, "2-3"), own(2, may)],
        ))
    };
    assert_eq!(judge("3", "2-3"), "");
    assert_eq!(judge("1-3", "1-3"), "", "the party has more CPUs");
    assert_eq!(judge("0-3", ""), "", "nothing says which CPUs it has");
    assert_eq!(
        judge("0-3", "2-3"),
        "process 2 (t2) of the group may run on CPUs 0-3, where it should have 2-3"
    );
    assert_eq!(
        judge("1", "1-3"),
        "process 2 (t2) of the group may run on CPUs 1, where it should have 2-3"
    );
    assert_eq!(
        elsewhere(&cpus("2"), &cpus("2"), 0, &[thread(1, "0")]),
        None
    );
}

const SPAN: Nanos = Nanos::secs(1);
const MS: u64 = 1_000_000;

/// Uses of CPUs, by milliseconds busy of a second.
fn uses(busy: &[(CpuId, u64)]) -> BTreeMap<CpuId, CpuUse> {
    let one = |(cpu, ms): &(CpuId, u64)| {
        let used = CpuUse {
            busy: ms * MS,
            idle: (1_000 - ms) * MS,
            other: 0,
        };
        (*cpu, used)
    };
    busy.iter().map(one).collect()
}

/// A thread of the group that ran on a CPU and waited for it, in milliseconds of a second.
fn competing(tid: u32, may: &str, cpu: CpuId, ran: u64, waited: u64) -> Thread {
    Thread {
        last_cpu: Some(cpu),
        spent: Some(Spent {
            ran: ran * MS,
            waited: waited * MS,
        }),
        ..own(tid, may)
    }
}

#[test]
fn two_threads_on_an_isolated_cpu_are_stacked() {
    let judge = |threads: &[Thread], busy: &[(CpuId, u64)]| {
        stacked(&cpus("2-3"), 0, threads, &uses(busy), SPAN)
    };
    let both = [
        competing(1, "2-3", 2, 500, 500),
        competing(2, "2-3", 2, 500, 500),
    ];
    let idle = [(2, 1_000), (3, 0)];
    let fault = judge(&both, &idle);
    let expected = "2 threads of the group share CPU 2 while its CPU 3 idles";
    assert_eq!(told(fault), expected);
    assert_eq!(
        judge(&both, &[(2, 1_000), (3, 500)]),
        None,
        "the other is used"
    );
    assert_eq!(judge(&both, &[(2, 1_000)]), None, "nothing is known of it");
    let spread = [
        competing(1, "2-3", 2, 900, 10),
        competing(2, "2-3", 2, 50, 40),
    ];
    assert_eq!(judge(&spread, &idle), None, "they hardly wait");
    assert_eq!(judge(&both[..1], &idle), None, "one thread");
}

#[test]
fn all_threads_bound_to_one_cpu_are_stacked() {
    let judge =
        |threads: &[Thread]| stacked(&cpus("2-3"), 0, threads, &uses(&[(2, 1_000), (3, 0)]), SPAN);
    let bound = [
        competing(1, "2", 2, 500, 500),
        competing(2, "2", 2, 500, 500),
    ];
    assert!(judge(&bound).is_some());
    // The program uses the other CPU for a third thread: it has chosen this itself.
    let mut chosen = bound.to_vec();
    chosen.push(own(3, "3"));
    assert_eq!(judge(&chosen), None);
}

#[test]
fn time_that_the_group_did_not_use_is_others() {
    let judge = |busy: u64, group: u64, exempt: u64| {
        let (group, exempt) = (Nanos::millis(group), Nanos::millis(exempt));
        used(&cpus("2"), &uses(&[(2, busy)]), group, exempt, SPAN)
    };
    assert_eq!(
        told(judge(900, 300, 0)),
        "other programs used 600 ms of CPUs 2 in 1000 ms"
    );
    assert_eq!(judge(900, 860, 0), None, "within the tolerance");
    assert_eq!(judge(900, 300, 560), None, "threads of the kernel");
    assert_eq!(judge(900, 4_000, 0), None, "the group ran elsewhere, too");
    // Ticks say busy, the exact idle time does not.
    let ticks = CpuUse {
        busy: 900 * MS,
        idle: 980 * MS,
        other: 0,
    };
    let uses = BTreeMap::from([(2, ticks)]);
    assert_eq!(used(&cpus("2"), &uses, Nanos(0), Nanos(0), SPAN), None);
    assert_eq!(
        used(&cpus("5"), &uses, Nanos(0), Nanos(0), SPAN),
        None,
        "no line"
    );
}

fn any_cpus() -> impl Strategy<Value = CpuSet> {
    prop::collection::btree_set(0_u32..6, 1..6).prop_map(|set| set.into_iter().collect())
}

fn any_thread() -> impl Strategy<Value = Thread> {
    let spent = prop::option::of((0_u64..3, 0_u64..3));
    let flags = (any::<bool>(), any::<bool>(), prop::option::of(0_u32..6));
    (1_u32..50, any_cpus(), 0_usize..3, spent, flags).prop_map(
        |(tid, cpus, group, spent, (exempt, running, last_cpu))| Thread {
            tid,
            pid: tid,
            comm: "t".to_owned(),
            cpus,
            last_cpu,
            running,
            spent: spent.map(|(ran, waited)| Spent { ran, waited }),
            groups: (group < 2).then_some(group).into_iter().collect(),
            exempt,
        },
    )
}

fn any_threads() -> impl Strategy<Value = Vec<Thread>> {
    prop::collection::vec(any_thread(), 0..12).prop_map(|mut all| {
        all.sort_by_key(|t| t.tid);
        all.dedup_by_key(|t| t.tid);
        all
    })
}

proptest! {
    /// Where every thread is the group's, exempt, or kept from the CPUs, none is reported. Where
    /// one is left, it is reported with a CPU on which it may run or did.
    #[test]
    fn a_machine_without_strangers_has_none(threads in any_threads(), on in any_cpus()) {
        let wrong = |t: &&Thread| {
            !t.exempt && !t.groups.contains(&0) && !t.cpus.intersection(&on).is_empty()
        };
        let strangers: Vec<&Thread> = threads.iter().filter(wrong).collect();
        match stranger(&on, &[0], &threads) {
            None => prop_assert!(strangers.is_empty()),
            Some(Fault::Stranger { tid, cpu, others, .. }) => {
                prop_assert!(strangers.iter().any(|t| t.tid == tid));
                prop_assert!(on.contains(cpu));
                prop_assert_eq!(others as usize + 1, strangers.len());
            }
            other => prop_assert!(false, "{:?}", other),
        }
        let kept: Vec<Thread> = threads.iter().filter(|t| !wrong(t)).cloned().collect();
        prop_assert_eq!(stranger(&on, &[0], &kept), None);
    }

    /// The order of the threads decides nothing.
    #[test]
    fn the_order_of_threads_does_not_matter(
        (threads, shuffled) in any_threads()
            .prop_flat_map(|all| (Just(all.clone()), Just(all).prop_shuffle())),
        on in any_cpus(),
        party in any_cpus(),
        busy in prop::collection::btree_map(0_u32..6, 0_u64..=1_000, 0..6),
    ) {
        let busy: Vec<(CpuId, u64)> = busy.into_iter().collect();
        let uses = uses(&busy);
        let judge = |threads: &[Thread]| {
            let stacked = stacked(&on, 0, threads, &uses, Nanos(8));
            (stranger(&on, &[0], threads), elsewhere(&on, &party, 0, threads), stacked)
        };
        prop_assert_eq!(judge(&threads), judge(&shuffled));
    }

    /// A group that used all the busy time of its CPUs shares them with no other program.
    #[test]
    fn a_group_that_used_all_of_it_is_alone(
        busy in prop::collection::btree_map(0_u32..6, 0_u64..=1_000, 1..6),
    ) {
        let all: Vec<(CpuId, u64)> = busy.into_iter().collect();
        let on: CpuSet = all.iter().map(|(cpu, _)| *cpu).collect();
        let group = Nanos(all.iter().map(|(_, ms)| ms * MS).sum());
        prop_assert_eq!(used(&on, &uses(&all), group, Nanos(0), SPAN), None);
    }
}
