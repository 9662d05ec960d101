//! A CPU's performance counters: version 2 of Intel's architectural ones (SDM volume 3,
//! "Architectural Performance Monitoring"). The model has these events: instructions, cycles,
//! references to the last level and misses there, and loads and stores of the first level, numbered
//! as on Intel since Haswell.
//!
//! Deviations: counters do not freeze when one overflows. Edge, inversion and counter masks of an
//! event are ignored.

use crate::profile::Counters;

/// The events that can be counted.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Event {
    /// Cycles of the model ([`crate::profile::Cycles`]). Reference cycles are the same.
    Cycles,
    /// Instructions that were begun.
    Instructions,
    /// Requests to the last level.
    References,
    /// Requests that the last level missed.
    Misses,
    /// Loads.
    Loads,
    /// Stores.
    Stores,
}

/// The width of every counter in bits.
pub const WIDTH: u32 = 48;
const FULL: u64 = (1 << WIDTH) - 1;
/// The fixed counters: instructions, cycles, reference cycles.
const FIXED: [Event; 3] = [Event::Instructions, Event::Cycles, Event::Cycles];

/// An overflow is noticed at most so many instructions and stalls late. A run of instructions may
/// have more loads and stores than instructions, by which theirs are late.
const LATEST: u64 = 4096;

/// The counters of one CPU.
#[derive(Clone, Debug, Default)]
pub struct Pmu {
    selects: Vec<u64>,
    /// The general counters, then the fixed ones.
    counters: Vec<u64>,
    fixed: u64,
    enabled: u64,
    status: u64,
}

impl Pmu {
    /// Counters that are all off.
    pub fn new(shape: Option<&Counters>) -> Self {
        let general = shape.map_or(0, |s| s.general as usize);
        let all = shape.map_or(0, |_| general + FIXED.len());
        Self {
            selects: vec![0; general],
            counters: vec![0; all],
            ..Self::default()
        }
    }

    /// The bit of a counter in the global registers.
    fn bit(&self, counter: usize) -> u64 {
        let general = self.selects.len();
        if counter < general {
            1 << counter
        } else {
            1 << (32 + counter - general)
        }
    }

    /// What a counter counts: the event, whether in user mode, whether in kernel mode, and whether
    /// it interrupts. `None` if it is off.
    fn setting(&self, counter: usize) -> Option<(Event, bool, bool, bool)> {
        if self.enabled & self.bit(counter) == 0 {
            return None;
        }
        let general = self.selects.len();
        if counter < general {
            let select = self.selects[counter];
            let event = match select & 0xffff {
                0x003c | 0x013c => Event::Cycles,
                0x00c0 => Event::Instructions,
                0x4f2e => Event::References,
                0x412e => Event::Misses,
                0x81d0 => Event::Loads,
                0x82d0 => Event::Stores,
                _ => return None,
            };
            let on = select >> 22 & 1 == 1;
            let bit = |n: u32| select >> n & 1 == 1;
            return on.then(|| (event, bit(16), bit(17), bit(20)));
        }
        let n = counter - general;
        let setting = self.fixed >> (4 * n);
        let bit = |n: u32| setting >> n & 1 == 1;
        (setting & 3 != 0).then(|| (FIXED[n], bit(1), bit(0), bit(3)))
    }

    /// Counts an event. Returns whether an interrupt is due.
    pub fn count(&mut self, event: Event, user: bool, n: u64) -> bool {
        let mut interrupt = false;
        if n == 0 || self.enabled == 0 {
            return false;
        }
        for counter in 0..self.counters.len() {
            let Some((counted, in_user, in_kernel, interrupts)) = self.setting(counter) else {
                continue;
            };
            if counted != event || !(if user { in_user } else { in_kernel }) {
                continue;
            }
            let sum = self.counters[counter] + n;
            self.counters[counter] = sum & FULL;
            if sum > FULL {
                self.status |= self.bit(counter);
                interrupt |= interrupts;
            }
        }
        interrupt
    }

    /// After how many instructions and stalls the counters have to be updated.
    pub fn due(&self) -> u64 {
        let counters = 0..self.counters.len();
        let left = counters.filter_map(|n| {
            let (event, ..) = self.setting(n)?;
            (!matches!(event, Event::References | Event::Misses))
                .then(|| FULL - self.counters[n] + 1)
        });
        left.min().map_or(u64::MAX, |left| left.min(LATEST))
    }

    /// Reads a register. `None` if it is not one of these.
    pub fn read(&self, register: u32) -> Option<u64> {
        if self.counters.is_empty() {
            return None;
        }
        let general = self.selects.len();
        let n = |base: u32| (register - base) as usize;
        Some(match register {
            0x186..=0x18d if n(0x186) < general => self.selects[n(0x186)],
            0xc1..=0xc8 if n(0xc1) < general => self.counters[n(0xc1)],
            0x4c1..=0x4c8 if n(0x4c1) < general => self.counters[n(0x4c1)],
            0x309..=0x30b => self.counters[general + n(0x309)],
            0x38d => self.fixed,
            0x38e => self.status,
            0x38f => self.enabled,
            0x390 => 0,
            _ => return None,
        })
    }

