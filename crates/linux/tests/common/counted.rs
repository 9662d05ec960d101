//! A time meter whose decisions can be kept in the thread.

use std::io;
use std::os::fd::BorrowedFd;

use quell_control::bandwidth::Account;
use quell_control::config::LineCounts;
use quell_kernel::perf::Overflow;
use quell_kernel::pmu::MOST_EVENTS;
use quell_linux::brake::Decides;
use quell_linux::meter::{Meter, TimeMeter};
use quell_types::units::{Lines, Nanos};

/// A time meter that can be kept from deciding in the interrupt. No budget is too large for it to
/// be counted.
pub struct Counted {
    pub meter: TimeMeter,
    pub decides: Decides,
}

impl Meter for Counted {
    fn arm(&mut self, lines: LineCounts) -> io::Result<()> {
        self.meter.arm(lines)
    }

    fn rest(&mut self) -> io::Result<()> {
        self.meter.rest()
    }

    fn woken(&mut self) -> io::Result<Option<Overflow>> {
        self.meter.woken()
    }

    fn read(&mut self) -> io::Result<(LineCounts, bool)> {
        self.meter.read()
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        self.meter.descriptors()
    }

    fn load(&mut self) -> io::Result<()> {
        match self.decides {
            Decides::Interrupt => self.meter.load(),
            Decides::Thread => Err(io::ErrorKind::Unsupported.into()),
        }
    }

    fn delegate(&mut self, account: &Account) -> io::Result<bool> {
        self.meter.delegate(account)
    }

    fn recall(&mut self) -> io::Result<Option<(Nanos, Lines)>> {
        self.meter.recall()
    }

    fn withhold(&self) {
        self.meter.withhold();
    }

    fn renewed(&self) -> u64 {
        self.meter.renewed()
    }
}
