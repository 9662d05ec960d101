//! A real-time task (`periodic`), released on a fixed grid. Each job passes over a buffer so many
//! times. It measures what cyclictest measures: the time from a timer's expiry to the task running
//! (absolute `clock_nanosleep`, timer slack switched off). In addition it shows what memory
//! neighbours do to the job itself.
//!
//! The task of the Cache Allocation study (Uhanov, Slobodskoy: 128 KB in 32-byte steps every 10 ms)
//! is one setting of it. The loop printed in that source would touch a single line per pass. Here a
//! pass is over the whole buffer, as the source states.
//!
//! | metric | one value per | is |
//! |---|---|---|
//! | `cycles` | pass | time-stamp counter cycles of one pass |
//! | `wakeup_us` | job that was slept for | from the release to the task running |
//! | `response_us` | job | from the release to the end of the job |
//! | `llc_misses` | job | lines fetched past the last-level cache; absent without a counter |
//! | `misses` | release | 1 if the job missed its deadline or never began, else 0 |
//!
//! - The time-stamp counter has a constant rate. It is not the core's clock.
//! - A job never begins when the one before runs past the next release. The mean of `misses` is the
//!   share missed.

use std::collections::BTreeMap;
use std::time::Duration;

use quell_client::{Demand, Session};
use quell_record::measurement::Measurement;
use quell_types::units::LINE_BYTES;

use crate::counted::Counted;
use crate::generator::{Generator, MOST_WINDOWS, Span};
use crate::memory::{Buffer, Granted};
use crate::resolved::ResolvedWorkload;
use crate::{Error, arch, clock};

/// The longest uninterrupted sleep, in nanoseconds. A request to end may be noticed so late.
const ASK_NS: u64 = 50_000_000;

/// The real-time task and its buffer.
#[derive(Debug)]
pub(crate) struct Task {
    buffer: Buffer,
    step: usize,
    compute: u32,
    period: u64,
    /// How long after a multiple of the period a job is released. `None`: the first job begins at
    /// once, and the others follow it.
    phase: Option<u64>,
    passes: u32,
    deadline: u64,
    /// When the next release is due.
    next: u64,
    /// Reports every job to the quell-client session, if there is one.
    session: Session,
    counter: Option<Counted>,
    /// Dropped with the task, in this order.
    _slack: Slack,
    _fifo: Option<Fifo>,
}

/// The values of one span, by metric.
#[derive(Debug)]
struct Record {
    cycles: Vec<f64>,
    wakeup_us: Vec<f64>,
    response_us: Vec<f64>,
    llc_misses: Vec<f64>,
    misses: Vec<f64>,
}

/// Room for `n` values, touched. The kernel gives untouched memory at its first use, inside the
/// span.
pub(crate) fn room(n: usize) -> Vec<f64> {
    let mut values = vec![f64::NAN; n];
    values.clear();
    values
}

impl Record {
    fn new(jobs: usize, passes: u32) -> Self {
        Self {
            cycles: room(jobs * passes as usize),
            wakeup_us: room(jobs),
            response_us: room(jobs),
            llc_misses: room(jobs),
            misses: room(jobs),
        }
    }

    fn into_metrics(self) -> BTreeMap<String, Vec<f64>> {
        let llc = Some(("llc_misses", self.llc_misses)).filter(|(_, all)| !all.is_empty());
        let all = [
            ("cycles", self.cycles),
            ("wakeup_us", self.wakeup_us),
            ("response_us", self.response_us),
            ("misses", self.misses),
        ];
        let all = all.into_iter().chain(llc);
        all.map(|(name, values)| (name.to_owned(), values))
            .collect()
    }
}

