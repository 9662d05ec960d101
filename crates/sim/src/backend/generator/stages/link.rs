//! The hand-over between the two stages: frames wait in a bounded queue.
//!
//! The display draws every frame, in order, as an X server does what its clients ask. The call
//! waits where the queue is full. On Linux it drops the frame instead.
//!
//! Deviation: one call and one display of a machine meet. Further stages work alone.

use std::collections::VecDeque;

use quell_record::backend::SubjectId;
use quell_types::units::Nanos;

/// The most frames on their way to the display, as on Linux.
const SLOTS: usize = 3;

/// What the two stages of a machine share.
#[derive(Clone, Debug, Default)]
pub(in super::super::super) struct Link {
    call: Option<SubjectId>,
    display: Option<SubjectId>,
    /// When each waiting frame was captured.
    waiting: VecDeque<Nanos>,
    /// How many frames wait or are being drawn.
    taken: usize,
    /// The stages that have to look again.
    news: Vec<SubjectId>,
}

impl Link {
    /// The call stage `id` was started.
    pub(super) fn add_call(&mut self, id: SubjectId) {
        self.call.get_or_insert(id);
    }

    /// The display stage `id` was started.
    pub(super) fn add_display(&mut self, id: SubjectId) {
        self.display.get_or_insert(id);
    }

    /// A subject has ended. The other stage works alone from now on.
    pub(in super::super::super) fn end(&mut self, id: SubjectId) {
        if self.call == Some(id) || self.display == Some(id) {
            let left = [self.call, self.display].into_iter().flatten();
            self.news = left.filter(|other| *other != id).collect();
            self.call = self.call.filter(|other| *other != id);
            self.display = self.display.filter(|other| *other != id);
            self.waiting.clear();
            self.taken = 0;
        }
    }

    /// Whether this display stage has a call.
    pub(super) fn has_call(&self, display: SubjectId) -> bool {
        self.display == Some(display) && self.call.is_some()
    }

    /// The call stage `id` hands a frame over. `false` when there is no room: the call waits.
    pub(super) fn hand(&mut self, id: SubjectId, captured: Nanos) -> bool {
        let (Some(display), true) = (self.display, self.call == Some(id)) else {
            // No display shows it.
            return true;
        };
        if self.taken == SLOTS {
            return false;
        }
        self.taken += 1;
        self.waiting.push_back(captured);
        self.news.push(display);
        true
    }

    /// The next frame to draw.
    pub(super) fn take(&mut self) -> Option<Nanos> {
        self.waiting.pop_front()
    }

    /// A frame has been drawn.
    pub(super) fn give_back(&mut self) {
        self.taken = self.taken.saturating_sub(1);
        self.news.extend(self.call);
    }

    /// A stage that has to look again.
    pub(in super::super::super) fn next_news(&mut self) -> Option<SubjectId> {
        self.news.pop()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_full_queue_holds_the_call_and_a_drawn_frame_frees_it() {
        let (call, display) = (SubjectId(1), SubjectId(2));
        let mut link = Link::default();
        link.add_call(call);
        assert!(
            link.hand(call, Nanos(0)),
            "without a display there is always room"
        );
        assert_eq!(link.take(), None);
        link.add_display(display);
        for n in 1..=3 {
            assert!(link.hand(call, Nanos(n)));
            assert_eq!(link.next_news(), Some(display));
        }
        assert!(!link.hand(call, Nanos(4)));
        // In order, and a frame that is being drawn keeps its place.
        assert_eq!(link.take(), Some(Nanos(1)));
        assert!(!link.hand(call, Nanos(4)));
        link.give_back();
        assert_eq!(link.next_news(), Some(call));
        assert!(link.hand(call, Nanos(4)));
        assert_eq!(link.take(), Some(Nanos(2)));
    }

    #[test]
    fn a_stage_whose_other_has_ended_works_alone() {
        let (call, display) = (SubjectId(1), SubjectId(2));
        let mut link = Link::default();
        link.add_call(call);
        link.add_display(display);
        assert!(link.has_call(display) && !link.has_call(SubjectId(3)));
        while link.hand(call, Nanos(0)) {}
        link.end(display);
        assert_eq!(link.next_news(), Some(call));
        assert!(link.hand(call, Nanos(0)));
        assert_eq!(link.take(), None);
    }
}
