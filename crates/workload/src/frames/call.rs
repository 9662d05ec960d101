//! The call stage: one loop that captures and encodes at the frame times, sends what rate control
//! allows, and decodes what came back. Network and codec share the loop. So a frame that takes long
//! to encode delays the packets before and behind it, which shows in the round-trip time.

use std::collections::VecDeque;
use std::time::Duration;

use quell_client::Session;
use quell_control::congestion::{BACKLOG, Congestion, FLOOR, PACE, PACE_NS, REPORT_NS, START};
use quell_policy::workload::Pages;
use quell_record::measurement::Measurement;
use quell_types::units::Bytes;
use rustix::event::{PollFd, PollFlags};

use super::display::painted;
use super::peer::{Header, PACKET, Peer};
use super::picture;
use super::share::{Slots, ToDisplay};
use super::work::{self, Stage, Work, ms};
use crate::generator::{Generator, Span};
use crate::memory::{Buffer, Granted};
use crate::resolved::ResolvedWorkload;
use crate::{Error, clock};

/// Encoded frames that are kept: the previous one for prediction, and those under way.
const REBUILT: usize = 4;
/// Weight of a new round-trip time in the smoothed one (RFC 6298).
const SMOOTH: f64 = 0.125;

/// An encoded frame on its way to the peer and back.
#[derive(Debug)]
struct Flight {
    /// Its number among the encoded frames.
    number: u64,
    captured: u64,
    bytes: usize,
    packets: u64,
    sent: u64,
    back: u64,
}

impl Flight {
    fn unsent(&self) -> usize {
        let sent = usize::try_from(self.sent).unwrap_or(usize::MAX);
        self.bytes.saturating_sub(sent.saturating_mul(PACKET))
    }
}

/// The state of the call stage.
#[derive(Debug)]
pub(crate) struct Call {
    frame: usize,
    fps: u64,
    search: u32,
    camera: Vec<Buffer>,
    captured: Buffer,
    kept: Buffer,
    rebuilt: Vec<Buffer>,
    slots: Slots,
    point: String,
    display: Option<ToDisplay>,
    peer: Peer,
    control: Congestion,
    /// The time of the first frame, and the number of the frame that is due.
    begin: u64,
    due: u64,
    encoded: u64,
    /// Never more than [`REBUILT`].
    flights: VecDeque<Flight>,
    /// Bytes that may be sent now, and since when.
    allowance: f64,
    paced: u64,
    /// The next packet's number. `highest`, `back`: the highest number that came back, and how many
    /// did.
    packet: u64,
    highest: u64,
    back: u64,
    /// The packet numbers at the last report, and when that was.
    reported: (u64, u64, u64),
    rtt_ns: f64,
    /// Reports every frame to the quell-client session, if there is one.
    session: Session,
    work: Work,
}

impl Call {
    /// Takes its memory and starts its peer. A display stage, if there is one, listens under
    /// `point`.
    pub(crate) fn new(workload: &ResolvedWorkload, point: &str) -> Result<Self, Error> {
        let ResolvedWorkload::FramesCall {
            frame,
            fps,
            ring,
            search,
            rate,
        } = *workload
        else {
            return Err(Error::refused(
                workload.kind(),
                "it is no call stage",
                "report this",
            ));
        };
        let len = usize::try_from(frame.0).unwrap_or(usize::MAX);
        let buffer = || Buffer::new(Bytes(frame.0), Pages::Base);
        let most = rate.0 as f64;
        Ok(Self {
            frame: len,
            fps: u64::from(fps),
            search,
            camera: painted(frame, ring)?,
            captured: buffer()?,
            kept: buffer()?,
            rebuilt: (0..REBUILT).map(|_| buffer()).collect::<Result<_, _>>()?,
            slots: Slots::new(len)?,
            point: point.to_owned(),
            display: None,
            peer: Peer::new()?,
            control: Congestion::new(FLOOR * most, START * most, most),
            begin: 0,
            due: 0,
            encoded: 0,
            flights: VecDeque::with_capacity(REBUILT),
            allowance: 0.0,
            paced: 0,
            packet: 0,
            highest: 0,
            back: 0,
            reported: (0, 0, 0),
            rtt_ns: 0.0,
            session: Session::open(),
            work: Work::default(),
        })
    }

