//! The group of a process that asks for a session.

use quell_kernel::error::Result;
use quell_kernel::identity::person;
use quell_kernel::procfs;
use quell_kernel::root::Files;
use quell_kernel::tasks::{self, Fit, Matcher};
use quell_types::ids::GroupId;

use crate::group_cgroups::CgroupDir;

/// How the group of a process is found.
pub(crate) struct Membership<'a> {
    pub(crate) files: &'a dyn Files,
    /// Of all groups. A matched process belongs to the group, and so do its descendants.
    pub(crate) matchers: Vec<Matcher>,
    /// The cgroups of groups, and whether the group has no tables: then all in them was launched.
    pub(crate) homes: Vec<(GroupId, CgroupDir, bool)>,
}

/// What a process that asks is.
pub(crate) enum Member {
    /// Of this group.
    Of(GroupId),
    /// Of none.
    OfNone,
    /// Of another user than its ancestor, which the group matches.
    OfAnother(GroupId, u32),
}

impl Membership<'_> {
    /// The group of a process: the one that matches it, else that of its closest matched ancestor,
    /// else the one that launched it.
    pub(crate) fn of(&self, pid: u32) -> Result<Member> {
        let ourselves = std::process::id();
        for at in procfs::ancestry(self.files, pid)? {
            if at == ourselves {
                return self.launched(pid, false);
            }
            match tasks::matched(self.files, &self.matchers, at)? {
                Fit::None => {}
                Fit::Group(group) => {
                    let user = |pid| {
                        let all = procfs::users(self.files, pid)?;
                        Ok(all.map(|[_, effective, _]| person(self.files, effective)))
                    };
                    let same = at == pid || user(at)? == user(pid)?;
                    return Ok(match same {
                        true => Member::Of(group),
                        false => Member::OfAnother(group, at),
                    });
                }
                Fit::Two(_) => return Ok(Member::OfNone),
            }
        }
        self.launched(pid, true)
    }

    /// The group with the cgroup of a process that was launched. Of an orphan nobody knows that,
    /// but where the group has no other.
    fn launched(&self, pid: u32, orphan: bool) -> Result<Member> {
        let homes = self.homes.iter().filter(|(_, _, alone)| !orphan || *alone);
        for (group, place, _) in homes {
            let dir = place.hierarchy.dir_of(self.files, pid)?;
            if dir.is_some_and(|dir| place.holds(&dir)) {
                return Ok(Member::Of(group.clone()));
            }
        }
        Ok(Member::OfNone)
    }
}
