//! What describes the host rather than the machine, and how a capture leaves it out.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use super::File;

/// Lines of `/proc/cpuinfo` that describe the type of a processor. Its serial number (Arm) and its
/// present speed are left out.
const CPUINFO: [&str; 15] = [
    "processor",
    "vendor_id",
    "cpu family",
    "model",
    "model name",
    "stepping",
    "microcode",
    "flags",
    "CPU implementer",
    "CPU architecture",
    "CPU variant",
    "CPU part",
    "mvendorid",
    "uarch",
    "isa",
];

/// Cgroup names that say nothing about a host.
const COMMON: [&str; 6] = [
    "system.slice",
    "user.slice",
    "init.scope",
    "quell.slice",
    "docker",
    "kubepods.slice",
];

/// Returns the files without what describes the host. `host` is the host's name.
pub(super) fn anonymous(seen: BTreeMap<String, File>, host: &str) -> BTreeMap<String, File> {
    let mounts: String = text_of(&seen, "/proc/self/mountinfo")
        .lines()
        .filter(|line| line.contains(" - cgroup"))
        .fold(String::new(), |all, line| all + line + "\n");
    let resctrl: String = text_of(&seen, "/proc/self/mountinfo")
        .lines()
        .filter(|line| line.contains(" - resctrl "))
        .fold(String::new(), |all, line| all + line + "\n");
    // The names to replace: every part of a cgroup's path, in mounts, memberships and the paths of
    // files.
    let mut names: BTreeMap<String, String> = BTreeMap::new();
    let mut learn = |path: &str| {
        for part in path.split('/').filter(|p| !p.is_empty()) {
            if !COMMON.contains(&part) && !names.contains_key(part) {
                names.insert(part.to_owned(), format!("cgroup-{}", names.len() + 1));
            }
        }
    };
    for line in mounts.lines() {
        learn(line.split(' ').nth(3).unwrap_or_default());
    }
    for line in text_of(&seen, "/proc/self/cgroup").lines() {
        learn(line.splitn(3, ':').nth(2).unwrap_or_default());
    }
    let points: Vec<&str> = mounts
        .lines()
        .filter_map(|line| line.split(' ').nth(4))
        .collect();
    for path in seen.keys() {
        for point in &points {
            if let Some((dirs, _)) = path
                .strip_prefix(&format!("{point}/"))
                .and_then(|rest| rest.rsplit_once('/'))
            {
                learn(dirs);
            }
        }
    }
    // Mount points are the same on all hosts, so the first `keep` parts of a path stay.
    let renamed = |path: &str, keep: usize| {
        let parts: Vec<&str> = path.split('/').collect();
        let new: Vec<&str> = parts
            .iter()
            .enumerate()
            .map(|(i, part)| match names.get(*part) {
                Some(name) if i >= keep => name.as_str(),
                _ => part,
            })
            .collect();
        new.join("/")
    };
    let mut kept = BTreeMap::new();
    for (path, mut file) in seen {
        // Other tools and Quell name control groups. What there is to divide is in `info`.
        if path.starts_with("/sys/fs/resctrl/") && !path.starts_with("/sys/fs/resctrl/info/") {
            continue;
        }
        if let Some(text) = file.text.as_mut() {
            let reduced = match path.as_str() {
                "/proc/cpuinfo" => cpuinfo(text),
                "/proc/self/mountinfo" => {
                    lines(&mounts, |line| {
                        let fields: Vec<String> = line
                            .split(' ')
                            .enumerate()
                            .map(|(i, field)| {
                                if i == 3 {
                                    renamed(field, 0)
                                } else {
                                    field.to_owned()
                                }
                            })
                            .collect();
                        Some(fields.join(" "))
                    }) + &format!("\n{resctrl}")
                }
                "/proc/self/cgroup" => lines(text, |line| {
                    let (head, path) = line.rsplit_once(':')?;
                    Some(format!("{head}:{}", renamed(path, 0)))
                }),
                // Other devices say nothing about the machine.
                "/proc/devices" => lines(text, |line| {
                    line.ends_with(" pseudo_lock").then(|| line.to_owned())
                }),
                // Pressure so far belongs to the moment of the capture.
                _ if path.starts_with("/proc/pressure/") => lines(text, |line| {
                    let kind = line.split(' ').next()?;
                    Some(format!("{kind} avg10=0.00 avg60=0.00 avg300=0.00 total=0"))
                }),
                // Where memory lies, without how much of it is used.
                "/proc/zoneinfo" => lines(text, |line| {
                    let word = line.split_ascii_whitespace().next()?;
                    let told = ["Node", "spanned", "start_pfn:"].contains(&word);
                    told.then(|| line.to_owned())
                }),
                _ if path.ends_with("/meminfo") => lines(text, |line| {
                    line.contains("MemTotal:").then(|| line.to_owned())
                }),
                _ => text.clone(),
            };
            *text = without(&reduced, host);
        }
        let point = points
            .iter()
            .filter(|p| path.starts_with(&format!("{p}/")))
            .map(|p| p.split('/').count())
            .max();
        kept.insert(
            point.map_or(path.clone(), |keep| renamed(&path, keep)),
            file,
        );
    }
    kept
}

