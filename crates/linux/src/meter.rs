//! Meters: what counts a regulated CPU's use of memory, behind one trait. Both count in cache lines.
//!
//! The **time meter** counts the CPU time of the group's cgroup on that CPU (`cpu-clock`, a cgroup event) and takes every
//! nanosecond for the machine's measured peak single-CPU rate: an upper bound of what the group can have moved, so
//! promises held with it are `estimated`. The **event meter** counts hardware events of everything that runs on the CPU, kernel
//! traffic included; two of them count what comes in and what is written back apart.

use std::io;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use quell_core::control::Moved;
use quell_core::cpuset::CpuId;
use quell_core::units::{Lines, Nanos, Rate};

use crate::perf::{Event, EventCode, Overflow, SW_CPU_CLOCK, Scope, TYPE_SOFTWARE, Wake};
use crate::rt;

/// The shortest time the kernel's clock events can be armed with (`perf_swevent_start_hrtimer`: 10 µs).
const SHORTEST: Nanos = Nanos::micros(10);

/// The most that is credited for one overflow: twice what a reaction takes on a slow machine. If it took longer, a task of
/// the group that goes before the throttler (a deadline task) may have run on.
const MOST_CREDIT: Nanos = Nanos::micros(100);

/// Longer than any period.
const NEVER: u64 = u64::MAX >> 2;

/// The fewest events an event meter is armed with: it wakes repeatedly, and must not do so without end.
const FEWEST: Lines = Lines(256);

/// A counter of a CPU that has not been counting for so long has been taken away: the kernel tells how long it was, to the moment it is
/// asked.
const STILL: Nanos = Nanos::millis(50);

/// The most events a meter may have: what a throttler polls.
pub const MOST_EVENTS: usize = 2;

/// Something that counts lines on one CPU and wakes its reader.
pub trait Meter: Send {
    /// Wakes pollers after so many more lines. `taken`: the CPU was taken from the group, by an overflow or a stop, and is given
    /// back to it now; what that costs it is credited.
    fn arm(&mut self, lines: Moved, taken: bool) -> io::Result<()>;
    /// Wakes nobody until it is armed again.
    fn rest(&mut self) -> io::Result<()>;
    /// The reader was woken: by which overflow, if the kernel recorded one.
    fn woken(&mut self) -> io::Result<Option<Overflow>>;
    /// The most that it can count in a span; absent: nobody knows.
    fn most(&self, _span: Nanos) -> Option<Lines> {
        None
    }
    /// Lines so far, and whether the counters were counting all the time.
    fn read(&mut self) -> io::Result<(Moved, bool)>;
    /// What to poll.
    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS];
}

/// CPU time × peak single-CPU rate. Two events on the same clock: one counts for ever, the other wakes once each time
/// it is armed. A clock event that wakes repeatedly would go on doing so every few microseconds while its reader is kept
/// from running, and the interrupts alone can then fill the CPU (seen on a virtual machine, where one takes 10 µs).
#[derive(Debug)]
pub struct TimeMeter {
    clock: Event,
    alarm: Event,
    peak: Rate,
    /// CPU time with which the group is charged each time the CPU is given back to it, before it runs. Measured ([`quell_core::inventory::Measured::stop_cost`]).
    cost: Nanos,
    /// Both events' readings when the alarm was last armed.
    armed: (u64, u64),
    /// CPU time charged in which nothing can have been moved.
    credit: u64,
}

impl TimeMeter {
    /// Counts the tasks of the cgroup `dir` on `cpu`.
    pub fn open(dir: &OwnedFd, cpu: CpuId, peak: Rate, cost: Nanos) -> io::Result<Self> {
        let code = EventCode {
            kind: TYPE_SOFTWARE,
            config: SW_CPU_CLOCK,
        };
        let open = |wake| Event::open(code, Scope::Cgroup(dir.as_fd(), cpu), wake);
        Ok(Self {
            clock: open(Wake::Never)?,
            alarm: open(Wake::Once)?,
            peak,
            cost,
            armed: (0, 0),
            credit: 0,
        })
    }
}

impl TimeMeter {
    fn readings(&self) -> io::Result<(u64, u64)> {
        Ok((self.clock.read()?.value, self.alarm.read()?.value))
    }
}

impl Meter for TimeMeter {
    /// Whether a period that begins while the group runs takes the CPU from it cannot be told from its beginning while the
    /// group sleeps, where nothing is charged: nothing is credited then, and the bound stays one.
    fn arm(&mut self, lines: Moved, taken: bool) -> io::Result<()> {
        self.armed = self.readings()?;
        let cost = if taken { self.cost } else { Nanos(0) };
        self.credit += cost.0;
        let span = lines.lines.time_at(self.peak).plus(cost);
        self.alarm.arm(span.0.max(SHORTEST.0))
    }

    fn rest(&mut self) -> io::Result<()> {
        self.alarm.arm(NEVER)
    }

