use quell_types::cpuset::CpuSet;
use quell_types::task::TaskId;

use super::*;

fn placed(cpus: &str) -> Placed {
    Placed {
        cpus: cpus.parse().unwrap(),
        threads: BTreeMap::new(),
    }
}

fn thread(tid: u32, cpus: &str, ran: u64) -> Seen {
    Seen {
        task: TaskId { pid: tid, start: 7 },
        process: 10,
        cpus: cpus.parse().unwrap(),
        ran,
    }
}

/// The CPU that each thread is put on, by its number.
fn put_on(moves: &[Move]) -> Vec<(u32, CpuId)> {
    moves.iter().map(|one| (one.task.pid, one.to)).collect()
}

#[test]
fn each_thread_gets_a_cpu_and_the_busiest_get_different_ones() {
    let mut group = placed("2-3");
    let threads = [
        thread(10, "2-3", 5),
        thread(11, "2-3", 900),
        thread(12, "2-3", 800),
    ];
    let moves = group.decide(&threads);
    assert_eq!(put_on(&moves), [(11, 2), (12, 3), (10, 2)]);
    assert!(moves.iter().all(|one| one.from.is_none()));
}

#[test]
fn what_the_program_bound_itself_stays() {
    let mut group = placed("2-3");
    assert_eq!(group.decide(&[thread(10, "3", 0)]), []);
    let moves = group.decide(&[thread(11, "2-3", 0)]);
    assert_eq!(put_on(&moves), [(11, 2)]);
    // It binds itself to the other one later.
    assert_eq!(group.decide(&[thread(11, "3", 0)]), []);
    assert_eq!(group.decide(&[thread(11, "3", 900)]), []);
}

#[test]
fn a_newborn_thread_does_not_keep_the_cpu_of_its_starter() {
    let mut group = placed("2-3");
    group.decide(&[thread(10, "2-3", 0)]);
    let moves = group.decide(&[thread(10, "2", 500), thread(11, "2", 0)]);
    assert_eq!(put_on(&moves), [(11, 3)]);
    assert_eq!(moves[0].from, None, "it goes back to all CPUs");
}

#[test]
fn two_busy_threads_on_one_cpu_are_parted() {
    let mut group = placed("2-3");
    // Placed while nobody ran: 10 and 12 share CPU 2.
    let at = |ran: [u64; 3]| {
        let cpus = ["2", "3", "2"];
        let of = |n: usize| thread(10 + n as u32, cpus[n], ran[n]);
        [of(0), of(1), of(2)]
    };
    group.decide(&[10, 11, 12].map(|tid| thread(tid, "2-3", 0)));
    let moves = group.decide(&at([500, 10, 500]));
    assert_eq!(moves.len(), 1);
    assert_eq!((moves[0].from, moves[0].to), (Some(2), 3));
}

#[test]
fn one_busy_thread_is_not_moved_to_and_fro() {
    let mut group = placed("2-3");
    group.decide(&[thread(10, "2-3", 0), thread(11, "2-3", 0)]);
    for second in 1..10 {
        let threads = [thread(10, "2", 990 * second), thread(11, "3", second)];
        assert_eq!(group.decide(&threads), [], "in second {second}");
    }
}

mod properties {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn all_that_is_unbound_is_placed_once_and_evenly(
            threads in 1usize..40, cpus in 2u32..9, ran in proptest::collection::vec(0u64..1000, 40),
        ) {
            let all: CpuSet = (0..cpus).collect();
            let mut group = Placed { cpus: all.clone(), threads: BTreeMap::new() };
            let seen: Vec<Seen> = (0..threads)
                .map(|n| thread(10 + n as u32, &all.to_string(), ran[n]))
                .collect();
            let moves = group.decide(&seen);
            prop_assert_eq!(moves.len(), threads);
            let on = |cpu: CpuId| moves.iter().filter(|one| one.to == cpu).count();
            let counts: Vec<usize> = all.iter().map(on).collect();
            let (least, most) = (counts.iter().min().unwrap(), counts.iter().max().unwrap());
            prop_assert!(most - least <= 1, "{:?}", counts);
        }

        #[test]
        fn one_move_never_makes_it_more_uneven(
            lately in proptest::collection::vec(0u64..1000, 2..20),
        ) {
            let mut group = placed("0-1");
            for (n, lately) in lately.iter().enumerate() {
                let task = TaskId { pid: n as u32 + 1, start: 7 };
                let cpu = n as CpuId % 2;
                group.threads.insert(task, Thread { process: 1, cpu, ran: 0, lately: *lately });
            }
            let apart = |group: &Placed| group.load(0).0.abs_diff(group.load(1).0);
            let before = apart(&group);
            let moved = group.even_out();
            prop_assert!(apart(&group) <= before);
            prop_assert!(moved.is_none() || apart(&group) < before);
        }
    }
}
