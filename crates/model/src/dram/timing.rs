//! Timing parameters, in clock cycles as data sheets give them, each set with its origin.
//!
//! Public configurations disagree, so a profile names the one it uses. Known disagreements:
//! - DRAMsim3 and zsim run DDR3-1333 at 10-10-10.
//! - zsim's DDR3-1066 has tRAS and tFAW 18.
//! - Ramulator gives tRFC 360 ns for 8 Gb DDR4, DRAMsim3 350.

use super::choice::MOST_BANKS;
use crate::{Invalid, Picos};

/// Parameters of one speed grade, density and width. Cycles of the command clock unless stated.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Clock period in picoseconds.
    pub clock: Picos,
    /// READ to first data.
    pub cl: u32,
    /// WRITE to first data.
    pub cwl: u32,
    /// Data bus cycles of one line: half the burst length.
    pub burst: u32,
    /// ACTIVATE to READ or WRITE, same bank.
    pub rcd: u32,
    /// PRECHARGE to ACTIVATE, same bank.
    pub rp: u32,
    /// ACTIVATE to PRECHARGE, same bank. (tRC is this plus `rp`.)
    pub ras: u32,
    /// READ to PRECHARGE, same bank.
    pub rtp: u32,
    /// End of write data to PRECHARGE, same bank.
    pub wr: u32,
    /// Column command to column command, same rank, different bank group.
    pub ccd_s: u32,
    /// The same within a bank group.
    pub ccd_l: u32,
    /// ACTIVATE to ACTIVATE, same rank, different bank group.
    pub rrd_s: u32,
    /// The same within a bank group.
    pub rrd_l: u32,
    /// At most four ACTIVATEs of a rank within so many cycles.
    pub faw: u32,
    /// End of write data to READ, same rank, different bank group.
    pub wtr_s: u32,
    /// The same within a bank group.
    pub wtr_l: u32,
    /// Cycles that the data bus idles from read data to write data.
    pub rtw: u32,
    /// Cycles that the data bus idles between data of different ranks.
    pub rank_switch: u32,
    /// REFRESH to anything, same rank.
    pub rfc: u32,
    /// Mean time between REFRESHes of a rank.
    pub refi: u32,
}

impl Timing {
    /// DDR3-1066F (7-7-7), x8, 1 Gb. Ramulator 2's preset from JEDEC JESD79-3; `rtw` 2 and
    /// `rank_switch` 2 from its tRTW (CL + burst + 2 − CWL) and tCS.
    #[must_use]
    pub fn ddr3_1066() -> Self {
        Self {
            clock: 1875,
            cl: 7,
            cwl: 6,
            burst: 4,
            rcd: 7,
            rp: 7,
            ras: 20,
            rtp: 4,
            wr: 8,
            ccd_s: 4,
            ccd_l: 4,
            rrd_s: 4,
            rrd_l: 4,
            faw: 20,
            wtr_s: 4,
            wtr_l: 4,
            rtw: 2,
            rank_switch: 2,
            rfc: 59,
            refi: 4160,
        }
    }

    /// DDR3-1333H (9-9-9), x8, 1 Gb. Ramulator 2's preset from JEDEC JESD79-3; `rtw`, `rank_switch`
    /// as in [`Timing::ddr3_1066`].
    #[must_use]
    pub fn ddr3_1333() -> Self {
        Self {
            clock: 1500,
            cl: 9,
            cwl: 7,
            rcd: 9,
            rp: 9,
            ras: 24,
            rtp: 5,
            wr: 10,
            wtr_s: 5,
            wtr_l: 5,
            rfc: 74,
            refi: 5200,
            ..Self::ddr3_1066()
        }
    }

    /// DDR4-2400R (16-16-16), x8, 4 Gb. Ramulator 2's preset from JEDEC JESD79-4; the clock is
    /// 0.833 ns there, too.
    #[must_use]
    pub fn ddr4_2400() -> Self {
        Self {
            clock: 833,
            cl: 16,
            cwl: 12,
            burst: 4,
            rcd: 16,
            rp: 16,
            ras: 39,
            rtp: 9,
            wr: 18,
            ccd_s: 4,
            ccd_l: 6,
            rrd_s: 4,
            rrd_l: 6,
            faw: 26,
            wtr_s: 3,
            wtr_l: 9,
            rtw: 2,
            rank_switch: 2,
            rfc: 312,
            refi: 9360,
        }
    }

    /// DDR4-3200AA (22-22-22), x8, 8 Gb. Ramulator 2's preset from JEDEC JESD79-4; tRFC 350 ns.
    #[must_use]
    pub fn ddr4_3200() -> Self {
        Self {
            clock: 625,
            cl: 22,
            cwl: 16,
            burst: 4,
            rcd: 22,
            rp: 22,
            ras: 52,
            rtp: 12,
            wr: 24,
            ccd_s: 4,
            ccd_l: 8,
            rrd_s: 4,
            rrd_l: 8,
            faw: 34,
            wtr_s: 4,
            wtr_l: 12,
            rtw: 2,
            rank_switch: 2,
            rfc: 560,
            refi: 12480,
        }
    }

