//! The DRAM model against a replay of its own command log, against arithmetic, and against other
//! models.

#![expect(clippy::unwrap_used, reason = "helpers of tests are tests")]

mod known;
mod protocol;
mod replay;

use quell_model::Picos;
use quell_model::dram::{Channel, Command, Completion, Config, Request};

/// A run: requests in order, each with the earliest time at which it may be enqueued. A full queue
/// delays all that follow.
struct Run {
    log: Vec<Command>,
    completions: Vec<Completion>,
    /// When each request was taken, by id.
    taken: Vec<Picos>,
    channel: Channel,
}

fn run(config: &Config, requests: &[(Picos, Request)], log: bool) -> Run {
    let mut channel = Channel::new(config).unwrap();
    if log {
        channel.record();
    }
    let mut completions = Vec::new();
    let mut taken = Vec::new();
    let mut now = 0;
    for &(at, request) in requests {
        now = now.max(at);
        channel.advance(now, &mut completions);
        while channel.enqueue(request, now).is_err() {
            now = now.max(
                channel
                    .next_event()
                    .expect("a full queue has something to do"),
            );
            channel.advance(now, &mut completions);
        }
        taken.push(now);
    }
    channel.flush();
    while let Some(at) = channel.next_event() {
        now = now.max(at);
        channel.advance(now, &mut completions);
    }
    Run {
        log: channel.take_log(),
        completions,
        taken,
        channel,
    }
}
