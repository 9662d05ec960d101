//! One channel: its queues and what it does next.

use super::bank::{self, CLOSED, Constraints, PLACES};
use super::queue::{END, Queue};
use super::timing::Config;
use super::{Command, Kind};
use crate::{Invalid, Picos};

/// Banks of a channel fit in a word of bits.
pub(super) const MOST_BANKS: u32 = 64;

/// A line to read or write.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's name for it.
    pub id: u64,
    /// A write.
    pub write: bool,
    /// Rank.
    pub rank: u32,
    /// Bank within the rank.
    pub bank: u32,
    /// Row within the bank.
    pub row: u32,
    /// Column within the row, in lines.
    pub column: u32,
}

/// What became of a request that was taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accepted {
    /// It waits; a read will complete.
    Queued,
    /// A read of what a waiting write holds: done, no completion follows.
    Forwarded,
    /// A write to what a waiting write holds: done.
    Merged,
}

/// The queue that a request belongs to is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the DRAM queue is full")]
pub struct Full;

/// A read whose time is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The request's id.
    pub id: u64,
    /// When its last data leaves the bus.
    pub at: Picos,
}

/// What a bank has done.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// READ commands.
    pub reads: u64,
    /// WRITE commands.
    pub writes: u64,
    /// ACTIVATE commands: column commands beyond these hit an open row.
    pub activates: u64,
    /// Rows closed because a request wanted another.
    pub conflicts: u64,
}

/// What a bank proposes.
#[derive(Clone, Copy, Debug)]
struct Proposal {
    /// An ACTIVATE of `row`; else a column command.
    activate: bool,
    row: u32,
    /// When the row that is open is closed first; [`Picos::MAX`] if none is.
    close: Picos,
    /// The place before the request in its list.
    before: u16,
}

/// What decides between proposals, apart from them because all are compared for every command.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// Not before, as far as the bank alone is concerned.
    ready: Picos,
    /// Order of arrival.
    order: u64,
    /// Where the floor of the rest of the channel is kept.
    floor: u16,
    /// Where the same without gaps between ranks is kept, of column commands.
    fair: u16,
}

/// One channel.
#[derive(Clone, Debug)]
pub struct Channel {
    config: Config,
    now: Picos,
    reads: Queue,
    writes: Queue,
    /// Writes are drained, down to `until`.
    draining: bool,
    until: usize,
    flush: bool,
    constraints: Constraints,
    /// Of each bank; a fixed number, so that no index has to be checked.
    proposals: [Proposal; PLACES],
    claims: [Claim; PLACES],
    /// Banks that propose something.
    active: u64,
    /// Those of them that propose a column command.
    columns: u64,
    /// Of reads and of writes, per bank, how many requests have overtaken the oldest one.
    streaks: [Vec<u32>; 2],
    /// How many column commands have gone before an older one because it was on another rank.
    overtakes: u32,
    /// The next column command does so, too.
    overtaking: bool,
    /// The earliest column command, and which bank's is the oldest that could come as early if ranks could follow each other
    /// without a gap: kept from one decision to the next, because what comes between changes few of them.
    column: Option<((Picos, usize), usize)>,
    /// The earliest activation; kept likewise.
    activate: Option<(Picos, usize)>,
    next: Option<(Picos, usize)>,
    refresh_due: Vec<Picos>,
    next_refresh: Picos,
    orders: u64,
    counts: Vec<Counts>,
    refreshes: u64,
    log: Option<Vec<Command>>,
}

impl Channel {
    /// An idle channel at time zero, all rows closed.
    ///
    /// # Errors
    /// For parameters that cannot be.
    pub fn new(config: &Config) -> Result<Self, Invalid> {
        config.check()?;
        let banks = (config.ranks * config.banks) as usize;
        let interval = config.timing.cycles(config.timing.refi);
        let refresh_due: Vec<Picos> = (1..=u64::from(config.ranks))
            .map(|n| interval * n / u64::from(config.ranks))
            .collect();
        let nothing = Proposal {
            activate: false,
            row: 0,
            close: Picos::MAX,
            before: END,
        };
        Ok(Self {
            now: 0,
            reads: Queue::new(config.reads, banks),
            writes: Queue::new(config.writes, banks),
            draining: false,
            until: 0,
            flush: false,
            constraints: Constraints::new(config),
            proposals: [nothing; PLACES],
            claims: [Claim {
                ready: 0,
                order: 0,
                floor: 0,
                fair: 0,
            }; PLACES],
            active: 0,
            columns: 0,
            streaks: [vec![0; banks], vec![0; banks]],
            overtakes: 0,
            overtaking: false,
            column: None,
            activate: None,
            next: None,
            next_refresh: refresh_due[0],
            refresh_due,
            orders: 0,
            counts: vec![Counts::default(); banks],
            refreshes: 0,
            log: None,
            config: config.clone(),
        })
    }

