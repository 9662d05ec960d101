//! What becomes of requests: latencies from the intended start, and requests without an answer.

use quell_types::stats::{percentile, sorted};

use super::Latency;

/// Requests with their intended start in the measured span.
#[derive(Debug)]
pub(super) struct Account {
    begin: u64,
    end: u64,
    answered: u64,
    unanswered: u64,
    last_answer: u64,
    latencies: Vec<u64>,
}

impl Account {
    /// Room for the latencies of so many requests. It is written and emptied again: pages come at
    /// the first write, and that must not happen in the measured span.
    pub(super) fn memory(requests: u64) -> Vec<u64> {
        let mut latencies = vec![u64::MAX; usize::try_from(requests).unwrap_or(0)];
        latencies.clear();
        latencies
    }

    /// For the span `[begin, end)`.
    pub(super) fn new(begin: u64, end: u64, latencies: Vec<u64>) -> Self {
        Self {
            begin,
            end,
            answered: 0,
            unanswered: 0,
            last_answer: 0,
            latencies,
        }
    }

    fn counts(&self, intended: u64) -> bool {
        (self.begin..self.end).contains(&intended)
    }

    /// The request with this intended start has its answer.
    pub(super) fn answered(&mut self, intended: u64, now: u64) {
        if self.counts(intended) {
            self.answered += 1;
            self.last_answer = self.last_answer.max(now);
            self.latencies.push(now.saturating_sub(intended));
        }
    }

    /// The request has no answer by `now`, and is not waited for any longer.
    pub(super) fn given_up(&mut self, intended: u64, now: u64) {
        if self.counts(intended) {
            self.unanswered += 1;
            self.latencies.push(now.saturating_sub(intended));
        }
    }

    /// How many requests count, and how many of them have no answer.
    pub(super) fn requests(&self) -> (u64, u64) {
        (self.answered + self.unanswered, self.unanswered)
    }

    /// Answers per second, until the last answer or the end of the span.
    pub(super) fn achieved(&self) -> f64 {
        let took = self.last_answer.max(self.end) - self.begin;
        self.answered as f64 * 1e9 / took.max(1) as f64
    }

    /// `None` where there were no requests.
    pub(super) fn latency(&self) -> Option<Latency> {
        let all: Vec<f64> = self.latencies.iter().map(|n| *n as f64).collect();
        let all = sorted(&all);
        Some(Latency {
            p50_ns: percentile(&all, 50.0)?,
            p99_ns: percentile(&all, 99.0)?,
            p999_ns: percentile(&all, 99.9)?,
            max_ns: all.last().copied()?,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MS: u64 = 1_000_000;

    #[test]
    fn a_request_that_waited_counts_from_its_intended_start() {
        // Requests every ms for a second. The server stops from 500 to 600 ms, and answers at once
        // otherwise.
        let mut account = Account::new(0, 1_000 * MS, Vec::new());
        for start in (0..1_000).map(|i| i * MS) {
            let stopped = (500 * MS..600 * MS).contains(&start);
            account.answered(start, if stopped { 600 * MS } else { start });
        }
        let latency = account.latency().unwrap();
        // 100 of 1000 waited, from 100 ms down to 1. The ten longest of them are the last per cent.
        assert_eq!(latency.p50_ns, 0.0);
        assert!((90.0e6..=92.0e6).contains(&latency.p99_ns), "{latency:?}");
        assert_eq!(latency.max_ns, 100.0e6);
        assert_eq!(account.achieved(), 1_000.0);
    }

    #[test]
    fn requests_outside_the_span_do_not_count() {
        let mut account = Account::new(10, 20, Vec::new());
        account.answered(9, 1_000);
        account.given_up(20, 1_000);
        assert_eq!(account.requests(), (0, 0));
        assert!(account.latency().is_none());
        account.answered(10, 15);
        account.given_up(19, 119);
        assert_eq!(account.requests(), (2, 1));
        assert_eq!(account.latency().unwrap().max_ns, 100.0);
    }

    #[test]
    fn answers_after_the_span_lower_the_rate() {
        let mut account = Account::new(0, 1_000 * MS, Vec::new());
        account.answered(0, 10);
        account.answered(999 * MS, 2_000 * MS);
        assert_eq!(account.achieved(), 1.0);
    }
}
