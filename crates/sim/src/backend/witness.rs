//! What tests may see of a simulated machine beyond what it reports to the engine: its operating
//! system's own account.

use quell_record::backend::SubjectId;

use super::Sim;

impl Sim {
    /// The core that a subject runs on, and the accesses it has done. `None` for an unknown
    /// subject.
    #[must_use]
    pub fn witness(&self, subject: SubjectId) -> Option<(usize, u64)> {
        let task = self.subjects.get(&subject)?.task;
        Some((self.os.core_of(task)?, self.os.done(task)))
    }
}
