//! The client itself: non-blocking sockets, one epoll, and a timer for the next request.

use std::collections::VecDeque;
use std::io::{ErrorKind, Read, Write};
use std::net::{SocketAddr, TcpStream, ToSocketAddrs};
use std::os::fd::OwnedFd;
use std::time::Duration;

use rustix::buffer::spare_capacity;
use rustix::event::epoll::{self, CreateFlags, Event, EventData, EventFlags};
use rustix::io::Errno;
use rustix::time::{
    Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, Timespec, timerfd_create,
    timerfd_settime,
};

use super::account::Account;
use super::redis::{Answers, VALUE, command, line};
use super::schedule::{Schedule, requests};
use super::{OpenLoopOptions, OpenLoopReport};
use crate::bench::SCHEMA;
use crate::{Error, affinity, clock};

/// How long connecting and the first command may take.
const SETUP: Duration = Duration::from_secs(5);
/// Time between being ready and the first request.
const AHEAD_NS: u64 = 1_000_000;
/// How long the key outlives a client that was killed.
const KEY_KEPT_S: u64 = 60;
/// The most requests that are written at once.
const BATCH: usize = 64;
/// The most bytes that are read at once.
const READ: usize = 16 << 10;

/// One connection: what is still to be sent, and the intended starts of unanswered requests.
struct Connection {
    stream: TcpStream,
    /// Bytes not sent yet, and where in the request the next of them is.
    to_send: usize,
    at: usize,
    waiting: VecDeque<u64>,
    answers: Answers,
}

/// The same request many times, as one piece of memory to write from.
struct Requests {
    bytes: Vec<u8>,
    one: usize,
}

impl Requests {
    fn new(one: &[u8]) -> Self {
        Self {
            bytes: one.repeat(BATCH),
            one: one.len(),
        }
    }
}

impl Connection {
    fn ask(&mut self, intended: u64, requests: &Requests) {
        self.waiting.push_back(intended);
        self.to_send += requests.one;
    }

    /// Sends as much as the socket takes.
    fn send(&mut self, requests: &Requests) -> Result<(), Error> {
        while self.to_send > 0 {
            let end = requests.bytes.len().min(self.at + self.to_send);
            match self.stream.write(&requests.bytes[self.at..end]) {
                Ok(n) => {
                    self.to_send -= n;
                    self.at = (self.at + n) % requests.one;
                }
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::kernel("sending a request")(e)),
            }
        }
        Ok(())
    }

    /// Takes the answers that have arrived.
    fn receive(&mut self, buffer: &mut [u8], account: &mut Account) -> Result<(), Error> {
        loop {
            let n = match self.stream.read(buffer) {
                Ok(0) => return Err(closed()),
                Ok(n) => n,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => continue,
                Err(e) => return Err(Error::kernel("receiving an answer")(e)),
            };
            let now = clock::now();
            let answered = self.answers.accept(&buffer[..n]).map_err(unexpected)?;
            for _ in 0..answered {
                let Some(intended) = self.waiting.pop_front() else {
                    return Err(unexpected("an answer too many".to_owned()));
                };
                account.answered(intended, now);
            }
            // Less than there was room for: the socket is empty (epoll(7)).
            if n < buffer.len() {
                return Ok(());
            }
        }
    }
}

fn closed() -> Error {
    Error::refused(
        "the server's connection",
        "it was closed by the server",
        "look into the server's log",
    )
}

fn unexpected(answer: String) -> Error {
    Error::refused(
        "an answer of the server",
        format!("not what a redis server answers: {answer}"),
        "name a server that speaks the redis protocol and needs no password",
    )
}

/// Runs the client and measures its requests.
///
/// # Errors
/// When the server cannot be reached, does not speak the protocol, or closes a connection. Also
/// when the CPU cannot be had.
pub fn open_loop(options: &OpenLoopOptions) -> Result<OpenLoopReport, Error> {
    options.check()?;
    let _pinned = options.cpu.map(affinity::pin_to).transpose()?;
    let server = resolved(&options.server)?;
    let key = format!("quell:open-loop:{}", std::process::id());
    let span = options.warmup.plus(options.duration).0;
    let kept = (span + options.patience.0) / 1_000_000_000 + KEY_KEPT_S;
    let set = command(&["SET", &key, VALUE, "EX", &kept.to_string()]);
    match once(&server, &set)? {
        ok if ok == "+OK" => {}
        other => return Err(unexpected(other)),
    }
    let done = asked(options, &server, &command(&["GET", &key]));
    // If that fails the key expires.
    let _ = once(&server, &command(&["DEL", &key]));
    done
}

fn resolved(server: &str) -> Result<SocketAddr, Error> {
    let mut all = server
        .to_socket_addrs()
        .map_err(Error::kernel(format!("looking up {server}")))?;
    all.next().ok_or_else(|| {
        Error::refused(
            server.to_owned(),
            "no address is known of it",
            "give host:port",
        )
    })
}

fn connect(server: &SocketAddr) -> Result<TcpStream, Error> {
    let what = || format!("connecting to {server}");
    let stream = TcpStream::connect_timeout(server, SETUP).map_err(Error::kernel(what()))?;
    stream.set_nodelay(true).map_err(Error::kernel(what()))?;
    Ok(stream)
}

