//! One channel: its queues, whether it reads or writes, and the effects of the chosen command.

use super::bank::Constraints;
use super::choice::{Choice, Proposal};
use super::queue::Queue;
use super::timing::Config;
use super::{Command, Kind};
use crate::{Invalid, Picos};

/// A line to be read or written.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Request {
    /// The caller's number for it.
    pub id: u64,
    /// Whether it writes; otherwise it reads.
    pub write: bool,
    /// Rank within the channel.
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
    /// It waits. A read will complete.
    Queued,
    /// It reads the data of a waiting write: done, and no completion follows.
    Forwarded,
    /// It writes to the line of a waiting write: done.
    Merged,
}

/// An error: the queue that a request belongs to is full.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the DRAM queue is full")]
pub struct Full;

/// A read for which the time of its data is known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Completion {
    /// The id of the request.
    pub id: u64,
    /// When its last data leaves the bus.
    pub at: Picos,
}

/// What a bank has done so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// How many READ commands were issued.
    pub reads: u64,
    /// How many WRITE commands were issued.
    pub writes: u64,
    /// ACTIVATE commands. Column commands beyond this number hit an open row.
    pub activates: u64,
    /// Rows closed because a request wanted another one.
    pub conflicts: u64,
}

/// One channel with its queues and banks.
#[derive(Clone, Debug)]
pub struct Channel {
    config: Config,
    now: Picos,
    reads: Queue,
    writes: Queue,
    /// Whether writes are drained, down to `until`.
    draining: bool,
    until: usize,
    flush: bool,
    constraints: Constraints,
    choice: Choice,
    next: Option<(Picos, usize)>,
    refresh_due: Vec<Picos>,
    next_refresh: Picos,
    orders: u64,
    counts: Vec<Counts>,
    refreshes: u64,
    log: Option<Vec<Command>>,
}

impl Channel {
    /// An idle channel at time zero, with all rows closed.
    ///
    /// # Errors
    /// For impossible parameters.
    pub fn new(config: &Config) -> Result<Self, Invalid> {
        config.check()?;
        let banks = (config.ranks * config.banks) as usize;
        let interval = config.timing.cycles(config.timing.refi);
        let refresh_due: Vec<Picos> = (1..=u64::from(config.ranks))
            .map(|n| interval * n / u64::from(config.ranks))
            .collect();
        Ok(Self {
            now: 0,
            reads: Queue::new(config.reads, banks),
            writes: Queue::new(config.writes, banks),
            draining: false,
            until: 0,
            flush: false,
            constraints: Constraints::new(config),
            choice: Choice::new(config),
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

    /// Takes a request at `now`, up to which [`Channel::advance`] must have been called. A write is
    /// done with that.
    ///
    /// # Errors
    /// When the queue of the request is full.
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
        if request.write == self.draining && !self.choice.keeps(bank, &self.constraints, self.now) {
            let before = self.choice.standing(bank);
            self.propose(bank);
            // Mostly the bank's proposal is the same as before.
            if self.choice.standing(bank) != before {
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

    /// How many reads and how many writes wait.
    #[must_use]
    pub fn waiting(&self) -> (usize, usize) {
        (self.reads.len(), self.writes.len())
    }

    /// From now on, writes below the low watermark are also drained while no reads wait.
    pub fn flush(&mut self) {
        self.flush = true;
        self.turn();
    }

    /// When the next event is, if nothing is enqueued before. Call [`Channel::advance`] with it.
    #[must_use]
    pub fn next_event(&self) -> Option<Picos> {
        self.next.map(|(at, _)| at)
    }

    /// Handles all events up to and including `now`. Appends the reads for which the time has
    /// become known. That is the time of their last data, and may be later than `now`.
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

    /// Takes the log so far, and empties it.
    pub fn take_log(&mut self) -> Vec<Command> {
        self.log.as_mut().map(std::mem::take).unwrap_or_default()
    }

    /// What each bank has done, rank by rank.
    #[must_use]
    pub fn counts(&self) -> &[Counts] {
        &self.counts
    }

    /// How many REFRESH commands were issued so far.
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

    /// Changes between reads and writes where it is time to. True if it did.
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
            // Lower than the watermark, so that a write and a turnaround do not alternate.
            self.until = idle / 2;
        } else if reads == 0 && writes > 0 && self.flush {
            self.until = 0;
        } else {
            return false;
        }
        self.draining = !self.draining;
        self.choice.turn();
        for bank in 0..self.counts.len() {
            self.propose(bank);
        }
        self.pick();
        true
    }

    /// Closes the row of a bank if that was due by now.
    #[inline]
    fn settle(&mut self, bank: usize) {
        if self.choice.closes_by(bank, self.now) {
            self.close(bank);
        }
    }

    fn close(&mut self, bank: usize) {
        let at = self.choice.closed(bank);
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

    /// Determines what `bank` would do next from now on.
    fn propose(&mut self, bank: usize) {
        self.settle(bank);
        let queue = if self.draining {
            &self.writes
        } else {
            &self.reads
        };
        self.choice
            .propose(bank, queue, self.draining, &self.constraints, self.now);
    }

    /// Determines which bank's command is next.
    fn pick(&mut self) {
        self.next = self.choice.pick(&self.constraints, self.now);
    }

    fn issue(&mut self, done: &mut Vec<Completion>) {
        let Some((at, bank)) = self.next else { return };
        self.now = at;
        let Proposal {
            activate,
            row,
            close,
            before,
        } = *self.choice.proposal(bank);
        let banks = self.config.banks;
        if activate {
            if close != Picos::MAX {
                self.close(bank);
            }
            self.constraints.activate(bank, row, at);
            self.choice.activated();
            self.counts[bank].activates += 1;
            Self::note(&mut self.log, banks, at, Kind::Activate, bank, row, 0);
            self.propose(bank);
            self.pick();
            return;
        }
        let write = self.draining;
        let waiting = if write {
            &mut self.writes
        } else {
            &mut self.reads
        }
        .take(bank, before);
        let end = self.constraints.column(bank, write, at);
        self.choice.served(bank, write);
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

    /// Issues the refresh that is due next.
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
            self.choice.closed(bank);
            self.propose(bank);
        }
        self.refresh_due[rank] = due + self.config.timing.cycles(self.config.timing.refi);
        self.next_refresh = self.refresh_due.iter().copied().min().unwrap_or(Picos::MAX);
        self.pick();
    }
}
