//! Meters count a regulated CPU's use of memory, behind one trait. All count in cache lines.
//!
//! - The **time meter** counts the CPU time of the group's cgroup on that CPU (`cpu-clock`, a
//!   cgroup event). It takes every nanosecond for the machine's measured peak single-CPU rate. That
//!   is an upper bound of what the group can have moved, so promises held with it are `estimated`.
//! - The **event meter** counts hardware events of the group's cgroup on that CPU, including what
//!   the kernel does on its account.
//! - Two event meters count what comes in and what is written back.
//!
//! All see what a brake stops, and nothing else.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_control::bandwidth::Account;
use quell_control::config::LineCounts;
use quell_kernel::perf::{Event, EventCode, Overflow, SW_CPU_CLOCK, Scope, TYPE_SOFTWARE, Wake};
use quell_kernel::pmu::MOST_EVENTS;
use quell_kernel::rt;
use quell_types::cpuset::CpuId;
use quell_types::units::{Lines, Nanos, Rate};

use crate::bpf::{Budget, Decider};

/// The shortest time that the kernel's clock events can be armed with
/// (`perf_swevent_start_hrtimer`: 10 µs).
const SHORTEST: Nanos = Nanos::micros(10);

/// The smallest budget of CPU time that the interrupt decides about. Its alarm goes on ringing
/// while its reader cannot run.
const SMALLEST: Nanos = Nanos::micros(50);

/// A count longer than any period.
const NEVER: u64 = u64::MAX >> 2;

/// The fewest events that an event meter is armed with. It wakes repeatedly, and must not do so
/// without end.
const FEWEST: Lines = Lines(256);

/// A counter of a whole CPU that did not count for this long has been taken away. The kernel
/// reports the counted time up to the moment it is asked.
const STILL: Nanos = Nanos::millis(50);

/// Something that counts lines on one CPU and wakes its reader.
pub trait Meter: Send {
    /// Wakes pollers after so many more lines.
    fn arm(&mut self, lines: LineCounts) -> io::Result<()>;
    /// Wakes no poller until it is armed again.
    fn rest(&mut self) -> io::Result<()>;
    /// To be called when the reader was woken. Returns the overflow that woke it, if the kernel
    /// recorded one.
    fn woken(&mut self) -> io::Result<Option<Overflow>>;
    /// The most that it can count in a span. `None` where that is not known.
    fn most(&self, _span: Nanos) -> Option<Lines> {
        None
    }
    /// Lines so far, and whether the counters were counting all the time.
    fn read(&mut self) -> io::Result<(LineCounts, bool)>;
    /// Descriptors to poll; unused places are `None`.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS];

    /// Prepares the decision in the counter's interrupt, before anything is read or armed.
    ///
    /// # Errors
    /// Where it is not available; then the reader decides.
    fn load(&mut self) -> io::Result<()> {
        Err(io::ErrorKind::Unsupported.into())
    }
    /// Takes the place of [`Self::arm`]. The interrupt decides from now on, and wakes pollers when
    /// a budget is used up in less than a period. `false`: nothing was done, and the meter has to
    /// be armed.
    fn delegate(&mut self, _account: &Account) -> io::Result<bool> {
        Ok(false)
    }
    /// Lets the reader decide from now on. If the interrupt decided until now, returns when the
    /// current budget began, and from which reading use is charged to it.
    fn recall(&mut self) -> io::Result<Option<(Nanos, Lines)>> {
        Ok(None)
    }
    /// Makes the next overflow wake pollers, whatever the interrupt would decide.
    fn withhold(&self) {}
    /// Number of budgets begun in the interrupt so far.
    fn renewed(&self) -> u64 {
        0
    }
}

/// CPU time × peak single-CPU rate. Two events are on the same clock: one counts for ever, the
/// other wakes once each time it is armed.
///
/// A clock event that wakes repeatedly would go on doing so every few microseconds while its reader
/// cannot run. The interrupts alone can then fill the CPU (seen on a virtual machine, where one
/// takes 10 µs).
///
/// Where the interrupt decides, the first event does wake repeatedly, once per budget, and the
/// other rests. The program reads the first event's count, so that both charge the same
/// nanoseconds.
#[derive(Debug)]
pub struct TimeMeter {
    clock: Event,
    alarm: Event,
    /// The program of `clock`. `None` where none was loaded.
    decider: Option<Decider>,
    /// The cgroup whose CPU time is counted.
    group: OwnedFd,
    cpu: CpuId,
    peak: Rate,
}

impl TimeMeter {
    /// Counts the tasks of the cgroup `dir` on `cpu`.
    pub fn open(dir: &OwnedFd, cpu: CpuId, peak: Rate) -> io::Result<Self> {
        Ok(Self {
            clock: open_clock(dir, cpu, Wake::Never)?,
            alarm: open_clock(dir, cpu, Wake::Once)?,
            decider: None,
            group: dir.try_clone()?,
            cpu,
            peak,
        })
    }
}

