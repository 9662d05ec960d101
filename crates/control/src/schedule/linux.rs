//! The kernel's scheduler, as far as it decides who runs with whom: EEVDF with equal weights, and
//! the choice of a CPU for a new task. A quantum is a slice.
//!
//! - A new member goes to the CPU with the fewest, on the core with the fewest: the kernel looks
//!   for an idle core first. It stays there. A CPU without a member takes one from the fullest CPU.
//! - A CPU runs the member that has run least there. Of several such one is drawn: slices of
//!   different CPUs end at different times, so which of them overlap is chance.
//!
//! What is left out: members that sleep, weights, and moves between CPUs that are equally full.
//!
//! The caller lists the same members in the same order every time.

use quell_types::rng::Rng;

use super::{Cores, Member, Scheduler, Seat, TooMany};

/// A member's queue, and its slices there.
#[derive(Clone, Copy, Debug)]
struct Queued {
    seat: usize,
    ran: u64,
}

/// The kernel's choices.
#[derive(Clone, Debug)]
pub struct Linux {
    rng: Rng,
    queued: Vec<Queued>,
}

impl Linux {
    /// The same seed gives the same schedules.
    #[must_use]
    pub fn new(seed: u64) -> Self {
        Self {
            rng: Rng::new(seed),
            queued: Vec::new(),
        }
    }

    fn on(&self, seat: usize) -> impl Iterator<Item = usize> + '_ {
        let all = self.queued.iter().enumerate();
        all.filter(move |(_, queued)| queued.seat == seat)
            .map(|(member, _)| member)
    }

    /// Slices of the member of a seat that has run least.
    fn least(&self, seat: usize) -> Option<u64> {
        self.on(seat).map(|member| self.queued[member].ran).min()
    }

    fn emptiest(&self, cores: Cores) -> usize {
        let of_core = |core: usize| -> usize {
            let seats = core * cores.threads..(core + 1) * cores.threads;
            seats.map(|seat| self.on(seat).count()).sum()
        };
        let seats = 0..cores.seats();
        let emptiest =
            seats.min_by_key(|seat| (self.on(*seat).count(), of_core(seat / cores.threads)));
        emptiest.unwrap_or(0)
    }

    /// Fills seats without a member from the fullest one.
    fn balance(&mut self, cores: Cores) {
        let seats = 0..cores.seats();
        for idle in seats
            .clone()
            .filter(|seat| self.least(*seat).is_none())
            .collect::<Vec<_>>()
        {
            let fullest = seats
                .clone()
                .rev()
                .max_by_key(|seat| self.on(*seat).count());
            let Some(full) = fullest.filter(|seat| self.on(*seat).count() > 1) else {
                return;
            };
            // The one that waits moves.
            let moved = self.on(full).min_by_key(|member| self.queued[*member].ran);
            if let Some(queued) = moved.and_then(|member| self.queued.get_mut(member)) {
                *queued = Queued { seat: idle, ran: 0 };
            }
        }
    }
}

impl Scheduler for Linux {
    fn name(&self) -> &'static str {
        "linux"
    }

    fn decide(&mut self, members: &[Member], cores: Cores) -> Result<Vec<Seat>, TooMany> {
        self.queued.truncate(members.len());
        while self.queued.len() < members.len() {
            let seat = self.emptiest(cores);
            let ran = self.least(seat).unwrap_or(0);
            self.queued.push(Queued { seat, ran });
        }
        self.balance(cores);
        let mut seats = Vec::with_capacity(cores.seats());
        for seat in 0..cores.seats() {
            let Some(least) = self.least(seat) else {
                continue;
            };
            let next: Vec<usize> = self
                .on(seat)
                .filter(|member| self.queued[*member].ran == least)
                .collect();
            let member = next[self.rng.below(next.len() as u32) as usize];
            self.queued[member].ran += 1;
            seats.push(Seat {
                core: seat / cores.threads,
                thread: seat % cores.threads,
                member,
            });
        }
        Ok(seats)
    }
}
