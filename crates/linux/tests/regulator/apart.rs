//! Two budgets on one CPU, with counters that every kernel has: a fault that touches a page counts once as a fault, which stands for a
//! line that comes in, and once as a minor one, which stands for a line written back.

use std::thread;

use quell_core::control::Moved;
use quell_linux::meter::ApartMeter;

use super::*;

const PERIOD: Nanos = Nanos::millis(5);

/// `PERF_COUNT_SW_PAGE_FAULTS`: minor and major ones.
const FAULTS: EventCode = EventCode {
    kind: TYPE_SOFTWARE,
    config: 2,
};

const MINOR: EventCode = EventCode {
    kind: TYPE_SOFTWARE,
    config: SW_MINOR_FAULTS,
};

/// Pages that a thread on `cpu` touches for the first time in so long.
fn touched(cpu: u32, span: Duration) -> u64 {
    let thread = thread::spawn(move || {
        rt::pin(cpu).unwrap();
        let (end, mut pages) = (std::time::Instant::now() + span, 0);
        while std::time::Instant::now() < end {
            // Small enough to be given back to the kernel each time.
            let mut memory = vec![0u8; 4 << 20];
            for page in memory.chunks_mut(4096) {
                page[0] = 1;
                pages += 1;
                if std::time::Instant::now() >= end {
                    break;
                }
            }
            std::hint::black_box(&memory);
        }
        pages
    });
    thread.join().unwrap()
}

#[test]
fn whichever_of_two_budgets_is_smaller_holds() {
    let Some(busy) = Busy::start("apart") else {
        return;
    };
    let span = Duration::from_millis(500);
    let free = touched(busy.cpu, span);
    let per_period = free / 100;
    // With page faults of this size the events wake no sooner than 256 of them.
    if per_period < 1_000 {
        eprintln!("SKIPPED: a page fault takes too long here, {free} of them in {span:?}");
        return;
    }
    let (less, more) = (Lines(per_period / 4), Lines(per_period * 4));
    for (lines, writes) in [(less, more), (more, less)] {
        let regulation = Regulation {
            budget: lines,
            meter: Kind::Apart { writes },
            ..busy.regulation(Share::WHOLE, PERIOD)
        };
        let mut meter = ApartMeter::open(&[FAULTS], &[MINOR], busy.cpu).unwrap();
        assert_eq!(meter.descriptors().iter().flatten().count(), 2);
        let (before, _) = meter.read().unwrap();
        let throttler = Throttler::start(
            busy.cpu,
            &regulation,
            Box::new(meter),
            Arc::new(|_| true),
            &pool(),
        )
        .unwrap();
        assert!(throttler.apart);
        let held = touched(busy.cpu, span);
        // The shell loop on the same CPU faults, too, but hardly; one budget more may be used before the first stop.
        let most = (100 + 1) * less.0;
        assert!(
            held <= most + most / 20,
            "{held} of {most} with {lines:?} and {writes:?}"
        );
        assert!(
            held >= most / 3,
            "{held} of {most} with {lines:?} and {writes:?}"
        );
        assert!(throttler.stats().throttles.load(Ordering::Relaxed) > 10);
        assert_eq!(before, Moved::default());
        assert_eq!(throttler.lost(), None);
    }
}

#[test]
fn a_meter_of_each_direction_needs_an_event_of_each() {
    for (reads, writes) in [
        (&[FAULTS][..], &[][..]),
        (&[], &[MINOR]),
        (&[FAULTS, FAULTS], &[MINOR]),
    ] {
        assert!(ApartMeter::open(reads, writes, 0).is_err());
    }
}
