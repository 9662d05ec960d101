//! Which command of a channel is next: what each bank proposes, and which of the proposals goes
//! first.
//!
//! The method is that of [`super`]. Decisions are kept from one command to the next, because what
//! comes between changes few of them.

use super::bank::{self, CLOSED, Constraints, PLACES};
use super::queue::{END, Queue};
use super::timing::Config;
use crate::Picos;

/// Banks of a channel fit in a word of bits.
pub(super) const MOST_BANKS: u32 = 64;

/// What a bank proposes.
#[derive(Clone, Copy, Debug)]
pub(super) struct Proposal {
    /// An ACTIVATE of `row`; else a column command.
    pub(super) activate: bool,
    pub(super) row: u32,
    /// When the row that is open is closed first; [`Picos::MAX`] if none is.
    pub(super) close: Picos,
    /// The place before the request in its list.
    pub(super) before: u16,
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

/// What the banks of a channel propose.
#[derive(Clone, Debug)]
pub(super) struct Choice {
    /// [`Config::streak`].
    most_streak: u32,
    /// [`Config::rank_streak`].
    most_overtakes: u32,
    ranks: u32,
    /// Of each bank; a fixed number, so that no index has to be checked.
    proposals: [Proposal; PLACES],
    claims: [Claim; PLACES],
    /// Banks that propose something.
    active: u64,
    /// Those of them that propose a column command.
    columns: u64,
    /// Of reads and of writes, per bank, how many requests have overtaken the oldest one.
    streaks: [[u32; PLACES]; 2],
    /// How many column commands have gone before an older one because it was on another rank.
    overtakes: u32,
    /// The next column command does so, too.
    overtaking: bool,
    /// The earliest column command, and which bank's is the oldest that could come as early if
    /// ranks could follow each other without a gap.
    column: Option<((Picos, usize), usize)>,
    /// The earliest activation.
    activate: Option<(Picos, usize)>,
}

impl Choice {
    /// Nothing is proposed.
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

    /// What `bank` proposes, where it proposes something.
    #[inline]
    pub(super) fn proposal(&self, bank: usize) -> &Proposal {
        &self.proposals[bank % PLACES]
    }

    /// What of a bank's proposal has to do with the others: as long as that stays, so does the
    /// choice.
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

    /// No row of `bank` is to be closed any more; when it was.
    #[inline]
    pub(super) fn closed(&mut self, bank: usize) -> Picos {
        std::mem::replace(&mut self.proposals[bank % PLACES].close, Picos::MAX)
    }

    /// Reads and writes change places: every bank has to propose anew.
    pub(super) fn turn(&mut self) {
        (self.column, self.activate) = (None, None);
    }

    /// An activation was issued.
    #[inline]
    pub(super) fn activated(&mut self) {
        self.activate = None;
    }

    /// The column command that `bank` proposed was issued.
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

    /// Whether a request that has just come last cannot change what `bank` proposes, apart from
    /// when, because it proposes a column command already, or an activation without a row being
    /// open that it could hit.
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
            // Up to the floor it is the floor that tells when.
            if ready > constraints.floor(claim.fair) {
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

    /// Finds out what `bank` would do next from `now` on, of what waits in `queue`, which is that
    /// of `write`s or of reads.
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

    /// Which bank's command is next, and when: the earliest column command (the oldest of all that
    /// could come if ranks followed each other without a gap, once enough have gone before it), or
    /// an activation that comes before that.
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
        // Mostly the rank's window is what activations wait for: then there is no need to look at
        // them one by one.
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
        // Fairness may have held back what could have come before now; it does not come in the
        // past.
        (self.active != 0).then_some((best.0.max(now), best.1))
    }

    /// Which of `banks` has the earliest claim, the oldest of equals, and when.
    #[inline]
    fn earliest(&self, mut banks: u64, constraints: &Constraints) -> (Picos, usize) {
        let (mut best, mut which) = (u128::MAX, 0);
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let at = claim.time(constraints);
            // In one number, so that no branch has to be guessed.
            let key = u128::from(at) << 64 | u128::from(claim.order);
            if key < best {
                (best, which) = (key, bank);
            }
        }
        ((best >> 64) as Picos, which)
    }

    /// The oldest of the column commands that could come by the time of the earliest if there were
    /// no gaps between ranks.
    #[inline]
    fn oldest_by(&self, (by, earliest): (Picos, usize), constraints: &Constraints) -> usize {
        let (mut order, mut which) = (self.claims[earliest % PLACES].order, earliest);
        let mut banks = self.columns;
        while banks != 0 {
            let bank = banks.trailing_zeros() as usize % PLACES;
            banks &= banks - 1;
            let claim = &self.claims[bank];
            let fair = claim.ready.max(constraints.floor(claim.fair));
            // Both sides worked out, so that no branch has to be guessed.
            if (claim.order < order) & (fair <= by) {
                (order, which) = (claim.order, bank);
            }
        }
        which
    }
}

impl Claim {
    /// When it can be met.
    #[inline]
    fn time(&self, constraints: &Constraints) -> Picos {
        self.ready.max(constraints.floor(self.floor))
    }
}
