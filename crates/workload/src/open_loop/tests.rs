//! The client against a server of a few lines that can stop, stay silent or refuse.

use std::io::{ErrorKind, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use quell_types::units::Nanos;

use super::{OpenLoopOptions, OpenLoopReport, open_loop};
use crate::Error;
use crate::noise::{expect, in_one_of_ten};

const STALL: Duration = Duration::from_millis(100);

/// What the server does with GETs.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Manner {
    Answers,
    /// Stops once for [`STALL`], after so many GETs.
    Stalls(usize),
    Silent,
    Refuses,
    Closes,
}

struct Server {
    address: String,
    over: Arc<AtomicBool>,
    asked: Arc<AtomicUsize>,
    thread: Option<JoinHandle<()>>,
}

impl Server {
    fn start(manner: Manner) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let (over, asked) = (Arc::new(AtomicBool::new(false)), Arc::default());
        let (until, count) = (Arc::clone(&over), Arc::clone(&asked));
        let thread = std::thread::spawn(move || serve(&listener, manner, &until, &count));
        Self {
            address,
            over,
            asked,
            thread: Some(thread),
        }
    }

    fn ask(&self, options: &dyn Fn(&mut OpenLoopOptions)) -> Result<OpenLoopReport, Error> {
        let mut wanted = OpenLoopOptions {
            connections: 4,
            warmup: Nanos(0),
            duration: Nanos::secs(1),
            ..OpenLoopOptions::new(&self.address, 2_000)
        };
        options(&mut wanted);
        open_loop(&wanted)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.over.store(true, Ordering::Relaxed);
        let _ = self.thread.take().unwrap().join();
    }
}

fn serve(listener: &TcpListener, manner: Manner, over: &AtomicBool, asked: &AtomicUsize) {
    let mut streams = Vec::new();
    let mut buffer = [0; 4096];
    while !over.load(Ordering::Relaxed) {
        while let Ok((stream, _)) = listener.accept() {
            stream.set_nonblocking(true).unwrap();
            // Bytes of an unfinished command precede what comes next.
            streams.push((stream, String::new()));
        }
        streams.retain_mut(|(stream, text)| {
            match stream.read(&mut buffer) {
                Ok(0) => return false,
                Ok(n) => text.push_str(std::str::from_utf8(&buffer[..n]).unwrap()),
                Err(e) => return e.kind() == ErrorKind::WouldBlock,
            }
            let mut answer = String::new();
            while let Some((words, rest)) = one_command(text) {
                match (words[0].as_str(), manner) {
                    ("SET", Manner::Refuses) => {
                        answer.push_str("-NOAUTH Authentication required.\r\n")
                    }
                    ("SET", _) => answer.push_str("+OK\r\n"),
                    ("DEL", _) => answer.push_str(":1\r\n"),
                    ("GET", Manner::Silent) => {}
                    ("GET", Manner::Closes) => return false,
                    ("GET", _) => {
                        let before = asked.fetch_add(1, Ordering::Relaxed);
                        if manner == Manner::Stalls(before) {
                            std::thread::sleep(STALL);
                        }
                        answer.push_str("$3\r\nxxx\r\n");
                    }
                    (other, _) => panic!("not a command of the client: {other}"),
                }
                *text = rest;
            }
            stream.write_all(answer.as_bytes()).is_ok()
        });
        std::thread::sleep(Duration::from_micros(100));
    }
}

/// The words of the first whole command, and what follows it.
fn one_command(text: &str) -> Option<(Vec<String>, String)> {
    let mut lines = text.split_inclusive("\r\n");
    let count: usize = lines.next()?.strip_prefix('*')?.trim().parse().ok()?;
    let mut words = Vec::new();
    for _ in 0..count {
        lines.next()?;
        words.push(lines.next()?.strip_suffix("\r\n")?.to_owned());
    }
    Some((words, lines.collect()))
}

