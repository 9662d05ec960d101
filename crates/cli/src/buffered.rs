//! The options of the generators of `quell bench` that work on one buffer.

use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use quell_policy::workload::{
    Access, Banks, CHURN_SIZE, LIST_SIZE, Operation, Order, Pages, STREAM_SIZE, Size, Store,
    TASK_SIZE, Touch, Workload,
};
use quell_types::address::{BankMap, BitFunctions};
use quell_types::units::{Bytes, Nanos, Rate};

use crate::exit::{Result, usage};
use crate::options::{Buffer, Common, word};

/// The generators that work on one buffer.
#[derive(Debug, Subcommand)]
pub enum Buffered {
    /// A dependent walk through a list: nanoseconds per access
    Latency {
        /// Its size, as 24MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'
        #[arg(long, default_value_t = LIST_SIZE)]
        size: Size,
        /// The order
        #[arg(long, value_parser = word::<Order>(), default_value_t)]
        order: Order,
        /// What is done to each node
        #[arg(long, value_parser = word::<Access>(), default_value_t)]
        operation: Access,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A stream: program bytes per second
    Bandwidth {
        /// What it does to each line
        #[arg(long, value_parser = word::<Operation>(), default_value = "write")]
        operation: Operation,
        /// The buffer's size
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Several independent random lists, walked side by side: nanoseconds per access, and bandwidth
    ParallelLists {
        /// How many lists: 1 to 64
        #[arg(long, default_value_t = 8)]
        lists: u32,
        /// The size of all lists together
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// What is done to each node
        #[arg(long, value_parser = word::<Access>(), default_value_t)]
        operation: Access,
        /// Address bits that form a DRAM bank's number, such as 0x7800 (needs CAP_SYS_ADMIN)
        #[arg(
            long,
            value_name = "MASK",
            requires = "banks",
            conflicts_with = "bank_map"
        )]
        bank_mask: Option<String>,
        /// A file with a line per bit of the bank's number, lowest first: the address bits whose
        /// exclusive or it is, as "14 18" (needs CAP_SYS_ADMIN)
        #[arg(long, value_name = "FILE", requires = "banks")]
        bank_map: Option<PathBuf>,
        /// Use only lines in these banks, as 0,3
        #[arg(long, value_name = "BANKS", value_delimiter = ',')]
        banks: Vec<u32>,
        /// Their pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Lines of a cache-sized buffer read, written, prefetched, flushed: lines × 64 bytes per
    /// second
    CacheChurn {
        /// What is done, in turn, each to lines of its own
        #[arg(long, value_parser = word::<Touch>(), value_delimiter = ',', default_value = "read,write")]
        operations: Vec<Touch>,
        /// The buffer's size, as 24MiB, '1 LLC', '1 L2' or '1 L1'
        #[arg(long, default_value_t = CHURN_SIZE)]
        size: Size,
        /// The order in which lines are visited
        #[arg(long, value_parser = word::<Order>(), default_value_t)]
        order: Order,
        /// A target rate such as 500MB/s, counting a line per operation
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// Word by word stores, one every so many bytes: program bytes per second
    Stores {
        /// How they are stored
        #[arg(long, value_parser = word::<Store>(), default_value_t)]
        operation: Store,
        /// From one store to the next: 8B, 16B, 32B or a multiple of 64B
        #[arg(long, default_value = "64B")]
        stride: Bytes,
        /// The buffer's size
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Its pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A lattice-Boltzmann stream like SPEC's lbm, 19 arrays read and 19 written: program bytes per
    /// second
    Lattice {
        /// The size of both grids together
        #[arg(long, default_value_t = STREAM_SIZE)]
        size: Size,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Their pages, and common options
        #[command(flatten)]
        buffer: Buffer,
    },
    /// A real-time task that passes over a buffer at a fixed interval (cycles per pass, wake-up
    /// latency, misses)
    Periodic(Periodic),
}

/// A real-time task that passes over a buffer at a fixed interval (cycles per pass, wake-up
/// latency, misses)
#[derive(Debug, Args)]
pub struct Periodic {
    /// The buffer's size, as 24MiB, '0.5 LLC', '0.5 seen LLC', '1 L2' or '1 L1'
    #[arg(long, default_value_t = TASK_SIZE)]
    size: Size,
    /// The distance between two loads of a pass
    #[arg(long, default_value = "32B")]
    step: Bytes,
    /// Operations before each load, each of which needs the one before
    #[arg(long, default_value_t = 0)]
    compute: u32,
    /// From one release to the next
    #[arg(long, default_value = "10ms")]
    period: Nanos,
    /// Release jobs where the monotonic clock is a multiple of the period, and this later
    /// (default: from its start on)
    #[arg(long)]
    phase: Option<Nanos>,
    /// Passes over the buffer per job
    #[arg(long, default_value_t = 1)]
    passes: u32,
    /// The longest time from a release to the end of its job (default: the period)
    #[arg(long)]
    deadline: Option<Nanos>,
    /// Its SCHED_FIFO priority, 1 to 79 (default: an ordinary task)
    #[arg(long)]
    priority: Option<u32>,
    /// Say what a job moves and works on, as a program does through quell-client
    #[arg(long)]
    declares: bool,
    /// Its pages, and common options
    #[command(flatten)]
    buffer: Buffer,
}

impl Periodic {
    fn workload(&self, pages: Pages) -> Workload {
        Workload::Periodic {
            size: self.size,
            pages,
            step: self.step,
            compute: self.compute,
            period: self.period,
            phase: self.phase,
            passes: self.passes,
            deadline: self.deadline,
            priority: self.priority,
            declares: self.declares,
        }
    }
}

impl Buffered {
    /// As an experiment has it.
    pub fn workload(&self) -> Result<Workload> {
        let pages = self.buffer().pages();
        Ok(match self {
            Self::Latency {
                size,
                order,
                operation,
                ..
            } => Workload::Latency {
                size: *size,
                order: *order,
                pages,
                operation: *operation,
            },
            Self::Bandwidth {
                operation,
                size,
                rate,
                ..
            } => Workload::Bandwidth {
                operation: *operation,
                size: *size,
                pages,
                rate: *rate,
            },
            Self::ParallelLists {
                lists,
                size,
                operation,
                bank_mask,
                bank_map,
                banks: take,
                ..
            } => Workload::ParallelLists {
                lists: *lists,
                size: *size,
                pages,
                operation: *operation,
                banks: banks(bank_mask.as_deref(), bank_map.as_deref(), take)?,
            },
            Self::CacheChurn {
                operations,
                size,
                order,
                rate,
                ..
            } => Workload::CacheChurn {
                operations: operations.clone(),
                size: *size,
                order: *order,
                pages,
                rate: *rate,
            },
            Self::Stores {
                operation,
                stride,
                size,
                rate,
                ..
            } => Workload::Stores {
                operation: *operation,
                stride: *stride,
                size: *size,
                pages,
                rate: *rate,
            },
            Self::Lattice { size, rate, .. } => Workload::Lattice {
                size: *size,
                pages,
                rate: *rate,
            },
            Self::Periodic(task) => task.workload(pages),
        })
    }

    /// The options that all generators have.
    pub fn common(&self) -> &Common {
        &self.buffer().common
    }

    fn buffer(&self) -> &Buffer {
        match self {
            Self::Latency { buffer, .. }
            | Self::Bandwidth { buffer, .. }
            | Self::ParallelLists { buffer, .. }
            | Self::CacheChurn { buffer, .. }
            | Self::Stores { buffer, .. }
            | Self::Lattice { buffer, .. } => buffer,
            Self::Periodic(task) => &task.buffer,
        }
    }
}

/// The banks asked for by mask or by map.
fn banks(mask: Option<&str>, map: Option<&Path>, take: &[u32]) -> Result<Option<Banks>> {
    let functions = match (mask, map) {
        (Some(mask), _) => {
            let functions = BitFunctions::line(mask);
            functions.map_err(|e| usage(format!("--bank-mask: {e}")))?.0
        }
        (None, Some(file)) => {
            let name = file.display();
            let text = quell_files::text(file, quell_files::MOST_TEXT)
                .map_err(|e| usage(format!("{name}: {e}")))?;
            let map = BankMap::parse(&text).map_err(|e| usage(format!("{name}: {e}")))?;
            let one = map.single().ok_or_else(|| {
                usage(format!(
                    "{name}: has several regions, and a load takes the banks of one; give the functions of one region"
                ))
            })?;
            one.to_vec()
        }
        (None, None) if take.is_empty() => return Ok(None),
        (None, None) => {
            return Err(usage(
                "--banks: banks of what? give --bank-mask or --bank-map",
            ));
        }
    };
    let banks = Banks::new(functions, take.to_vec());
    banks.map(Some).map_err(|e| usage(format!("--banks: {e}")))
}
