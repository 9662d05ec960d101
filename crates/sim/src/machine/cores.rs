//! What a core does with its counters and its program.

use quell_model::Picos;

use super::{Core, State};

impl Core {
    /// Lines read, written back, and both together.
    pub(super) fn counted(&self) -> [u64; 3] {
        let counts = &self.counts;
        [counts.lines(), counts.writebacks, counts.moved()]
    }

    /// Whether a counter has overflowed since it was armed. If so, none overflows again.
    pub(super) fn overflows(&mut self) -> bool {
        let over = self
            .counted()
            .iter()
            .zip(&self.armed)
            .any(|(now, at)| now >= at);
        if over {
            self.armed = [u64::MAX; 3];
        }
        over
    }

    /// When it acts next without a message. Never where it waits.
    pub(super) fn acts(&self) -> Picos {
        if self.state == State::Ready {
            self.time
        } else {
            Picos::MAX
        }
    }

    /// Stops its program at `at`: interrupts its computing and adds up its active time.
    pub(super) fn suspend(&mut self, at: Picos) {
        if let Some(program) = &mut self.program {
            program.counts.active += at.saturating_sub(self.since);
            if program.pending.is_some() && self.time > at {
                program.left = self.time - at;
                self.time = at;
            }
        }
    }

    /// Resumes its program at `at`.
    pub(super) fn proceed(&mut self, at: Picos) {
        self.time = self.time.max(at);
        self.since = self.time;
        if let Some(program) = &mut self.program {
            self.time += std::mem::take(&mut program.left);
        }
    }
}
