//! A simulated machine under memory pressure, for tests. It has one critical group that works in
//! frames, neighbours that take memory, and a kernel that reclaims. It is coarse on purpose: what
//! is tested must not depend on details.
//!
//! Modelled: amounts of file pages and of programs' own memory. Files are reclaimed first from a
//! group above its limit, then from all in proportion to what is not protected. Refaults take the
//! disk's time and count as stall. `memory.high` slows an allocation down to [`CRAWL`]. Groups can
//! be frozen and killed. Left out: swap, writeback, page lists.

use super::*;

const MIB: u64 = 1 << 20;
/// How fast a group grows in spite of a limit (measured: 7 MB/s).
const CRAWL: u64 = 7 * MIB;
/// What the disk delivers, in bytes per second.
const DISK: u64 = 400 * MIB;
/// A frame of the critical group: it touches its whole working set.
pub const FRAME: Nanos = Nanos::millis(50);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Takes `rate` bytes of its own memory per second, up to `most`.
    Anonymous { rate: u64, most: u64 },
    /// Reads `rate` bytes per second, each of them once.
    Stream { rate: u64 },
    /// Reads `rate` bytes per second of a file of `size` bytes, again and again.
    Repeat { rate: u64, size: u64 },
    /// Has `own` bytes and does nothing.
    Idle { own: u64 },
}

#[derive(Clone, Copy, Debug)]
pub struct Hog {
    pub kind: Kind,
    pub from: Nanos,
    pub own: u64,
    pub file: u64,
    pub limit: Option<u64>,
    pub frozen: bool,
    pub alive: bool,
    /// Progress so far, in bytes read or allocated.
    pub done: u64,
    refaults: u64,
    io: u64,
    stall: u64,
}

impl Hog {
    pub fn new(kind: Kind, from: Nanos) -> Self {
        let own = match kind {
            Kind::Idle { own } => own,
            _ => 0,
        };
        Self {
            kind,
            from,
            own,
            file: 0,
            limit: None,
            frozen: false,
            alive: true,
            done: 0,
            refaults: 0,
            io: 0,
            stall: 0,
        }
    }

    fn usage(&self) -> u64 {
        self.own + self.file
    }
}

pub struct Plant {
    pub now: Nanos,
    pub total: u64,
    /// The critical group's working set, and what of it is in memory.
    pub works_on: u64,
    pub there: u64,
    pub protected: u64,
    pub hogs: Vec<Hog>,
    memory_stall: u64,
    /// The sum of the critical group's waits after each step.
    waits: Vec<(Nanos, u64)>,
    refaults: u64,
    /// Of each frame: when it ended, and how late it was.
    pub frames: Vec<(Nanos, Nanos)>,
    frame_due: Nanos,
    frame_late: u64,
    unit_end: Option<Nanos>,
    /// The kernel had to kill.
    pub out_of_memory: bool,
    pub worst_growth_at_kill: Option<u64>,
}

impl Plant {
    pub fn new(total_mib: u64, works_on_mib: u64, hogs: Vec<Hog>) -> Self {
        Self {
            now: Nanos(0),
            total: total_mib * MIB,
            works_on: works_on_mib * MIB,
            there: works_on_mib * MIB,
            protected: 0,
            hogs,
            memory_stall: 0,
            waits: Vec::new(),
            refaults: 0,
            frames: Vec::new(),
            frame_due: FRAME,
            frame_late: 0,
            unit_end: None,
            out_of_memory: false,
            worst_growth_at_kill: None,
        }
    }

    pub fn marks(&self) -> (u64, u64) {
        let min = self.total / 400;
        (min * 5 / 4, min * 3 / 2)
    }

    pub fn free(&self) -> u64 {
        let used: u64 = self.hogs.iter().map(Hog::usage).sum();
        self.total.saturating_sub(self.there + used)
    }

