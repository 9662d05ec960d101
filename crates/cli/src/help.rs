//! `quell --help`: the commands in groups.

use clap::{Command, CommandFactory};

use crate::args::Args;

/// Each group's title and its commands, in the order in which they are shown. A command that is in
/// none is shown in the last.
const GROUPS: [(&str, &[&str]); 4] = [
    ("Protect a program", &["init", "plan", "run", "status"]),
    (
        "Look at the machine and at programs",
        &["demo", "doctor", "profile", "ways", "colours"],
    ),
    (
        "Compare, and show the evidence",
        &["compare", "report", "export", "bench", "trace"],
    ),
    (
        "Maintain",
        &["restore", "lab", "completions", "man", "help"],
    ),
];

/// The command line, with the grouped help.
pub fn command() -> Command {
    let mut command = Args::command();
    command.build();
    let groups = groups(&command);
    Args::command().help_template(format!(
        "{{about-with-newline}}\n{{usage-heading}} {{usage}}\n\n{groups}Options:\n{{options}}"
    ))
}

fn groups(command: &Command) -> String {
    let shown = |name: &str| {
        let mut all = command.get_subcommands().filter(|c| !c.is_hide_set());
        all.find(|c| c.get_name() == name)
    };
    let width = command
        .get_subcommands()
        .filter(|c| !c.is_hide_set())
        .map(|c| c.get_name().len())
        .max()
        .unwrap_or(0);
    let line = |c: &Command| {
        let about = c.get_about().map(ToString::to_string).unwrap_or_default();
        format!("  {:<width$}  {about}\n", c.get_name())
    };
    let mut out = String::new();
    for (n, (title, names)) in GROUPS.iter().enumerate() {
        out.push_str(&format!("{title}:\n"));
        out.extend(names.iter().filter_map(|name| shown(name)).map(line));
        if n + 1 == GROUPS.len() {
            let grouped = |c: &&Command| {
                GROUPS
                    .iter()
                    .any(|(_, names)| names.contains(&c.get_name()))
            };
            let others = command
                .get_subcommands()
                .filter(|c| !c.is_hide_set() && !grouped(c));
            out.extend(others.map(line));
        }
        out.push('\n');
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_command_is_in_exactly_one_group() {
        let mut command = Args::command();
        command.build();
        for shown in command.get_subcommands().filter(|c| !c.is_hide_set()) {
            let name = shown.get_name();
            let groups = GROUPS.iter().filter(|(_, names)| names.contains(&name));
            assert_eq!(groups.count(), 1, "{name}");
        }
    }

    #[test]
    fn the_help_lists_the_groups_in_order() {
        let text = command().render_help().to_string();
        let at: Vec<usize> = GROUPS
            .iter()
            .map(|(title, _)| text.find(&format!("{title}:\n")).unwrap())
            .collect();
        assert!(at.is_sorted(), "{text}");
        assert!(text.contains("\n  run "), "{text}");
        assert!(!text.contains("__watchdog"), "{text}");
        let wide = text.lines().find(|l| l.chars().count() > 80);
        assert_eq!(wide, None);
        assert!(text.contains("Usage: quell"), "{text}");
    }
}
