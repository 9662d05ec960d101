//! The protocol between a runner and a generator in a child process, one line each way:
//!
//! | runner | generator |
//! |---|---|
//! | | `ready`: memory taken, touched, laid out |
//! | `go WARMUP_NS DURATION_NS` | runs; after the measured span `result {…}`; runs on |
//! | `go …` again, after a result | another span |
//! | `stop`, or the end of its input | ends |
//!
//! - `{…}` is a [`quell_record::measurement::Measurement`] as JSON.
//! - After `stop` a generator ends at the latest two milliseconds after it next gets to run. One
//!   that sleeps between its work (`periodic`, `frames-…`) ends within 100 ms.
//! - There is one thread: a second one would disturb what is measured. (`frames-call` has a second
//!   one, its peer at the other end of the network.)
//! - The input is polled once a millisecond, about 0.1 % of the time. Generators that sleep poll it
//!   less often.
//! - Between the measured span and `result` the load rests while the line is written.

use std::io::Write;
use std::os::fd::{AsFd, BorrowedFd};

use quell_types::cpuset::CpuSet;
use quell_types::units::Nanos;
use rustix::event::{PollFd, PollFlags, Timespec, poll};

use crate::Error;
use crate::account::Sampler;
use crate::factory::generator;
use crate::generator::Span;
use crate::resolved::ResolvedWorkload;
use crate::{affinity, pressure, procfs};

/// How a generator is served.
#[derive(Clone, Debug)]
pub struct ServeOptions {
    /// The CPUs to which it is pinned before it takes memory. `None`: where it was started.
    pub cpus: Option<CpuSet>,
    /// The length of each window in a span.
    pub window: Nanos,
    /// Whether to account for every unit: where its time went by the kernel's clocks.
    pub account: bool,
}

impl Default for ServeOptions {
    fn default() -> Self {
        Self {
            cpus: None,
            window: Nanos::millis(1),
            account: false,
        }
    }
}

/// A line of the runner, parsed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Command {
    Go { warmup: Nanos, duration: Nanos },
    Stop,
}

fn parse(line: &str) -> Result<Command, Error> {
    let words: Vec<&str> = line.split_whitespace().collect();
    let parsed = match words.as_slice() {
        ["stop"] => Some(Command::Stop),
        ["go", warmup, duration] => {
            warmup
                .parse()
                .ok()
                .zip(duration.parse().ok())
                .map(|(warmup, duration)| Command::Go {
                    warmup: Nanos(warmup),
                    duration: Nanos(duration),
                })
        }
        _ => None,
    };
    parsed.ok_or_else(|| {
        Error::refused(
            "reading the runner's command",
            format!("'{line}' is neither 'go WARMUP_NS DURATION_NS' nor 'stop'"),
            "run generators through quell, or write such a line",
        )
    })
}

/// Lines from a descriptor, without an allocation until one is taken.
struct Input<'a> {
    from: BorrowedFd<'a>,
    bytes: [u8; 256],
    filled: usize,
    ended: bool,
}

impl Input<'_> {
    /// Whether a line (or the end) has arrived, without waiting.
    fn arrived(&mut self) -> bool {
        // An error counts as an arrival: `next` meets it again and reports it.
        self.complete() || self.fill(Some(&Timespec::default())).is_err() || self.complete()
    }

    fn complete(&self) -> bool {
        self.ended || self.filled == self.bytes.len() || self.bytes[..self.filled].contains(&b'\n')
    }

    fn fill(&mut self, timeout: Option<&Timespec>) -> Result<(), Error> {
        let failed = || Error::kernel("reading the runner's commands from standard input");
        let mut fds = [PollFd::new(&self.from, PollFlags::IN)];
        match poll(&mut fds, timeout) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => return Err(failed()(e)),
        }
        match rustix::io::read(self.from, &mut self.bytes[self.filled..]) {
            Ok(0) => self.ended = true,
            Ok(n) => self.filled += n,
            Err(rustix::io::Errno::INTR | rustix::io::Errno::AGAIN) => {}
            Err(e) => return Err(failed()(e)),
        }
        Ok(())
    }

    /// Waits for the next command. The end of the input is `stop`.
    fn next(&mut self) -> Result<Command, Error> {
        while !self.complete() {
            self.fill(None)?;
        }
        let Some(end) = self.bytes[..self.filled].iter().position(|b| *b == b'\n') else {
            return if self.ended {
                Ok(Command::Stop)
            } else {
                parse(&String::from_utf8_lossy(&self.bytes))
            };
        };
        let command = parse(&String::from_utf8_lossy(&self.bytes[..end]));
        self.bytes.copy_within(end + 1..self.filled, 0);
        self.filled -= end + 1;
        command
    }
}

/// Serves `workload` to the runner behind `stdin` and `stdout`, until it sends `stop` or closes its
/// end.
///
/// # Errors
/// When the CPUs or the memory cannot be had, a line is no command, or the runner does not read.
pub fn serve(
    workload: &ResolvedWorkload,
    options: &ServeOptions,
    stdin: impl AsFd,
    mut stdout: impl Write,
) -> Result<(), Error> {
    // Tools that choose processes by their names can tell it from Quell, and from other generators.
    let name = std::ffi::CString::new(workload.kind()).unwrap_or_default();
    let _ = rustix::thread::set_name(&name);
    let _pinned = options.cpus.as_ref().map(affinity::pin).transpose()?;
    let mut generator = generator(workload)?;
    // An experiment measures what it asked for, or nothing.
    generator.granted().whole()?;
    if options.account
        && let Some(sampler) = Sampler::open(procfs::live())?
    {
        generator.account(sampler);
    }
    let mut say = |line: &str| {
        stdout
            .write_all(line.as_bytes())
            .and_then(|()| stdout.flush())
            .map_err(Error::kernel("writing to the runner"))
    };
    let mut input = Input {
        from: stdin.as_fd(),
        bytes: [0; 256],
        filled: 0,
        ended: false,
    };
    say("ready\n")?;
    let mut command = input.next()?;
    while let Command::Go { warmup, duration } = command {
        pressure::check(workload, duration)?;
        let span = Span {
            warmup,
            duration,
            window: options.window,
        };
        let measured = generator.span(span, &mut || input.arrived())?;
        match measured {
            Some(mut measured) => {
                // Four decimals hold all that was measured, in a line half as long.
                for value in measured.metrics.values_mut().flatten() {
                    *value = (*value * 1e4).round() / 1e4;
                }
                let json = serde_json::to_string(&measured).map_err(|e| {
                    Error::kernel("writing a result as JSON")(std::io::Error::other(e))
                })?;
                say(&format!("result {json}\n"))?;
                generator.hold(&mut || input.arrived())?;
                command = input.next()?;
            }
            None => match input.next()? {
                Command::Stop => return Ok(()),
                Command::Go { .. } => {
                    return Err(Error::refused(
                        "starting a span",
                        "the one before is not over",
                        "send 'go' only after a result",
                    ));
                }
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn commands_are_read_as_documented() {
        assert_eq!(
            parse("go 200000000 1000000000").unwrap(),
            Command::Go {
                warmup: Nanos::millis(200),
                duration: Nanos::secs(1)
            }
        );
        assert_eq!(parse(" stop ").unwrap(), Command::Stop);
        for wrong in ["", "go", "go 1", "go 1 2 3", "go -1 5", "run"] {
            assert!(
                parse(wrong).unwrap_err().to_string().contains("WARMUP_NS"),
                "{wrong}"
            );
        }
    }
}