    /// Runs the machine for one step of length `span`.
    pub fn run(&mut self, span: Nanos) {
        let seconds = |rate: u64| rate * span.0 / 1_000_000_000;
        self.now = self.now.plus(span);
        for i in 0..self.hogs.len() {
            let hog = self.hogs[i];
            if !hog.alive || hog.frozen || self.now < hog.from {
                continue;
            }
            let room = hog
                .limit
                .map_or(u64::MAX, |l| l.saturating_sub(hog.usage()));
            match hog.kind {
                Kind::Anonymous { rate, most } => {
                    let wanted = seconds(rate).min(most.saturating_sub(hog.own));
                    let grown = wanted.min(room.max(seconds(CRAWL)));
                    let got = self.take(grown, i);
                    let hog = &mut self.hogs[i];
                    hog.own += got;
                    hog.done += got;
                    if got < wanted {
                        hog.stall += span.0;
                    }
                }
                Kind::Stream { rate } => self.read(i, seconds(rate), room, 0, span),
                Kind::Repeat { rate, size } => {
                    let step = seconds(rate);
                    // The part that is in memory needs no disk.
                    let hit = u64::try_from(
                        u128::from(step) * u128::from(hog.file.min(size)) / u128::from(size.max(1)),
                    )
                    .unwrap_or(step);
                    self.hogs[i].done += hit;
                    let most = size.saturating_sub(hog.file);
                    self.read(i, step - hit, room.min(most), step - hit, span);
                }
                Kind::Idle { .. } => {}
            }
        }
        self.frame(span);
        self.waits.push((self.now, self.memory_stall));
    }

    /// The beginning of the first `span` in which it waited for a tenth of it or more.
    pub fn onset(&self, span: Nanos) -> Option<Nanos> {
        let bad = |(at, sum): &&(Nanos, u64)| {
            let until = self.waits.partition_point(|(t, _)| *t < at.plus(span));
            let then = self.waits.get(until).or(self.waits.last());
            then.is_some_and(|(_, then)| (then - sum) * 10 >= span.0)
        };
        self.waits.iter().find(bad).map(|(at, _)| *at)
    }

    fn read(&mut self, i: usize, bytes: u64, room: u64, again: u64, span: Nanos) {
        let bytes = bytes.min(DISK * span.0 / 1_000_000_000);
        let new = bytes.min(room);
        let got = self.take(new, i);
        let hog = &mut self.hogs[i];
        hog.file += got;
        hog.io += bytes;
        hog.done += bytes;
        hog.refaults += again.min(bytes) / 4096;
    }

    /// Gives memory to a hog. What is missing is reclaimed from all groups.
    fn take(&mut self, bytes: u64, hog: usize) -> u64 {
        let (low, _) = self.marks();
        let free = self.free();
        let missing = (bytes + low).saturating_sub(free);
        if missing == 0 {
            return bytes;
        }
        let critical = self.there.saturating_sub(self.protected);
        let files: u64 = self.hogs.iter().map(|h| h.file).sum();
        let all = critical + files;
        let reclaimed = missing.min(all);
        let part = |of: u64| {
            u64::try_from(u128::from(reclaimed) * u128::from(of) / u128::from(all.max(1)))
                .unwrap_or(0)
        };
        self.there -= part(critical);
        for hog in &mut self.hogs {
            hog.file -= part(hog.file).min(hog.file);
        }
        if reclaimed < missing && free < bytes {
            // Nothing is left to reclaim: the kernel kills the largest.
            self.out_of_memory = true;
            let own = self.hogs[hog].own;
            if self.hogs.iter().all(|h| h.own <= own) {
                self.hogs[hog].alive = false;
                self.hogs[hog].own = 0;
                self.hogs[hog].file = 0;
            }
            return 0;
        }
        bytes
    }

    /// The critical group touches all it works on once a frame. What is missing comes from the
    /// disk, and the group waits meanwhile.
    fn frame(&mut self, span: Nanos) {
        let missing = self.works_on - self.there;
        let fetched = missing.min(DISK * span.0 / 1_000_000_000);
        if fetched > 0 {
            let waited = u64::try_from(u128::from(fetched) * 1_000_000_000 / u128::from(DISK))
                .unwrap_or(span.0);
            self.memory_stall += waited.min(span.0);
            self.frame_late += waited.min(span.0);
            self.refaults += fetched / 4096;
            if self.free() < fetched {
                self.reclaim_for_critical(fetched - self.free());
            }
            self.there += fetched.min(self.free());
        }
        if self.now >= self.frame_due && (missing == fetched || self.frame_late > FRAME.0 * 4) {
            self.frames.push((self.now, Nanos(self.frame_late)));
            self.frame_late = 0;
            self.frame_due = self.now.plus(FRAME);
            self.unit_end = Some(self.now);
        }
    }