impl Task {
    /// Takes its buffer and becomes real-time, if that is asked for.
    pub(crate) fn new(workload: &ResolvedWorkload) -> Result<Self, Error> {
        let ResolvedWorkload::Periodic {
            size,
            pages,
            step,
            compute,
            period,
            phase,
            passes,
            deadline,
            priority,
            declares,
        } = *workload
        else {
            return Err(Error::refused(
                workload.kind(),
                "it is no periodic task",
                "report this",
            ));
        };
        counter_is_known()?;
        let buffer = Buffer::new(size, pages)?;
        let mut task = Self {
            buffer,
            step: usize::try_from(step.0).unwrap_or(usize::MAX),
            compute,
            period: period.0,
            phase: phase.map(|phase| phase.0),
            passes,
            deadline: deadline.unwrap_or(period).0,
            next: 0,
            session: Session::open(),
            counter: Counted::misses(),
            _slack: Slack::off()?,
            _fifo: priority.map(Fifo::take).transpose()?,
        };
        if declares {
            task.session.set_demand(Demand {
                bytes_per_unit: task.pass_bytes() * u64::from(passes),
                working_set: size.0,
            });
        }
        Ok(task)
    }

    /// One pass over the buffer.
    fn pass(&self) {
        let mut chain = 1_u32;
        for at in (0..self.buffer.len()).step_by(self.step) {
            for _ in 0..self.compute {
                // No compiler knows a shorter way to the end of this chain.
                chain = (chain ^ 0x9e37_79b1).rotate_left(5);
            }
            // SAFETY: `at` lies below the buffer's length. Volatile, because the load is the
            // purpose.
            unsafe { self.buffer.start().add(at).read_volatile() };
        }
        std::hint::black_box(chain);
    }

    /// Program bytes of a pass: the lines that it touches.
    fn pass_bytes(&self) -> u64 {
        let lines = self
            .buffer
            .len()
            .div_ceil(self.step.max(LINE_BYTES as usize));
        lines as u64 * LINE_BYTES
    }

    /// Runs jobs until `until`. Returns the number of passes, or `None` when asked to end.
    fn run(
        &mut self,
        until: u64,
        mut record: Option<&mut Record>,
        asked: &mut dyn FnMut() -> bool,
    ) -> Option<u64> {
        let mut counted = self.counter.as_ref().and_then(Counted::read);
        let mut now = clock::now();
        let mut ask = now + ASK_NS;
        let mut passes = 0;
        if self.next < now {
            self.next = first_release(now, self.period, self.phase);
        }
        while self.next < until {
            if now >= ask {
                // Asked before the sleep: nothing may come between release and job.
                if asked() {
                    return None;
                }
                ask = now + ASK_NS;
            }
            let release = self.next;
            let slept = now < release;
            if slept && !sleep(release, asked) {
                return None;
            }
            let woken = clock::now();
            for _ in 0..self.passes {
                let begin = cycles();
                self.pass();
                let took = cycles() - begin;
                if let Some(record) = record.as_deref_mut() {
                    record.cycles.push(took as f64);
                }
            }
            now = clock::now();
            // Outside of what is timed. The count runs from the end of one job to that of the next,
            // and the thread does nothing else in between.
            let after = self.counter.as_ref().and_then(Counted::read);
            let before = std::mem::replace(&mut counted, after);
            if let (Some(record), Some(before), Some(after)) =
                (record.as_deref_mut(), before, after)
            {
                record.llc_misses.push((after - before) as f64);
            }
            self.session.unit(Duration::from_nanos(now - release));
            passes += u64::from(self.passes);
            self.next = release + self.period;
            let mut never = 0;
            while self.next + self.period <= now {
                // Releases after the span do not belong to it.
                never += usize::from(self.next < until);
                self.next += self.period;
            }
            if let Some(record) = record.as_deref_mut() {
                if slept {
                    record.wakeup_us.push((woken - release) as f64 / 1e3);
                }
                record.response_us.push((now - release) as f64 / 1e3);
                let missed = now - release > self.deadline;
                record.misses.push(f64::from(u8::from(missed)));
                record.misses.extend(std::iter::repeat_n(1.0, never));
            }
        }
        sleep(until, asked).then_some(passes)
    }
}

/// The first release after `now` of jobs that begin every `period`: a period later, or where the
/// clock is a multiple of the period and `phase` more.
fn first_release(now: u64, period: u64, phase: Option<u64>) -> u64 {
    phase.map_or(now + period, |phase| {
        now + period - (now + period - phase) % period
    })
}

