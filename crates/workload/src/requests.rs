//! A request server with an open-loop client (`requests`): two threads of one process that talk
//! over a Unix socket. The client asks on a fixed schedule, whether or not earlier requests were
//! answered. A latency runs from the *intended* start of a request to its answer. So a stop of the
//! server or of the client delays every request that was due meanwhile (see [`crate::open_loop`]).
//!
//! For each request the server computes a checksum. With `commit` it also writes to a file and
//! waits until the disk has it.
//!
//! | metric | one value per | is |
//! |---|---|---|
//! | `latency_us` | request with its intended start in the span | from there to its answer |
//!
//! A request that is not answered a second after the span counts with the time that it has waited.

use std::collections::{BTreeMap, VecDeque};
use std::fs::File;
use std::hint::black_box;
use std::io::{self, ErrorKind, Read, Write};
use std::os::unix::fs::FileExt;
use std::os::unix::net::UnixStream;
use std::thread::JoinHandle;

use quell_policy::workload::{self, LATENCY_US};
use quell_record::measurement::Measurement;
use quell_types::units::Bytes;
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::fs::fdatasync;

use crate::generator::{Generator, MOST_WINDOWS, Span};
use crate::memory::Granted;
use crate::periodic::{Slack, room};
use crate::pressure::files::{Cached, make};
use crate::{Error, clock};

/// Bytes of a request, and of an answer.
const MESSAGE: usize = 8;
/// The most messages that are read or written at once.
const AT_ONCE: usize = 64;
/// How often the client asks whether it is to end, in nanoseconds.
const ASK_NS: u64 = 20_000_000;
/// How long answers are waited for after the span, in nanoseconds.
const PATIENCE_NS: u64 = 1_000_000_000;
/// The size of the file to which commits go, again and again.
const FILE: Bytes = Bytes(1 << 20);

/// What the server does for a request.
#[derive(Debug)]
struct Service {
    /// The bytes that the checksum is computed of.
    body: Vec<u8>,
    /// The file, and how many bytes of it each request writes. `None`: it writes nothing.
    commit: Option<(File, usize)>,
    at: usize,
}

impl Service {
    fn new(spec: &workload::Requests) -> Result<Self, Error> {
        let length = |bytes: Bytes| usize::try_from(bytes.0).unwrap_or(usize::MAX);
        let commit = spec.commit.map(|bytes| {
            let file = make(FILE, Cached::Kept)?;
            Ok::<_, Error>((file, length(bytes)))
        });
        let body = (0..length(spec.work)).map(|i| i.to_le_bytes()[0]);
        Ok(Self {
            body: body.collect(),
            commit: commit.transpose()?,
            at: 0,
        })
    }

    /// Serves one request: takes its number and returns its checksum (FNV-1a).
    fn serve(&mut self, request: u64) -> io::Result<u64> {
        let sum = black_box(&self.body)
            .iter()
            .fold(0xcbf2_9ce4_8422_2325 ^ request, |sum, byte| {
                (sum ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3)
            });
        if let Some((file, bytes)) = &self.commit {
            let text = vec![sum.to_le_bytes()[0]; *bytes];
            file.write_all_at(&text, self.at as u64)?;
            fdatasync(file)?;
            self.at += bytes;
            if self.at + bytes > usize::try_from(FILE.0).unwrap_or(usize::MAX) {
                self.at = 0;
            }
        }
        Ok(sum)
    }

    /// Serves until the client closes the socket.
    fn run(mut self, mut socket: UnixStream) -> io::Result<()> {
        let mut message = [0; MESSAGE];
        loop {
            match socket.read_exact(&mut message) {
                Ok(()) => {}
                Err(e) if e.kind() == ErrorKind::UnexpectedEof => return Ok(()),
                Err(e) => return Err(e),
            }
            let sum = self.serve(u64::from_le_bytes(message))?;
            match socket.write_all(&sum.to_le_bytes()) {
                Err(e) if e.kind() == ErrorKind::BrokenPipe => return Ok(()),
                written => written?,
            }
        }
    }
}

/// The client, and the server's thread.
#[derive(Debug)]
pub(crate) struct Server {
    /// The non-blocking socket to the server. `None` once the server has closed it.
    socket: Option<UnixStream>,
    thread: Option<JoinHandle<io::Result<()>>>,
    period: u64,
    work: u64,
    /// The intended starts of requests without an answer, oldest first.
    waiting: VecDeque<u64>,
    /// Bytes of the youngest of them that are not sent yet.
    unsent: usize,
    /// Bytes of an answer of which the rest is missing.
    part: usize,
    /// The next intended start.
    next: u64,
    _slack: Slack,
}

