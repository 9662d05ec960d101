//! The call stage: one loop that captures and encodes at the frame times, sends what rate control
//! allows, and decodes what came back. It is the loop of the call on Linux
//! (`crates/workload/src/frames/call.rs`), with its rules: network and codec share it, so a frame
//! that takes long to encode delays the packets.
//!
//! Deviations from Linux:
//! - The far end is another machine behind a network that neither queues nor loses. What is lost is
//!   lost at the call's own socket ([`SOCKET`]).
//! - The call has been running for long: its rate begins at the ceiling.
//! - A frame's traffic is as published, whatever the rate.

use std::collections::VecDeque;

use quell_control::congestion::{BACKLOG, Congestion, FLOOR, PACE, PACE_NS, REPORT_NS};
use quell_record::backend::SubjectId;
use quell_types::rng::SplitMix;
use quell_types::units::{LINE_BYTES, Nanos, Rate};

use super::{Link, Log, Todo, frame_lines, ms};
use crate::pattern::{FPS, Piece, Stage};

const SECOND: u64 = 1_000_000_000;
/// Bytes of a full packet, as on Linux.
const PACKET: u64 = 1200;
/// The round trip of a packet through network and far end. By hand from the study's row `solo`
/// (1.85 ms on `xeon-w3530`).
const NETWORK: Nanos = Nanos::micros(1_800);
/// Core cycles to send or to receive a packet, without its copy. Assumed: 5 us at 2.8 GHz, for a
/// system call and the encryption.
const HANDLING: u32 = 14_000;
/// How many packets wait at the socket before further ones are lost. Linux' default limit
/// (`net.core.rmem_max`, doubled to 425,984 bytes) ÷ 2304 bytes that it counts per packet.
const SOCKET: usize = 184;
/// Encoded frames that are under way at most, as on Linux.
const UNDERWAY: usize = 3;
/// Parts of a frame's traffic: of 15 bytes that the call on Linux moves per byte of frame, decoding
/// takes two.
const DECODING: (u64, u64) = (2, 15);
/// Weight of a new round-trip time in the smoothed one (RFC 6298).
const SMOOTH: f64 = 0.125;

/// An encoded frame on its way to the far end and back.
#[derive(Clone, Copy, Debug)]
struct Flight {
    number: u64,
    captured: Nanos,
    /// Lines of traffic to decode it.
    lines: u64,
    bytes: u64,
    packets: u64,
    sent: u64,
    back: u64,
}

impl Flight {
    fn unsent(&self) -> u64 {
        self.bytes.saturating_sub(self.sent * PACKET)
    }
}

/// A packet on its way back.
#[derive(Clone, Copy, Debug)]
struct Packet {
    number: u64,
    frame: u64,
    bytes: u64,
    sent: Nanos,
    back: Nanos,
}

/// What the loop is busy with.
#[derive(Clone, Copy, Debug)]
enum Busy {
    Nothing,
    Receiving(Packet),
    Decoding(Flight),
    /// A decoded frame, captured then, is handed over.
    Handing(Nanos),
    Encoding {
        begun: Nanos,
        lines: u64,
    },
    Sending(Packet),
}

/// Where the loop is in its turn.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Turn {
    Receive,
    Pace,
    Send,
}

/// The state of the call stage.
#[derive(Debug)]
pub(super) struct Call {
    id: SubjectId,
    control: Congestion,
    busy: Busy,
    turn: Turn,
    /// The time of the first frame, and the number of the frame that is due.
    begin: Nanos,
    due: u64,
    encoded: u64,
    /// Never more than [`UNDERWAY`].
    flights: VecDeque<Flight>,
    /// The frame that came back whole and is to be decoded.
    whole: Option<Flight>,
    /// Packets on their way back, in order.
    coming: VecDeque<Packet>,
    /// Bytes that may be sent now, and since when.
    allowance: f64,
    paced: Nanos,
    /// The number of the last packet.
    packet: u64,
    /// The highest number that came back, and how many did.
    highest: u64,
    back: u64,
    /// The same at the last report, and when that was.
    reported: (u64, u64, Nanos),
    rtt_ns: f64,
    random: SplitMix,
}

impl Call {
    pub(super) fn new(id: SubjectId, media: Rate, seed: u64) -> Self {
        let most = media.0 as f64;
        Self {
            id,
            control: Congestion::new(FLOOR * most, most, most),
            busy: Busy::Nothing,
            turn: Turn::Receive,
            begin: Nanos(0),
            due: 0,
            encoded: 0,
            flights: VecDeque::new(),
            whole: None,
            coming: VecDeque::new(),
            allowance: 0.0,
            paced: Nanos(0),
            packet: 0,
            highest: 0,
            back: 0,
            reported: (0, 0, Nanos(0)),
            rtt_ns: 0.0,
            random: SplitMix::new(seed),
        }
    }