/// Sleeps until `due`. `false` when asked to end.
fn sleep(due: u64, asked: &mut dyn FnMut() -> bool) -> bool {
    loop {
        let now = clock::now();
        if now >= due {
            return true;
        }
        // The last piece is one sleep, to the release itself.
        if due - now > ASK_NS {
            clock::sleep_until(now + ASK_NS);
            if asked() {
                return false;
            }
        } else {
            clock::sleep_until(due);
        }
    }
}

impl Generator for Task {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        span.check()?;
        let jobs = span.duration.0 / self.period + 2;
        if jobs.saturating_mul(u64::from(self.passes)) > MOST_WINDOWS {
            return Err(Error::refused(
                format!(
                    "measuring {} with {} passes per job",
                    span.duration, self.passes
                ),
                format!("a span has at most {MOST_WINDOWS} passes"),
                "ask for a shorter span, a longer period or fewer passes",
            ));
        }
        let jobs = usize::try_from(jobs).unwrap_or(usize::MAX);
        let mut record = Record::new(jobs, self.passes);
        if self
            .run(clock::now() + span.warmup.0, None, asked)
            .is_none()
        {
            return Ok(None);
        }
        let begin = clock::now();
        let passes = self.run(begin + span.duration.0, Some(&mut record), asked);
        Ok(passes.map(|passes| Measurement {
            metrics: record.into_metrics(),
            window_ns: self.period,
            bytes: passes * self.pass_bytes(),
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            ended_ns: Vec::new(),
            account: None,
        }))
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.run(u64::MAX, None, asked);
        Ok(())
    }

    fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

/// Refuses processors without a known counter to time passes by.
fn counter_is_known() -> Result<(), Error> {
    if arch::ticks().is_some() {
        return Ok(());
    }
    Err(Error::refused(
        "a periodic task",
        format!(
            "Quell knows no counter of {} that a program may read",
            std::env::consts::ARCH
        ),
        "use an x86-64 or Arm machine",
    ))
}

/// The value of that counter now.
fn cycles() -> u64 {
    arch::ticks().unwrap_or_default()
}

/// SCHED_FIFO for the calling thread, until dropped.
#[derive(Debug)]
struct Fifo;

impl Fifo {
    fn take(priority: u32) -> Result<Self, Error> {
        set_policy(libc::SCHED_FIFO | libc::SCHED_RESET_ON_FORK, priority).map_err(|e| {
            Error::refused(
                format!("SCHED_FIFO with priority {priority}"),
                format!("the kernel refuses: {e}"),
                "run as root or with CAP_SYS_NICE, in a cgroup with real-time runtime, or leave the priority out",
            )
        })?;
        Ok(Self)
    }
}

impl Drop for Fifo {
    fn drop(&mut self) {
        // Becoming ordinary again is always allowed, and a drop cannot report an error.
        let _ = set_policy(libc::SCHED_OTHER, 0);
    }
}

fn set_policy(policy: libc::c_int, priority: u32) -> std::io::Result<()> {
    let param = libc::sched_param {
        sched_priority: i32::try_from(priority).unwrap_or(0),
    };
    // SAFETY: `param` is valid for the call; 0 is the calling thread.
    match unsafe { libc::sched_setscheduler(0, policy, &raw const param) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Sets the calling thread's timer slack to a nanosecond until dropped. By the slack (50 us by
/// default) the kernel may delay an ordinary task's timers, which would hide what is measured.
#[derive(Debug)]
pub(crate) struct Slack {
    before: libc::c_int,
}

impl Slack {
    pub(crate) fn off() -> Result<Self, Error> {
        // SAFETY: takes numbers only and concerns the calling thread.
        let before = unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) };
        let one: libc::c_ulong = 1;
        // SAFETY: as above.
        if before < 0 || unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, one) } < 0 {
            return Err(Error::last("switching this thread's timer slack off"));
        }
        Ok(Self { before })
    }
}