/// The latencies of the requests that were due since `begin`.
#[derive(Debug)]
struct Record {
    begin: u64,
    latency_us: Vec<f64>,
}

impl Record {
    fn add(&mut self, start: u64, now: u64) {
        if start >= self.begin {
            self.latency_us.push((now - start) as f64 / 1e3);
        }
    }
}

fn would_block(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::Interrupted)
}

impl Server {
    /// Starts the server's thread.
    ///
    /// # Errors
    /// When there is no thread, no socket, or no disk for the file.
    pub(crate) fn new(spec: &workload::Requests) -> Result<Self, Error> {
        let service = Service::new(spec)?;
        let (client, server) =
            UnixStream::pair().map_err(Error::kernel("connecting the client and the server"))?;
        client
            .set_nonblocking(true)
            .map_err(Error::kernel("connecting the client and the server"))?;
        let thread = std::thread::Builder::new()
            .name("server".to_owned())
            .spawn(move || service.run(server))
            .map_err(Error::kernel("starting the server's thread"))?;
        Ok(Self {
            socket: Some(client),
            thread: Some(thread),
            period: 1_000_000_000 / u64::from(spec.per_second.max(1)),
            work: spec.work.0,
            waiting: VecDeque::new(),
            unsent: 0,
            part: 0,
            next: 0,
            _slack: Slack::off()?,
        })
    }

    /// Why the server has ended.
    fn gone(&mut self) -> Error {
        self.socket = None;
        let ended = self.thread.take().map(JoinHandle::join);
        match ended {
            Some(Ok(Err(why))) => Error::kernel("serving requests")(why),
            _ => Error::refused(
                "serving requests",
                "the server's thread ended",
                "report this",
            ),
        }
    }

    /// Sends what is due, as far as the socket takes it.
    fn send(&mut self) -> Result<(), Error> {
        let zeros = [0; MESSAGE * AT_ONCE];
        while self.unsent > 0 {
            let Some(mut socket) = self.socket.as_ref() else {
                return Err(self.gone());
            };
            match socket.write(&zeros[..self.unsent.min(zeros.len())]) {
                Ok(sent) => self.unsent -= sent,
                Err(e) if would_block(&e) => break,
                Err(_) => return Err(self.gone()),
            }
        }
        Ok(())
    }

    /// Takes the answers that have arrived.
    fn receive(&mut self, mut record: Option<&mut Record>) -> Result<u64, Error> {
        let mut answers = [0; MESSAGE * AT_ONCE];
        let mut answered = 0;
        loop {
            let Some(mut socket) = self.socket.as_ref() else {
                return Err(self.gone());
            };
            match socket.read(&mut answers) {
                Ok(0) => return Err(self.gone()),
                Ok(bytes) => {
                    let now = clock::now();
                    let bytes = self.part + bytes;
                    self.part = bytes % MESSAGE;
                    for _ in 0..bytes / MESSAGE {
                        let Some(start) = self.waiting.pop_front() else {
                            continue;
                        };
                        answered += 1;
                        if let Some(record) = record.as_deref_mut() {
                            record.add(start, now);
                        }
                    }
                }
                Err(e) if would_block(&e) => return Ok(answered),
                Err(_) => return Err(self.gone()),
            }
        }
    }