    fn due_at(&self) -> u64 {
        self.begin + self.due * 1_000_000_000 / self.fps
    }

    /// Bytes of media per frame at the present rate.
    fn media(&self) -> f64 {
        self.control.rate() / self.fps as f64
    }

    fn capture_and_encode(&mut self, now: u64) {
        // Of several frame times that passed, the last is due. The earlier ones are dropped.
        let passed = (now - self.begin) * self.fps / 1_000_000_000;
        let number = passed.max(self.due);
        self.due = number + 1;
        let unsent: usize = self.flights.iter().map(Flight::unsent).sum();
        if unsent as f64 > BACKLOG * self.media().max(PACKET as f64) {
            return;
        }
        if self.flights.len() == REBUILT - 1 {
            // Its place is needed. A frame that has not come back by now is given up.
            self.flights.pop_front();
        }
        let from = usize::try_from(number).unwrap_or(0) % self.camera.len();
        let mut did = |bytes| self.work.did(bytes);
        let frame = self.frame;
        let captured = &mut self.captured.bytes_mut()[..frame];
        picture::capture(&self.camera[from].bytes()[..frame], captured, &mut did);
        let place = |n: u64| usize::try_from(n % REBUILT as u64).unwrap_or(0);
        let (before, to) = (place(self.encoded), place(self.encoded + 1));
        let (before, to) = two(&mut self.rebuilt, before, to);
        picture::encode(
            captured,
            &before.bytes()[..frame],
            &mut self.kept.bytes_mut()[..frame],
            &mut to.bytes_mut()[..frame],
            self.search,
            &mut did,
        );
        self.encoded += 1;
        let took = clock::now() - now;
        self.session.unit(Duration::from_nanos(took));
        self.work.sample("encode_ms", ms(took));
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive rate, at most 50 MB/s"
        )]
        let bytes = (self.media() as usize).max(PACKET / 4);
        self.flights.push_back(Flight {
            number: self.encoded,
            captured: now,
            bytes,
            packets: bytes.div_ceil(PACKET) as u64,
            sent: 0,
            back: 0,
        });
    }

    fn send(&mut self) {
        let now = clock::now();
        let rate = PACE * self.control.rate() / 1e9;
        let most = (rate * PACE_NS as f64).max(PACKET as f64);
        let since = now.saturating_sub(self.paced) as f64;
        self.allowance = (self.allowance + rate * since).min(most);
        self.paced = now;
        let mut packet = [0; PACKET];
        for flight in &mut self.flights {
            while flight.sent < flight.packets {
                let len = flight.unsent().clamp(PACKET / 4, PACKET);
                if self.allowance < len as f64 {
                    return;
                }
                // Bytes of the encoder's output, taken from all over the frame, are what is sent.
                let at = self.frame * usize::try_from(flight.sent).unwrap_or(0)
                    / usize::try_from(flight.packets).unwrap_or(1);
                let kept = self.kept.bytes();
                let payload = &kept[at..(at + len).min(kept.len())];
                packet[..payload.len()].copy_from_slice(payload);
                self.packet += 1;
                let header = Header {
                    number: self.packet,
                    sent: clock::now(),
                    arrived: 0,
                    frame: flight.number,
                };
                header.write(&mut packet);
                // A packet that the socket does not accept is lost, as on any network.
                let _ = self.peer.socket.send(&packet[..len]);
                flight.sent += 1;
                self.allowance -= len as f64;
            }
        }
    }

    fn receive(&mut self) -> Result<(), Error> {
        let mut packet = [0; PACKET];
        loop {
            match self.peer.socket.recv(&mut packet) {
                Ok(n) => {
                    if let Some(header) = Header::read(&packet[..n]) {
                        self.came_back(header, n);
                    }
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == std::io::ErrorKind::Interrupted => {}
                Err(e) => return Err(Error::kernel("receiving from the call's peer")(e)),
            }
        }
    }

    fn came_back(&mut self, header: Header, bytes: usize) {
        let now = clock::now();
        let rtt = now.saturating_sub(header.sent);
        self.rtt_ns += SMOOTH * (rtt as f64 - self.rtt_ns);
        self.work.sample("rtt_ms", ms(rtt));
        self.work.media += bytes as u64;
        self.control
            .packet(header.sent, header.arrived, bytes as u64);
        self.highest = self.highest.max(header.number);
        self.back += 1;
        let Some(at) = self.flights.iter().position(|f| f.number == header.frame) else {
            self.work.wasted += 1;
            return;
        };
        let flight = &mut self.flights[at];
        flight.back += 1;
        if flight.back == flight.packets
            && let Some(whole) = self.flights.remove(at)
        {
            self.decode(&whole);
        }
    }

    fn decode(&mut self, flight: &Flight) {
        let slot = match self.display.as_mut().map(ToDisplay::slot) {
            Some(Ok(slot)) => slot,
            Some(Err(_)) => {
                self.display = None;
                None
            }
            None => None,
        };
        let place = usize::try_from(flight.number % REBUILT as u64).unwrap_or(0);
        let rebuilt = &self.rebuilt[place].bytes()[..self.frame];
        // SAFETY: every slot has the frame's length, and this one is ours until it is handed over.
        unsafe {
            picture::decode(rebuilt, self.slots.at(slot), &mut |bytes| {
                self.work.did(bytes)
            })
        };
        self.work.frames += 1;
        if let (Some(slot), Some(display)) = (slot, &mut self.display)
            && display.show(slot, flight.number, flight.captured).is_err()
        {
            self.display = None;
        }
    }

    fn report(&mut self, now: u64) {
        let (at, highest, back) = self.reported;
        if now < at + REPORT_NS {
            return;
        }
        self.reported = (now, self.highest, self.back);
        #[expect(
            clippy::cast_possible_truncation,
            clippy::cast_sign_loss,
            reason = "a positive time"
        )]
        let rtt = self.rtt_ns as u64;
        let (expected, received) = (self.highest - highest, self.back - back);
        self.work.wasted += expected.saturating_sub(received);
        self.control.report(now, rtt, expected, received);
    }
}

