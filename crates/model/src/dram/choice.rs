//! Which command of a channel is next: what each bank proposes, and which proposal goes first.
//!
//! The method is that of [`super`]. Decisions are kept from one command to the next, because the
//! events in between change few of them.

use super::bank::{self, CLOSED, Constraints, PLACES};
use super::queue::{END, Queue};
use super::timing::Config;
use crate::Picos;

/// The most banks of a channel, so that they fit into a word of bits.
pub(super) const MOST_BANKS: u32 = 64;

/// The command that a bank proposes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    /// Whether it is an ACTIVATE of `row`; otherwise it is a column command.
    pub(super) activate: bool,
    pub(super) row: u32,
    /// When the open row is closed first. [`Picos::MAX`] if no row is closed.
    pub(super) close: Picos,
    /// The place before the request in its list.
    pub(super) before: u16,
}

/// What decides between proposals. It is stored separately, because all claims are compared for
/// every command.
#[derive(Clone, Copy, Debug)]
struct Claim {
    /// The earliest time as far as the bank alone is concerned.
    ready: Picos,
    /// The request's order of arrival.
    order: u64,
    /// The index of the floor that the rest of the channel demands.
    floor: u16,
    /// For column commands: the index of that floor without gaps between ranks.
    fair: u16,
}

/// The proposals of all banks of a channel.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// The limit of [`Config::streak`] for `streaks`.
    most_streak: u32,
    /// The limit of [`Config::rank_streak`] for `overtakes`.
    most_overtakes: u32,
    ranks: u32,
    /// One per bank. A fixed number, so that no index has to be checked.
    proposals: [Proposal; PLACES],
    claims: [Claim; PLACES],
    /// A bit for each bank that proposes something.
    active: u64,
    /// A bit for each of them that proposes a column command.
    columns: u64,
    /// For reads and for writes, per bank: how many requests have overtaken the oldest one.
    streaks: [[u32; PLACES]; 2],
    /// How many column commands in a row have gone before an older one on another rank.
    overtakes: u32,
    /// Whether the next column command does so, too.
    overtaking: bool,
    /// The earliest column command and its bank. Also the bank with the oldest command that could
    /// come as early if ranks could follow each other without a gap.
    column: Option<((Picos, usize), usize)>,
    /// The earliest activation, and its bank.
    activate: Option<(Picos, usize)>,
}

impl Choice {
    /// A choice in which no bank proposes anything.
    pub(super) fn new(config: &Config) -> Self {
        let nothing = Proposal {
            activate: false,
            row: 0,
            close: Picos::MAX,
            before: END,
        };
        let claim = Claim {
            ready: 0,
            order: 0,
            floor: 0,
            fair: 0,
        };
        Self {
            most_streak: config.streak,
            most_overtakes: config.rank_streak,
            ranks: config.ranks,
            proposals: [nothing; PLACES],
            claims: [claim; PLACES],
            active: 0,
            columns: 0,
            streaks: [[0; PLACES]; 2],
            overtakes: 0,
            overtaking: false,
            column: None,
            activate: None,
        }
    }

    /// What `bank` proposes. Only valid where it proposes something.
    #[inline]
    pub(super) fn proposal(&self, bank: usize) -> &Proposal {
        &self.proposals[bank % PLACES]
    }

    /// The part of a bank's proposal that matters for other banks. While it is unchanged, the
    /// choice is, too.
    #[inline]
    pub(super) fn standing(&self, bank: usize) -> (u64, u64, u64) {
        (
            self.active >> bank & 1,
            self.columns >> bank & 1,
            self.claims[bank % PLACES].order,
        )
    }

    /// Whether `bank` closes a row by `now`.
    #[inline]
    pub(super) fn closes_by(&self, bank: usize, now: Picos) -> bool {
        self.active >> bank & 1 == 1 && self.proposals[bank % PLACES].close <= now
    }

    /// Cancels the planned closing of `bank`'s row, and returns its time.
    #[inline]
    pub(super) fn closed(&mut self, bank: usize) -> Picos {
        std::mem::replace(&mut self.proposals[bank % PLACES].close, Picos::MAX)
    }

    /// Changes between reads and writes: every bank has to propose again.
    pub(super) fn turn(&mut self) {
        (self.column, self.activate) = (None, None);
    }

    /// Records that an activation was issued.
    #[inline]
    pub(super) fn activated(&mut self) {
        self.activate = None;
    }

    /// Records that the column command proposed by `bank` was issued.
    #[inline]
    pub(super) fn served(&mut self, bank: usize, write: bool) {
        self.overtakes = if self.overtaking {
            self.overtakes + 1
        } else {
            0
        };
        self.column = None;
        let first = self.proposals[bank % PLACES].before == END;
        let streak = &mut self.streaks[usize::from(write)][bank % PLACES];
        *streak = if first { 0 } else { *streak + 1 };
    }

    /// Whether a request that has just arrived cannot change what `bank` proposes, except its time.
    /// That is so if the bank proposes a column command already, or an activation while no row is
    /// open that the request could hit.
    #[inline]
    pub(super) fn keeps(&mut self, bank: usize, constraints: &Constraints, now: Picos) -> bool {
        let state = constraints.bank(bank);
        let ready = if self.columns >> bank & 1 == 1 {
            state.column
        } else if self.active >> bank & 1 == 1 && state.row == CLOSED {
            state.activate
        } else {
            return false;
        };
        let ready = ready.max(now);
        let claim = &mut self.claims[bank % PLACES];
        if ready != claim.ready {
            claim.ready = ready;
            // Up to the floor, the floor alone decides the time.
            if ready > constraints.floor(claim.fair) {
                self.forget(bank);
            }
        }
        true
    }