fn open_clock(group: &OwnedFd, cpu: CpuId, wake: Wake) -> io::Result<Event> {
    let code = EventCode {
        kind: TYPE_SOFTWARE,
        config: SW_CPU_CLOCK,
    };
    Event::open(code, Scope::Cgroup(group.as_fd(), cpu), wake)
}

/// All CPU time that the kernel charges the group counts, including wake-ups of the brake. So the
/// limit holds by the kernel's own account, and in bytes it is an upper bound.
impl Meter for TimeMeter {
    fn arm(&mut self, lines: LineCounts) -> io::Result<()> {
        let span = lines.lines.time_at(self.peak);
        self.alarm.arm(span.0.max(SHORTEST.0))
    }

    fn rest(&mut self) -> io::Result<()> {
        self.alarm.arm(NEVER)
    }

    /// The newer one of the alarm's and the clock's overflow: the one that woke.
    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        let both = [self.alarm.overflow(), self.clock.overflow()];
        Ok(both.into_iter().flatten().max_by_key(|o| o.at))
    }

    fn most(&self, span: Nanos) -> Option<Lines> {
        Some(Lines::at(self.peak, span))
    }

    fn read(&mut self) -> io::Result<(LineCounts, bool)> {
        let reading = self.clock.read()?;
        // A cgroup event runs only while its group does, so enabled and running time always differ.
        Ok((Lines::at(self.peak, Nanos(reading.value)).into(), true))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        let clock = self.decider.as_ref().map(|_| self.clock.as_fd());
        [Some(self.alarm.as_fd()), clock]
    }

    fn load(&mut self) -> io::Result<()> {
        let clock = open_clock(&self.group, self.cpu, Wake::Repeatedly)?;
        let decider = Decider::load()?;
        clock.decide_by(decider.as_fd())?;
        self.clock = clock;
        self.decider = Some(decider);
        Ok(())
    }

    fn delegate(&mut self, account: &Account) -> io::Result<bool> {
        let Some(decider) = &mut self.decider else {
            return Ok(false);
        };
        let budget = Budget {
            start: account.start,
            base: account.base.time_at(self.peak).0,
            budget: account.budget.time_at(self.peak).0,
            period: account.period,
        };
        if budget.budget < SMALLEST.0 || !decider.takes(&budget, self.clock.read()?.value) {
            return Ok(false);
        }
        if self.alarm.is_pending() {
            self.alarm.arm(NEVER)?;
        }
        decider.delegate(&budget);
        self.clock.arm(budget.budget)?;
        Ok(true)
    }

    fn recall(&mut self) -> io::Result<Option<(Nanos, Lines)>> {
        let Some((start, base)) = self.decider.as_mut().and_then(Decider::recall) else {
            return Ok(None);
        };
        self.clock.arm(NEVER)?;
        let base = Lines::at(self.peak, Nanos(base));
        Ok(Some((start, base)))
    }

    fn withhold(&self) {
        if let Some(decider) = &self.decider {
            decider.withhold();
        }
    }

    fn renewed(&self) -> u64 {
        self.decider.as_ref().map_or(0, Decider::renewed)
    }
}

/// Hardware events on one CPU. One event is one line.
#[derive(Debug)]
pub struct EventMeter {
    events: Vec<Event>,
    /// Whether they count one cgroup, and stand still while nothing of it runs.
    of_group: bool,
    /// The program of the only event. `None` where none was loaded.
    decider: Option<Decider>,
    /// When it was last checked whether they count, and for how long each had counted then.
    looked: (Nanos, Vec<Nanos>),
}

impl EventMeter {
    /// Counts the sum of `codes` (one or two) in `scope`.
    pub fn open(codes: &[EventCode], scope: Scope<'_>) -> io::Result<Self> {
        if !(1..=MOST_EVENTS).contains(&codes.len()) {
            return Err(io::Error::other(format!(
                "a meter sums one or two events, not {}",
                codes.len()
            )));
        }
        let open = |code: &EventCode| Event::open(*code, scope, Wake::Repeatedly);
        let events = codes.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self::of(events, matches!(scope, Scope::Cgroup(..))))
    }

    fn of(events: Vec<Event>, of_group: bool) -> Self {
        let looked = (rt::now(), vec![Nanos(0); events.len()]);
        Self {
            events,
            of_group,
            decider: None,
            looked,
        }
    }
}

impl Meter for EventMeter {
    fn arm(&mut self, lines: LineCounts) -> io::Result<()> {
        // Of several events each is armed with its part. At the first overflow the sum is read. If
        // it is too small, all are armed again with what is left.
        let part = lines
            .lines
            .0
            .div_ceil(self.events.len().max(1) as u64)
            .max(FEWEST.0);
        self.events.iter().try_for_each(|event| event.arm(part))
    }

    fn rest(&mut self) -> io::Result<()> {
        self.events.iter().try_for_each(|event| event.arm(NEVER))
    }

