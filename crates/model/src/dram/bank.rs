//! What JEDEC allows when. Per bank: which row is open, and from when on each command may come. Per
//! rank and bank group: what commands elsewhere in the rank, and data on the bus, demand. Every
//! time here means "not before".

use super::choice::MOST_BANKS;
use super::timing::{Config, Timing};
use crate::Picos;

/// The row number of a closed bank.
pub(super) const CLOSED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bank {
    rank: u16,
    /// Rank and bank group in one number: `rank * groups + group`.
    class: u16,
    pub(super) row: u32,
    /// From when on it may be activated, once closed.
    pub(super) activate: Picos,
    /// From when on it may be closed.
    pub(super) precharge: Picos,
    /// From when on it may be read or written, once open.
    pub(super) column: Picos,
}

/// The timing parameters in picoseconds.
#[derive(Clone, Copy, Debug)]
struct Times {
    rcd: Picos,
    rp: Picos,
    ras: Picos,
    rrd: [Picos; 2],
    faw: Picos,
    /// From a READ, and from a WRITE, to the end of its data.
    data: [Picos; 2],
    /// From a READ, and from a WRITE, to the bank's PRECHARGE.
    close: [Picos; 2],
    rfc: Picos,
}

/// The relation of a column command's bank to another bank.
const NEAR: usize = 0;
const SAME_RANK: usize = 1;
const OTHER_RANK: usize = 2;

/// Kinds of command for which ranks and bank groups have separate floors.
pub(super) const ACTIVATE: usize = 0;
pub(super) const READ: usize = 1;
pub(super) const WRITE: usize = 2;
/// Added to READ or WRITE: the same as if ranks could follow each other on the bus without a gap,
/// so that the age of requests decides.
pub(super) const FAIR: usize = 2;
/// READ and WRITE, and both without gaps.
const COLUMNS: usize = 4;
/// Places per rank and group: the kinds above in addition to ACTIVATE, rounded up to a power of
/// two.
const KINDS: usize = (1usize + COLUMNS).next_power_of_two();
/// The most banks, and the most groups.
pub(super) const PLACES: usize = MOST_BANKS as usize;
const FLOORS: usize = KINDS * PLACES;

#[derive(Clone, Debug)]
pub(super) struct Constraints {
    t: Times,
    per_rank: usize,
    groups: usize,
    /// A fixed number, so that no index has to be checked.
    banks: [Bank; PLACES],
    /// The least time from a READ or WRITE to each kind of column command, by the relation of the
    /// other bank.
    after: [[[Picos; COLUMNS]; 3]; 2],
    /// By rank and bank group, then kind: the earliest time for any bank there.
    floors: [Picos; FLOORS],
    least_activate: Picos,
    /// For each rank: when each of the last four activations leaves the window.
    windows: Vec<([Picos; 4], usize)>,
}

impl Constraints {
    pub(super) fn new(config: &Config) -> Self {
        let t = &config.timing;
        let c = |cycles| t.cycles(cycles);
        let (ranks, per_rank, groups) = (
            config.ranks as usize,
            config.banks as usize,
            config.groups as usize,
        );
        let bank = |bank: usize| Bank {
            rank: (bank / per_rank) as u16,
            class: (bank / per_rank * groups + bank % groups) as u16,
            row: CLOSED,
            activate: 0,
            precharge: 0,
            column: 0,
        };
        let data = [c(t.cl + t.burst), c(t.cwl + t.burst)];
        Self {
            t: Times {
                rcd: c(t.rcd),
                rp: c(t.rp),
                ras: c(t.ras),
                rrd: [c(t.rrd_s), c(t.rrd_l)],
                faw: c(t.faw),
                data,
                close: [c(t.rtp), data[1] + c(t.wr)],
                rfc: c(t.rfc),
            },
            per_rank,
            groups,
            banks: std::array::from_fn(bank),
            after: [false, true]
                .map(|write| [NEAR, SAME_RANK, OTHER_RANK].map(|how| after(t, write, how))),
            floors: [0; FLOORS],
            least_activate: 0,
            windows: vec![([0; 4], 0); ranks],
        }
    }

    #[inline]
    pub(super) fn bank(&self, bank: usize) -> &Bank {
        &self.banks[bank % PLACES]
    }

    /// The index of the floor of a `kind` of command to `bank`.
    #[inline]
    pub(super) fn floor_of(&self, kind: usize, bank: usize) -> u16 {
        self.bank(bank).class * KINDS as u16 + kind as u16
    }

    #[inline]
    pub(super) fn floor(&self, place: u16) -> Picos {
        self.floors[usize::from(place) % FLOORS]
    }

    /// No bank can be activated before this time.
    #[inline]
    pub(super) fn least_activate(&self) -> Picos {
        self.least_activate
    }

