//! What a process is, by facts that an unprivileged user cannot bring about for a program of the
//! user's own: the file that it runs, and the unit or container that a manager put it in.

use quell_types::task::TaskMatch;

use crate::cgroup::Cgroups;
use crate::error::Result;
use crate::procfs::Membership;
use crate::root::Files;

/// Whether a process runs the program at `path`: the same file, not one of that name in a mount
/// namespace of its own. A program that was replaced since it began is known by its path, its file
/// system and its owner, where that path is root's.
pub fn executes(files: &dyn Files, pid: u32, path: &str) -> bool {
    let link = format!("/proc/{pid}/exe");
    let Ok(runs) = files.link(&link) else {
        return false;
    };
    let replaced = runs.strip_suffix(" (deleted)");
    if replaced.unwrap_or(&runs) != path {
        return false;
    }
    match (files.node(&link), files.node(path)) {
        (Ok(runs), Ok(there)) if replaced.is_some() => {
            let same = (runs.device, runs.owner) == (there.device, there.owner);
            let mount = runs.mount;
            runs.links == 0 && same && (mount == there.mount || is_roots(files, pid, mount))
        }
        (Ok(runs), Ok(there)) => (runs.device, runs.number) == (there.device, there.number),
        // A model of the kernel has names only.
        (Err(e), _) => e.raw_os_error() == Some(libc::ENOSYS),
        _ => false,
    }
}

/// Whether a mount is one of a process's, and only root can have made those: whoever may make a
/// namespace for users has mounts of any path in it.
fn is_roots(files: &dyn Files, pid: u32, mount: u64) -> bool {
    let users = |of: &str| files.link(&format!("/proc/{of}/ns/user")).ok();
    let own = users("self");
    if own.is_none() || own != users(&pid.to_string()) {
        return false;
    }
    let all = files.read(&format!("/proc/{pid}/mountinfo"));
    let mount = mount.to_string();
    let is = |line: &str| line.split(' ').next() == Some(&mount);
    let has = all.is_ok_and(|all| all.lines().any(is));
    // Nobody comes back from a namespace for users: these mounts were not read in one.
    has && own == users(&pid.to_string())
}

/// The user who has a user's number: who has it as a subordinate one (subuid(5)) can start programs
/// with it.
#[must_use]
pub fn person(files: &dyn Files, user: u32) -> u32 {
    let Ok(Some(all)) = files.optional("/etc/subuid") else {
        return user;
    };
    let owner = all.lines().find_map(|line| {
        let mut fields = line.trim().split(':');
        let (name, first, count) = (fields.next()?, fields.next()?, fields.next()?);
        let (first, count): (u32, u32) = (first.parse().ok()?, count.parse().ok()?);
        let at = user.checked_sub(first)?;
        (at < count).then_some(name)
    });
    owner
        .and_then(|name| number(files, name).ok().flatten())
        .unwrap_or(user)
}

/// The number of a user, by the name or the number.
///
/// # Errors
/// [`Error::File`](crate::error::Error::File).
pub(crate) fn number(files: &dyn Files, name: &str) -> Result<Option<u32>> {
    if let Ok(number) = name.parse() {
        return Ok(Some(number));
    }
    let users = files.optional("/etc/passwd")?.unwrap_or_default();
    Ok(users.lines().find_map(|line| {
        let mut fields = line.split(':');
        (fields.next() == Some(name)).then(|| fields.nth(1)?.parse().ok())?
    }))
}

/// Whether the manager made the unit and container of a table that a process is in: whoever can
/// make a folder in a cgroup that was delegated can give it any name. The manager is this user's
/// (0: the machine's). True for tables without a unit or container.
pub(crate) fn is_managers(
    files: &dyn Files,
    cgroups: &Cgroups,
    keys: &TaskMatch,
    manager: u32,
    at: &Membership,
) -> bool {
    let Some(hierarchy) = cgroups.hierarchies.iter().find(|h| h.is_of(at)) else {
        return false;
    };
    // Of each part of the path: whether only the manager could make a folder of that name.
    let parts: Vec<&str> = at.path.split('/').skip(1).collect();
    let (mut prefix, mut above, mut its) = (String::new(), Some(0), Vec::new());
    for part in &parts {
        its.push(above == Some(manager));
        prefix = format!("{prefix}/{part}");
        above = match hierarchy.dir(&prefix).map(|dir| files.node(&dir)) {
            Some(Ok(node)) => {
                let trusted = above.is_some() && [0, manager].contains(&node.owner);
                trusted.then_some(node.owner)
            }
            // A model of the kernel has no owners.
            Some(Err(e)) if e.raw_os_error() == Some(libc::ENOSYS) => Some(manager),
            _ => None,
        };
    }
    let any = |named: &dyn Fn(&str) -> bool| {
        let mut named = parts.iter().zip(&its).filter(|(part, _)| named(part));
        named.any(|(_, its)| *its)
    };
    let unit = |unit: &String| any(&|part| is_unit(part, unit));
    let container = |id: &String| any(&|part| is_container(part, id));
    keys.unit.as_ref().is_none_or(unit) && keys.container.as_ref().is_none_or(container)
}

/// Whether a part of a path is this unit, however it is spelled.
pub(crate) fn is_unit(part: &str, unit: &str) -> bool {
    part == unit || unescaped(part) == unescaped(unit)
}

/// A unit's name without systemd's escapes (`\x2d` for `-`): people write both.
pub(crate) fn unescaped(unit: &str) -> String {
    let mut pieces = unit.split("\\x");
    let mut whole = pieces.next().unwrap_or_default().to_owned();
    for piece in pieces {
        let code = piece.get(..2).and_then(|d| u8::from_str_radix(d, 16).ok());
        match code.filter(u8::is_ascii) {
            Some(byte) => {
                whole.push(char::from(byte));
                whole.push_str(&piece[2..]);
            }
            None => {
                whole.push_str("\\x");
                whole.push_str(piece);
            }
        }
    }
    whole
}

/// Whether a part of a path names a container: `<id>`, `docker-<id>.scope`,
/// `cri-containerd-<id>.scope`, `libpod-<id>`. Its monitor (`libpod-conmon-<id>.scope`) is none.
pub(crate) fn is_container(part: &str, id: &str) -> bool {
    let part = part.strip_suffix(".scope").unwrap_or(part);
    let mut pieces = part.split(['-', ':']);
    pieces.clone().all(|p| p != "conmon") && pieces.any(|p| p.starts_with(id))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    #[test]
    fn a_subordinate_id_is_its_owners() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("etc")).unwrap();
        let write = |name: &str, text: &str| std::fs::write(dir.path().join(name), text).unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(person(&kernel, 100_000), 100_000, "without such a file");
        write("etc/passwd", "root:x:0:0:::\nann:x:1000:1000:::\n");
        write(
            "etc/subuid",
            "# x\nann:100000:65536\n1001:165536:10\nnobody-known:300000:5\n",
        );
        for (user, expected) in [
            (0, 0),
            (1000, 1000),
            (99_999, 99_999),
            (100_000, 1000),
            (165_535, 1000),
            (165_536, 1001),
            (165_546, 165_546),
            (300_001, 300_001),
        ] {
            assert_eq!(person(&kernel, user), expected, "{user}");
        }
    }
}