fn text_of<'a>(seen: &'a BTreeMap<String, File>, path: &str) -> &'a str {
    seen.get(path)
        .and_then(|f| f.text.as_deref())
        .unwrap_or_default()
}

fn lines(text: &str, each: impl FnMut(&str) -> Option<String>) -> String {
    text.lines().filter_map(each).collect::<Vec<_>>().join("\n")
}

/// For each processor, the lines that no processor before it had.
fn cpuinfo(text: &str) -> String {
    let mut seen = BTreeSet::new();
    lines(text, |line| {
        let key = line.split(':').next().unwrap_or_default().trim();
        let told = CPUINFO.contains(&key) && (seen.insert(line.to_owned()) || key == "processor");
        told.then(|| line.to_owned())
    })
}

/// The text with `host` in place of the host's name, where that stands as a word.
pub(super) fn without(text: &str, host: &str) -> String {
    if host.len() < 3 || host == "localhost" {
        return text.to_owned();
    }
    let mut out = String::new();
    let mut rest = text;
    let word = |c: char| c.is_alphanumeric() || c == '_';
    while let Some(at) = rest.find(host) {
        let (before, found) = rest.split_at(at);
        let after = &found[host.len()..];
        let inside =
            before.chars().next_back().is_some_and(word) || after.chars().next().is_some_and(word);
        let _ = write!(out, "{before}{}", if inside { host } else { "host" });
        rest = after;
    }
    out + rest
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_tells_of_the_host_is_left_out() {
        let own = "/user.slice/user-1000.slice/session-3.scope";
        let files = [
            (
                "/proc/self/mountinfo",
                "20 1 8:1 / /home/ada rw - ext4 /dev/ada rw\n25 1 0:22 / /sys/fs/cgroup rw - cgroup2 cgroup2 rw",
            ),
            ("/proc/self/cgroup", &format!("0::{own}")),
            (&format!("/sys/fs/cgroup{own}/cpuset.cpus.effective"), "0-3"),
            ("/proc/sys/kernel/osrelease", "6.1.0-lovelace"),
            (
                "/proc/cpuinfo",
                "processor : 0\nCPU part : 0xd0b\ncpu MHz : 12\n\nprocessor : 1\nCPU part : 0xd0b\nSerial : 42",
            ),
            (
                "/sys/devices/system/node/node0/meminfo",
                "Node 0 MemTotal: 8 kB\nNode 0 MemFree: 3 kB",
            ),
        ];
        let seen = files
            .iter()
            .map(|(path, text)| {
                let text = Some((*text).to_owned());
                (
                    (*path).to_owned(),
                    File {
                        text,
                        ..File::default()
                    },
                )
            })
            .collect();
        let kept = anonymous(seen, "lovelace");
        let all = format!("{kept:?}");
        for private in [
            "ada", "1000", "session", "lovelace", "Serial", "42", "MHz", "MemFree",
        ] {
            assert!(!all.contains(private), "{private}: {all}");
        }
        assert_eq!(
            text_of(&kept, "/proc/self/cgroup"),
            "0::/user.slice/cgroup-1/cgroup-2"
        );
        assert_eq!(
            text_of(
                &kept,
                "/sys/fs/cgroup/user.slice/cgroup-1/cgroup-2/cpuset.cpus.effective"
            ),
            "0-3"
        );
        assert_eq!(
            text_of(&kept, "/proc/cpuinfo"),
            "processor : 0\nCPU part : 0xd0b\nprocessor : 1"
        );
        assert_eq!(text_of(&kept, "/proc/sys/kernel/osrelease"), "6.1.0-host");
    }
}
