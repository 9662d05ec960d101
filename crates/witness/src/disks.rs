//! What the kernel's files say of a group's disks (cgroup v2).

use quell_kernel::disks::{Disk, disks};
use quell_kernel::root::Files;

use crate::limits::Dir;
use quell_types::witness::Fault;

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

#[cfg(test)]
mod tests {
    use super::*;

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