/// Two different buffers, the second one mutable.
fn two(all: &mut [Buffer], first: usize, second: usize) -> (&Buffer, &mut Buffer) {
    let (low, high) = all.split_at_mut(first.max(second));
    if first < second {
        (&low[first], &mut high[0])
    } else {
        (&high[0], &mut low[second])
    }
}

impl Stage for Call {
    const SAMPLES: &'static [&'static str] = &["rtt_ms", "encode_ms"];

    fn work(&mut self) -> &mut Work {
        &mut self.work
    }

    fn turn(&mut self, now: u64) -> Result<u64, Error> {
        self.receive()?;
        self.report(now);
        if now >= self.due_at() {
            if self.display.is_none() {
                self.display = self.slots.connect(&self.point);
            }
            self.capture_and_encode(clock::now());
        }
        self.send();
        let waiting = self.flights.iter().any(|f| f.sent < f.packets);
        let pace = if waiting {
            self.paced + PACE_NS
        } else {
            u64::MAX
        };
        Ok(self.due_at().min(pace))
    }

    fn wait(&self, until: u64) -> Result<(), Error> {
        work::poll(&mut [PollFd::new(&self.peer.socket, PollFlags::IN)], until)
    }

    fn resume(&mut self, now: u64) {
        if self.begin == 0 {
            self.begin = now;
        }
        // Frame times that passed between two spans belong to neither.
        self.due = (now - self.begin) * self.fps / 1_000_000_000 + 1;
        self.paced = now;
    }
}

impl Generator for Call {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        work::span(self, span, asked)
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        work::hold(self, asked)
    }

    fn granted(&self) -> Granted {
        self.captured.granted()
    }
}

#[cfg(test)]
#[path = "call_tests.rs"]
mod tests;