impl Drop for Slack {
    fn drop(&mut self) {
        let before = libc::c_ulong::try_from(self.before).unwrap_or(0);
        // SAFETY: as above. Zero means the default.
        let _ = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, before) };
    }
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::*;
    use crate::noise::{expect, in_one_of_ten};
    use quell_policy::workload::Pages;
    use quell_types::units::{Bytes, Nanos};

    /// A task. `None`, with a message, where the processor has no counter for it.
    fn task(size: u64, period: Nanos, passes: u32) -> Option<Task> {
        if let Err(refused) = counter_is_known() {
            quell_testing::skip(refused);
            return None;
        }
        let made = Task::new(&ResolvedWorkload::Periodic {
            size: Bytes(size),
            pages: Pages::Base,
            step: Bytes(32),
            compute: 0,
            period,
            phase: None,
            passes,
            deadline: None,
            priority: None,
            declares: false,
        });
        Some(made.unwrap())
    }

    fn span(millis: u64) -> Span {
        Span {
            warmup: Nanos::millis(5),
            duration: Nanos::millis(millis),
            window: Nanos::millis(1),
        }
    }

    fn median(values: &[f64]) -> f64 {
        quell_types::stats::median(values).unwrap()
    }

    #[test]
    fn a_phase_is_counted_from_a_multiple_of_the_period() {
        assert_eq!(first_release(1_007, 10, None), 1_017);
        let first = |now, phase| first_release(now, 10, Some(phase));
        assert_eq!((first(1_007, 0), first(1_007, 9)), (1_010, 1_009));
        assert_eq!((first(1_010, 0), first(3, 4)), (1_020, 4));
    }

    #[test]
    fn every_release_is_accounted_for_and_every_pass_of_a_job() {
        in_one_of_ten(every_release_is_accounted_for);
    }

    fn every_release_is_accounted_for() -> Result<(), String> {
        let Some(mut task) = task(128 << 10, Nanos::millis(5), 3) else {
            return Ok(());
        };
        let measured = task.span(span(200), &mut || false).unwrap().unwrap();
        let count = |name: &str| measured.metrics[name].len();
        assert_eq!(count("cycles"), 3 * count("response_us"));
        assert_eq!(measured.bytes, count("cycles") as u64 * (128 << 10));
        assert!(measured.metrics["cycles"].iter().all(|c| *c > 0.0));
        // 40. Fewer only if the thread could not begin in time.
        let releases = count("misses");
        expect((30..=41).contains(&releases), || format!("{releases}"))
    }

    #[test]
    fn a_pass_over_more_takes_more_cycles() {
        let cycles = |size| {
            let measured = task(size, Nanos::millis(2), 1)?.span(span(100), &mut || false);
            Some(median(&measured.unwrap().unwrap().metrics["cycles"]))
        };
        in_one_of_ten(|| {
            let (Some(small), Some(large)) = (cycles(16 << 10), cycles(256 << 10)) else {
                return Ok(());
            };
            expect(large > 4.0 * small, || format!("{small} {large}"))
        });
    }

    #[test]
    fn a_job_beyond_its_period_misses_and_the_next_never_begins() {
        // Passes of 1 MiB in 4096 · 8 loads each: far more than 100 us per job.
        let Some(mut task) = task(1 << 20, Nanos::micros(100), 100) else {
            return;
        };
        let measured = task.span(span(100), &mut || false).unwrap().unwrap();
        let misses = &measured.metrics["misses"];
        assert!(misses.iter().all(|m| *m == 1.0));
        assert!(misses.len() > 2 * measured.metrics["response_us"].len());
        assert!(measured.metrics["wakeup_us"].len() <= 1, "it never sleeps");
    }

    #[test]
    fn the_end_is_noticed_before_a_release_that_is_far_away() {
        let Some(mut task) = task(4096, Nanos::secs(10), 1) else {
            return;
        };
        let begin = clock::now();
        let ended = task.span(span(60_000), &mut || clock::now() > begin + 10_000_000);
        assert!(ended.unwrap().is_none());
        assert!(clock::now() < begin + 5_000_000_000);
    }

    #[test]
    fn the_threads_timer_slack_is_as_before_afterwards() {
        let slack = || {
            // SAFETY: takes numbers only.
            unsafe { libc::prctl(libc::PR_GET_TIMERSLACK) }
        };
        thread::spawn(move || {
            let before = slack();
            let Some(task) = task(4096, Nanos::millis(1), 1) else {
                return;
            };
            assert_eq!(slack(), 1);
            drop(task);
            assert_eq!(slack(), before);
        })
        .join()
        .unwrap();
    }
}