    pub(super) fn activate(&mut self, bank: usize, row: u32, at: Picos) {
        let t = &self.t;
        let state = &mut self.banks[bank % PLACES];
        let (rank, class) = (usize::from(state.rank), usize::from(state.class));
        state.row = row;
        state.column = at + t.rcd;
        state.precharge = at + t.ras;
        state.activate = at + t.ras + t.rp;
        let (window, oldest) = &mut self.windows[rank];
        window[*oldest % 4] = at + t.faw;
        *oldest = (*oldest + 1) % 4;
        let window = window[*oldest];
        let first = rank * self.groups;
        for other in first..first + self.groups {
            let apart = t.rrd[usize::from(other == class)];
            let floor = &mut self.floors[(other * KINDS + ACTIVATE) % FLOORS];
            *floor = (*floor).max(window).max(at + apart);
        }
        let classes = self.floors.chunks_exact(KINDS);
        let all = classes.take(self.windows.len() * self.groups);
        self.least_activate = all.map(|floors| floors[ACTIVATE]).min().unwrap_or(0);
    }

    /// Closes the bank at `at`, which is not before its `precharge`.
    pub(super) fn close(&mut self, bank: usize, at: Picos) {
        let state = &mut self.banks[bank % PLACES];
        state.row = CLOSED;
        state.activate = state.activate.max(at + self.t.rp);
    }

    /// The earliest activation if the bank closes at `close`.
    pub(super) fn reopen(&self, bank: usize, close: Picos) -> Picos {
        self.bank(bank).activate.max(close + self.t.rp)
    }

    /// Issues a read or write at `at`. Returns when its data is over.
    pub(super) fn column(&mut self, bank: usize, write: bool, at: Picos) -> Picos {
        let write = usize::from(write);
        let state = &mut self.banks[bank % PLACES];
        state.precharge = state.precharge.max(at + self.t.close[write]);
        let class = usize::from(state.class);
        let first = usize::from(state.rank) * self.groups;
        let rank = first..first + self.groups;
        let classes = self.floors.chunks_exact_mut(KINDS);
        for (other, floors) in classes.take(self.windows.len() * self.groups).enumerate() {
            // NEAR, SAME_RANK or OTHER_RANK, without a branch to predict.
            let how = usize::from(other != class) + usize::from(!rank.contains(&other));
            for (floor, &after) in floors[READ..].iter_mut().zip(&self.after[write][how]) {
                *floor = (*floor).max(at + after);
            }
        }
        at + self.t.data[write]
    }

    /// Closes the rank's open banks from `due` on, as early as each allows, and refreshes the rank.
    /// Calls `closed` with bank and time. Returns the time of the refresh.
    pub(super) fn refresh(
        &mut self,
        rank: usize,
        due: Picos,
        mut closed: impl FnMut(usize, u32, Picos),
    ) -> Picos {
        let banks = rank * self.per_rank..(rank + 1) * self.per_rank;
        let mut at = due;
        for bank in banks.clone() {
            let state = self.bank(bank);
            if state.row != CLOSED {
                let close = state.precharge.max(due);
                closed(bank, state.row, close);
                self.close(bank, close);
            }
            at = at.max(self.bank(bank).activate);
        }
        for state in &mut self.banks[banks] {
            state.activate = at + self.t.rfc;
        }
        at
    }
}

/// The least time between a READ or WRITE and each kind of column command to a bank with this
/// relation.
fn after(t: &Timing, write: bool, how: usize) -> [Picos; COLUMNS] {
    let time = |cycles| t.cycles(cycles).cast_signed();
    let end = time(t.burst + if write { t.cwl } else { t.cl });
    let (ccd, wtr) = if how == NEAR {
        (t.ccd_l, t.wtr_l)
    } else {
        (t.ccd_s, t.wtr_s)
    };
    let mut all = [0; COLUMNS];
    for (kinds, gap) in [(0, t.rank_switch), (FAIR, 0)] {
        // When the data of the next command may begin, with and without a change of direction.
        let gap = if how == OTHER_RANK { gap } else { 0 };
        let same = end + time(gap);
        let turned = end + time(if write { gap } else { t.rtw.max(gap) });
        let (mut read, mut written) = if write {
            (turned, same)
        } else {
            (same, turned)
        };
        read -= time(t.cl);
        written -= time(t.cwl);
        if how != OTHER_RANK {
            let direction = if write { &mut written } else { &mut read };
            *direction = (*direction).max(time(ccd));
            if write {
                read = read.max(end + time(wtr));
            }
        }
        // Negative where the following command takes longer to reach the bus. But it is not decided
        // before this one.
        all[READ - 1 + kinds] = read.max(0).cast_unsigned();
        all[WRITE - 1 + kinds] = written.max(0).cast_unsigned();
    }
    all
}
