//! The processes that a plan meets, as a table.

use quell_record::preview::{Fate, Process};

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
fn what(process: &Process) -> String {
    match process.fate {
        Fate::Gathered => format!("moved into quell.slice/{}", process.group),
        Fate::InPlace => "its cgroup is changed in place".to_owned(),
        Fate::Launched => format!("started in quell.slice/{}", process.group),
        Fate::Untouched if process.pid.is_none() => "started by the run".to_owned(),
        Fate::Untouched => "stays in its cgroup".to_owned(),
    }
}

/// The processes of all groups: the first of each, and how many more there are. Empty without any.
#[must_use]
pub fn processes_text(processes: &[Process], style: Style) -> String {
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
                what(process),
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
  20   x        /user.slice              b      moved into quell.slice/b
  21   x        /user.slice              b      moved into quell.slice/b
  22   x        /user.slice              b      moved into quell.slice/b
  23   x        /user.slice              b      moved into quell.slice/b
  …                                      b      3 more
  -    x        -                        c      started in quell.slice/c
";
        assert_eq!(processes_text(&all, Style::default()), wanted);
        assert_eq!(processes_text(&[], Style::default()), "");
    }

    #[test]
    fn of_a_long_path_the_end_is_shown() {
        let path = format!("/kubepods.slice/{}/crio-1234.scope", "x".repeat(80));
        let short = shortened(&path);
        assert!(short.starts_with('…') && short.ends_with("x/crio-1234.scope"));
        assert_eq!(short.chars().count(), LONGEST);
    }
}
