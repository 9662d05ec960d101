//! DRAM behind a memory controller: when does a line arrive.
//!
//! Method: one event per ACTIVATE and per column command. Each bank proposes the next command of
//! one of its waiting requests, by FR-FCFS (Rixner et al., ISCA 2000): the oldest request to the
//! open row, else the oldest; but after `streak` requests that overtook an older one the older
//! one's turn has come. Among the banks the command that can be issued first is issued, column
//! commands and then older requests first where that ties; to save gaps on the bus between ranks,
//! at most `rank_streak` younger ones may go first. Preference for open rows thus never reaches
//! across banks: a bank is delayed by others only on the data bus, by activation windows and by
//! turnarounds. Reads and writes wait in queues of their own; writes are drained from the high
//! watermark down to the low one (as gem5 does: Hansson et al., ISPASS 2014). Timing constraints
//! are those of JEDEC's state diagrams, checked in the tests by a replay of the command log that
//! shares no code with the scheduler.
//!
//! Deviations from hardware:
//! - The command bus is not modelled: commands of different banks may coincide.
//! - Commands are not aligned to the clock: on average half a clock period early.
//! - A PRECHARGE is issued at the earliest moment once a conflicting request is the bank's next.
//! - Refresh is all-bank and never postponed (JEDEC allows to postpone up to eight); ranks are
//!   staggered.
//! - Open page only; no power-down, no periodic calibration, no read-modify-write of ECC.
//! - A write is done when accepted; a read of a line that waits to be written is answered at once,
//!   a second write of it merges.

mod bank;
mod channel;
mod choice;
mod queue;
mod rows;
mod timing;

pub use channel::{Accepted, Channel, Completion, Counts, Full, Request};
pub use rows::{OpenRows, Row, RowCounts};
pub use timing::{Config, Timing};

use crate::address::AddressMap;
use crate::{Invalid, Picos};

/// What a command does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a row.
    Activate,
    /// Closes a bank's row.
    Precharge,
    /// Reads a line.
    Read,
    /// Writes a line.
    Write,
    /// Refreshes a rank.
    Refresh,
}

/// A line of the command log. Within a channel lines are in the order of decision; sort by time to
/// replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// When it is issued.
    pub at: Picos,
    /// What.
    pub kind: Kind,
    /// Rank.
    pub rank: u32,
    /// Bank within the rank (0 for a refresh).
    pub bank: u32,
    /// Row (the one closed, for a precharge; 0 for a refresh).
    pub row: u32,
    /// The request served, of reads and writes.
    pub id: u64,
}

/// All channels behind one address map.
#[derive(Clone, Debug)]
pub struct Dram {
    map: AddressMap,
    channels: Vec<Channel>,
}

impl Dram {
    /// Idle channels, all alike; ranks and banks come from the map.
    ///
    /// # Errors
    /// For parameters that cannot be.
    pub fn new(map: AddressMap, config: &Config) -> Result<Self, Invalid> {
        let config = Config {
            ranks: map.ranks(),
            banks: map.banks(),
            ..config.clone()
        };
        let channel = Channel::new(&config)?;
        Ok(Self {
            channels: vec![channel; map.channels() as usize],
            map,
        })
    }

    /// The address map.
    #[must_use]
    pub fn map(&self) -> &AddressMap {
        &self.map
    }

    /// The channels.
    #[must_use]
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Hands a line's request over at `now`, up to which [`Dram::advance`] must have been called.
    ///
    /// # Errors
    /// The queue it belongs to is full: try again after an [`Dram::advance`] past
    /// [`Dram::next_event`].
    pub fn enqueue(
        &mut self,
        id: u64,
        address: u64,
        write: bool,
        now: Picos,
    ) -> Result<Accepted, Full> {
        let at = self.map.locate(address);
        let request = Request {
            id,
            write,
            rank: at.rank,
            bank: at.bank,
            row: at.row,
            column: at.column,
        };
        self.channels[at.channel as usize].enqueue(request, now)
    }

    /// When something will happen next if nothing is enqueued before.
    #[must_use]
    pub fn next_event(&self) -> Option<Picos> {
        self.channels.iter().filter_map(Channel::next_event).min()
    }

    /// Does all that happens up to and including `now`; appends what reads come back and when
    /// (which may be after `now`).
    pub fn advance(&mut self, now: Picos, done: &mut Vec<Completion>) {
        for channel in &mut self.channels {
            channel.advance(now, done);
        }
    }
}
