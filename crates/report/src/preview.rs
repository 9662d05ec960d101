//! The processes that a plan meets, as a table, and the limits on critical groups.

use quell_record::preview::{Fate, LimitAbove, Met, Process};

use crate::text::{Style, Table, TableCell, Tone, thousands};

/// Processes that are shown of one group, at most.
const MOST: usize = 4;
/// The longest command or cgroup that is shown whole, in characters.
const LONGEST: usize = 44;

/// The end of a text that is too long, after an ellipsis: of a cgroup's path the end says most.
fn shortened(text: &str) -> String {
    let length = text.chars().count();
    if length <= LONGEST {
        return text.to_owned();
    }
    let end = text.chars().skip(length - LONGEST + 1);
    format!("…{}", end.collect::<String>())
}

/// What becomes of a process, in words.
const fn what(process: &Process) -> &'static str {
    match process.fate {
        Fate::Gathered => "moved into a cgroup of Quell",
        Fate::InPlace => "its cgroup is changed in place",
        Fate::Launched => "started in a cgroup of Quell",
        Fate::Untouched if process.pid.is_none() => "started by the run",
        Fate::Untouched => "stays in its cgroup",
    }
}

/// What a plan meets. Empty where it meets nothing.
#[must_use]
pub fn preview_text(met: &Met, style: Style) -> String {
    let mut out = processes(&met.processes, style) + &limits(&met.limits, style);
    if let Some(why) = &met.unreported {
        let text = format!(
            "Programs that begin later are looked for once a second ({why}): match what starts \
             programs that run for less."
        );
        out.push('\n');
        out.push_str(&style.wrap("", "", &text));
    }
    for text in &met.notes {
        out.push('\n');
        out.push_str(&style.wrap("", "", &format!("{text}.")));
    }
    out
}

fn limits(limits: &[LimitAbove], style: Style) -> String {
    if limits.is_empty() {
        return String::new();
    }
    let mut out = format!("\n{}\n", style.paint(Tone::Title, "Limits that stay"));
    for limit in limits {
        let text = format!(
            "{}: {} is {}: at most {}, whatever the plan promises",
            limit.group, limit.file, limit.value, limit.gets
        );
        out.push_str(&style.wrap("  ", "    ", &text));
    }
    out
}

/// The processes of all groups: the first of each, and how many more there are.
fn processes(processes: &[Process], style: Style) -> String {
    if processes.is_empty() {
        return String::new();
    }
    let head = ["  pid", "command", "cgroup", "group", "what is done to it"];
    let mut table = Table {
        left: vec![1, 2, 3, 4],
        head: head.map(str::to_owned).to_vec(),
        ..Table::default()
    };
    for group in processes.chunk_by(|a, b| a.group == b.group) {
        for process in group.iter().take(MOST) {
            let pid = process
                .pid
                .map_or_else(|| "-".to_owned(), |n| n.to_string());
            let cgroup = process.cgroup.as_deref().unwrap_or("-");
            let cells = [
                format!("  {pid}"),
                shortened(&process.command),
                shortened(cgroup),
                process.group.clone(),
                what(process).to_owned(),
            ];
            table.rows.push(cells.map(TableCell::new).to_vec());
        }
        if let more @ 1.. = group.len().saturating_sub(MOST) {
            let mut cells = ["  …", "", "", &group[0].group, ""].map(TableCell::new);
            cells[4] = TableCell::new(format!("{} more", thousands(&more.to_string())));
            table.rows.push(cells.to_vec());
        }
    }
    format!(
        "\n{}\n{}",
        style.paint(Tone::Title, "Processes"),
        table.render(style)
    )
}

#[cfg(test)]
mod tests {
    use quell_types::units::Share;
    use quell_types::witness::Amount;

    use super::*;

    fn process(group: &str, pid: u32, cgroup: &str, fate: Fate) -> Process {
        Process {
            group: group.to_owned(),
            pid: (pid > 0).then_some(pid),
            command: "x".to_owned(),
            cgroup: (pid > 0).then(|| cgroup.to_owned()),
            fate,
        }
    }

    #[test]
    fn many_processes_of_a_group_are_counted() {
        let mut all = vec![process("a", 7, "/system.slice/a.service", Fate::InPlace)];
        all.extend((20..27).map(|pid| process("b", pid, "/user.slice", Fate::Gathered)));
        all.push(process("c", 0, "", Fate::Launched));
        let wanted = "
Processes
  pid  command  cgroup                   group  what is done to it
  7    x        /system.slice/a.service  a      its cgroup is changed in place
  20   x        /user.slice              b      moved into a cgroup of Quell
  21   x        /user.slice              b      moved into a cgroup of Quell
  22   x        /user.slice              b      moved into a cgroup of Quell
  23   x        /user.slice              b      moved into a cgroup of Quell
  …                                      b      3 more
  -    x        -                        c      started in a cgroup of Quell
";
        assert_eq!(processes(&all, Style::default()), wanted);
        assert_eq!(preview_text(&Met::default(), Style::default()), "");
    }

    #[test]
    fn a_limit_is_named_by_its_file_with_what_it_leaves() {
        let limit = LimitAbove {
            group: "db".to_owned(),
            file: "/sys/fs/cgroup/db.service/cpu.max".to_owned(),
            value: "20000 100000".to_owned(),
            gets: Amount::CpuTime(Share::percent(20)),
        };
        let met = Met {
            processes: Vec::new(),
            limits: vec![limit],
            unreported: Some("not in a container".to_owned()),
            notes: vec!["process 7 (x) is matched by two groups".to_owned()],
        };
        let style = Style {
            width: 200,
            ..Style::default()
        };
        let wanted = "
Limits that stay
  db: /sys/fs/cgroup/db.service/cpu.max is 20000 100000: at most 20% of a CPU, whatever the plan promises

Programs that begin later are looked for once a second (not in a container): match what starts programs that run for less.

process 7 (x) is matched by two groups.
";
        assert_eq!(preview_text(&met, style), wanted);
    }

    #[test]
    fn of_a_long_path_the_end_is_shown() {
        let path = format!("/kubepods.slice/{}/crio-1234.scope", "x".repeat(80));
        let short = shortened(&path);
        assert!(short.starts_with('…') && short.ends_with("x/crio-1234.scope"));
        assert_eq!(short.chars().count(), LONGEST);
    }
}
