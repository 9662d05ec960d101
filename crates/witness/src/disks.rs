//! What the kernel's files say of a group's disks (cgroup v2).

use std::collections::{BTreeMap, VecDeque};

use quell_kernel::cgroup::Version;
use quell_kernel::cgroup_limits::{DiskLimit, disk_limits};
use quell_kernel::disks::{Disk, disks};
use quell_kernel::io;
use quell_kernel::root::Files;
use quell_types::units::Nanos;

use crate::limits::{Dir, above};
use quell_types::witness::{Amount, Fault};

/// The time in which a limit has to be used up.
const WINDOW: Nanos = Nanos::secs(4);
/// The share of a limit that is all of it, in percent.
const ALL: u128 = 95;
/// The largest request that may be under way, in bytes.
const REQUEST: u128 = 1 << 20;
/// The share of a limit that is used at least where requests are large for it, in percent.
const MOST: u128 = 75;

/// A promise about disks, as a value of a file in the group's cgroup.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Disks {
    /// At most so much per second to and from each disk, by the kernel's keys: `rbps`, `wbps`,
    /// `riops`, `wiops` (`io.max`).
    Most(Vec<(&'static str, u64)>),
    /// The mean time of a request in microseconds (`io.latency`).
    Latency(u64),
    /// The weight (`io.weight`, `io.bfq.weight`).
    Weight(u32),
}

impl Disks {
    /// The files that say it, the first of which exists where the kernel has it.
    const fn files(&self) -> &'static [&'static str] {
        match self {
            Self::Most(_) => &["io.max"],
            Self::Latency(_) => &["io.latency"],
            Self::Weight(_) => &["io.weight", "io.bfq.weight"],
        }
    }

    /// Whether the text of such a file says it of all these disks.
    fn is_in(&self, text: &str, disks: &[Disk]) -> bool {
        let value = |line: &str, key: &str| {
            let word = line.split_ascii_whitespace().find_map(|word| {
                let (name, value) = word.split_once('=')?;
                (name == key).then_some(value)
            });
            word.and_then(|value| value.parse::<u64>().ok())
        };
        let mut lines = text.lines();
        match self {
            Self::Most(all) => {
                let holds = |line: &str| {
                    let mut each = all.iter();
                    each.all(|(key, most)| value(line, key).is_some_and(|has| has <= *most))
                };
                let limited = |disk: &Disk| {
                    let of = |line: &str| line.split(' ').next() == Some(&disk.number);
                    lines.clone().any(of)
                };
                let all = lines.clone().next().is_some() && disks.iter().all(limited);
                all && lines.all(holds)
            }
            Self::Latency(most) => lines.any(|l| value(l, "target").is_some_and(|t| t <= *most)),
            Self::Weight(weight) => lines.any(|line| {
                let line = line.strip_prefix("default ").unwrap_or(line);
                line.trim().parse() == Ok(*weight)
            }),
        }
    }

    /// What was promised, in words.
    fn words(&self) -> String {
        match self {
            Self::Most(all) => {
                let each = all.iter().map(|(key, most)| format!("{key}={most}"));
                each.collect::<Vec<_>>().join(" ")
            }
            Self::Latency(most) => format!("target={most}"),
            Self::Weight(weight) => format!("weight {weight}"),
        }
    }
}

/// Whether one of these cgroups says it.
///
/// # Errors
/// Why that cannot be seen.
pub(crate) fn judged(
    files: &dyn Files,
    homes: &[Dir],
    wanted: &Disks,
) -> Result<Option<Fault>, String> {
    let of = |home: &Dir| {
        let names = wanted.files().iter();
        let all = names.filter_map(|name| {
            let file = format!("{}/{name}", home.dir);
            Some((files.read(&file).ok()?.trim().to_owned(), file))
        });
        all.collect::<Vec<_>>()
    };
    let all: Vec<(String, String)> = homes.iter().flat_map(of).collect();
    let disks = disks(files);
    if all.iter().any(|(text, _)| wanted.is_in(text, &disks)) {
        return Ok(None);
    }
    match all.into_iter().next() {
        None => Err("no cgroup of the group has the io controller".to_owned()),
        Some((value, file)) => Ok(Some(Fault::Reads {
            file,
            value,
            promised: wanted.words(),
        })),
    }
}

/// What was moved below a limit.
#[derive(Debug, Default)]
pub(crate) struct Window {
    /// Bytes or requests at the last look.
    last: u64,
    /// What each look of the window added, and in which time.
    looks: VecDeque<(Nanos, u64)>,
}

impl Window {
    /// Takes what was counted at a look, `span` after the last one. Whether all that a limit allows
    /// in a window was used, but for a request that is under way.
    fn is_full(&mut self, counted: u64, span: Nanos, limit: &DiskLimit) -> bool {
        self.looks
            .push_back((span, counted.saturating_sub(self.last)));
        self.last = counted;
        let whole = |looks: &VecDeque<(Nanos, u64)>| -> u64 { looks.iter().map(|l| l.0.0).sum() };
        while let Some((oldest, _)) = self.looks.front()
            && whole(&self.looks) - oldest.0 >= WINDOW.0
        {
            self.looks.pop_front();
        }
        let span = whole(&self.looks);
        let allowed = u128::from(limit.most) * u128::from(span) / 1_000_000_000;
        let request = match limit.gets() {
            Amount::DiskRate(_) => REQUEST,
            _ => 1,
        };
        let all = (allowed * ALL / 100).saturating_sub(request);
        let used: u64 = self.looks.iter().map(|look| look.1).sum();
        span >= WINDOW.0 && u128::from(used) >= all.max(allowed * MOST / 100).max(1)
    }
}

