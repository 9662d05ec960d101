//! Tries inputs of a target, within bounds, and reports the first that fails.

use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::{Cell, RefCell};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::PathBuf;
use std::sync::Once;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};

use quell_kernel::rt::clock;
use quell_types::rng::Rng;
use quell_types::units::Nanos;
use rustix::time::ClockId;

use crate::fuzz::damage::Damage;
use crate::fuzz::regressions::REGRESSIONS;

/// A parser, what it reads, and how it is checked.
pub struct Target {
    pub name: &'static str,
    /// For a reader.
    pub reads: &'static str,
    /// Valid inputs.
    pub seeds: fn() -> Vec<Vec<u8>>,
    /// Whether it was accepted; an error where what was read is not written so that it reads the
    /// same.
    pub check: fn(&[u8]) -> Result<bool, String>,
    /// Inputs of the short run.
    pub few: u64,
    /// Minutes of the long one: more of what users without rights can write.
    pub minutes: u64,
}

/// No input of some kilobytes may take more than this.
const MEMORY: isize = 96 << 20;
/// One request for more than this, or more than this in all, is refused: the test fails, and the
/// machine it runs on does not.
const REFUSED: usize = 1 << 30;
/// CPU time of an input: three orders of magnitude above what it takes.
const PATIENCE: Nanos = Nanos::secs(10);
/// Then the program is ended: nobody else can stop a loop.
const HANGS: Duration = Duration::from_secs(120);
/// Accepted inputs that are damaged further, besides the seeds.
const KEPT: usize = 64;
/// The longest input.
const LONGEST: usize = 128 << 10;

/// Memory that a thread holds, and the most that it held, so that tests next to each other do not
/// count for each other.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // A thread on its way out has no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        let _ = MOST.try_with(|most| most.set(most.get().max(held.get())));
    });
}

fn refused(size: usize) -> bool {
    let held = HELD.try_with(Cell::get).unwrap_or(0);
    size > REFUSED || held > REFUSED.cast_signed()
}

// SAFETY: every call goes to the system's allocator as it came, or answers null as an allocator
// may. Counting allocates nothing.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        if refused(layout.size()) {
            return std::ptr::null_mut();
        }
        count(layout.size().cast_signed());
        // SAFETY: as the caller promised us.
        unsafe { System.alloc(layout) }
    }
    unsafe fn dealloc(&self, at: *mut u8, layout: Layout) {
        count(-layout.size().cast_signed());
        // SAFETY: as the caller promised us.
        unsafe { System.dealloc(at, layout) }
    }
    unsafe fn realloc(&self, at: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        if refused(size) {
            return std::ptr::null_mut();
        }
        count(size.cast_signed() - layout.size().cast_signed());
        // SAFETY: as the caller promised us.
        unsafe { System.realloc(at, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

thread_local! {
    /// While an input is tried: where it panicked, instead of a backtrace for each of hundreds.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
    static TRYING: Cell<bool> = const { Cell::new(false) };
}

fn quiet() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let usual = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| match TRYING.get() {
            true => PANIC.set(Some(info.to_string())),
            false => usual(info),
        }));
    });
}

/// Whether an input is accepted; an error says what is wrong with how it was taken.
fn tried(target: &Target, input: &[u8]) -> Result<bool, String> {
    let cpu = || clock(ClockId::ThreadCPUTime);
    let (held, began) = (HELD.get(), cpu());
    MOST.set(held);
    TRYING.set(true);
    let done = catch_unwind(AssertUnwindSafe(|| (target.check)(input)));
    TRYING.set(false);
    let (most, took) = (MOST.get() - held, cpu().since(began));
    match done {
        Err(_) => Err(PANIC.take().unwrap_or_default()),
        Ok(Err(why)) => Err(why),
        Ok(_) if most > MEMORY => Err(format!("took {most} bytes")),
        Ok(_) if took > PATIENCE => Err(format!("took {took} of a CPU")),
        Ok(Ok(accepted)) => Ok(accepted),
    }
}

/// The same failure with less input, as far as a few hundred tries get.
fn smaller(target: &Target, input: &[u8]) -> Vec<u8> {
    let mut least = input.to_vec();
    let mut piece = least.len().div_ceil(2);
    let mut left = 400;
    let began = Instant::now();
    while piece > 0 && left > 0 && began.elapsed() < Duration::from_secs(20) {
        let mut at = 0;
        while at < least.len() && left > 0 {
            let mut less = least.clone();
            less.drain(at..(at + piece).min(less.len()));
            left -= 1;
            if tried(target, &less).is_err() {
                least = less;
            } else {
                at += piece;
            }
        }
        piece /= 2;
    }
    least
}

