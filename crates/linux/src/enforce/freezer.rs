//! Freezing a whole cgroup: `cgroup.freeze` (v2), `freezer.state` (v1). cgroup-v2.rst
//! ("cgroup.freeze"), cgroup-v1/freezer-subsystem.rst. On v2 frozen tasks can still be killed, and
//! children born meanwhile are frozen, too.

use quell_kernel::cgroup::Version;
use quell_kernel::error::Result;
use quell_kernel::freezer::is_frozen;
use quell_kernel::root::{Files, gone};
use quell_types::journal::Stopped;

use crate::change::JournaledWriter;
use crate::fault;
use crate::group_cgroups::CgroupDir;

/// The file that freezes a cgroup, and what to write to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Freezer {
    path: String,
    freeze: &'static str,
    thaw: &'static str,
}

impl Freezer {
    /// The freezer of the cgroup that has the tasks: a group's brakes go on. `None` where it has
    /// none (the root, a v1 hierarchy without the freezer).
    #[must_use]
    pub fn of(files: &dyn Files, place: &CgroupDir) -> Option<Self> {
        let dir = place.tasks_dir();
        let freezer = match place.hierarchy.version {
            Version::V2 => Self {
                path: format!("{dir}/cgroup.freeze"),
                freeze: "1",
                thaw: "0",
            },
            Version::V1 => Self {
                path: format!("{dir}/freezer.state"),
                freeze: "FROZEN",
                thaw: "THAWED",
            },
        };
        files.exists(&freezer.path).then_some(freezer)
    }

    /// The file that freezes, thaws and reports.
    #[must_use]
    pub fn path(&self) -> &str {
        &self.path
    }

    /// What is written to its file to freeze and to thaw.
    #[must_use]
    pub const fn words(&self) -> [&'static str; 2] {
        [self.freeze, self.thaw]
    }

    /// Whether its file says frozen, whichever program froze it. A v1 cgroup may read `FREEZING`
    /// for a while.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn frozen(&self, files: &dyn Files) -> Result<bool> {
        let text = files.optional(&self.path)?;
        Ok(text.is_some_and(|text| is_frozen(&text)))
    }

    /// Freezes the cgroup, journaled. Returns whether this call did it. A cgroup that another
    /// program froze is left to that program.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn freeze(&self, writer: &mut JournaledWriter<'_>) -> Result<bool> {
        if is_frozen(&writer.files.text(&self.path)?) {
            return Ok(false);
        }
        let what = Stopped::Group(self.path.clone());
        writer.stopping(what.clone())?;
        if let Err(e) = writer.files.put(&self.path, self.freeze) {
            writer.resumed(what)?;
            return Err(e);
        }
        fault::boundary();
        Ok(true)
    }

    /// Thaws the cgroup. One that was removed meanwhile is no error.
    ///
    /// # Errors
    /// [`quell_kernel::error::Error::File`].
    pub fn thaw(&self, writer: &mut JournaledWriter<'_>) -> Result<()> {
        match writer.files.write(&self.path, self.thaw) {
            Err(e) if !gone(&e) => {
                return Err(quell_kernel::error::Error::file(
                    "write",
                    &self.path,
                    Some(self.thaw),
                    e,
                ));
            }
            _ => fault::boundary(),
        }
        writer.resumed(Stopped::Group(self.path.clone()))
    }
}
