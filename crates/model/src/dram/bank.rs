//! What JEDEC allows when: per bank which row is open and from when each command may come, per rank and bank group what
//! commands elsewhere in the rank and data on the bus demand. Every time here is "not before".

use super::channel::MOST_BANKS;
use super::timing::Config;
use crate::Picos;

/// The row of a closed bank.
pub(super) const CLOSED: u32 = u32::MAX;

#[derive(Clone, Copy, Debug)]
pub(super) struct Bank {
    rank: usize,
    group: usize,
    pub(super) row: u32,
    /// May be activated, once closed.
    pub(super) activate: Picos,
    /// May be closed.
    pub(super) precharge: Picos,
    /// May be read or written, once open.
    pub(super) column: Picos,
}

/// The timing as times.
#[derive(Clone, Copy, Debug)]
struct Times {
    cl: Picos,
    cwl: Picos,
    burst: Picos,
    rcd: Picos,
    rp: Picos,
    ras: Picos,
    rtp: Picos,
    wr: Picos,
    ccd: [Picos; 2],
    rrd: [Picos; 2],
    wtr: [Picos; 2],
    faw: Picos,
    rtw: Picos,
    rank_switch: Picos,
    rfc: Picos,
}

/// Kinds of command for which ranks and bank groups have a floor of their own.
pub(super) const ACTIVATE: usize = 0;
pub(super) const READ: usize = 1;
pub(super) const WRITE: usize = 2;
/// Added to READ or WRITE: the same as if ranks could follow each other on the bus without a gap: who is older decides.
pub(super) const FAIR: usize = 2;
const KINDS: usize = 5;
/// Floors there can be, rounded up to a power of two: of every kind one per bank group, of which there are at most
/// as many as banks.
const FLOORS: usize = (KINDS * MOST_BANKS as usize).next_power_of_two();

#[derive(Clone, Debug)]
pub(super) struct Constraints {
    t: Times,
    per_rank: usize,
    groups: usize,
    pub(super) banks: Vec<Bank>,
    /// By kind, then rank and bank group: not before, for any bank there.
    floors: [Picos; FLOORS],
    /// Of each rank, when each of the last four activations leaves the window.
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
        Self {
            t: Times {
                cl: c(t.cl),
                cwl: c(t.cwl),
                burst: c(t.burst),
                rcd: c(t.rcd),
                rp: c(t.rp),
                ras: c(t.ras),
                rtp: c(t.rtp),
                wr: c(t.wr),
                ccd: [c(t.ccd_s), c(t.ccd_l)],
                rrd: [c(t.rrd_s), c(t.rrd_l)],
                wtr: [c(t.wtr_s), c(t.wtr_l)],
                faw: c(t.faw),
                rtw: c(t.rtw),
                rank_switch: c(t.rank_switch),
                rfc: c(t.rfc),
            },
            per_rank,
            groups,
            banks: (0..ranks * per_rank)
                .map(|bank| Bank {
                    rank: bank / per_rank,
                    group: bank % groups,
                    row: CLOSED,
                    activate: 0,
                    precharge: 0,
                    column: 0,
                })
                .collect(),
            floors: [0; FLOORS],
            windows: vec![([0; 4], 0); ranks],
        }
    }

    /// Where the floor of a `kind` of command to `bank` is kept.
    #[inline]
    pub(super) fn floor_of(&self, kind: usize, bank: usize) -> u16 {
        let Bank { rank, group, .. } = self.banks[bank];
        ((kind * self.windows.len() + rank) * self.groups + group) as u16
    }

    #[inline]
    pub(super) fn floor(&self, place: u16) -> Picos {
        self.floors[usize::from(place) % FLOORS]
    }

    /// Before this no bank can be activated.
    #[inline]
    pub(super) fn least_activate(&self) -> Picos {
        let all = self.floors.iter().take(self.windows.len() * self.groups);
        all.copied().min().unwrap_or(0)
    }

    fn raise(&mut self, kind: usize, rank: usize, group: usize, at: Picos) {
        let place = (kind * self.windows.len() + rank) * self.groups + group;
        self.floors[place] = self.floors[place].max(at);
    }

    pub(super) fn activate(&mut self, bank: usize, row: u32, at: Picos) {
        let t = self.t;
        let state = &mut self.banks[bank];
        let (rank, group) = (state.rank, state.group);
        state.row = row;
        state.column = at + t.rcd;
        state.precharge = at + t.ras;
        state.activate = at + t.ras + t.rp;
        let (window, oldest) = &mut self.windows[rank];
        window[*oldest] = at + t.faw;
        *oldest = (*oldest + 1) % 4;
        let window = window[*oldest];
        for other in 0..self.groups {
            let apart = t.rrd[usize::from(other == group)];
            self.raise(ACTIVATE, rank, other, window.max(at + apart));
        }
    }

    /// The bank closes at `at`, which is not before its `precharge`.
    pub(super) fn close(&mut self, bank: usize, at: Picos) {
        let state = &mut self.banks[bank];
        state.row = CLOSED;
        state.activate = state.activate.max(at + self.t.rp);
    }

    /// The earliest activation if the bank closes at `close`.
    pub(super) fn reopen(&self, bank: usize, close: Picos) -> Picos {
        self.banks[bank].activate.max(close + self.t.rp)
    }

    /// A read or write at `at`; returns when its data is over.
    pub(super) fn column(&mut self, bank: usize, write: bool, at: Picos) -> Picos {
        let t = self.t;
        let Bank { rank, group, .. } = self.banks[bank];
        let end = at + t.burst + if write { t.cwl } else { t.cl };
        let state = &mut self.banks[bank];
        state.precharge = state
            .precharge
            .max(if write { end + t.wr } else { at + t.rtp });
        let ranks = self.windows.len();
        for other_rank in 0..ranks {
            for other in 0..self.groups {
                let near = usize::from(other == group);
                for (kinds, gap) in [(0, t.rank_switch), (FAIR, 0)]
                    .into_iter()
                    .take(ranks.min(2))
                {
                    // When the data of the next command may begin, with and without a change of direction.
                    let gap = if other_rank == rank { 0 } else { gap };
                    let (same, turned) =
                        (end + gap, end + if write { gap } else { t.rtw.max(gap) });
                    let (mut read, mut written) = if write {
                        (turned, same)
                    } else {
                        (same, turned)
                    };
                    read = read.saturating_sub(t.cl);
                    written = written.saturating_sub(t.cwl);
                    if other_rank == rank {
                        let floor = if write { &mut written } else { &mut read };
                        *floor = (*floor).max(at + t.ccd[near]);
                        if write {
                            read = read.max(end + t.wtr[near]);
                        }
                    }
                    self.raise(READ + kinds, other_rank, other, read);
                    self.raise(WRITE + kinds, other_rank, other, written);
                }
            }
        }
        end
    }

    /// Closes the rank's open banks from `due` on, as early as each allows, telling `closed` of bank and time, and
    /// refreshes; returns when.
    pub(super) fn refresh(
        &mut self,
        rank: usize,
        due: Picos,
        mut closed: impl FnMut(usize, u32, Picos),
    ) -> Picos {
        let banks = rank * self.per_rank..(rank + 1) * self.per_rank;
        let mut at = due;
        for bank in banks.clone() {
            if self.banks[bank].row != CLOSED {
                let close = self.banks[bank].precharge.max(due);
                closed(bank, self.banks[bank].row, close);
                self.close(bank, close);
            }
            at = at.max(self.banks[bank].activate);
        }
        for state in &mut self.banks[banks] {
            state.activate = at + self.t.rfc;
        }
        at
    }
}