    /// Asks on schedule until `until`, and waits for the answers. Returns how many came, or `None`
    /// when asked to end.
    fn run(
        &mut self,
        until: u64,
        mut record: Option<&mut Record>,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<u64>, Error> {
        let mut answered = 0;
        let mut ask = clock::now() + ASK_NS;
        if self.next < clock::now() {
            self.next = clock::now() + self.period;
        }
        loop {
            let now = clock::now();
            if now >= ask {
                if asked() {
                    return Ok(None);
                }
                ask = now + ASK_NS;
            }
            while self.next <= now && self.next < until {
                self.waiting.push_back(self.next);
                self.unsent += MESSAGE;
                self.next += self.period;
            }
            self.send()?;
            answered += self.receive(record.as_deref_mut())?;
            // A warm-up does not wait for its answers: the measured span begins with requests under
            // way.
            let waits = record.is_some() && !self.waiting.is_empty();
            if now >= until && !(waits && now < until.saturating_add(PATIENCE_NS)) {
                break;
            }
            let due = if self.next < until {
                self.next
            } else {
                u64::MAX
            };
            let due = due.min(ask).min(if now < until { until } else { ask });
            self.wait(due)?;
        }
        if let Some(record) = record {
            let now = clock::now();
            for start in &self.waiting {
                record.add(*start, now);
            }
        }
        Ok(Some(answered))
    }

    /// Waits for an answer, for room in the socket while there is something to send, or until
    /// `due`.
    fn wait(&self, due: u64) -> Result<(), Error> {
        let Some(socket) = self.socket.as_ref() else {
            return Ok(());
        };
        let left = due.saturating_sub(clock::now());
        if left == 0 {
            return Ok(());
        }
        let timeout = Timespec {
            tv_sec: i64::try_from(left / 1_000_000_000).unwrap_or(i64::MAX),
            tv_nsec: i64::try_from(left % 1_000_000_000).unwrap_or(0),
        };
        let mut events = PollFlags::IN;
        if self.unsent > 0 {
            events |= PollFlags::OUT;
        }
        match poll(&mut [PollFd::new(socket, events)], Some(&timeout)) {
            Ok(_) | Err(rustix::io::Errno::INTR) => Ok(()),
            Err(e) => Err(Error::kernel("waiting for an answer")(e)),
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // The server reads the end of its socket and ends.
        self.socket = None;
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl Generator for Server {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        let requests = span.duration.0 / self.period;
        if !(1..=MOST_WINDOWS).contains(&requests) {
            return Err(Error::refused(
                format!("measuring {}", span.duration),
                format!("that is {requests} requests, and a span has between 1 and {MOST_WINDOWS}"),
                "ask for another duration, or another number of requests per second",
            ));
        }
        let warm = clock::now() + span.warmup.0;
        if self.run(warm, None, asked)?.is_none() {
            return Ok(None);
        }
        let begin = clock::now();
        let mut record = Record {
            begin,
            latency_us: room(usize::try_from(requests + 2).unwrap_or(0)),
        };
        let until = begin + span.duration.0;
        let Some(answered) = self.run(until, Some(&mut record), asked)? else {
            return Ok(None);
        };
        Ok(Some(Measurement {
            metrics: BTreeMap::from([(LATENCY_US.to_owned(), record.latency_us)]),
            window_ns: self.period,
            bytes: answered * self.work,
            duration_ns: clock::now() - begin,
            begun: None,
            memory_bytes: None,
            ended_ns: Vec::new(),
            account: None,
        }))
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        self.run(u64::MAX, None, asked).map(|_| ())
    }

    fn granted(&self) -> Granted {
        Granted::Base
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use quell_types::units::Nanos;

    fn span_of(millis: u64) -> Span {
        Span {
            warmup: Nanos::millis(20),
            duration: Nanos::millis(millis),
            window: Nanos::millis(1),
        }
    }

    fn spec(work: Bytes, commit: Option<Bytes>) -> workload::Requests {
        workload::Requests {
            per_second: 200,
            work,
            commit,
        }
    }

    #[test]
    fn every_request_of_a_span_has_one_latency() {
        for commit in [None, Some(Bytes(512))] {
            let mut server = Server::new(&spec(Bytes(4096), commit)).unwrap();
            for _ in 0..2 {
                let measured = server.span(span_of(300), &mut || false).unwrap().unwrap();
                let latencies = &measured.metrics[LATENCY_US];
                // 60 at 200 per second. The requests at both ends may be in or out.
                assert!((59..=61).contains(&latencies.len()), "{latencies:?}");
                assert!(latencies.iter().all(|us| *us > 0.0), "{latencies:?}");
            }
        }
    }

    #[test]
    fn a_server_that_is_too_slow_delays_every_request_after_it() {
        // 16 MiB at about a byte per nanosecond take far more than the 5 ms between two requests.
        let mut server = Server::new(&spec(Bytes(16 << 20), None)).unwrap();
        let measured = server.span(span_of(300), &mut || false).unwrap().unwrap();
        let latencies = &measured.metrics[LATENCY_US];
        assert!((59..=61).contains(&latencies.len()), "{}", latencies.len());
        let last = latencies.last().unwrap();
        assert!(
            last > &(5.0 * latencies[0]) && *last > 100_000.0,
            "{latencies:?}"
        );
    }

    #[test]
    fn the_end_is_noticed() {
        let mut server = Server::new(&spec(Bytes(4096), None)).unwrap();
        let begin = clock::now();
        let ended = server.span(span_of(60_000), &mut || clock::now() > begin + 50_000_000);
        assert!(ended.unwrap().is_none());
        assert!(clock::now() < begin + 5_000_000_000);
    }

    #[test]
    fn an_answer_depends_on_the_request() {
        let mut service = Service::new(&spec(Bytes(4096), None)).unwrap();
        assert_ne!(service.serve(1).unwrap(), service.serve(2).unwrap());
        assert_eq!(service.serve(1).unwrap(), service.serve(1).unwrap());
    }
}