    /// The claim of `bank` changes. Decisions that depended on it are forgotten.
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

    /// Determines what `bank` would do next from `now` on with the requests in `queue`, which is
    /// that of `write`s or of reads.
    pub(super) fn propose(
        &mut self,
        bank: usize,
        queue: &Queue,
        write: bool,
        constraints: &Constraints,
        now: Picos,
    ) {
        self.forget(bank);
        let Some(head) = queue.head(bank) else {
            self.active &= !(1 << bank);
            self.columns &= !(1 << bank);
            return;
        };
        self.active |= 1 << bank;
        let state = constraints.bank(bank);
        let mut close = Picos::MAX;
        if state.row != CLOSED {
            if let Some((waiting, before)) = queue.first_of_row(bank, state.row)
                && (before == END
                    || self.streaks[usize::from(write)][bank % PLACES] < self.most_streak)
            {
                let kind = if write { bank::WRITE } else { bank::READ };
                self.columns |= 1 << bank;
                self.proposals[bank % PLACES] = Proposal {
                    activate: false,
                    row: state.row,
                    close,
                    before,
                };
                let claim = Claim {
                    ready: state.column.max(now),
                    floor: constraints.floor_of(kind, bank),
                    fair: constraints.floor_of(kind + bank::FAIR, bank),
                    order: waiting.order,
                };
                self.claims[bank % PLACES] = claim;
                if let Some((earliest, fair)) = self.column {
                    if self.before(&claim, earliest, constraints) {
                        self.column = None;
                    } else if claim.order < self.claims[fair % PLACES].order
                        && claim.ready.max(constraints.floor(claim.fair)) <= earliest.0
                    {
                        self.column = Some((earliest, bank));
                    }
                }
                return;
            }
            close = state.precharge.max(now);
        }
        let ready = if close == Picos::MAX {
            state.activate
        } else {
            constraints.reopen(bank, close)
        };
        self.columns &= !(1 << bank);
        self.proposals[bank % PLACES] = Proposal {
            activate: true,
            row: head.row,
            close,
            before: END,
        };
        let floor = constraints.floor_of(bank::ACTIVATE, bank);
        let claim = Claim {
            ready: ready.max(now),
            floor,
            fair: floor,
            order: head.order,
        };
        self.claims[bank % PLACES] = claim;
        if let Some(earliest) = self.activate
            && self.before(&claim, earliest, constraints)
        {
            self.activate = Some((claim.time(constraints), bank));
        }
    }

    /// Whether a claim goes before the earliest so far.
    #[inline]
    fn before(&self, claim: &Claim, (at, bank): (Picos, usize), constraints: &Constraints) -> bool {
        (claim.time(constraints), claim.order) < (at, self.claims[bank % PLACES].order)
    }

    /// Which bank's command is next, and when.
    ///
    /// It is the earliest column command, or an activation that comes before that. Once enough
    /// commands have gone before it, the oldest column command is taken that could come if ranks
    /// followed each other without a gap.
    pub(super) fn pick(&mut self, constraints: &Constraints, now: Picos) -> Option<(Picos, usize)> {
        let (mut best, fair) = if let Some(known) = self.column {
            known
        } else {
            let best = self.earliest(self.columns, constraints);
            let fair = if self.ranks > 1 && self.columns != 0 {
                self.oldest_by(best, constraints)
            } else {
                best.1
            };
            self.column = Some((best, fair));
            (best, fair)
        };
        self.overtaking = best.1 != fair && self.overtakes < self.most_overtakes;
        if best.1 != fair && !self.overtaking {
            best = (self.claims[fair % PLACES].time(constraints), fair);
        }
        // Mostly activations wait for the rank's window. Then they need not be examined one by one.
        let activates = self.active & !self.columns;
        if activates != 0 && constraints.least_activate() < best.0 {
            let activate = match self.activate {
                Some(known) => known,
                None => *self.activate.insert(self.earliest(activates, constraints)),
            };
            if activate.0 < best.0 {
                best = activate;
            }
        }
        // Fairness may have delayed a command that could have come before now. It does not come in
        // the past.
        (self.active != 0).then_some((best.0.max(now), best.1))
    }

    /// Which of `banks` has the earliest claim (the oldest of equal ones), and when.
    #[inline]
    fn earliest(&self, mut banks: u64, constraints: &Constraints) -> (Picos, usize) {
        let (mut best, mut which) = (u128::MAX, 0);
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let at = claim.time(constraints);
            // In one number, so that there is no branch to predict.
            let key = u128::from(at) << 64 | u128::from(claim.order);
            if key < best {
                (best, which) = (key, bank);
            }
        }
        ((best >> 64) as Picos, which)
    }

    /// The bank with the oldest column command that could come by the time of the earliest one if
    /// there were no gaps between ranks.
    #[inline]
    fn oldest_by(&self, (by, earliest): (Picos, usize), constraints: &Constraints) -> usize {
        let (mut order, mut which) = (self.claims[earliest % PLACES].order, earliest);
        let mut banks = self.columns;
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let fair = claim.ready.max(constraints.floor(claim.fair));
            // Both sides are computed, so that there is no branch to predict.
            if (claim.order < order) & (fair <= by) {
                (order, which) = (claim.order, bank);
            }
        }
        which
    }
}

impl Claim {
    /// The earliest time at which the command can be issued.
    #[inline]
    fn time(&self, constraints: &Constraints) -> Picos {
        self.ready.max(constraints.floor(self.floor))
    }
}
