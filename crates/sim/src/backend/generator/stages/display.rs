//! The display stage: draws the frames that the call hands over. Without a call it draws frames of
//! its own, at the same rate.

use quell_record::backend::SubjectId;
use quell_types::rng::SplitMix;
use quell_types::units::Nanos;

use super::{Link, Log, Todo, frame_lines, ms};
use crate::pattern::{FPS, Piece, Stage};

const SECOND: u64 = 1_000_000_000;

/// A frame that is being drawn.
#[derive(Clone, Copy, Debug)]
struct Drawing {
    begun: Nanos,
    /// When the call captured it. `None`: it is the display's own.
    captured: Option<Nanos>,
}

/// The state of the display stage.
#[derive(Debug)]
pub(super) struct Display {
    id: SubjectId,
    begin: Nanos,
    /// How many of its own frames were due before the next one.
    due: u64,
    drawing: Option<Drawing>,
    random: SplitMix,
}

impl Display {
    pub(super) fn new(id: SubjectId, seed: u64) -> Self {
        Self {
            id,
            begin: Nanos(0),
            due: 0,
            drawing: None,
            random: SplitMix::new(seed),
        }
    }

    pub(super) fn begin(&mut self, now: Nanos) {
        (self.begin, self.due) = (now, 0);
    }

    /// What it does next, at `now`. What it did until then is done.
    pub(super) fn next(&mut self, now: Nanos, link: &mut Link, log: &mut Log) -> Todo {
        if let Some(drawn) = self.drawing.take() {
            log.frame(now);
            log.unit(drawn.begun, now);
            log.sample("compose_ms", ms(now.since(drawn.begun)));
            if let Some(captured) = drawn.captured {
                log.sample("age_ms", ms(now.since(captured)));
                link.give_back();
            }
        }
        if link.has_call(self.id) {
            return match link.take() {
                Some(captured) => self.draw(now, Some(captured)),
                None => Todo::Wait,
            };
        }
        let due = Nanos(self.begin.0 + self.due * SECOND / FPS);
        if now < due {
            return Todo::Sleep(due);
        }
        // Of several frames that were due, only the newest is drawn.
        let passed = now.since(self.begin).0 * FPS / SECOND;
        self.due = passed.max(self.due) + 1;
        self.draw(now, None)
    }

    fn draw(&mut self, now: Nanos, captured: Option<Nanos>) -> Todo {
        self.drawing = Some(Drawing {
            begun: now,
            captured,
        });
        Todo::Do(Piece::Frame(frame_lines(Stage::Display, &mut self.random)))
    }
}