    fn reclaim_for_critical(&mut self, bytes: u64) {
        let files: u64 = self.hogs.iter().map(|h| h.file).sum();
        let reclaimed = bytes.min(files);
        for hog in &mut self.hogs {
            let part = u128::from(reclaimed) * u128::from(hog.file) / u128::from(files.max(1));
            hog.file -= u64::try_from(part).unwrap_or(0).min(hog.file);
        }
    }

    pub fn sample(&self) -> Sample {
        let (low, high) = self.marks();
        let files: u64 = self.hogs.iter().map(|h| h.file).sum();
        let neighbour = |h: &Hog| Neighbour {
            usage: Bytes(h.usage()),
            anonymous: Bytes(h.own),
            refaults: h.refaults,
            io: h.io,
            stall: Some(Nanos(h.stall)),
            populated: h.alive,
            thawed: false,
        };
        let process = |(i, h): (usize, &Hog)| Process {
            task: task(i),
            neighbour: i,
            oom_score: u32::try_from(666 + h.own * 666 / self.total).unwrap_or(0),
            resident: Bytes(h.usage()),
            io: h.io,
            major_faults: h.refaults,
        };
        let alive = self.hogs.iter().enumerate().filter(|(_, h)| h.alive);
        Sample {
            machine: Machine {
                total: Bytes(self.total),
                available: Bytes(self.free() + self.there + files),
                swap_free: Bytes(0),
                compressed: Bytes(0),
                compressed_takes: Bytes(0),
                low: Bytes(low),
                high: Bytes(high),
                average: Some(Share(0)),
            },
            critical: vec![Critical {
                memory_stall: Nanos(self.memory_stall),
                usage: Bytes(self.there),
                file: Bytes(self.there),
                refaults: self.refaults,
                unit_end: self.unit_end,
                ..Critical::default()
            }],
            neighbours: self.hogs.iter().map(neighbour).collect(),
            processes: alive.map(process).collect(),
        }
    }

    pub fn act(&mut self, act: &Act) {
        match *act {
            Act::Protect { memory, .. } => self.protected = memory.0.min(self.total / 2),
            Act::Limit { neighbour, most } => {
                let hog = &mut self.hogs[neighbour];
                hog.limit = most.map(|m| m.0);
                let beyond = most.map_or(0, |m| hog.usage().saturating_sub(m.0));
                hog.file -= beyond.min(hog.file);
            }
            // There is no swap space.
            Act::KeepUnswapped { .. } => {}
            Act::Freeze { neighbour } => self.hogs[neighbour].frozen = true,
            Act::Thaw { neighbour } => self.hogs[neighbour].frozen = false,
            Act::Reclaim { neighbour, amount } => {
                let hog = &mut self.hogs[neighbour];
                hog.file -= amount.0.min(hog.file);
            }
            Act::Stop(task) => self.hogs[hog_of(task)].frozen = true,
            Act::Continue(task) => self.hogs[hog_of(task)].frozen = false,
            Act::Kill(task) => {
                let hog = &mut self.hogs[hog_of(task)];
                self.worst_growth_at_kill.get_or_insert(hog.own);
                hog.alive = false;
                hog.own = 0;
                hog.file = 0;
            }
        }
    }

    /// The 95th percentile of the lateness of frames that ended from `from` on.
    pub fn late(&self, from: Nanos) -> Nanos {
        let mut late: Vec<u64> = self
            .frames
            .iter()
            .filter(|(at, _)| *at >= from)
            .map(|(_, late)| late.0)
            .collect();
        late.sort_unstable();
        late.get(late.len() * 95 / 100)
            .map_or(Nanos(u64::MAX), |n| Nanos(*n))
    }
}

pub fn task(hog: usize) -> TaskId {
    TaskId {
        pid: 100 + u32::try_from(hog).unwrap_or(0),
        start: 5,
    }
}

pub fn hog_of(task: TaskId) -> usize {
    task.pid as usize - 100
}