    /// Writes a register. Returns whether it is one of these.
    pub fn write(&mut self, register: u32, value: u64) -> bool {
        if self.counters.is_empty() {
            return false;
        }
        let general = self.selects.len();
        let n = |base: u32| (register - base) as usize;
        // The upper bits of a general counter are copies of bit 31 of the written value, except by
        // its full-width name.
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_possible_wrap,
            clippy::cast_sign_loss,
            reason = "that is what the register does"
        )]
        let extended = i64::from(value as u32 as i32) as u64;
        match register {
            0x186..=0x18d if n(0x186) < general => self.selects[n(0x186)] = value,
            0xc1..=0xc8 if n(0xc1) < general => self.counters[n(0xc1)] = extended & FULL,
            0x4c1..=0x4c8 if n(0x4c1) < general => self.counters[n(0x4c1)] = value & FULL,
            0x309..=0x30b => self.counters[general + n(0x309)] = value & FULL,
            0x38d => self.fixed = value,
            0x38e => {}
            0x38f => self.enabled = value,
            0x390 => self.status &= !value,
            _ => return false,
        }
        true
    }

    /// `RDPMC`: bit 30 chooses the fixed counters.
    pub fn rdpmc(&self, number: u32) -> Option<u64> {
        let general = self.selects.len();
        let n = (number & 0xffff) as usize;
        let fixed = number >> 30 & 1 == 1;
        let within = n < if fixed { FIXED.len() } else { general };
        within
            .then(|| {
                self.counters
                    .get(n + if fixed { general } else { 0 })
                    .copied()
            })
            .flatten()
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn pmu() -> Pmu {
        Pmu::new(Some(&Counters { general: 4 }))
    }

    const BOTH_MODES_AND_INTERRUPT: u64 = 1 << 22 | 1 << 20 | 1 << 17 | 1 << 16;

    #[test]
    fn a_counter_set_up_as_linux_does_it_runs_over_when_due() {
        let mut pmu = pmu();
        assert!(pmu.write(0x186, 0x412e | BOTH_MODES_AND_INTERRUPT));
        // perf writes the period as a negative number.
        assert!(pmu.write(0xc1, (-100i64).cast_unsigned()));
        assert_eq!(pmu.read(0xc1), Some(FULL - 99));
        assert!(!pmu.count(Event::Misses, true, 1000), "globally off");
        assert!(pmu.write(0x38f, 0xf | 7 << 32));
        for _ in 0..99 {
            assert!(!pmu.count(Event::Misses, true, 1));
            assert!(!pmu.count(Event::References, true, 1));
        }
        assert_eq!(pmu.read(0x38e), Some(0));
        assert!(pmu.count(Event::Misses, false, 1));
        assert_eq!(pmu.read(0x38e), Some(1));
        assert_eq!(pmu.rdpmc(0), Some(0));
        pmu.write(0x390, 1);
        assert_eq!(pmu.read(0x38e), Some(0));
    }

    #[test]
    fn modes_are_told_apart() {
        let mut pmu = pmu();
        pmu.write(0x38f, 1 | 1 << 32);
        pmu.write(0x186, 0xc0 | 1 << 22 | 1 << 16);
        pmu.write(0x38d, 0b1001);
        pmu.count(Event::Instructions, true, 5);
        assert_eq!((pmu.read(0xc1), pmu.read(0x309)), (Some(5), Some(0)));
        pmu.count(Event::Instructions, false, 7);
        assert_eq!((pmu.read(0xc1), pmu.read(0x309)), (Some(5), Some(7)));
        assert_eq!(pmu.rdpmc(1 << 30), Some(7));
        assert_eq!(pmu.rdpmc(4), None);
    }

    #[test]
    fn a_fixed_counter_has_its_bits() {
        let mut pmu = pmu();
        pmu.write(0x38f, 1 << 33);
        pmu.write(0x38d, 0b1011 << 4);
        pmu.write(0x30a, FULL);
        assert_eq!(pmu.due(), 1);
        assert!(pmu.count(Event::Cycles, true, 3));
        assert_eq!((pmu.read(0x38e), pmu.read(0x30a)), (Some(1 << 33), Some(2)));
    }

    proptest! {
        /// However the counts come, the overflows fit the sum that was counted.
        #[test]
        fn nothing_is_lost_when_a_counter_runs_over(steps in prop::collection::vec(1u64..500, 1..200), period in 500u64..5000) {
            let mut pmu = pmu();
            pmu.write(0x38f, 1);
            pmu.write(0x186, 0x3c | BOTH_MODES_AND_INTERRUPT);
            let start = (FULL + 1) - period;
            pmu.write(0x4c1, start);
            let (mut over, mut sum) = (0, 0);
            for n in steps {
                sum += n;
                if pmu.count(Event::Cycles, false, n) {
                    over += 1;
                    pmu.write(0x390, 1);
                    // As perf does it: the next period, less what was counted beyond.
                    let past = pmu.read(0xc1).unwrap();
                    pmu.write(0x4c1, (start + past) & FULL);
                }
            }
            prop_assert_eq!(over, sum / period);
        }
    }
}