    /// Hands a request over at `now`, up to which [`Channel::advance`] must have been called. A write is done with that.
    ///
    /// # Errors
    /// Its queue is full.
    pub fn enqueue(&mut self, request: Request, now: Picos) -> Result<Accepted, Full> {
        debug_assert!(
            now >= self.now && self.next.is_none_or(|(at, _)| at >= now),
            "advance to {now} first"
        );
        self.now = self.now.max(now);
        let bank = (request.rank * self.config.banks + request.bank) as usize;
        if self.writes.holds(bank, request.row, request.column) {
            return Ok(if request.write {
                Accepted::Merged
            } else {
                Accepted::Forwarded
            });
        }
        let queue = if request.write {
            &mut self.writes
        } else {
            &mut self.reads
        };
        if queue.is_full() {
            return Err(Full);
        }
        queue.push(bank, request.row, request.column, request.id, self.orders);
        self.orders += 1;
        if self.turn() {
            return Ok(Accepted::Queued);
        }
        if request.write == self.draining && !self.keeps(bank) {
            let claim = |channel: &Self| {
                (
                    channel.active >> bank & 1,
                    channel.columns >> bank & 1,
                    channel.claims[bank % PLACES].order,
                )
            };
            let before = claim(self);
            self.propose(bank);
            // Mostly the bank proposes what it did.
            if claim(self) != before {
                self.pick();
            }
        }
        Ok(Accepted::Queued)
    }

    /// Whether a read or write could be enqueued now.
    #[must_use]
    pub fn has_room(&self, write: bool) -> bool {
        !if write { &self.writes } else { &self.reads }.is_full()
    }

