//! A hoard: a keeper process that holds the free page frames of some colours, so that no other
//! program gets them. No other program is touched. [`super::keeper`] is the process itself, and
//! [`quell_control::hoard`] decides.
//!
//! Keeper and main process exchange lines of JSON: [`Command`] on the keeper's standard input,
//! [`Report`] on its output. The keeper ends with its standard input, whatever ends that. Its death
//! frees all frames.

use std::fs::File;
use std::io::{ErrorKind, Read, Write};
use std::os::fd::OwnedFd;

use quell_kernel::error::{Error, Result};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, Nanos, Share};
use serde::de::DeserializeOwned;
use serde::{Deserialize, Serialize};

use crate::resident::{KeeperCommand, KeeperProcess, last_words, wait_for_output};

pub use quell_control::hoard::{Round, Rules};

/// What the main process asks of a keeper.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum Command {
    /// Take and sort free frames again, in rounds.
    Sieve,
    /// Release frames of reserved colours, for a program that is to have them.
    Release {
        /// How many.
        pages: u64,
        /// The CPU on which they are released. The kernel hands them out there first. Absent: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuId>,
        /// Their colours. Absent: those of which most are held.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        colours: Option<CpuSet>,
    },
    /// Take back what was released for a program and not used: take and sort frames that the kernel
    /// hands out on one CPU. Reported as a round.
    Retake {
        /// How many. A frame that is taken passes through the caches, so no more than necessary.
        pages: u64,
        /// The CPU. Absent: any.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        cpu: Option<CpuId>,
    },
}

impl Command {
    /// Reads a line.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn parse(line: &str) -> Result<Self> {
        read(line, "a command for the keeper of a hoard")
    }
}

/// Reads the rules that a keeper is started with.
///
/// # Errors
/// [`Error::Malformed`].
pub fn parse_rules(text: &str) -> Result<Rules> {
    read(text, "rules of a hoard")
}

fn read<T: DeserializeOwned>(text: &str, wanted: &str) -> Result<T> {
    serde_json::from_str(text)
        .map_err(|e| Error::malformed("a pipe of the keeper", text, format!("{wanted} ({e})")))
}

/// What a keeper reports.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Report {
    /// What happened.
    pub what: What,
    /// Frames of reserved colours that it holds since.
    pub kept: Bytes,
}

/// What happened to a hoard.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub enum What {
    /// All that it needs is there. The first round begins.
    Begun,
    /// A round has ended.
    Round {
        /// What it came to, in pages.
        round: Round,
        /// How long it took.
        took: Nanos,
    },
    /// The rounds have ended.
    Sieved {
        /// How many there were.
        rounds: u32,
        /// How long they took.
        took: Nanos,
        /// CPU time of the keeper in them.
        cpu: Nanos,
    },
    /// Other programs need memory: frames were given up.
    GaveUp {
        /// How many.
        pages: u64,
        /// Memory that was available before.
        available: Bytes,
        /// Share of the last second in which tasks waited for memory.
        stalled: Share,
    },
    /// Frames were released as asked for. Fewer than asked for where the hoard has no more.
    Released {
        /// How many.
        pages: u64,
    },
    /// The kernel has moved frames that were kept to other colours. They were released.
    Moved {
        /// How many.
        pages: u64,
    },
}

impl Report {
    /// Reads a line.
    ///
    /// # Errors
    /// [`Error::Malformed`].
    pub fn parse(line: &str) -> Result<Self> {
        read(line, "a report of the keeper of a hoard")
    }

    /// Whether less of the reserved colours is held than before, unasked.
    #[must_use]
    pub const fn is_loss(&self) -> bool {
        matches!(self.what, What::GaveUp { .. } | What::Moved { .. })
    }

    /// The report as a sentence.
    #[must_use]
    pub fn words(&self) -> String {
        let kept = mib(self.kept);
        match &self.what {
            What::Begun => "the keeper of the hoard runs".to_owned(),
            What::Round { round, took } => format!(
                "a round took {} pages and kept {} of them in {:.2} s; {kept} of reserved colours are held",
                round.taken,
                round.gained,
                took.as_secs_f64()
            ),
            What::Sieved { rounds, took, cpu } => format!(
                "{kept} of reserved colours are held after {rounds} rounds ({:.2} s, {:.2} s of CPU time)",
                took.as_secs_f64(),
                cpu.as_secs_f64()
            ),
            What::GaveUp {
                pages, available, ..
            } => format!(
                "other programs need memory ({} available): the hoard gave {pages} pages up and holds {kept}; any program may get their frames",
                mib(*available)
            ),
            What::Released { pages } => {
                format!("{pages} pages were released as asked for; {kept} are held")
            }
            What::Moved { pages } => format!(
                "the kernel moved {pages} pages of the hoard to frames of other colours; {kept} are held"
            ),
        }
    }
}