fn place(target: &Target) -> PathBuf {
    let dir = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("fuzz");
    std::fs::create_dir_all(&dir).unwrap();
    dir.join(target.name)
}

/// Fails the test, naming the input.
fn report(target: &Target, input: &[u8], why: &str, seed: u64) -> ! {
    let least = smaller(target, input);
    let path = place(target).with_extension("failed");
    std::fs::write(&path, &least).unwrap();
    let line = format!("(\"{}\", b\"{}\"),", target.name, least.escape_ascii());
    panic!(
        "{} ({}), seed {seed}: {why}\n{}\nthe input is in {}; a line for tests/pure/fuzz/regressions.rs:\n{line}",
        target.name,
        target.reads,
        tried(target, &least).map_or_else(|why| why, |_| "at times".to_owned()),
        path.display(),
    );
}

fn number(name: &str) -> Option<u64> {
    let text = std::env::var(name).ok()?;
    Some(
        text.parse()
            .unwrap_or_else(|_| panic!("{name}={text}: a number")),
    )
}

/// Tries the seeds as they are, the regressions, and damaged ones.
pub fn run(target: &'static Target) {
    quiet();
    let soak = quell_testing::soak();
    let seconds = number("QUELL_FUZZ_SECONDS").or(soak.then_some(60 * target.minutes));
    let clock = || {
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH);
        u64::from(now.unwrap().subsec_nanos())
    };
    let seed = number("QUELL_FUZZ_SEED").unwrap_or_else(|| seconds.map_or(1, |_| clock()));
    let now = place(target).with_extension("now");
    let (tries, over) = (AtomicU64::new(0), AtomicBool::new(false));
    std::thread::scope(|scope| {
        scope.spawn(|| watch(target, &tries, &over, &now));
        let failed = catch_unwind(AssertUnwindSafe(|| {
            inputs(target, seed, seconds, &tries, &now)
        }));
        over.store(true, Ordering::Release);
        let _ = std::fs::remove_file(&now);
        if let Err(panic) = failed {
            std::panic::resume_unwind(panic);
        }
    });
}

fn inputs(
    target: &'static Target,
    seed: u64,
    seconds: Option<u64>,
    tries: &AtomicU64,
    now: &std::path::Path,
) {
    let began = Instant::now();
    // It stays where an input ends the program: a stack that overflows, memory that is refused.
    let one = |input: &[u8]| {
        std::fs::write(now, input).unwrap();
        tries.fetch_add(1, Ordering::Release);
        tried(target, input)
    };
    let mut all = (target.seeds)();
    assert!(!all.is_empty(), "{}: no seeds", target.name);
    for input in &all {
        match one(input) {
            Ok(true) => {}
            Ok(false) => panic!(
                "{}: a valid input is refused: {}",
                target.name,
                input.escape_ascii()
            ),
            Err(why) => report(target, input, &why, seed),
        }
    }
    for (_, input) in REGRESSIONS.iter().filter(|(of, _)| *of == target.name) {
        if let Err(why) = one(input) {
            report(target, input, &why, seed);
        }
    }
    let seeds = all.len();
    let mut damage = Damage::new(Rng::new(seed));
    let mut accepted = 0;
    for n in 0.. {
        match seconds {
            Some(seconds) if began.elapsed() >= Duration::from_secs(seconds) => break,
            None if n == target.few => break,
            _ => {}
        }
        let mut input = damage.of(&all);
        input.truncate(LONGEST);
        match one(&input) {
            Ok(false) => {}
            Err(why) => report(target, &input, &why, seed),
            // What is still accepted is damaged further.
            Ok(true) => {
                accepted += 1;
                if all.len() < seeds + KEPT {
                    all.push(input);
                } else if damage.once_in(16) {
                    let at = seeds + damage.below(KEPT);
                    all[at] = input;
                }
            }
        }
    }
    println!(
        "{}: {} inputs in {:.2} s, {accepted} accepted, seed {seed}",
        target.name,
        tries.load(Ordering::Acquire),
        began.elapsed().as_secs_f64()
    );
}

/// Ends the program where an input takes too long.
fn watch(target: &Target, tries: &AtomicU64, over: &AtomicBool, now: &std::path::Path) {
    let (mut last, mut since) = (0, Instant::now());
    while !over.load(Ordering::Acquire) {
        std::thread::sleep(Duration::from_millis(5));
        let at = tries.load(Ordering::Acquire);
        if at != last {
            (last, since) = (at, Instant::now());
        } else if at > 0 && since.elapsed() > HANGS {
            eprintln!(
                "{}: the input in {} takes more than {} s",
                target.name,
                now.display(),
                HANGS.as_secs()
            );
            std::process::abort();
        }
    }
}