    pub(super) fn begin(&mut self, now: Nanos) {
        (self.begin, self.paced, self.due) = (now, now, 0);
    }

    fn due_at(&self) -> Nanos {
        Nanos(self.begin.0 + self.due * SECOND / FPS)
    }

    /// Bytes of media per frame at the present rate.
    fn media(&self) -> f64 {
        self.control.rate() / FPS as f64
    }

    /// What it does next, at `now`. What it did until then is done.
    pub(super) fn next(&mut self, now: Nanos, link: &mut Link, log: &mut Log) -> Todo {
        self.complete(now, log);
        if let Busy::Handing(captured) = self.busy {
            if !link.hand(self.id, captured) {
                return Todo::Wait;
            }
            self.busy = Busy::Nothing;
        }
        loop {
            let todo = match self.turn {
                Turn::Receive => self.receive(now, log),
                Turn::Pace => {
                    self.pace(now);
                    None
                }
                Turn::Send => self.send(now),
            };
            if let Some(todo) = todo {
                return todo;
            }
        }
    }

    /// What the loop was busy with is done.
    fn complete(&mut self, now: Nanos, log: &mut Log) {
        match std::mem::replace(&mut self.busy, Busy::Nothing) {
            Busy::Nothing => {}
            Busy::Receiving(packet) => self.came_back(packet, now, log),
            Busy::Decoding(flight) => {
                log.frame(now);
                self.busy = Busy::Handing(flight.captured);
            }
            handing @ Busy::Handing(_) => self.busy = handing,
            Busy::Encoding { begun, lines } => {
                log.unit(begun, now);
                log.sample("encode_ms", ms(now.since(begun)));
                #[expect(
                    clippy::cast_possible_truncation,
                    clippy::cast_sign_loss,
                    reason = "a positive rate, at most 50 MB/s"
                )]
                let bytes = (self.media() as u64).max(PACKET / 4);
                self.encoded += 1;
                self.flights.push_back(Flight {
                    number: self.encoded,
                    captured: begun,
                    lines,
                    bytes,
                    packets: bytes.div_ceil(PACKET),
                    sent: 0,
                    back: 0,
                });
            }
            Busy::Sending(packet) => {
                let back = now.plus(NETWORK);
                self.coming.push_back(Packet { back, ..packet });
            }
        }
    }

    /// Decodes, receives, reports and encodes: what is due first.
    fn receive(&mut self, now: Nanos, log: &mut Log) -> Option<Todo> {
        if let Some(whole) = self.whole.take() {
            self.busy = Busy::Decoding(whole);
            return Some(Todo::Do(Piece::Frame(whole.lines)));
        }
        let waiting = self.coming.partition_point(|packet| packet.back <= now);
        if waiting > SOCKET {
            self.coming.drain(SOCKET..waiting);
        }
        if waiting > 0
            && let Some(packet) = self.coming.pop_front()
        {
            self.busy = Busy::Receiving(packet);
            return Some(copy(packet.bytes));
        }
        self.report(now, log);
        self.turn = Turn::Pace;
        if now < self.due_at() {
            return None;
        }
        self.encode(now)
    }

    fn encode(&mut self, now: Nanos) -> Option<Todo> {
        // Of several frame times that passed, the last is due. The earlier ones are dropped.
        let passed = now.since(self.begin).0 * FPS / SECOND;
        self.due = passed.max(self.due) + 1;
        let unsent: u64 = self.flights.iter().map(Flight::unsent).sum();
        if unsent as f64 > BACKLOG * self.media().max(PACKET as f64) {
            return None;
        }
        if self.flights.len() == UNDERWAY {
            // Its place is needed. A frame that has not come back by now is given up.
            self.flights.pop_front();
        }
        let lines = frame_lines(Stage::Call, &mut self.random);
        let decoding = lines * DECODING.0 / DECODING.1;
        self.busy = Busy::Encoding {
            begun: now,
            lines: decoding,
        };
        Some(Todo::Do(Piece::Frame(lines - decoding)))
    }

    fn pace(&mut self, now: Nanos) {
        let rate = PACE * self.control.rate() / 1e9;
        let most = (rate * PACE_NS as f64).max(PACKET as f64);
        let since = now.since(self.paced).0 as f64;
        self.allowance = (self.allowance + rate * since).min(most);
        self.paced = now;
        self.turn = Turn::Send;
    }

    fn send(&mut self, now: Nanos) -> Option<Todo> {
        let mut until = self.due_at();
        let next = self.flights.iter_mut().find(|f| f.sent < f.packets);
        if let Some(flight) = next {
            let bytes = flight.unsent().clamp(PACKET / 4, PACKET);
            if self.allowance >= bytes as f64 {
                self.allowance -= bytes as f64;
                self.packet += 1;
                flight.sent += 1;
                self.busy = Busy::Sending(Packet {
                    number: self.packet,
                    frame: flight.number,
                    bytes,
                    sent: now,
                    back: now,
                });
                return Some(copy(bytes));
            }
            until = until.min(self.paced.plus(Nanos(PACE_NS)));
        }
        self.turn = Turn::Receive;
        let until = self.coming.front().map_or(until, |p| p.back.min(until));
        (until > now).then_some(Todo::Sleep(until))
    }

    fn came_back(&mut self, packet: Packet, now: Nanos, log: &mut Log) {
        let rtt = now.since(packet.sent);
        self.rtt_ns += SMOOTH * (rtt.0 as f64 - self.rtt_ns);
        log.sample("rtt_ms", ms(rtt));
        log.media(packet.bytes);
        // The far end is half-way.
        let arrived = packet.back.0 - NETWORK.0 / 2;
        self.control.packet(packet.sent.0, arrived, packet.bytes);
        self.highest = self.highest.max(packet.number);
        self.back += 1;
        let Some(at) = self.flights.iter().position(|f| f.number == packet.frame) else {
            log.wasted(1);
            return;
        };
        let flight = &mut self.flights[at];
        flight.back += 1;
        if flight.back == flight.packets {
            self.whole = self.flights.remove(at);
        }
    }

    fn report(&mut self, now: Nanos, log: &mut Log) {
        let (highest, back, at) = self.reported;
        if now < at.plus(Nanos(REPORT_NS)) {
            return;
        }
        self.reported = (self.highest, self.back, now);
        let (expected, received) = (self.highest - highest, self.back - back);
        log.wasted(expected.saturating_sub(received));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive time"
        )]
        let rtt = self.rtt_ns as u64;
        self.control.report(now.0, rtt, expected, received);
    }
}

