//! DRAM behind a memory controller: when does a line arrive.
//!
//! Method:
//! - There is one event per ACTIVATE and per column command.
//! - Each bank proposes the next command of one of its waiting requests, by FR-FCFS (Rixner et al.,
//!   ISCA 2000). That is the oldest request to the open row, else the oldest. After `streak`
//!   requests that overtook an older one, the older one is next.
//! - Among the banks the command that can be issued first is issued. On a tie column commands go
//!   first, then older requests.
//! - To save gaps on the bus between ranks, at most `rank_streak` younger commands may go first.
//! - So preference for open rows never reaches across banks. Other banks delay a bank only on the
//!   data bus, by activation windows and by turnarounds.
//! - Reads and writes have separate queues. Writes are drained from the high watermark down to the
//!   low one, as in gem5 (Hansson et al., ISPASS 2014).
//! - Timing constraints are those of JEDEC's state diagrams. The tests check them by a replay of
//!   the command log that shares no code with the scheduler.
//!
//! Deviations from hardware:
//! - The command bus is not modelled: commands of different banks may coincide.
//! - Commands are not aligned to the clock: on average half a clock period early.
//! - A PRECHARGE is issued at the earliest moment once a conflicting request is the bank's next.
//! - Refresh is all-bank and never postponed (JEDEC allows to postpone up to eight). Ranks are
//!   staggered.
//! - Open page only; no power-down, no periodic calibration, no read-modify-write of ECC.
//! - A write is done when accepted. A read of a line that waits to be written is answered at once,
//!   and a second write of it merges.

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

/// What a command of the log does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Opens a row of a bank.
    Activate,
    /// Closes a bank's open row.
    Precharge,
    /// Reads a line of the open row.
    Read,
    /// Writes a line of the open row.
    Write,
    /// Refreshes a rank with all banks closed.
    Refresh,
}

/// A line of the command log. Within a channel, lines are in the order of decision. Sort by time to
/// replay.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Command {
    /// When it is issued.
    pub at: Picos,
    /// What the command does.
    pub kind: Kind,
    /// Rank within the channel.
    pub rank: u32,
    /// Bank within the rank (0 for a refresh).
    pub bank: u32,
    /// Row: for a precharge the one that is closed, for a refresh 0.
    pub row: u32,
    /// The id of the request served, for reads and writes.
    pub id: u64,
}

/// All channels behind one address map.
#[derive(Clone, Debug)]
pub struct Dram {
    map: AddressMap,
    channels: Vec<Channel>,
}

impl Dram {
    /// Idle channels, all alike. Ranks and banks come from the map.
    ///
    /// # Errors
    /// For impossible parameters.
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

    /// The map from addresses to locations.
    #[must_use]
    pub fn map(&self) -> &AddressMap {
        &self.map
    }

    /// The channels, by number.
    #[must_use]
    pub fn channels(&self) -> &[Channel] {
        &self.channels
    }

    /// Takes a line's request at `now`, up to which [`Dram::advance`] must have been called.
    ///
    /// # Errors
    /// When the queue it belongs to is full. Try again after an [`Dram::advance`] past
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

    /// When the next event is, if nothing is enqueued before.
    #[must_use]
    pub fn next_event(&self) -> Option<Picos> {
        self.channels.iter().filter_map(Channel::next_event).min()
    }

    /// Handles all events up to and including `now`. Appends the reads for which the time of return
    /// has become known. That may be after `now`.
    pub fn advance(&mut self, now: Picos, done: &mut Vec<Completion>) {
        for channel in &mut self.channels {
            channel.advance(now, done);
        }
    }
}
