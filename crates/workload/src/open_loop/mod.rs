//! An open-loop client of a server that speaks the redis protocol (`quell bench open-loop`). It
//! sends GETs at a fixed rate on a fixed schedule, spread over several connections.
//!
//! The latency of a request runs from its *intended* start, whether or not it could be sent then. A
//! closed-loop client waits for an answer before it asks again. So a server that stops for 100 ms
//! delays one request per connection, and the rest are never made (coordinated omission). Here
//! every request that was due meanwhile counts with the time that it waited. The client's own
//! delays count as well: a stopped client is a delay for its user.
//!
//! The schedule has equal intervals, not random ones (Poisson). So a queue that builds up is due to
//! the server or to the machine, never to chance in the client. Two runs at one rate ask the same.

mod account;
mod client;
mod redis;
mod schedule;
#[cfg(test)]
mod tests;

use std::fmt;

use quell_types::cpuset::CpuId;
use quell_types::units::Nanos;
use serde::{Deserialize, Serialize};

pub use client::open_loop;

use crate::Error;
use crate::bench::duration_text;

/// The most requests of a run: each keeps 8 bytes.
pub const MOST_REQUESTS: u64 = 100_000_000;
/// The most connections of one client.
pub const MOST_CONNECTIONS: u32 = 1_000;

/// What to ask, how often, and for how long.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OpenLoopOptions {
    /// The server, as `host:port`.
    pub server: String,
    /// Requests per second, over all connections together.
    pub rate: u32,
    /// How many connections. Request `i` goes to connection `i` modulo this number.
    pub connections: u32,
    /// The CPU to which the client is pinned. `None`: wherever the scheduler puts it.
    pub cpu: Option<CpuId>,
    /// Requests before the measured span, at the same rate.
    pub warmup: Nanos,
    /// The measured span. Requests with their intended start in it count.
    pub duration: Nanos,
    /// How long answers are waited for after the last intended start.
    pub patience: Nanos,
}

impl OpenLoopOptions {
    /// `rate` requests per second for 3 s over 20 connections, after 200 ms of warm-up.
    #[must_use]
    pub fn new(server: impl Into<String>, rate: u32) -> Self {
        Self {
            server: server.into(),
            rate,
            connections: 20,
            cpu: None,
            warmup: Nanos::millis(200),
            duration: Nanos::secs(3),
            patience: Nanos::secs(1),
        }
    }

    fn check(&self) -> Result<(), Error> {
        let wrong = |what: String, remedy| {
            Err(Error::refused(
                what,
                "it is outside what this client does",
                remedy,
            ))
        };
        let most = format!("give 1 to {MOST_CONNECTIONS}");
        if !(1..=MOST_CONNECTIONS).contains(&self.connections) {
            return wrong(format!("{} connections", self.connections), &*most);
        }
        let span = self.warmup.plus(self.duration);
        let requests = schedule::requests(self.rate, span.0);
        if requests > MOST_REQUESTS {
            let remedy = "a lower rate or a shorter duration";
            return wrong(format!("{requests} requests"), remedy);
        }
        if schedule::requests(self.rate, self.duration.0) == 0 {
            return wrong(
                "no requests".to_owned(),
                "a higher rate or a longer duration",
            );
        }
        Ok(())
    }
}

/// The outcome of one run of the client.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct OpenLoopReport {
    /// Always [`crate::bench::SCHEMA`]; the first field of the JSON.
    pub schema: String,
    /// Always `open-loop`, as the command is called.
    pub name: String,
    /// The server, as it was given.
    pub server: String,
    /// The CPU to which the client was pinned. `None`: it was not pinned.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub cpu: Option<CpuId>,
    /// How many connections were used.
    pub connections: u32,
    /// The measured span, in nanoseconds.
    pub duration_ns: u64,
    /// Requests per second that were wanted.
    pub offered_per_s: f64,
    /// Answered requests per second. The time runs from the first intended start to the last answer
    /// or the end of the span, whichever is later.
    pub achieved_per_s: f64,
    /// Requests with their intended start in the span.
    pub requests: u64,
    /// Those of them without an answer when the client's patience ended. They count in the
    /// latencies with the time that they had waited, so the real latencies are at least as high.
    pub unanswered: u64,
    /// From the intended start to the answer.
    #[serde(flatten)]
    pub latency: Latency,
}

/// Percentiles of latencies, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Latency {
    /// The 50th percentile of all requests.
    pub p50_ns: f64,
    /// The 99th percentile of all requests.
    pub p99_ns: f64,
    /// The 99.9th percentile of all requests.
    pub p999_ns: f64,
    /// The longest latency of all requests.
    pub max_ns: f64,
}

impl fmt::Display for OpenLoopReport {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "open-loop: {} for {} over {} connections",
            self.server,
            duration_text(self.duration_ns as f64),
            self.connections
        )?;
        if let Some(cpu) = self.cpu {
            write!(f, ", client on CPU {cpu}")?;
        }
        writeln!(f)?;
        writeln!(
            f,
            "  offered {:.0} requests/s, achieved {:.0}; {} of {} not answered",
            self.offered_per_s, self.achieved_per_s, self.unanswered, self.requests
        )?;
        let Latency {
            p50_ns,
            p99_ns,
            p999_ns,
            max_ns,
        } = self.latency;
        let [p50, p99, p999, max] = [p50_ns, p99_ns, p999_ns, max_ns].map(duration_text);
        writeln!(
            f,
            "  from the intended start: p50 {p50}, p99 {p99}, p99.9 {p999}, longest {max}"
        )
    }
}