fn copy(bytes: u64) -> Todo {
    Todo::Do(Piece::Copy {
        lines: bytes.div_ceil(LINE_BYTES),
        compute: HANDLING,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A second of a call whose frames of mean size take `frame` milliseconds, after one second. It
    /// ends early where the call waits for a display.
    fn second(call: &mut Call, frame: u64, link: &mut Link) -> Log {
        let (mut now, mut log) = (Nanos(0), Log::default());
        call.begin(now);
        while now < Nanos::millis(2_000) {
            if now >= Nanos::millis(1_000) && !log.measures {
                log.begin();
            }
            log.now = now;
            let took = match call.next(now, link, &mut log) {
                Todo::Do(Piece::Frame(lines)) => frame * 1_000_000 * lines / Stage::Call.lines(),
                Todo::Do(Piece::Copy { .. }) => 6_000,
                Todo::Sleep(until) => until.since(now).0,
                Todo::Wait => break,
            };
            now = now.plus(Nanos(took));
        }
        log
    }

    fn alone(frame: u64) -> Log {
        let mut call = Call::new(SubjectId(1), Rate(4_000_000), 5);
        second(&mut call, frame, &mut Link::default())
    }

    fn mean(values: &[f64]) -> f64 {
        values.iter().sum::<f64>() / values.len() as f64
    }

    #[test]
    fn a_call_with_time_sends_all_it_may_and_waits_for_nothing() {
        let log = alone(9);
        assert!((30..=31).contains(&log.frames.len()), "{:?}", log.frames);
        let media: u64 = log.media.iter().map(|(_, bytes)| bytes).sum();
        assert!(media.abs_diff(4_000_000) < 100_000, "{media}");
        let rtt = mean(&log.samples["rtt_ms"]);
        let network = ms(NETWORK);
        assert!((network..network + 0.5).contains(&rtt), "{rtt}");
        assert_eq!(log.wasted, 0);
    }

    #[test]
    fn a_call_without_time_skips_frames_and_its_packets_wait() {
        let (ample, scarce) = (alone(9), alone(40));
        assert!(scarce.frames.len() < 26, "{:?}", scarce.frames);
        let rtt = |log: &Log| mean(&log.samples["rtt_ms"]);
        assert!(rtt(&scarce) > 4.0 * rtt(&ample), "{}", rtt(&scarce));
        assert!(scarce.media.len() < ample.media.len() * 9 / 10);
    }

    #[test]
    fn a_call_waits_for_a_display_that_stands_still() {
        let mut link = Link::default();
        link.add_call(SubjectId(1));
        link.add_display(SubjectId(2));
        let mut call = Call::new(SubjectId(1), Rate(4_000_000), 5);
        second(&mut call, 9, &mut link);
        let (later, mut log) = (Nanos::millis(500), Log::default());
        assert_eq!(call.next(later, &mut link, &mut log), Todo::Wait);
        // A drawn frame makes room.
        link.take();
        link.give_back();
        assert_ne!(call.next(later, &mut link, &mut log), Todo::Wait);
    }
}