/// Sends one command on a connection of its own. Returns the first line of the answer.
fn once(server: &SocketAddr, command: &[u8]) -> Result<String, Error> {
    let what = || format!("speaking with {server}");
    let mut stream = connect(server)?;
    let mut talk = || {
        stream.set_read_timeout(Some(SETUP))?;
        stream.set_write_timeout(Some(SETUP))?;
        stream.write_all(command)?;
        let mut answer = Vec::new();
        let mut piece = [0; 256];
        while !answer.contains(&b'\n') {
            match stream.read(&mut piece)? {
                0 => break,
                n => answer.extend_from_slice(&piece[..n]),
            }
        }
        Ok(line(&answer))
    };
    talk().map_err(|e: std::io::Error| Error::kernel(what())(e))
}

struct Clock {
    epoll: OwnedFd,
    timer: OwnedFd,
    armed: u64,
}

impl Clock {
    fn new() -> Result<Self, Error> {
        let failed = |e| Error::kernel("creating an epoll and a timer")(e);
        let epoll = epoll::create(CreateFlags::CLOEXEC).map_err(failed)?;
        let flags = TimerfdFlags::CLOEXEC | TimerfdFlags::NONBLOCK;
        let timer = timerfd_create(TimerfdClockId::Monotonic, flags).map_err(failed)?;
        // Edge-triggered, so that it need not be read.
        let edge = EventFlags::IN | EventFlags::ET;
        epoll::add(&epoll, &timer, EventData::new_u64(u64::MAX), edge).map_err(failed)?;
        Ok(Self {
            epoll,
            timer,
            armed: 0,
        })
    }

    fn watch(&self, stream: &TcpStream, number: usize) -> Result<(), Error> {
        let edges = EventFlags::IN | EventFlags::OUT | EventFlags::ET;
        let number = EventData::new_u64(number as u64);
        epoll::add(&self.epoll, stream, number, edges).map_err(Error::kernel("watching a socket"))
    }

    /// Waits for events, at most until `due`.
    fn wait(&mut self, due: u64, now: u64, events: &mut Vec<Event>) -> Result<(), Error> {
        events.clear();
        let at_once = due <= now;
        if !at_once && self.armed != due {
            let value = Timespec {
                tv_sec: i64::try_from(due / 1_000_000_000).unwrap_or(i64::MAX),
                tv_nsec: i64::try_from(due % 1_000_000_000).unwrap_or(0),
            };
            let once = Itimerspec {
                it_interval: Timespec {
                    tv_sec: 0,
                    tv_nsec: 0,
                },
                it_value: value,
            };
            timerfd_settime(&self.timer, TimerfdTimerFlags::ABSTIME, &once)
                .map_err(Error::kernel("setting a timer"))?;
            self.armed = due;
        }
        let none = Timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        match epoll::wait(
            &self.epoll,
            spare_capacity(events),
            at_once.then_some(&none),
        ) {
            Ok(_) | Err(Errno::INTR) => Ok(()),
            Err(e) => Err(Error::kernel("waiting for answers")(e)),
        }
    }
}

fn asked(
    options: &OpenLoopOptions,
    server: &SocketAddr,
    get: &[u8],
) -> Result<OpenLoopReport, Error> {
    let get = Requests::new(get);
    let mut clock = Clock::new()?;
    let mut connections = Vec::new();
    for number in 0..options.connections as usize {
        let stream = connect(server)?;
        let nonblocking = stream.set_nonblocking(true);
        nonblocking.map_err(Error::kernel("making a socket not block"))?;
        clock.watch(&stream, number)?;
        connections.push(Connection {
            stream,
            to_send: 0,
            at: 0,
            waiting: VecDeque::with_capacity(1 << 10),
            answers: Answers::default(),
        });
    }
    let span = options.warmup.plus(options.duration).0;
    let room = requests(options.rate, span);
    let mut buffer = vec![1; READ];
    let mut events: Vec<Event> = Vec::with_capacity(connections.len() + 1);
    let memory = Account::memory(room);
    let begin = clock::now() + AHEAD_NS;
    let (from, end) = (begin + options.warmup.0, begin + span);
    let mut account = Account::new(from, end, memory);
    let mut schedule = Schedule::new(begin, options.rate, span);
    let give_up = end.saturating_add(options.patience.0);
    loop {
        let now = clock::now();
        while let Some((number, intended)) = schedule.take(now) {
            let number = (number % u64::from(options.connections)) as usize;
            connections[number].ask(intended, &get);
        }
        for connection in connections.iter_mut().filter(|c| c.to_send > 0) {
            connection.send(&get)?;
        }
        if now >= give_up {
            break;
        }
        let due = match schedule.due() {
            Some(due) => due,
            None if connections.iter().all(|c| c.waiting.is_empty()) => break,
            None => give_up,
        };
        clock.wait(due, clock::now(), &mut events)?;
        for event in &events {
            let number = usize::try_from(event.data.u64()).ok();
            if let Some(connection) = number.and_then(|n| connections.get_mut(n)) {
                connection.receive(&mut buffer, &mut account)?;
            }
        }
    }
    let now = clock::now();
    for intended in connections.iter().flat_map(|c| &c.waiting) {
        account.given_up(*intended, now);
    }
    report(options, &account)
}

fn report(options: &OpenLoopOptions, account: &Account) -> Result<OpenLoopReport, Error> {
    let (requests, unanswered) = account.requests();
    let latency = account.latency().ok_or_else(|| {
        Error::refused(
            "latencies",
            "no request was due",
            "a higher rate or a longer duration",
        )
    })?;
    Ok(OpenLoopReport {
        schema: SCHEMA.to_owned(),
        name: "open-loop".to_owned(),
        server: options.server.clone(),
        cpu: options.cpu,
        connections: options.connections,
        duration_ns: options.duration.0,
        offered_per_s: f64::from(options.rate),
        achieved_per_s: account.achieved(),
        requests,
        unanswered,
        latency,
    })
}
