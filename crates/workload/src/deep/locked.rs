//! Locked pages whose frames are known: what address maps are recovered on.

use std::io;

use quell_kernel::node_memory;
use quell_policy::workload::Pages;
use quell_types::address::Ranges;
use quell_types::address::gf2::Space;
use quell_types::units::Bytes;

use crate::memory::Buffer;
use crate::{Error, pagemap, procfs};

/// One of so many pages may move while its lines are timed.
const MOVED: usize = 100;

/// Pages of the kernel's size, locked in memory.
pub(super) struct Locked {
    buffer: Buffer,
    frames: Vec<u64>,
    what: &'static str,
}

impl Locked {
    /// So many bytes. `what` they are for, in errors.
    ///
    /// # Errors
    /// When physical addresses are hidden, or memory cannot be had or locked.
    pub fn new(size: u64, what: &'static str) -> Result<Self, Error> {
        let mut locked = Self {
            buffer: Buffer::new(Bytes(size), Pages::Base)?,
            frames: Vec::new(),
            what,
        };
        locked.frames = locked.now()?;
        let (start, bytes) = (locked.start(), locked.buffer.len());
        // SAFETY: the range is our own buffer.
        if unsafe { libc::mlock(start.cast(), bytes) } != 0 {
            return Err(Error::refused(
                what,
                format!(
                    "{} cannot be locked in memory: {}",
                    Bytes(size),
                    io::Error::last_os_error()
                ),
                "run as root, or raise the limit (ulimit -l)",
            ));
        }
        Ok(locked)
    }

    fn now(&self) -> Result<Vec<u64>, Error> {
        let (page, start) = (rustix::param::page_size(), self.start().addr());
        let pages = self.buffer.len() / page;
        pagemap::addresses(&procfs::live(), start, pages, page, self.what)
    }

    /// The first byte.
    pub fn start(&self) -> *mut u8 {
        self.buffer.start()
    }

    /// The physical addresses of its pieces of 2^`shift` bytes, which are no larger than pages.
    pub fn pieces(&self, shift: u32) -> Vec<u64> {
        let page = rustix::param::page_size() as u64;
        let of = |frame: &u64| (*frame..frame + page).step_by(1 << shift);
        self.frames.iter().flat_map(of).collect()
    }

    /// Refuses what was timed where the kernel moved too many pages since.
    ///
    /// # Errors
    /// When it did, or the frames cannot be read.
    pub fn stayed(&self) -> Result<(), Error> {
        let now = self.now()?;
        let moved = self.frames.iter().zip(&now).filter(|(a, b)| a != b).count();
        if moved > now.len() / MOVED {
            return Err(Error::refused(
                self.what,
                format!("the kernel moved {moved} of {} pages meanwhile", now.len()),
                "try again while the machine does nothing else",
            ));
        }
        Ok(())
    }
}

/// The differences of all addresses of this machine's memory.
pub(super) fn differences() -> Result<Space, Error> {
    let page = rustix::param::page_size() as u64;
    let nodes = node_memory::ranges(&procfs::live(), page)?;
    let all = nodes.values().flat_map(Ranges::iter).cloned();
    Ok(Ranges::new(all).differences())
}