#[test]
fn every_request_is_made_and_answered_at_the_rate_offered() {
    let server = Server::start(Manner::Answers);
    let report = server
        .ask(&|o| {
            o.warmup = Nanos::millis(100);
            o.duration = Nanos::millis(300);
        })
        .unwrap();
    assert_eq!((report.requests, report.unanswered), (600, 0));
    assert_eq!(server.asked.load(Ordering::Relaxed), 800);
    assert!(report.achieved_per_s <= report.offered_per_s);
    let text = report.to_string();
    assert!(text.contains("0 of 600 not answered"), "{text}");
    let json = serde_json::to_string(&report).unwrap();
    let read: OpenLoopReport = serde_json::from_str(&json).unwrap();
    assert_eq!(read.requests, 600);
    in_one_of_ten(|| {
        let report = server.ask(&|o| o.duration = Nanos::millis(300)).unwrap();
        expect(report.achieved_per_s > 1_900.0, || report.to_string())
    });
}

#[test]
fn a_stall_shows_in_the_99th_percentile() {
    // 2000 requests in a second, one every 0.5 ms, with a stall of 100 ms in the middle. The
    // requests due in the first 10 ms of the stall, 20 of 2000, wait 90 ms and more. They are the
    // last per cent, whatever else the machine does. The rank of the percentile may be that of the
    // request before, and the intervals at both ends are not whole: 89 ms. A client that waits for
    // its answers would have four such requests, one per connection, and p99 would not show them.
    in_one_of_ten(|| {
        let server = Server::start(Manner::Stalls(1_000));
        let report = server.ask(&|_| {}).unwrap();
        assert_eq!((report.requests, report.unanswered), (2_000, 0));
        assert!(report.latency.p99_ns >= 89e6, "{report}");
        assert!(report.latency.max_ns >= 99e6, "{report}");
        // Nine tenths did not wait: that depends on the machine.
        expect(report.latency.p50_ns < 20e6, || report.to_string())
    });
}

#[test]
fn requests_without_an_answer_count_with_what_they_waited() {
    let server = Server::start(Manner::Silent);
    let begun = Instant::now();
    let report = server
        .ask(&|o| {
            o.duration = Nanos::millis(100);
            o.patience = Nanos::millis(200);
        })
        .unwrap();
    assert!(begun.elapsed() >= Duration::from_millis(300));
    assert_eq!((report.requests, report.unanswered), (200, 200));
    assert_eq!(report.achieved_per_s, 0.0);
    // The last one was due at the end of the span. It was then waited for until the client's
    // patience ended.
    assert!(report.latency.p50_ns >= 240e6, "{report}");
    assert!(report.latency.max_ns >= 299e6, "{report}");
}

#[test]
fn a_server_that_refuses_or_closes_is_an_error() {
    let refused = Server::start(Manner::Refuses).ask(&|_| {}).unwrap_err();
    assert!(refused.to_string().contains("-NOAUTH"), "{refused}");
    let closed = Server::start(Manner::Closes).ask(&|_| {}).unwrap_err();
    let text = closed.to_string();
    // With unread requests the kernel resets the connection.
    assert!(text.contains("closed") || text.contains("reset"), "{text}");
    let unused = TcpListener::bind("127.0.0.1:0").unwrap();
    let address = unused.local_addr().unwrap().to_string();
    drop(unused);
    let refused = open_loop(&OpenLoopOptions::new(&address, 1)).unwrap_err();
    assert!(refused.to_string().contains(&address), "{refused}");
}

#[test]
fn what_cannot_be_asked_is_refused_before_connecting() {
    let wrong: [&dyn Fn(&mut OpenLoopOptions); 4] = [
        &|o| o.connections = 0,
        &|o| o.connections = 1_001,
        &|o| o.rate = 0,
        &|o| {
            o.rate = 1_000_000;
            o.duration = Nanos::secs(1_000);
        },
    ];
    for change in wrong {
        let mut options = OpenLoopOptions::new("127.0.0.1:1", 100);
        change(&mut options);
        let refused = open_loop(&options).unwrap_err();
        assert!(matches!(refused, Error::Refused { .. }), "{refused}");
    }
}
