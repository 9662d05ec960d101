//! Which tasks belong to a group: the `match` tables of a policy, their checks, and their spelling
//! on the command line (`exe=/usr/bin/x,user=y`).

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::source::compile;
use crate::text::suggestion;

/// One `match` table: all keys given must hold. A group matches when any of its tables does.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct TaskMatch {
    /// Number of a process.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub pid: Option<u32>,
    /// The executable's path; symbolic links are followed. A process must run that file, not one of
    /// that name in a mount namespace of its own: a program in a container is named by `container`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub exe: Option<String>,
    /// The command name, as `/proc/PID/comm` (at most 15 bytes; longer names are compared by their
    /// first 15). A program is moved when the kernel reports that it began. Where the kernel
    /// does not, programs are looked for once a second: match what starts programs of less.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub comm: Option<String>,
    /// A regular expression found in any argument, as `/proc/PID/cmdline` (its first 128 KiB).
    /// `comm` and `arg` are what a program says of itself: add `user` where users are no friends.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub arg: Option<String>,
    /// The effective user, by name or number. With `unit` or `container` the user whose manager
    /// made it; root's without.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// A cgroup path from the hierarchy's root, its children included. The group is changed in
    /// place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cgroup: Option<String>,
    /// A systemd unit, as its manager made it: a folder of that name that another user could make
    /// is none. The group is changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub unit: Option<String>,
    /// A container, by the beginning of its id (at least 12 characters), as root's manager made it.
    /// The group is changed in place.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub container: Option<String>,
}

impl TaskMatch {
    /// Whether the table names a whole cgroup. Such a cgroup is changed in place and never emptied.
    #[must_use]
    pub fn in_place(&self) -> bool {
        self.cgroup.is_some() || self.unit.is_some() || self.container.is_some()
    }
}

impl fmt::Display for TaskMatch {
    /// The command-line spelling, as [`TaskMatch::from_str`] reads it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let pid = self.pid.map(|pid| pid.to_string());
        let values = [
            &pid,
            &self.exe,
            &self.comm,
            &self.arg,
            &self.user,
            &self.cgroup,
            &self.unit,
            &self.container,
        ];
        let given = KEYS.iter().zip(values);
        let given = given.filter_map(|(key, value)| Some((key, value.as_ref()?)));
        for (i, (key, value)) in given.enumerate() {
            let comma = if i > 0 { "," } else { "" };
            write!(f, "{comma}{key}={}", value.replace(',', "\\,"))?;
        }
        Ok(())
    }
}

/// The shortest prefix of a container's id that is accepted; container engines print as much.
const CONTAINER_ID: usize = 12;

/// The keys of a `match` table.
const KEYS: [&str; 8] = [
    "pid",
    "exe",
    "comm",
    "arg",
    "user",
    "cgroup",
    "unit",
    "container",
];

impl FromStr for TaskMatch {
    type Err = String;

    /// Reads the command-line spelling: `KEY=VALUE,KEY=VALUE`. A comma within a value is written
    /// `\,`.
    fn from_str(text: &str) -> Result<Self, String> {
        let mut found = Self::default();
        for part in split(text) {
            let (key, value) = part.split_once('=').ok_or_else(|| {
                format!("'{part}' is not KEY=VALUE, for example exe=/usr/bin/x or comm=lbm")
            })?;
            let slot = match key.trim() {
                "pid" => {
                    let pid = value
                        .parse()
                        .map_err(|_| format!("'{value}' is not a process number"))?;
                    if found.pid.replace(pid).is_some() {
                        return Err("'pid' is given twice".into());
                    }
                    continue;
                }
                "exe" => &mut found.exe,
                "comm" => &mut found.comm,
                "arg" => &mut found.arg,
                "user" => &mut found.user,
                "cgroup" => &mut found.cgroup,
                "unit" => &mut found.unit,
                "container" => &mut found.container,
                other => {
                    return Err(match suggestion(other, KEYS) {
                        Some(close) => format!("unknown key '{other}'; did you mean '{close}'?"),
                        None => format!("unknown key '{other}'; known: {}", KEYS.join(", ")),
                    });
                }
            };
            if slot.replace(value.to_owned()).is_some() {
                return Err(format!("'{}' is given twice", key.trim()));
            }
        }
        match check(&found).into_iter().next() {
            Some(("", why)) => Err(why),
            Some((key, why)) => Err(format!("{key}: {why}")),
            None => Ok(found),
        }
    }
}

/// Splits at commas that are not escaped, and removes the escapes.
fn split(text: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = text.chars().peekable();
    while let Some(c) = chars.next() {
        match c {
            '\\' if chars.peek() == Some(&',') => {
                chars.next();
                if let Some(part) = parts.last_mut() {
                    part.push(',');
                }
            }
            ',' => parts.push(String::new()),
            c => {
                if let Some(part) = parts.last_mut() {
                    part.push(c);
                }
            }
        }
    }
    parts
}

