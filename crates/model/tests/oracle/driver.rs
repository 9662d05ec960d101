//! The same requests to both models, clock by clock.

use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::path::{Path, PathBuf};

use dramsim3::MemorySystem;
use quell_model::Picos;
use quell_model::address::{AddressMap, Field, Fields};
use quell_model::dram::{Completion, Config, Dram};

/// A request spends a clock before DRAMsim3's banks see it, and its data waits a clock for the next
/// call. These clocks belong to DRAMsim3's interface, not to its DRAM. In this model they would be
/// part of a machine's way to memory.
const INTERFACE: Picos = 2;
/// log2 of the lines of a row (1024 columns, bursts of 8).
pub const COLUMN_BITS: u32 = 7;
/// log2 of the rows of a bank.
pub const ROW_BITS: u32 = 14;

/// One channel with the fields, lowest first: column, bank (its group lowest), rank, row.
pub fn map(config: &Config) -> AddressMap {
    let fields = Fields::plain(
        6,
        &[
            (Field::Column, COLUMN_BITS),
            (Field::Bank, config.banks.ilog2()),
            (Field::Rank, config.ranks.ilog2()),
            (Field::Row, ROW_BITS),
        ],
    );
    AddressMap::new(fields).unwrap()
}

/// A model that is driven clock by clock.
pub trait Model {
    /// Offers a request. False if there is no room.
    fn offer(&mut self, address: u64, write: bool) -> bool;
    /// Passes a clock. Returns how many reads came back at its beginning.
    fn tick(&mut self) -> u64;
}

/// The model of this crate.
pub struct Ours {
    dram: Dram,
    clock: Picos,
    now: Picos,
    flying: BinaryHeap<Reverse<Picos>>,
    done: Vec<Completion>,
}

impl Ours {
    pub fn new(config: &Config) -> Self {
        Self {
            dram: Dram::new(map(config), config).unwrap(),
            clock: config.timing.clock,
            now: 0,
            flying: BinaryHeap::new(),
            done: Vec::new(),
        }
    }
}

impl Model for Ours {
    fn offer(&mut self, address: u64, write: bool) -> bool {
        match self.dram.enqueue(0, address, write, self.now) {
            Ok(quell_model::dram::Accepted::Forwarded) => {
                self.flying.push(Reverse(self.now + INTERFACE * self.clock));
                true
            }
            Ok(_) => true,
            Err(_) => false,
        }
    }

    fn tick(&mut self) -> u64 {
        self.now += self.clock;
        self.dram.advance(self.now, &mut self.done);
        self.flying.extend(
            self.done
                .drain(..)
                .map(|done| Reverse(done.at + INTERFACE * self.clock)),
        );
        let mut back = 0;
        while self
            .flying
            .peek()
            .is_some_and(|&Reverse(at)| at <= self.now)
        {
            self.flying.pop();
            back += 1;
        }
        back
    }
}

/// DRAMsim3 behind its interface.
pub struct Theirs(MemorySystem);

impl Theirs {
    /// Writes every key that it reads and that matters. DRAMsim3 silently replaces a missing key by
    /// a default.
    pub fn new(name: &str, config: &Config, queues: Queues) -> Self {
        let t = &config.timing;
        let protocol = if config.groups > 1 { "DDR4" } else { "DDR3" };
        // Banks of 2^14 rows of 1 KiB per device, eight devices of eight bits.
        let rank_megabytes = 128 * config.banks;
        let text = format!(
            "[dram_structure]\nprotocol = {protocol}\nbankgroups = {}\nbanks_per_group = {}\nrows = {}\ncolumns = 1024\n\
             device_width = 8\nBL = {}\n\
             [timing]\ntCK = {}\nAL = 0\nCL = {}\nCWL = {}\ntRCD = {}\ntRP = {}\ntRAS = {}\ntRFC = {}\ntREFI = {}\n\
             tRRD_S = {}\ntRRD_L = {}\ntWTR_S = {}\ntWTR_L = {}\ntFAW = {}\ntWR = {}\ntCCD_S = {}\ntCCD_L = {}\ntRTP = {}\n\
             tRTRS = {}\n\
             [system]\nchannel_size = {}\nchannels = 1\nbus_width = 64\naddress_mapping = rochrababgco\n\
             queue_structure = PER_BANK\ntrans_queue_size = {}\ncmd_queue_size = {}\nrow_buf_policy = OPEN_PAGE\n\
             refresh_policy = RANK_LEVEL_STAGGERED\n\
             [other]\nepoch_period = 2000000000\noutput_level = 0\n",
            config.groups,
            config.banks / config.groups,
            1 << ROW_BITS,
            2 * t.burst,
            t.clock as f64 / 1000.0,
            t.cl,
            t.cwl,
            t.rcd,
            t.rp,
            t.ras,
            t.rfc,
            t.refi,
            t.rrd_s,
            t.rrd_l,
            t.wtr_s,
            t.wtr_l,
            t.faw,
            t.wr,
            t.ccd_s,
            t.ccd_l,
            t.rtp,
            t.rank_switch,
            rank_megabytes * config.ranks,
            queues.transactions,
            queues.commands,
        );
        let folder = Path::new(env!("CARGO_TARGET_TMPDIR"));
        let file: PathBuf = folder.join(format!("{name}.ini"));
        std::fs::write(&file, text).unwrap();
        Self(MemorySystem::new(&file, folder).unwrap())
    }
}

/// DRAMsim3's queues: one for reads and one for writes of so many places, then one per bank.
#[derive(Clone, Copy)]
pub struct Queues {
    pub transactions: u32,
    pub commands: u32,
}

impl Model for Theirs {
    fn offer(&mut self, address: u64, write: bool) -> bool {
        self.0.can_add(address, write) && self.0.add(address, write)
    }

    fn tick(&mut self) -> u64 {
        let mut back = 0;
        self.0.tick(|_, write| back += u64::from(!write));
        back
    }
}

/// What is sent: reads in closed loop, and writes among them as soon as there is room.
pub struct Load<'a> {
    pub outstanding: u64,
    /// Address, and whether to write, of the n-th request.
    pub next: Box<dyn FnMut(u64) -> (u64, bool) + 'a>,
}

/// The outcome of a load.
#[derive(Clone, Copy, Debug)]
pub struct Answer {
    /// Clocks per request, for reads and writes.
    pub period: f64,
    /// Clocks from offer to data, for reads.
    pub latency: f64,
}

/// Sends `n` requests, and waits for the reads.
pub fn drive(model: &mut dyn Model, n: u64, load: &mut Load<'_>) -> Answer {
    let (mut sent, mut flying, mut reads, mut now, mut waited) = (0, 0, 0u64, 0u64, 0u64);
    let mut pending = None;
    loop {
        while sent < n {
            let (address, write) = *pending.get_or_insert_with(|| (load.next)(sent));
            if !write && flying == load.outstanding || !model.offer(address, write) {
                break;
            }
            pending = None;
            sent += 1;
            if !write {
                (flying, reads) = (flying + 1, reads + 1);
            }
        }
        if sent == n {
            break;
        }
        waited += flying;
        flying -= model.tick();
        now += 1;
    }
    // By Little's law: the reads in flight over time.
    Answer {
        period: now as f64 / n as f64,
        latency: waited as f64 / reads.max(1) as f64,
    }
}
