//! Which programs have frames of some colours, in words and as a table.

use quell_record::owners::{FrameOwners, MOST, Mapped};

/// Programs that a sentence names.
const NAMED: usize = 3;

fn mib(bytes: u64) -> String {
    format!("{:.1}", bytes as f64 / f64::from(1 << 20))
}

/// What other programs had of reserved colours at first and at last, in sentences without their
/// ends.
pub(crate) fn had(first: &FrameOwners, last: &FrameOwners) -> Vec<String> {
    let colours = last.colours.brief();
    let s = if last.colours.len() == 1 { "" } else { "s" };
    let (before, after) = (first.others().bytes(), last.others().bytes());
    let mut said = vec![format!(
        "frames of reserved colour{s} {colours}: {} MiB were held at last; other programs had {} MiB, {} MiB at first",
        mib(last.held_bytes),
        mib(after),
        mib(before)
    )];
    let named = last.programs.iter().take(NAMED).map(|owner| {
        let group = owner.group.as_ref();
        let group = group.map_or(String::new(), |group| format!(" of group {group}"));
        let mib = mib(owner.mapped.bytes());
        format!("{}{group} {mib} MiB", owner.program)
    });
    let named: Vec<String> = named.collect();
    if !named.is_empty() {
        said.push(format!("the most of them: {}", named.join(", ")));
    }
    said
}

/// A table for a terminal: the largest ten, the rest, and what no process maps.
#[must_use]
pub fn owners_text(owners: &FrameOwners) -> String {
    let mut owners = owners.clone();
    owners.shorten(MOST);
    let mut out = format!(
        "{:<28}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
        "", "processes", "private", "shared", "files", "MiB"
    );
    let mut row = |name: &str, processes: u32, mapped: Mapped| {
        out.push_str(&format!(
            "{name:<28}{:>10}{:>10}{:>10}{:>10}{:>10}\n",
            processes,
            mib(mapped.private_bytes),
            mib(mapped.shared_bytes),
            mib(mapped.files_bytes),
            mib(mapped.bytes())
        ));
    };
    for owner in &owners.programs {
        let name = match &owner.group {
            Some(group) => format!("{} ({group})", owner.program),
            None => owner.program.clone(),
        };
        row(&name, owner.processes, owner.mapped);
    }
    if let Some(rest) = owners.rest {
        let s = if rest.programs == 1 { "" } else { "s" };
        let programs = format!("{} more program{s}", rest.programs);
        row(&programs, rest.processes, rest.mapped);
    }
    let mut sum = |name: &str, bytes: u64| {
        out.push_str(&format!("{name:<28}{:>50}\n", mib(bytes)));
    };
    if owners.reserving_bytes > 0 {
        sum("groups that reserve them", owners.reserving_bytes);
    }
    if owners.held_bytes > 0 {
        sum("held", owners.held_bytes);
    }
    if let Some(uses) = owners.uses {
        sum("files that no process maps", uses.cached_bytes);
        sum("the kernel", uses.kernel_bytes);
        sum("free", uses.free_bytes);
        sum("all frames of these colours", uses.all_bytes);
    }
    if owners.unread > 0 {
        out.push_str(&format!(
            "processes that may not be read: {}\n",
            owners.unread
        ));
    }
    out
}

#[cfg(test)]
mod tests {
    use quell_record::owners::{Owner, Uses};

    use super::*;

    fn owner(program: &str, group: Option<&str>, mib: u64) -> Owner {
        Owner {
            program: program.to_owned(),
            group: group.map(str::to_owned),
            processes: 1,
            mapped: Mapped {
                private_bytes: mib << 20,
                files_bytes: 1 << 19,
                ..Mapped::default()
            },
        }
    }

    fn owners(programs: Vec<Owner>) -> FrameOwners {
        FrameOwners {
            colours: "2-3".parse().unwrap(),
            held_bytes: 256 << 20,
            programs,
            unread: 2,
            ..FrameOwners::default()
        }
    }

    #[test]
    fn other_programs_are_named_with_what_they_have() {
        let first = owners(vec![owner("sort", Some("b"), 40), owner("cat", None, 1)]);
        let last = owners(vec![owner("cat", None, 1), owner("sort", Some("b"), 0)]);
        assert_eq!(
            had(&first, &last),
            [
                "frames of reserved colours 2-3: 256.0 MiB were held at last; other programs had 2.0 MiB, 42.0 MiB at first",
                "the most of them: cat 1.5 MiB, sort of group b 0.5 MiB"
            ]
        );
        assert_eq!(had(&first, &owners(Vec::new())).len(), 1);
    }

    #[test]
    fn the_table_has_ten_programs_and_the_rest() {
        let programs = (0..13).map(|n| owner(&format!("p{n}"), None, 13 - n));
        let mut all = owners(programs.collect());
        all.uses = Some(Uses {
            all_bytes: 512 << 20,
            free_bytes: 64 << 20,
            cached_bytes: 32 << 20,
            kernel_bytes: 16 << 20,
        });
        let text = owners_text(&all);
        let lines: Vec<&str> = text.lines().collect();
        assert_eq!(lines.len(), 18, "{text}");
        let words = |line: &str| {
            let words = line.split_whitespace();
            words.map(str::to_owned).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(words(lines[1]), "p0 1 13.0 0.0 0.5 13.5");
        assert_eq!(words(lines[11]), "3 more programs 3 6.0 0.0 1.5 7.5");
        assert_eq!(words(lines[12]), "held 256.0");
        assert_eq!(words(lines[16]), "all frames of these colours 512.0");
        assert_eq!(lines[17], "processes that may not be read: 2");
    }
}
