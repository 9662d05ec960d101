//! The model-specific registers: a CPU's class, what classes may do, what is counted.

use std::sync::atomic::Ordering::Relaxed;

use super::caches::{Masks, Shared};
use super::{After, Machine, id, lock};
use crate::profile::{LINE, Shape};

const L3_QOS_CFG: u32 = 0xc81;
const L2_QOS_CFG: u32 = 0xc82;
const QM_EVTSEL: u32 = 0xc8d;
const QM_CTR: u32 = 0xc8e;
const PQR_ASSOC: u32 = 0xc8f;
const L3_MASKS: u32 = 0xc90;
const L2_MASKS: u32 = 0xd10;
const DELAYS: u32 = 0xd50;
/// The bit of `QM_CTR` for a counter that does not exist.
const NO_COUNTER: u64 = 1 << 63;

impl Machine {
    /// `RDMSR`. `None` if the register is not emulated here.
    #[must_use]
    pub fn read(&self, cpu: usize, register: u32) -> Option<(u64, After)> {
        if let Some(value) = self.read_resource(cpu, register) {
            return Some((value, After::default()));
        }
        self.profile.pmu.as_ref()?;
        let state = &self.cpus[cpu];
        let mut pmu = lock(&state.pmu);
        pmu.read(register)?;
        let interrupt = self.settle_into(cpu, &mut pmu);
        let after = After {
            interrupt,
            ..After::default()
        };
        Some((pmu.read(register)?, after))
    }

    /// `RDPMC`. `None` if there is no such counter.
    #[must_use]
    pub fn rdpmc(&self, cpu: usize, number: u32) -> Option<(u64, After)> {
        self.profile.pmu.as_ref()?;
        let mut pmu = lock(&self.cpus[cpu].pmu);
        let interrupt = self.settle_into(cpu, &mut pmu);
        let after = After {
            interrupt,
            ..After::default()
        };
        Some((pmu.rdpmc(number)?, after))
    }

    /// `WRMSR`. `None` if the register is not emulated here.
    pub fn write(&self, cpu: usize, register: u32, value: u64) -> Option<After> {
        if let Some(allowed) = self.write_resource(cpu, register, value) {
            self.refused.fetch_add(u64::from(!allowed), Relaxed);
            return Some(After::default());
        }
        self.profile.pmu.as_ref()?;
        let state = &self.cpus[cpu];
        let mut pmu = lock(&state.pmu);
        pmu.read(register)?;
        let interrupt = self.settle_into(cpu, &mut pmu);
        pmu.write(register, value);
        state.due.store(pmu.due(), Relaxed);
        Some(After {
            interrupt,
            ..After::default()
        })
    }

    /// `WBINVD`: empties the caches that the CPU sees.
    pub fn flush(&self, cpu: usize) {
        self.caches.flush(self.core(cpu));
        self.forget(cpu);
    }

    /// `CLFLUSH`: removes the line of a physical address from all caches.
    pub fn flush_line(&self, cpu: usize, address: u64) {
        self.caches.remove(address);
        self.forget(cpu);
    }

    /// The next access of a CPU repeats none.
    fn forget(&self, cpu: usize) {
        for last in [&self.cpus[cpu].last, &self.cpus[cpu].fetched] {
            last.store(u64::MAX, Relaxed);
        }
    }