/// What is wrong with a table: the key (empty for the table as a whole) and why.
#[must_use]
pub fn check(table: &TaskMatch) -> Vec<(&'static str, String)> {
    let mut wrong = Vec::new();
    if *table == TaskMatch::default() {
        wrong.push((
            "",
            format!("matches nothing: give at least one of {}", KEYS.join(", ")),
        ));
    }
    if table.pid == Some(0) {
        wrong.push(("pid", "0 is not a process".into()));
    }
    let texts = [
        ("exe", &table.exe),
        ("comm", &table.comm),
        ("arg", &table.arg),
        ("user", &table.user),
        ("cgroup", &table.cgroup),
        ("unit", &table.unit),
        ("container", &table.container),
    ];
    for (key, text) in texts {
        let Some(text) = text else { continue };
        let why = match key {
            _ if text.is_empty() => Some("is empty".to_owned()),
            "exe" | "cgroup" if !text.starts_with('/') => Some(format!(
                "'{text}' is not a path from the root: it must start with '/'"
            )),
            "cgroup" if text.split('/').any(|part| [".", ".."].contains(&part)) => Some(format!(
                "'{text}' is not a cgroup's path: remove '.' and '..'"
            )),
            "cgroup" if text.starts_with("/sys/fs/cgroup") => Some(format!(
                "'{text}' begins with the mount: give the path below it, '{}'",
                text.trim_start_matches("/sys/fs/cgroup")
            )),
            "cgroup" if text.trim_matches('/').is_empty() => {
                Some("the root cgroup is every task; leave it to [rest]".to_owned())
            }
            "arg" => compile(text).err(),
            "unit" if text.contains('/') => Some(format!(
                "'{text}' is not a unit's name such as detector.service"
            )),
            "container"
                if text.len() < CONTAINER_ID || !text.bytes().all(|b| b.is_ascii_hexdigit()) =>
            {
                Some(format!(
                    "'{text}' is not the beginning of a container's id: give at least {CONTAINER_ID} hexadecimal digits"
                ))
            }
            _ => None,
        };
        wrong.extend(why.map(|why| (key, why)));
    }
    wrong
}

/// A task that cannot be confused with a later one of the same number.
#[derive(
    Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub struct TaskId {
    /// Process or thread number.
    pub pid: u32,
    /// Start time in clock ticks since boot (`/proc/PID/stat`, field 22).
    pub start: u64,
}

/// How much memory a process may lock, in bytes (RLIMIT_MEMLOCK). Absent: any amount.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct LockLimit {
    /// What holds now.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub soft: Option<u64>,
    /// How far the process may raise it itself.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hard: Option<u64>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn reads_the_command_line_spelling() {
        let found: TaskMatch = "exe=/usr/bin/x,user=y".parse().unwrap();
        assert_eq!(found.exe.as_deref(), Some("/usr/bin/x"));
        assert_eq!(found.user.as_deref(), Some("y"));
        let found: TaskMatch = r"arg=--size=\d{1\,3}".parse().unwrap();
        assert_eq!(found.arg.as_deref(), Some(r"--size=\d{1,3}"));
        assert_eq!("pid=12".parse::<TaskMatch>().unwrap().pid, Some(12));
    }

    #[test]
    fn a_cgroup_is_given_from_its_mount_on() {
        let table = |cgroup: &str| TaskMatch {
            cgroup: Some(cgroup.to_owned()),
            ..TaskMatch::default()
        };
        let wrong = check(&table("/sys/fs/cgroup/system.slice"));
        assert!(wrong[0].1.contains("'/system.slice'"), "{wrong:?}");
        assert_eq!(check(&table("/system.slice")), []);
    }

    #[test]
    fn writes_the_spelling_that_it_reads() {
        for text in ["exe=/usr/bin/x,user=y", r"arg=--size=\d{1\,3}", "pid=12"] {
            assert_eq!(text.parse::<TaskMatch>().unwrap().to_string(), text);
        }
    }

    #[test]
    fn refuses_with_the_reason() {
        let refused = |text: &str| text.parse::<TaskMatch>().unwrap_err();
        assert_eq!(
            refused("com=lbm"),
            "unknown key 'com'; did you mean 'comm'?"
        );
        assert_eq!(refused("comm=a,comm=b"), "'comm' is given twice");
        assert_eq!(
            refused("lbm"),
            "'lbm' is not KEY=VALUE, for example exe=/usr/bin/x or comm=lbm"
        );
        assert_eq!(
            refused("exe=lbm"),
            "exe: 'lbm' is not a path from the root: it must start with '/'"
        );
        assert!(
            refused("arg=(").starts_with("arg: '(' is not a regular expression: unclosed group")
        );
        assert!(refused("container=123").starts_with("container: '123' is not the beginning"));
        assert_eq!(refused("pid=0"), "pid: 0 is not a process");
    }
}
