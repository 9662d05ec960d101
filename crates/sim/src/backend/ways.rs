//! What is recorded of cache ways: masks when they are set, and periodically the counts of each
//! class.

use quell_record::backend::Seen;
use quell_record::events::Event;
use quell_record::ways::{Cache, Change, Figures, Place, ROOT, Snapshot, changes};
use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::partition::Mask;
use quell_types::units::Nanos;

use super::Sim;

/// Counts are recorded at most this often.
const SAMPLED: Nanos = Nanos::millis(10);

/// What has been recorded so far.
#[derive(Debug, Default)]
pub(super) struct Told {
    caches: Vec<Cache>,
    state: Snapshot,
    /// When counts are recorded next.
    next: Nanos,
}

/// The name of a group's class.
fn class_of(group: &str) -> &str {
    if group == REST { ROOT } else { group }
}

impl Sim {
    /// A group fills these ways from now on, in the caches of these CPUs or, without any, in all.
    pub(super) fn tell_ways(&mut self, group: &str, level: u32, mask: Mask, caches_of: &CpuSet) {
        if self.told.caches.is_empty() {
            self.told.caches = self.divisible();
            let caches = self.told.caches.clone();
            self.tell(Change::Machine {
                caches,
                registers: false,
            });
        }
        let mut state = self.told.state.clone();
        let class = state.classes.entry(class_of(group).to_owned());
        let class = class.or_default();
        let resource = format!("L{level}");
        let about = |cache: &&Cache| {
            let near = !cache.cpus.intersection(caches_of).is_empty();
            cache.place.resource == resource && (caches_of.is_empty() || near)
        };
        for cache in self.told.caches.iter().filter(about) {
            class.masks.insert(cache.place.clone(), mask);
        }
        self.tell_state(state);
        self.told.next = self.os.now();
        self.sample();
    }

    /// Records the counts of all classes, at most once per [`SAMPLED`].
    pub(super) fn sample(&mut self) {
        let now = self.os.now();
        if now < self.told.next {
            return;
        }
        self.told.next = now.plus(SAMPLED);
        let mut state = self.told.state.clone();
        for (name, class) in &mut state.classes {
            let group = if name == ROOT { REST } else { name };
            let Ok(number) = self.os.class(group) else {
                continue;
            };
            for cache in &self.told.caches {
                let resource = &cache.place.resource;
                let alike = self.told.caches.iter();
                // The machine counts all caches of a level together.
                let alone = alike.filter(|c| c.place.resource == *resource).count() == 1;
                let level = resource.strip_prefix('L').and_then(|l| l.parse().ok());
                if let Some(level) = level.filter(|_| alone) {
                    let figures = Figures {
                        occupancy: Some(self.os.held_by(number, level)),
                        traffic: Some(self.os.drawn_by(number)),
                    };
                    class.figures.insert(cache.place.clone(), figures);
                }
            }
        }
        self.tell_state(state);
    }

    fn tell_state(&mut self, state: Snapshot) {
        for change in changes(&self.told.state, &state) {
            self.tell(change);
        }
        self.told.state = state;
    }

    fn tell(&mut self, change: Change) {
        self.pending.push(Seen::Event(Event::Ways { change }));
    }

    /// The caches that can be divided by ways.
    fn divisible(&self) -> Vec<Cache> {
        let mut all = Vec::new();
        for ways in &self.machine.partitions.ways {
            let caches = self.machine.caches.iter();
            for (id, cache) in (0..).zip(caches.filter(|c| c.level == ways.level)) {
                all.push(Cache {
                    place: Place::new(&format!("L{}", ways.level), id),
                    bits: ways.bits,
                    bytes: cache.size.0,
                    cpus: cache.cpus.clone(),
                    least: ways.least,
                    shareable: Mask(0),
                });
            }
        }
        all
    }
}