    /// So many clock cycles, in picoseconds.
    #[must_use]
    pub fn cycles(&self, cycles: u32) -> Picos {
        self.clock * u64::from(cycles)
    }
}

/// A channel: its timing, shape and controller.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// The timing parameters of its devices.
    pub timing: Timing,
    /// How many ranks the channel has.
    pub ranks: u32,
    /// Banks per rank, a power of two.
    pub banks: u32,
    /// Bank groups per rank, a power of two; 1 for DDR3. A bank's group is its number modulo this.
    pub groups: u32,
    /// How many reads can wait.
    pub reads: u32,
    /// How many writes can wait.
    pub writes: u32,
    /// Writes are drained when so many wait.
    pub high: u32,
    /// While reads wait, writes are drained until so many are left.
    pub low: u32,
    /// Without waiting reads, so many writes may wait. Of more, all but half of this number are
    /// drained.
    pub idle: u32,
    /// How many requests in a row to an open row may overtake an older request of the same bank.
    pub streak: u32,
    /// How many requests in a row may go before an older one that is ready, too. The older one is
    /// on another rank and would leave a gap on the data bus.
    pub rank_streak: u32,
}

impl Config {
    /// One rank of eight banks without groups (DDR3), and queues of 64 places.
    ///
    /// The watermarks of 85 % and 50 % are gem5's defaults. The streak of 16 is gem5's
    /// `max_accesses_per_row`. The streak between ranks of 2 comes nearest to DRAMsim3 over the
    /// patterns of `tests/oracle` with two ranks.
    #[must_use]
    pub fn ddr3(timing: Timing) -> Self {
        Self {
            timing,
            ranks: 1,
            banks: 8,
            groups: 1,
            reads: 64,
            writes: 64,
            high: 54,
            low: 32,
            idle: 32,
            streak: 16,
            rank_streak: 2,
        }
    }

    /// One rank of sixteen banks in four groups (DDR4, x8); otherwise as [`Config::ddr3`].
    #[must_use]
    pub fn ddr4(timing: Timing) -> Self {
        Self {
            banks: 16,
            groups: 4,
            ..Self::ddr3(timing)
        }
    }

    pub(super) fn check(&self) -> Result<(), Invalid> {
        let wrong = |reason: String| Err(Invalid::new("DRAM configuration", reason));
        let t = &self.timing;
        if t.clock == 0 || t.clock > 1_000_000 {
            return wrong(format!(
                "a clock period of {} ps: 1 to 1000000 are possible",
                t.clock
            ));
        }
        if self.ranks == 0
            || !self.banks.is_power_of_two()
            || self.ranks.saturating_mul(self.banks) > MOST_BANKS
        {
            return wrong(format!(
                "{} ranks of {} banks: at least one rank, a power of two of banks, at most {MOST_BANKS} banks in all",
                self.ranks, self.banks
            ));
        }
        if !self.groups.is_power_of_two() || self.groups > self.banks {
            return wrong(format!(
                "{} groups of {} banks: use a power of two, at most as many as banks",
                self.groups, self.banks
            ));
        }
        if !(1..=4096).contains(&self.reads) || !(1..=4096).contains(&self.writes) {
            return wrong(format!(
                "queues of {} reads and {} writes: 1 to 4096 are possible",
                self.reads, self.writes
            ));
        }
        if self.high == 0
            || self.high > self.writes
            || self.low >= self.high
            || self.idle >= self.high
        {
            return wrong(format!(
                "watermarks {}, {} when idle, and {} for {} writes: low and idle < high <= writes",
                self.low, self.idle, self.high, self.writes
            ));
        }
        if t.burst == 0
            || t.ccd_s < t.burst
            || t.ccd_l < t.ccd_s
            || t.rrd_l < t.rrd_s
            || t.wtr_l < t.wtr_s
        {
            return wrong(
                "needs 0 < burst <= ccd_s <= ccd_l, rrd_s <= rrd_l and wtr_s <= wtr_l".into(),
            );
        }
        let cycles = [
            t.cl,
            t.cwl,
            t.rcd,
            t.rp,
            t.ras,
            t.rtp,
            t.wr,
            t.ccd_l,
            t.rrd_l,
            t.faw,
            t.wtr_l,
            t.rtw,
            t.rank_switch,
            t.rfc,
        ];
        if cycles.iter().any(|&c| c > 100_000)
            || u64::from(t.refi) <= u64::from(t.rfc) + 2 * u64::from(t.ras + t.rp + t.wr + t.cwl)
        {
            return wrong("a parameter above 100000 cycles, or tREFI so short that refresh leaves no time for work".into());
        }
        Ok(())
    }
}