    /// The newest overflow of all events: the one that woke.
    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        Ok(self
            .events
            .iter()
            .filter_map(Event::overflow)
            .max_by_key(|o| o.at))
    }

    fn read(&mut self) -> io::Result<(LineCounts, bool)> {
        let now = rt::now();
        let due = !self.of_group && now.since(self.looked.0) >= STILL;
        let mut sum = 0u64;
        let mut running = true;
        for (event, ran) in self.events.iter().zip(&mut self.looked.1) {
            let reading = event.read()?;
            sum = sum.saturating_add(reading.value);
            running &= reading.running;
            if due {
                running &= reading.ran > *ran;
                *ran = reading.ran;
            }
        }
        if due {
            self.looked.0 = now;
        }
        Ok((Lines(sum).into(), running))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        std::array::from_fn(|i| self.events.get(i).map(AsFd::as_fd))
    }

    fn load(&mut self) -> io::Result<()> {
        // The program sees one event, not a sum.
        let [event] = self.events.as_slice() else {
            return Err(io::ErrorKind::Unsupported.into());
        };
        let decider = Decider::load()?;
        event.decide_by(decider.as_fd())?;
        self.decider = Some(decider);
        Ok(())
    }

    fn delegate(&mut self, account: &Account) -> io::Result<bool> {
        let (Some(decider), [event]) = (&mut self.decider, self.events.as_slice()) else {
            return Ok(false);
        };
        let budget = Budget {
            start: account.start,
            base: account.base.0,
            budget: account.budget.0,
            period: account.period,
        };
        if budget.budget < FEWEST.0 || !decider.takes(&budget, event.read()?.value) {
            return Ok(false);
        }
        decider.delegate(&budget);
        event.arm(budget.budget)?;
        Ok(true)
    }

    fn recall(&mut self) -> io::Result<Option<(Nanos, Lines)>> {
        let recalled = self.decider.as_mut().and_then(Decider::recall);
        Ok(recalled.map(|(start, base)| (start, Lines(base))))
    }

    fn withhold(&self) {
        if let Some(decider) = &self.decider {
            decider.withhold();
        }
    }

    fn renewed(&self) -> u64 {
        self.decider.as_ref().map_or(0, Decider::renewed)
    }
}

/// Hardware events of each direction on one CPU.
#[derive(Debug)]
pub struct DirectionsMeter {
    reads: EventMeter,
    writes: EventMeter,
}

impl DirectionsMeter {
    /// Counts in `scope` lines that come in by the sum of `reads`, and lines that are written back
    /// by the sum of `writes`.
    ///
    /// # Errors
    /// Where an event cannot be opened, or there are more than can be polled.
    pub fn open(reads: &[EventCode], writes: &[EventCode], scope: Scope<'_>) -> io::Result<Self> {
        if reads.len() + writes.len() > MOST_EVENTS {
            return Err(io::Error::other(format!(
                "a meter has {MOST_EVENTS} events at most, not {} and {}",
                reads.len(),
                writes.len()
            )));
        }
        Ok(Self {
            reads: EventMeter::open(reads, scope)?,
            writes: EventMeter::open(writes, scope)?,
        })
    }
}

impl Meter for DirectionsMeter {
    fn arm(&mut self, lines: LineCounts) -> io::Result<()> {
        self.reads.arm(lines.lines.into())?;
        self.writes.arm(lines.writes.into())
    }

    fn rest(&mut self) -> io::Result<()> {
        self.reads.rest()?;
        self.writes.rest()
    }

    /// The newest overflow of both directions: the one that woke.
    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        let both = [self.reads.woken()?, self.writes.woken()?];
        Ok(both.into_iter().flatten().max_by_key(|o| o.at))
    }

    fn read(&mut self) -> io::Result<(LineCounts, bool)> {
        let (reads, counted) = self.reads.read()?;
        let (writes, too) = self.writes.read()?;
        let moved = LineCounts {
            lines: reads.lines,
            writes: writes.lines,
        };
        Ok((moved, counted && too))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        let mut both = self.reads.events.iter().chain(&self.writes.events);
        std::array::from_fn(|_| both.next().map(AsFd::as_fd))
    }
}

#[cfg(test)]
mod tests {
    use quell_kernel::perf::SW_MINOR_FAULTS;

    use super::*;

    #[test]
    fn an_event_that_is_not_counting_any_more_is_told() {
        let code = EventCode {
            kind: TYPE_SOFTWARE,
            config: SW_MINOR_FAULTS,
        };
        let open = |wake| Event::open(code, Scope::Cpu(0), wake);
        let (Ok(counting), Ok(off)) = (open(Wake::Repeatedly), open(Wake::Once)) else {
            return quell_testing::skip("events of a CPU cannot be opened (perf_event_paranoid)");
        };
        let mut meter = EventMeter::of(vec![counting], false);
        for _ in 0..2 {
            std::thread::sleep(2 * std::time::Duration::from_nanos(STILL.0));
            assert!(meter.read().unwrap().1);
        }
        // An event that is not enabled, as one whose CPU was gone for a moment. All the time that
        // it was enabled it was counting.
        let mut meter = EventMeter::of(vec![off], false);
        assert!(meter.read().unwrap().1, "it is too early to tell");
        std::thread::sleep(2 * std::time::Duration::from_nanos(STILL.0));
        assert!(!meter.read().unwrap().1);
    }
}