    /// Reads and writes that wait.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.reads.len(), self.writes.len())
    }

    /// From now on, no writes are left waiting below the low watermark while no reads wait.
    pub fn flush(&mut self) {
        self.flush = true;
        self.turn();
    }

    /// When something will happen next if nothing is enqueued before. Call [`Channel::advance`] with it.
    #[must_use]
    pub fn next_event(&self) -> Option<Picos> {
        self.next.map(|(at, _)| at)
    }

    /// Does all that happens up to and including `now`; appends the reads whose time has become known. Their time is that
    /// of their last data and may be later than `now`.
    pub fn advance(&mut self, now: Picos, done: &mut Vec<Completion>) {
        loop {
            let next = self.next.map_or(Picos::MAX, |(at, _)| at);
            if self.next_refresh <= next.min(now) {
                self.refresh();
            } else if next <= now {
                self.issue(done);
            } else {
                break;
            }
        }
        self.now = self.now.max(now);
    }

    /// Logs every command from now on.
    pub fn record(&mut self) {
        self.log.get_or_insert_default();
    }

    /// Takes the log so far.
    pub fn take_log(&mut self) -> Vec<Command> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What each bank has done, rank by rank.
    #[must_use]
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// REFRESH commands so far.
    #[must_use]
    pub fn refreshes(&self) -> u64 {
        self.refreshes
    }

    fn note(
        log: &mut Option<Vec<Command>>,
        banks: u32,
        at: Picos,
        kind: Kind,
        bank: usize,
        row: u32,
        id: u64,
    ) {
        if let Some(log) = log {
            let bank = u32::try_from(bank).expect("invariant: at most 64 banks");
            log.push(Command {
                at,
                kind,
                rank: bank / banks,
                bank: bank % banks,
                row,
                id,
            });
        }
    }

    /// Changes between reads and writes where it is time to; true if it did.
    fn turn(&mut self) -> bool {
        let (reads, writes) = (self.reads.len(), self.writes.len());
        let (high, low, idle) = (
            self.config.high as usize,
            self.config.low as usize,
            self.config.idle as usize,
        );
        if self.draining {
            if writes > self.until || self.flush && reads == 0 && writes > 0 {
                return false;
            }
        } else if writes >= high {
            self.until = low;
        } else if reads == 0 && writes > idle {
            // Deeper than the watermark, so that a write and a turnaround do not alternate.
            self.until = idle / 2;
        } else if reads == 0 && writes > 0 && self.flush {
            self.until = 0;
        } else {
            return false;
        }
        self.draining = !self.draining;
        (self.column, self.activate) = (None, None);
        for bank in 0..self.counts.len() {
            self.propose(bank);
        }
        self.pick();
        true
    }

    /// A row that was to be closed by now has been.
    #[inline]
    fn settle(&mut self, bank: usize) {
        if self.active >> bank & 1 == 1 && self.proposals[bank % PLACES].close <= self.now {
            self.close(bank);
        }
    }

    fn close(&mut self, bank: usize) {
        let at = std::mem::replace(&mut self.proposals[bank % PLACES].close, Picos::MAX);
        let row = self.constraints.bank(bank).row;
        Self::note(
            &mut self.log,
            self.config.banks,
            at,
            Kind::Precharge,
            bank,
            row,
            0,
        );
        self.constraints.close(bank, at);
        self.counts[bank].conflicts += 1;
    }

    /// Whether a request that has just come last cannot change what `bank` proposes, apart from when, because it proposes a
    /// column command already, or an activation without a row being open that it could hit.
    fn keeps(&mut self, bank: usize) -> bool {
        let state = self.constraints.bank(bank);
        let ready = if self.columns >> bank & 1 == 1 {
            state.column
        } else if self.active >> bank & 1 == 1 && state.row == CLOSED {
            state.activate
        } else {
            return false;
        };
        let ready = ready.max(self.now);
        let claim = &mut self.claims[bank % PLACES];
        if ready != claim.ready {
            claim.ready = ready;
            // Up to the floor it is the floor that tells when.
            if ready > self.constraints.floor(claim.fair) {
                self.forget(bank);
            }
        }
        true
    }

    /// The claim of `bank` changes: what was decided because of it is open again.
    #[inline]
    fn forget(&mut self, bank: usize) {
        if let Some((earliest, fair)) = self.column
            && self.columns >> bank & 1 == 1
            && (earliest.1 == bank || fair == bank)
        {
            self.column = None;
        }
        if self.activate.is_some_and(|(_, earliest)| earliest == bank) {
            self.activate = None;
        }
    }

    /// Finds out what `bank` would do next from now on.
    fn propose(&mut self, bank: usize) {
        self.settle(bank);
        self.forget(bank);
        let queue = if self.draining {
            &self.writes
        } else {
            &self.reads
        };
        let Some(head) = queue.head(bank) else {
            self.active &= !(1 << bank);
            self.columns &= !(1 << bank);
            return;
        };
        self.active |= 1 << bank;
        let state = self.constraints.bank(bank);
        let mut close = Picos::MAX;
        if state.row != CLOSED {
            if let Some((waiting, before)) = queue.first_of_row(bank, state.row)
                && (before == END
                    || self.streaks[usize::from(self.draining)][bank] < self.config.streak)
            {
                let kind = if self.draining {
                    bank::WRITE
                } else {
                    bank::READ
                };
                self.columns |= 1 << bank;
                self.proposals[bank % PLACES] = Proposal {
                    activate: false,
                    row: state.row,
                    close,
                    before,
                };
                let claim = Claim {
                    ready: state.column.max(self.now),
                    floor: self.constraints.floor_of(kind, bank),
                    fair: self.constraints.floor_of(kind + bank::FAIR, bank),
                    order: waiting.order,
                };
                self.claims[bank % PLACES] = claim;
                if let Some((earliest, fair)) = self.column {
                    if self.before(&claim, earliest) {
                        self.column = None;
                    } else if claim.order < self.claims[fair % PLACES].order
                        && claim.ready.max(self.constraints.floor(claim.fair)) <= earliest.0
                    {
                        self.column = Some((earliest, bank));
                    }
                }
                return;
            }
            close = state.precharge.max(self.now);
        }
        let ready = if close == Picos::MAX {
            state.activate
        } else {
            self.constraints.reopen(bank, close)
        };
        self.columns &= !(1 << bank);
        self.proposals[bank % PLACES] = Proposal {
            activate: true,
            row: head.row,
            close,
            before: END,
        };
        let floor = self.constraints.floor_of(bank::ACTIVATE, bank);
        let claim = Claim {
            ready: ready.max(self.now),
            floor,
            fair: floor,
            order: head.order,
        };
        self.claims[bank % PLACES] = claim;
        if let Some(earliest) = self.activate
            && self.before(&claim, earliest)
        {
            self.activate = Some((self.time(&claim), bank));
        }
    }

    /// When a claim can be met.
    #[inline]
    fn time(&self, claim: &Claim) -> Picos {
        claim.ready.max(self.constraints.floor(claim.floor))
    }

    /// Whether a claim goes before the earliest so far.
    #[inline]
    fn before(&self, claim: &Claim, (at, bank): (Picos, usize)) -> bool {
        (self.time(claim), claim.order) < (at, self.claims[bank % PLACES].order)
    }

    /// Which bank's command is next: the earliest column command (the oldest of all that could come if ranks followed each
    /// other without a gap, once enough have gone before it), or an activation that comes before that.
    fn pick(&mut self) {
        let (mut best, fair) = if let Some(known) = self.column {
            known
        } else {
            let best = self.earliest(self.columns);
            let fair = if self.config.ranks > 1 && self.columns != 0 {
                self.oldest_by(best)
            } else {
                best.1
            };
            self.column = Some((best, fair));
            (best, fair)
        };
        self.overtaking = best.1 != fair && self.overtakes < self.config.rank_streak;
        if best.1 != fair && !self.overtaking {
            best = (self.time(&self.claims[fair % PLACES]), fair);
        }
        // Mostly the rank's window is what activations wait for: then there is no need to look at them one by one.
        let activates = self.active & !self.columns;
        if activates != 0 && self.constraints.least_activate() < best.0 {
            let activate = match self.activate {
                Some(known) => known,
                None => *self.activate.insert(self.earliest(activates)),
            };
            if activate.0 < best.0 {
                best = activate;
            }
        }
        // Fairness may have held back what could have come before now; it does not come in the past.
        self.next = (self.active != 0).then_some((best.0.max(self.now), best.1));
    }

    /// Which of `banks` has the earliest claim, the oldest of equals, and when.
    #[inline]
    fn earliest(&self, mut banks: u64) -> (Picos, usize) {
        let (mut best, mut which) = (u128::MAX, 0);
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let at = self.time(claim);
            // In one number, so that no branch has to be guessed.
            let key = u128::from(at) << 64 | u128::from(claim.order);
            if key < best {
                (best, which) = (key, bank);
            }
        }
        ((best >> 64) as Picos, which)
    }

    /// The oldest of the column commands that could come by the time of the earliest if there were no gaps between ranks.
    #[inline]
    fn oldest_by(&self, (by, earliest): (Picos, usize)) -> usize {
        let (mut order, mut which) = (self.claims[earliest % PLACES].order, earliest);
        let mut banks = self.columns;
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let fair = claim.ready.max(self.constraints.floor(claim.fair));
            // Both sides worked out, so that no branch has to be guessed.
            if (claim.order < order) & (fair <= by) {
                (order, which) = (claim.order, bank);
            }
        }
        which
    }

    fn issue(&mut self, done: &mut Vec<Completion>) {
        let Some((at, bank)) = self.next else { return };
        self.now = at;
        let Proposal {
            activate,
            row,
            close,
            before,
            ..
        } = self.proposals[bank % PLACES];
        let banks = self.config.banks;
        if activate {
            if close != Picos::MAX {
                self.close(bank);
            }
            self.constraints.activate(bank, row, at);
            self.activate = None;
            self.counts[bank].activates += 1;
            Self::note(&mut self.log, banks, at, Kind::Activate, bank, row, 0);
            self.propose(bank);
            self.pick();
            return;
        }
        self.overtakes = if self.overtaking {
            self.overtakes + 1
        } else {
            0
        };
        let write = self.draining;
        let waiting = if write {
            &mut self.writes
        } else {
            &mut self.reads
        }
        .take(bank, before);
        let end = self.constraints.column(bank, write, at);
        self.column = None;
        let streak = &mut self.streaks[usize::from(write)][bank];
        *streak = if before == END { 0 } else { *streak + 1 };
        if write {
            self.counts[bank].writes += 1;
            Self::note(&mut self.log, banks, at, Kind::Write, bank, row, waiting.id);
        } else {
            self.counts[bank].reads += 1;
            done.push(Completion {
                id: waiting.id,
                at: end,
            });
            Self::note(&mut self.log, banks, at, Kind::Read, bank, row, waiting.id);
        }
        if !self.turn() {
            self.propose(bank);
            self.pick();
        }
    }

    /// The refresh that is due next.
    fn refresh(&mut self) {
        let due = self.next_refresh;
        let Some(rank) = self.refresh_due.iter().position(|&at| at == due) else {
            return;
        };
        self.now = self.now.max(due);
        let banks = self.config.banks;
        let first = rank * banks as usize;
        for bank in first..first + banks as usize {
            self.settle(bank);
        }
        let log = &mut self.log;
        let at = self.constraints.refresh(rank, due, |bank, row, at| {
            Self::note(log, banks, at, Kind::Precharge, bank, row, 0);
        });
        Self::note(log, banks, at, Kind::Refresh, first, 0, 0);
        self.refreshes += 1;
        for bank in first..first + banks as usize {
            self.proposals[bank % PLACES].close = Picos::MAX;
            self.propose(bank);
        }
        self.refresh_due[rank] = due + self.config.timing.cycles(self.config.timing.refi);
        self.next_refresh = self.refresh_due.iter().copied().min().unwrap_or(Picos::MAX);
        self.pick();
    }
}