fn mib(bytes: Bytes) -> String {
    format!("{:.1} MiB", bytes.0 as f64 / f64::from(1 << 20))
}

/// The main process's handle of a hoard. Dropping it ends the keeper and frees its frames.
#[derive(Debug)]
pub struct Hoard {
    process: KeeperProcess,
    output: File,
    buffer: Vec<u8>,
    kept: Bytes,
}

impl Hoard {
    /// Starts a keeper that first enters these cgroups (paths of their `cgroup.procs`). Returns as
    /// soon as it begins to take frames. `heartbeat` is called every 100 ms until then.
    ///
    /// # Errors
    /// [`Error::File`] when a cgroup cannot be opened or the program not started;
    /// [`Error::Refused`] with the keeper's reason where there can be no such hoard.
    pub fn start(
        command: &KeeperCommand,
        rules: &Rules,
        cgroups: &[String],
        heartbeat: &mut dyn FnMut(),
    ) -> Result<Self> {
        if let Some(why) = rules.refusal() {
            return Err(Error::refused(why));
        }
        let rules = serde_json::to_string(rules).map_err(|e| Error::refused(e.to_string()))?;
        let mut process = KeeperProcess(command.start(&[rules], cgroups)?);
        let output = process.0.stdout.take();
        let output = output.ok_or_else(|| Error::refused("the keeper has no output"))?;
        let mut hoard = Self {
            process,
            output: File::from(OwnedFd::from(output)),
            buffer: Vec::new(),
            kept: Bytes(0),
        };
        rustix::io::ioctl_fionbio(&hoard.output, true)
            .map_err(|e| Error::refused(format!("the keeper cannot be watched: {e}")))?;
        loop {
            wait_for_output(&hoard.output, heartbeat)?;
            if hoard.drain()? {
                return Err(last_words(&mut hoard.process.0, "holds page frames"));
            }
            if let Some(first) = hoard.next()? {
                hoard.kept = first.kept;
                return Ok(hoard);
            }
        }
    }

    /// What it has reported since the last call.
    ///
    /// # Errors
    /// [`Error::File`], [`Error::Malformed`].
    pub fn reports(&mut self) -> Result<Vec<Report>> {
        self.drain()?;
        let mut reports = Vec::new();
        while let Some(report) = self.next()? {
            self.kept = report.kept;
            reports.push(report);
        }
        Ok(reports)
    }

    /// Asks the keeper for something. It reports when it is done.
    ///
    /// # Errors
    /// [`Error::Refused`] when it has ended.
    pub fn ask(&mut self, command: &Command) -> Result<()> {
        let ended = |e: std::io::Error| {
            Error::refused(format!("the keeper of the hoard does not listen: {e}"))
        };
        let line = serde_json::to_string(command).map_err(|e| ended(e.into()))?;
        let gone = || Error::refused("the keeper of the hoard has no input");
        let input = self.process.0.stdin.as_mut().ok_or_else(gone)?;
        input
            .write_all(format!("{line}\n").as_bytes())
            .map_err(ended)
    }

    /// Frames of reserved colours that it holds, by its last report.
    #[must_use]
    pub const fn kept(&self) -> Bytes {
        self.kept
    }

    /// Its exit status as text, or the error of asking for it. `None` while it runs. After its end
    /// any program may get the frames.
    pub fn ended(&mut self) -> Option<String> {
        self.process.ended()
    }

    /// Process id of the keeper.
    #[must_use]
    pub fn pid(&self) -> u32 {
        self.process.pid()
    }

    /// Reads what is there. Whether the output has ended.
    fn drain(&mut self) -> Result<bool> {
        let mut chunk = [0u8; 4096];
        loop {
            match self.output.read(&mut chunk) {
                Ok(0) => return Ok(true),
                Ok(n) => self.buffer.extend_from_slice(&chunk[..n]),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(false),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::file("read", "output of the keeper", None, e)),
            }
        }
    }

    fn next(&mut self) -> Result<Option<Report>> {
        let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') else {
            return Ok(None);
        };
        let line: Vec<u8> = self.buffer.drain(..=end).collect();
        Report::parse(String::from_utf8_lossy(&line).trim()).map(Some)
    }
}
