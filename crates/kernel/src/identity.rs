//! What a process is, by facts that an unprivileged user cannot bring about for a program of the
//! user's own: the file that it runs, and the unit or container that a manager put it in.

use quell_types::task::TaskMatch;

use crate::cgroup::Cgroups;
use crate::procfs::Membership;
use crate::root::Files;

/// Whether a process runs the program at `path`: the same file, not one of that name in a mount
/// namespace of its own. A program that was replaced since it began is known by its path, its file
/// system and its owner.
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
            runs.links == 0 && same
        }
        (Ok(runs), Ok(there)) => (runs.device, runs.number) == (there.device, there.number),
        // A model of the kernel has names only.
        (Err(e), _) => e.raw_os_error() == Some(libc::ENOSYS),
        _ => false,
    }
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