/// By the file of a limit, the limit's disk and its key.
pub(crate) type Windows = BTreeMap<(String, String, String), Window>;

/// A limit on one of these cgroups, or above them, all of which is used up. `span`: the time since
/// the last look. Limits of `promised`, which the plan has set itself, are none.
pub(crate) fn used_up(
    files: &dyn Files,
    dirs: &[Dir],
    promised: &[(&str, u64)],
    span: Option<Nanos>,
    windows: &mut Windows,
) -> Option<Fault> {
    let mut before = std::mem::take(windows);
    let mut found = None;
    for dir in above(dirs) {
        for limit in disk_limits(files, Version::V2, &dir) {
            let of_the_plan = |(key, most): &(&str, u64)| limit.key == *key && limit.most >= *most;
            if promised.iter().any(of_the_plan) {
                continue;
            }
            let Ok(text) = files.read(&format!("{dir}/io.stat")) else {
                continue;
            };
            let counted = io::of_disk(&text, &limit.device, &limit.key);
            let at = (limit.file.clone(), limit.device.clone(), limit.key.clone());
            let mut window = before.remove(&at).unwrap_or(Window {
                last: counted,
                looks: VecDeque::new(),
            });
            let full = span.is_some_and(|span| window.is_full(counted, span, &limit));
            windows.insert(at, window);
            if full && found.is_none() {
                found = Some(Fault::Limited {
                    value: limit.value(),
                    gets: limit.gets(),
                    file: limit.file,
                    wanted: None,
                });
            }
        }
    }
    found
}

#[cfg(test)]
mod tests {
    use quell_kernel::root::Kernel;

    use super::*;

    #[test]
    fn a_limit_counts_once_all_of_it_is_used() {
        let root = tempfile::tempdir().unwrap();
        let put = |path: &str, text: &str| {
            let path = root.path().join("c").join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("a/io.max", "8:0 rbps=2000000 wbps=max riops=max wiops=10\n");
        let dirs = [Dir {
            mount: "/c".to_owned(),
            dir: "/c/a/b".to_owned(),
        }];
        let kernel = Kernel::at(root.path());
        let mut windows = Windows::new();
        let (mut rbytes, mut wios) = (50_000_000, 70);
        let mut look = |read: u64, writes: u64, promised: &[(&str, u64)]| {
            rbytes += read;
            wios += writes;
            let stat = format!("8:0 rbytes={rbytes} wbytes=1 rios=1 wios={wios}\n");
            put("a/io.stat", &stat);
            let span = Some(Nanos::millis(700));
            let fault = used_up(&kernel, &dirs, promised, span, &mut windows);
            fault.map(|fault| fault.to_string())
        };
        // Two megabytes in a second, in requests of one.
        let one = 1 << 20;
        let requests = [one, one, 2 * one, one, one, 2 * one];
        let told: Vec<bool> = requests
            .iter()
            .map(|n| look(*n, 0, &[]).is_some())
            .collect();
        assert_eq!(told, [false, false, false, false, false, true]);
        let wanted = "/c/a/io.max reads '8:0 rbps=2000000': the group gets at most 2MB/s of a disk, and uses that up";
        assert_eq!(look(one, 0, &[]).unwrap(), wanted);
        assert!(
            look(one, 0, &[("rbps", 2_000_000)]).is_none(),
            "it is the plan's"
        );
        // Half of it is not all of it.
        let half = (0..20).filter(|_| look(one * 2 / 3, 0, &[]).is_some());
        assert_eq!(half.count(), 0);
        let full = (0..6).filter_map(|_| look(0, 7, &[])).next_back();
        assert!(full.unwrap().contains("wiops=10"));
    }

    #[test]
    fn each_disk_has_a_limit_and_none_a_higher_one() {
        let wanted = Disks::Most(vec![("rbps", 1_000), ("wiops", 5)]);
        let disk = Disk {
            name: "sda".to_owned(),
            number: "8:0".to_owned(),
        };
        let says = |wanted: &Disks, text: &str| wanted.is_in(text, std::slice::from_ref(&disk));
        assert!(says(&wanted, "8:0 rbps=1000 wbps=max riops=max wiops=4\n"));
        assert!(!says(&wanted, ""));
        assert!(!says(
            &wanted,
            "8:0 rbps=1000 wiops=4\n8:16 rbps=max wiops=4\n"
        ));
        assert!(!says(&wanted, "8:0 rbps=1001 wiops=4\n"));
        // One that came later, or whose limit somebody has lifted, has no line.
        assert!(!says(&wanted, "8:16 rbps=1000 wiops=4\n"));
        let latency = Disks::Latency(500);
        assert!(says(&latency, "8:0 target=500") && !says(&latency, "8:0 target=501"));
        let weight = Disks::Weight(300);
        assert!(says(&weight, "default 300\n") && says(&weight, "300"));
        assert!(!says(&weight, "100"));
    }
}
