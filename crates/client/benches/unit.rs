//! Nanoseconds per reported unit: `cargo bench -p quell-client`.

#![allow(clippy::expect_used, reason = "a benchmark fails by panicking")]

use std::os::fd::AsRawFd;
use std::time::{Duration, Instant};

use quell_client::{Reader, Session, layout};

const UNITS: u32 = 1_000_000;

fn best(mut run: impl FnMut()) -> f64 {
    let once = |run: &mut dyn FnMut()| {
        let begun = Instant::now();
        run();
        begun.elapsed().as_nanos() as f64 / f64::from(UNITS)
    };
    (0..10).map(|_| once(&mut run)).fold(f64::MAX, f64::min)
}

fn main() {
    let took = Duration::from_millis(1);
    let told = |session: &mut Session| {
        for _ in 0..UNITS {
            std::hint::black_box(&mut *session).unit(took);
        }
    };
    let mut nobody = Session::open();
    let without = best(|| told(&mut nobody));
    let reader = Reader::create(None).expect("memory");
    // SAFETY: nothing else runs yet.
    unsafe { std::env::set_var(layout::VARIABLE, reader.file().as_raw_fd().to_string()) };
    let mut session = Session::open();
    assert!(session.connected());
    let with = best(|| told(&mut session));
    let frames = best(|| {
        for _ in 0..UNITS {
            let session = std::hint::black_box(&mut session);
            session.begin();
            session.end();
        }
    });
    println!("a unit: {with:.1} ns; begin and end: {frames:.1} ns; without Quell: {without:.1} ns");
}
