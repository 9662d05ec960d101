//! The operating system of the simulated machine: units of work in time, tasks, and what they have
//! done.

use quell_sim::Unit;
use quell_sim::board::Board;
use quell_sim::frames::Placement;
use quell_sim::os::{Os, TaskId};
use quell_sim::pattern::{Pattern, Task};
use quell_sim::profile::Profile;
use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;

const MIB: u64 = 1 << 20;
/// When job `n` (from 0) is due. The first one is due when the core has switched to the task,
/// which takes 2 us.
fn due(n: u64) -> u64 {
    2_000_000 + n * (1_000_000_000_000 / 30)
}
/// Picoseconds of a millisecond.
const MS: u64 = 1_000_000_000;

fn boot() -> Os {
    let board = Board::usual().unwrap();
    Os::boot(&board, 1).unwrap()
}

fn spawn(os: &mut Os, core: u32, priority: Option<u32>, pattern: Pattern, bytes: u64) -> TaskId {
    let space = os.allocate(bytes, &Placement::Plain).unwrap();
    os.spawn(
        &CpuSet::from_iter([core]),
        priority,
        0,
        (pattern, space),
        bytes,
        false,
    )
    .unwrap()
}

/// A pass over 64 MiB, thirty times a second.
fn passes(os: &mut Os, cpu: u32) -> TaskId {
    let pattern = Pattern::Task(Task::new(64 * MIB, 64, 1_000_000_000_000 / 30, 0));
    let bytes = 64 * MIB + Task::own_bytes(64 * MIB);
    spawn(os, cpu, None, pattern, bytes)
}

/// A pass over 512 KiB every 523 us on a machine whose kernel is modelled, for 100 ms.
fn ticked() -> (Os, TaskId) {
    let board = Board::of(Profile::built_in("apollolake").unwrap()).unwrap();
    let mut os = Os::boot(&board, 1).unwrap();
    let pattern = Pattern::Task(Task::new(512 << 10, 32, 523_000_000, 11));
    let bytes = (512 << 10) + Task::own_bytes(512 << 10);
    let task = spawn(&mut os, 0, Some(50), pattern, bytes);
    os.go_on(task, u64::MAX);
    os.run(Nanos::millis(100));
    (os, task)
}

#[test]
fn timer_interrupts_take_time_within_and_before_units() {
    let (mut os, task) = ticked();
    let units = os.take_units(task);
    // The handler takes 2 us, and then reads 128 lines.
    let handler = 2 * MS / 1_000;
    for unit in &units[1..] {
        assert!(unit.began - unit.due > handler, "{unit:?}");
    }
    let took = |unit: &Unit| unit.ended - unit.began;
    let away = |unit: &&Unit| took(unit) - unit.met.active > handler;
    let interrupted: Vec<&Unit> = units.iter().filter(away).collect();
    // A tick every 4 ms, where a pass of some 125 us begins every 523.
    assert!(
        (1..=15).contains(&interrupted.len()),
        "{}",
        interrupted.len()
    );
    let median = took(&units[units.len() / 2]);
    assert!(interrupted.iter().all(|unit| took(unit) > median));
}

#[test]
fn a_task_alone_reads_nothing_from_memory_after_its_first_pass() {
    let (mut os, task) = ticked();
    let units = os.take_units(task);
    assert!(units[2..].iter().all(|unit| unit.met.misses == 0));
    // Its translations stay: nothing of what a pass reads is walked for.
    assert!(os.counts(task).walks <= 160, "{}", os.counts(task).walks);
}

#[test]
fn units_begin_when_due_and_leave_the_core_between() {
    let mut os = boot();
    let call = passes(&mut os, 0);
    let other = spawn(&mut os, 0, None, Pattern::latency(16 << 10, 1), 16 << 10);
    os.go_on(call, u64::MAX);
    os.run(Nanos::millis(105));
    let units = os.take_units(call);
    assert_eq!(units.len(), 3);
    for (n, unit) in (0..).zip(&units) {
        assert_eq!((unit.due, unit.began, unit.skipped), (due(n), due(n), 0));
        let took = unit.ended - unit.began;
        assert!((7 * MS..11 * MS).contains(&took), "{took} ps");
    }
    assert!(os.take_units(call).is_empty(), "each is told once");
    let busy = os.counts(call).active;
    let rest = 105 * MS - busy;
    // The fourth job has begun.
    assert!((26 * MS..40 * MS).contains(&busy), "{busy} ps");
    // With another task on its core, that one runs while the first waits. It does not delay the
    // first when a job is due.
    os.go_on(other, u64::MAX);
    os.run(Nanos::millis(205));
    let units = os.take_units(call);
    assert_eq!(units.len(), 3);
    assert!(
        units.iter().all(|u| u.began - u.due < 10_000_000),
        "{units:?}"
    );
    let others = os.counts(other);
    assert!(
        others.active > rest / 2 && others.active < 90 * MS,
        "{others:?}"
    );
    // A dependent hit in the first level takes four cycles. Nothing is computed.
    assert!(
        (0.2..0.26).contains(&others.ipc(357)),
        "{}",
        others.ipc(357)
    );
    assert!(others.hits[0] > others.accesses * 9 / 10);
}

#[test]
fn units_that_nobody_had_time_for_are_skipped_and_counted() {
    let mut os = boot();
    let call = passes(&mut os, 0);
    let hog = spawn(&mut os, 0, Some(1), Pattern::latency(16 << 10, 1), 16 << 10);
    os.go_on(call, u64::MAX);
    os.run(Nanos::millis(35));
    os.go_on(hog, u64::MAX);
    os.run(Nanos::millis(120));
    assert_eq!(os.take_units(call).len(), 1, "the second is under way");
    os.sleep(hog);
    os.run(Nanos::millis(180));
    let units = os.take_units(call);
    // The second job ends late. Then the third and fourth are due, and only the newest begins.
    let of = |n: usize| (units[n].due, units[n].skipped);
    assert_eq!(of(0), (due(1), 0));
    assert!(units[0].ended > 120 * MS);
    assert_eq!(of(1), (due(3), 1));
    assert_eq!(units[1].began, units[0].ended);
    assert_eq!(
        (of(2), units[2].began),
        ((due(4), 0), units[1].ended.max(due(4)))
    );
}

#[test]
fn computing_takes_time_but_not_while_another_has_the_core() {
    // On half a core the lattice computes only in its slices.
    let lines = |beside: bool| {
        let mut os = boot();
        let lattice = Pattern::Lattice(quell_sim::pattern::Lattice::new(MIB, 1_000_000));
        let task = spawn(&mut os, 0, None, lattice, MIB);
        os.go_on(task, u64::MAX);
        if beside {
            let other = spawn(&mut os, 0, None, Pattern::latency(16 << 10, 1), 16 << 10);
            os.go_on(other, u64::MAX);
        }
        os.run(Nanos::millis(60));
        let counts = os.counts(task);
        (counts.compute, counts.active)
    };
    let ((alone, active), (half, in_slices)) = (lines(false), lines(true));
    assert!(active > 59 * MS && (29 * MS..31 * MS).contains(&in_slices));
    // A million cycles are 0.357 ms.
    assert!((160..=169).contains(&(alone / 1_000_000)), "{alone}");
    assert!((80..=86).contains(&(half / 1_000_000)), "{half}");
}