    fn read_resource(&self, cpu: usize, register: u32) -> Option<u64> {
        let core = self.core(cpu);
        let state = &self.cpus[cpu];
        let monitors = self.profile.monitoring.as_ref();
        let l2 = self.profile.l2.allocation.as_ref();
        match register {
            PQR_ASSOC if self.has_classes() => Some(state.association.load(Relaxed)),
            QM_EVTSEL if monitors.is_some() => Some(state.select.load(Relaxed)),
            QM_CTR if monitors.is_some() => {
                let select = state.select.load(Relaxed);
                let wanted = id(select >> 32);
                let third = lock(self.caches.third(core)?);
                let traffic = third.ids.get(wanted).map(|t| t.misses + t.writebacks);
                Some(match (select & 0xff, traffic) {
                    (1, Some(_)) => third.occupancy(wanted) / LINE,
                    (2 | 3, Some(lines)) => lines & ((1 << 44) - 1),
                    _ => NO_COUNTER,
                })
            }
            L2_QOS_CFG if l2.is_some_and(|a| a.cdp) => {
                Some(u64::from(lock(self.caches.second(core)).masks.code_data))
            }
            L2_MASKS..DELAYS if l2.is_some() => {
                mask(&lock(self.caches.second(core)).masks, register - L2_MASKS)
            }
            L3_QOS_CFG | L3_MASKS..L2_MASKS | DELAYS..0xe00 => {
                let shape = self.profile.l3.as_ref()?;
                let third = lock(self.caches.third(core)?);
                match register {
                    DELAYS.. => third.delays.get(self.delay_number(register)?).copied(),
                    L3_QOS_CFG => {
                        (shape.allocation.as_ref()?.cdp).then_some(u64::from(third.masks.code_data))
                    }
                    _ => mask(&third.masks, register - L3_MASKS)
                        .filter(|_| shape.allocation.is_some()),
                }
            }
            _ => None,
        }
    }

    /// `None`: not one of these registers. Else whether a processor would have accepted the value.
    fn write_resource(&self, cpu: usize, register: u32, value: u64) -> Option<bool> {
        let core = self.core(cpu);
        let state = &self.cpus[cpu];
        // A register is writable exactly where it is readable.
        self.read_resource(cpu, register)?;
        Some(match register {
            PQR_ASSOC => {
                let ids = self.profile.monitoring.as_ref().map_or(1, |m| m.rmids);
                let ids_left = (value & 0xffff_ffff) < u64::from(ids);
                let allowed = ids_left && value >> 32 < u64::from(self.profile.classes());
                if allowed {
                    state.association.store(value, Relaxed);
                }
                allowed
            }
            QM_EVTSEL => {
                state.select.store(value, Relaxed);
                true
            }
            QM_CTR => false,
            L2_QOS_CFG | L2_MASKS..DELAYS => {
                let mut second = lock(self.caches.second(core));
                let n = register.checked_sub(L2_MASKS);
                set(&mut second, &self.profile.l2, n, value)
            }
            DELAYS.. => {
                let longest = self.profile.mba.as_ref()?.longest;
                let n = self.delay_number(register)?;
                let allowed = value <= u64::from(longest);
                if allowed {
                    lock(self.caches.third(core)?).delays[n] = value;
                }
                allowed
            }
            _ => {
                let mut third = lock(self.caches.third(core)?);
                let n = register.checked_sub(L3_MASKS);
                set(&mut third, self.profile.l3.as_ref()?, n, value)
            }
        })
    }

    fn has_classes(&self) -> bool {
        self.profile.monitoring.is_some() || self.profile.classes() > 1
    }

    /// The class whose delay a register holds.
    fn delay_number(&self, register: u32) -> Option<usize> {
        let mba = self.profile.mba.as_ref()?;
        (register - DELAYS < mba.classes).then_some((register - DELAYS) as usize)
    }
}

fn mask(masks: &Masks, n: u32) -> Option<u64> {
    masks.registers.get(n as usize).copied()
}

/// Sets mask number `n`, or without one whether code and data have separate masks.
fn set(cache: &mut Shared, shape: &Shape, n: Option<u32>, value: u64) -> bool {
    let Some(n) = n else {
        if value <= 1 {
            cache.masks.code_data = value == 1;
        }
        return value <= 1;
    };
    let run = value >> value.trailing_zeros().min(63);
    let solid = run & run.wrapping_add(1) == 0;
    let sparse = shape.allocation.as_ref().is_some_and(|a| a.sparse);
    let allowed = value != 0 && value & !shape.full() == 0 && (solid || sparse);
    if allowed {
        cache.masks.registers[n as usize] = value;
    }
    allowed
}