    /// The alarm stopped counting when it rang, the clock went on until the group was switched out. If a program was
    /// interrupted, all that lies between is the interrupt, the wake-up and the switch: no instruction of the group. If
    /// the kernel was, it may have gone on for it (kernels preempt themselves or not), and it stays charged.
    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        let overflow = self.alarm.overflow();
        let (clock, alarm) = self.readings()?;
        let [on, until_rung] = [clock - self.armed.0, alarm - self.armed.1];
        if overflow.is_some_and(|o| !o.kernel) {
            self.credit += on.saturating_sub(until_rung).min(MOST_CREDIT.0);
        }
        Ok(overflow)
    }

    fn most(&self, span: Nanos) -> Option<Lines> {
        Some(Lines::at(self.peak, span))
    }

    fn read(&mut self) -> io::Result<(Moved, bool)> {
        let reading = self.clock.read()?;
        let span = Nanos(reading.value).since(Nanos(self.credit));
        // A cgroup event runs only while its group does: enabled and running differ by nature.
        Ok((Lines::at(self.peak, span).into(), true))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        [Some(self.alarm.as_fd()), None]
    }
}

/// Hardware events of everything on one CPU; one event is one line.
#[derive(Debug)]
pub struct EventMeter {
    events: Vec<Event>,
    /// When it was last looked at whether they count, and for how long each had been.
    looked: (Nanos, Vec<Nanos>),
}

impl EventMeter {
    /// Counts the sum of `codes` (one or two) on `cpu`.
    pub fn open(codes: &[EventCode], cpu: CpuId) -> io::Result<Self> {
        if !(1..=MOST_EVENTS).contains(&codes.len()) {
            return Err(io::Error::other(format!(
                "a meter sums one or two events, not {}",
                codes.len()
            )));
        }
        let open = |code: &EventCode| Event::open(*code, Scope::Cpu(cpu), Wake::Repeatedly);
        let events = codes.iter().map(open).collect::<io::Result<_>>()?;
        Ok(Self::of(events))
    }

    fn of(events: Vec<Event>) -> Self {
        let looked = (rt::now(), vec![Nanos(0); events.len()]);
        Self { events, looked }
    }
}

impl Meter for EventMeter {
    fn arm(&mut self, lines: Moved, _: bool) -> io::Result<()> {
        // With several events each is armed with its part: whichever comes first, the sum is looked at and, if it
        // is not there yet, all are armed anew with what is left.
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

    fn read(&mut self) -> io::Result<(Moved, bool)> {
        let now = rt::now();
        let due = now.since(self.looked.0) >= STILL;
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
}

/// Hardware events of each direction on one CPU.
#[derive(Debug)]
pub struct ApartMeter {
    reads: EventMeter,
    writes: EventMeter,
}

impl ApartMeter {
    /// Counts lines that come in by the sum of `reads`, lines that are written back by the sum of `writes`, on `cpu`.
    ///
    /// # Errors
    /// Where an event cannot be opened, or there are more than can be polled.
    pub fn open(reads: &[EventCode], writes: &[EventCode], cpu: CpuId) -> io::Result<Self> {
        if reads.len() + writes.len() > MOST_EVENTS {
            return Err(io::Error::other(format!(
                "a meter has {MOST_EVENTS} events at most, not {} and {}",
                reads.len(),
                writes.len()
            )));
        }
        Ok(Self {
            reads: EventMeter::open(reads, cpu)?,
            writes: EventMeter::open(writes, cpu)?,
        })
    }
}

impl Meter for ApartMeter {
    fn arm(&mut self, lines: Moved, taken: bool) -> io::Result<()> {
        self.reads.arm(lines.lines.into(), taken)?;
        self.writes.arm(lines.writes.into(), taken)
    }

    fn rest(&mut self) -> io::Result<()> {
        self.reads.rest()?;
        self.writes.rest()
    }

    /// The newest overflow of both: the one that woke.
    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        let both = [self.reads.woken()?, self.writes.woken()?];
        Ok(both.into_iter().flatten().max_by_key(|o| o.at))
    }

    fn read(&mut self) -> io::Result<(Moved, bool)> {
        let (reads, counted) = self.reads.read()?;
        let (writes, too) = self.writes.read()?;
        let moved = Moved {
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
    use super::*;
    use crate::perf::SW_MINOR_FAULTS;

    #[test]
    fn an_event_that_is_not_counting_any_more_is_told() {
        let code = EventCode {
            kind: TYPE_SOFTWARE,
            config: SW_MINOR_FAULTS,
        };
        let open = |wake| Event::open(code, Scope::Cpu(0), wake);
        let (Ok(counting), Ok(off)) = (open(Wake::Repeatedly), open(Wake::Once)) else {
            return eprintln!("SKIPPED: events of a CPU cannot be opened (perf_event_paranoid)");
        };
        let mut meter = EventMeter::of(vec![counting]);
        for _ in 0..2 {
            std::thread::sleep(2 * std::time::Duration::from_nanos(STILL.0));
            assert!(meter.read().unwrap().1);
        }
        // One that nobody has enabled, as one whose CPU has gone for a moment: all the time that it was enabled it was counting.
        let mut meter = EventMeter::of(vec![off]);
        assert!(meter.read().unwrap().1, "it is too early to tell");
        std::thread::sleep(2 * std::time::Duration::from_nanos(STILL.0));
        assert!(!meter.read().unwrap().1);
    }
}
