//! The display stage: takes the newest decoded frame, blends it over the screen and copies the
//! screen into the framebuffer. Without a call stage it makes frames of its own, at the same rate.

use std::time::Duration;

use quell_client::Session;
use quell_policy::workload::Pages;
use quell_record::measurement::Measurement;
use quell_types::units::Bytes;
use rustix::event::{PollFd, PollFlags};

use super::picture;
use super::share::{FromCall, Listener};
use super::work::{self, Stage, Work, ms};
use crate::generator::{Generator, Span};
use crate::memory::{Buffer, Granted};
use crate::resolved::ResolvedWorkload;
use crate::{Error, clock};

/// The state of the display stage.
#[derive(Debug)]
pub(crate) struct Display {
    frame: usize,
    period: u64,
    own: Vec<Buffer>,
    screen: Buffer,
    front: Buffer,
    point: String,
    listener: Option<Listener>,
    call: Option<FromCall>,
    /// When its next own frame is due. `made`: how many it has made.
    next: u64,
    made: usize,
    /// Reports every frame to the quell-client session, if there is one.
    session: Session,
    work: Work,
}

impl Display {
    /// Takes its memory, and a name under `point` by which a call stage finds it.
    pub(crate) fn new(workload: &ResolvedWorkload, point: &str) -> Result<Self, Error> {
        let ResolvedWorkload::FramesDisplay { frame, fps, ring } = *workload else {
            return Err(Error::refused(
                workload.kind(),
                "it is no display stage",
                "report this",
            ));
        };
        let len = usize::try_from(frame.0).unwrap_or(usize::MAX);
        let screen = Bytes(picture::screen_bytes(len) as u64);
        Ok(Self {
            frame: len,
            period: 1_000_000_000 / u64::from(fps),
            own: painted(frame, ring)?,
            screen: Buffer::new(screen, Pages::Base)?,
            front: Buffer::new(screen, Pages::Base)?,
            point: point.to_owned(),
            listener: Some(Listener::new(point)?),
            call: None,
            next: 0,
            made: 0,
            session: Session::open(),
            work: Work::default(),
        })
    }

    /// # Safety
    /// `frame` must be valid for reads of `len` bytes while this runs.
    unsafe fn show(&mut self, frame: *const u8, len: usize, begun: u64) {
        let (screen, front) = (pixels(&mut self.screen), pixels(&mut self.front));
        let mut did = |bytes| self.work.did(bytes);
        // SAFETY: as the caller promises.
        unsafe { picture::compose(frame, len, screen, &mut did) };
        picture::flip(screen, front, &mut did);
        self.work.frames += 1;
        let took = clock::now() - begun;
        self.session.unit(Duration::from_nanos(took));
        self.work.sample("compose_ms", ms(took));
    }

    /// Shows the newest frame of the call. An error means that the call has ended.
    fn show_newest(&mut self, now: u64) -> Result<(), rustix::io::Errno> {
        let Some(call) = &mut self.call else {
            return Ok(());
        };
        let Some(handed) = call.newest()? else {
            return Ok(());
        };
        if let Some((frame, len)) = call.at(handed.slot) {
            // SAFETY: the slot is mapped with that length, cannot be made smaller, and is ours
            // until it is handed back.
            unsafe { self.show(frame, len, now) };
        }
        let age = clock::now().saturating_sub(handed.captured);
        self.work.sample("age_ms", ms(age));
        self.call
            .as_ref()
            .map_or(Ok(()), |c| c.give_back(handed.slot))
    }
}

/// `ring` frames with pictures in them.
pub(super) fn painted(frame: Bytes, ring: u32) -> Result<Vec<Buffer>, Error> {
    (0..ring)
        .map(|number| {
            let mut buffer = Buffer::new(frame, Pages::Base)?;
            picture::paint(buffer.bytes_mut(), number);
            Ok(buffer)
        })
        .collect()
}

fn pixels(buffer: &mut Buffer) -> &mut [u32] {
    // SAFETY: every four bytes are a pixel.
    unsafe { buffer.bytes_mut().align_to_mut().1 }
}

impl Stage for Display {
    const SAMPLES: &'static [&'static str] = &["compose_ms", "age_ms"];

    fn work(&mut self) -> &mut Work {
        &mut self.work
    }

    fn turn(&mut self, now: u64) -> Result<u64, Error> {
        if let Some(call) = self.listener.as_ref().and_then(Listener::accept) {
            self.call = Some(call);
            self.listener = None;
        }
        if self.call.is_some() {
            if self.show_newest(now).is_err() {
                self.call = None;
                self.listener = Some(Listener::new(&self.point)?);
                self.resume(now);
            }
            return Ok(u64::MAX);
        }
        if now >= self.next {
            let frame = self.own[self.made % self.own.len()].start().cast_const();
            // SAFETY: the buffer has at least the frame's length and lives as long as the stage.
            unsafe { self.show(frame, self.frame, now) };
            self.made += 1;
            // Frame times that passed meanwhile are skipped.
            let late = clock::now().saturating_sub(self.next) / self.period;
            self.next += (late + 1) * self.period;
        }
        Ok(self.next)
    }

    fn wait(&self, until: u64) -> Result<(), Error> {
        let listener = self.listener.as_ref().map(Listener::fd);
        let fd = self.call.as_ref().map(FromCall::fd).or(listener);
        let mut fds: Vec<PollFd<'_>> = Vec::with_capacity(1);
        fds.extend(fd.map(|fd| PollFd::from_borrowed_fd(fd, PollFlags::IN)));
        work::poll(&mut fds, until)
    }

    fn resume(&mut self, now: u64) {
        self.next = self.next.max(now);
    }
}

impl Generator for Display {
    fn span(
        &mut self,
        span: Span,
        asked: &mut dyn FnMut() -> bool,
    ) -> Result<Option<Measurement>, Error> {
        let measured = work::span(self, span, asked)?;
        Ok(measured.map(|mut m| {
            for of_the_call in ["media_kb_s", "wasted_packets"] {
                m.metrics.remove(of_the_call);
            }
            m
        }))
    }

    fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
        work::hold(self, asked)
    }

    fn granted(&self) -> Granted {
        self.screen.granted()
    }
}
