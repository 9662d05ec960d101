//! What `quell run` prints while it holds a plan and at its end: functions from values to text.

use std::collections::BTreeSet;

use quell_plan::{Held, Plan, Promise};
use quell_record::account::{Account, Neighbour, Share};
use quell_record::backend::Undone;
use quell_record::events::{ColouredPages, Paged};
use quell_record::target::TargetVerdict;
use quell_types::ids::GroupId;
use quell_types::mechanism::Level;
use quell_types::units::Nanos;

use crate::text::{Style, Tone, count, list, thousands, width};
use crate::{owners, quanta, windows};

/// Longer reasons are cut where a line has to hold them.
const LONGEST: usize = 100;

/// What ends the hold.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Ends {
    /// The launched command ends.
    WithCommand,
    /// All launched commands have ended.
    WithCommands,
    /// Only the user ends it: by Ctrl-C on a terminal, else by a signal to this process.
    OnSignal {
        /// The process number to signal. `None` on a terminal.
        process: Option<u32>,
    },
}

/// One line once all steps are applied: what is protected, by what, at which level, and how to end
/// it. `critical`: the protected groups, each with what it matches or runs.
#[must_use]
pub fn holding_line(plan: &Plan, critical: &[(GroupId, String)], ends: Ends) -> String {
    let protected: Vec<String> = critical
        .iter()
        .map(|(group, what)| protection(plan, group, what))
        .collect();
    let what = match protected.as_slice() {
        [] => "the plan is applied".to_owned(),
        some => some.join("; "),
    };
    let ends = match ends {
        Ends::WithCommand => "it ends with the command, and everything is reverted".to_owned(),
        Ends::WithCommands => {
            "it ends when all commands have ended, and everything is reverted".to_owned()
        }
        Ends::OnSignal { process: None } => "Ctrl-C ends it and reverts everything".to_owned(),
        Ends::OnSignal { process: Some(pid) } => {
            format!("`kill {pid}` ends it and reverts everything")
        }
    };
    format!("holding: {what}; {ends}")
}

/// One group: its name, the mechanisms that hold its promises, and their levels.
fn protection(plan: &Plan, group: &str, what: &str) -> String {
    let mine = || plan.promises.iter().filter(|held| held.group == group);
    let name = format!("{group} ({what})");
    let held: Vec<&Held> = mine().filter(|held| held.level > Level::None).collect();
    let of_others = || plan.promises.iter().filter(|held| held.level > Level::None);
    if held.is_empty() && mine().next().is_none() && of_others().next().is_some() {
        let steps = of_others().flat_map(|h| &h.held_by).map(|step| step.0);
        let by = list(&mechanisms(plan, steps));
        return format!("{name} is protected by what holds its neighbours back ({by})");
    }
    if held.is_empty() {
        let helps = mechanisms(plan, plan.steps.iter().map(|step| step.id.0));
        return if helps.is_empty() {
            format!("{name} is not protected (level none)")
        } else {
            format!(
                "{name} is helped by {}, without a promise (level none)",
                list(&helps)
            )
        };
    }
    let steps = held.iter().flat_map(|h| &h.held_by).map(|step| step.0);
    let by = list(&mechanisms(plan, steps));
    let levels: BTreeSet<Level> = held.iter().map(|held| held.level).collect();
    let levels: Vec<String> = levels.iter().map(|l| l.name().to_owned()).collect();
    let unheld = mine().count() - held.len();
    let but = if unheld > 0 {
        format!(", none for {unheld} of {} promises", mine().count())
    } else {
        String::new()
    };
    format!("{name} is protected by {by} (level {}{but})", list(&levels))
}

/// The mechanisms of these steps, each once, in the order of the steps.
fn mechanisms(plan: &Plan, steps: impl Iterator<Item = u32>) -> Vec<String> {
    let wanted: BTreeSet<u32> = steps.collect();
    let mut all: Vec<String> = Vec::new();
    for step in plan.steps.iter().filter(|s| wanted.contains(&s.id.0)) {
        for mechanism in step.mechanisms() {
            let name = mechanism.to_string();
            if !all.contains(&name) {
                all.push(name);
            }
        }
    }
    all
}

/// The status of a hold, for a terminal of `style.width` columns: time held, whether each promise
/// holds, what the neighbours use. It takes one column less, so that no terminal wraps it. `None`
/// before all steps are applied.
#[must_use]
pub fn status_line(account: &Account, plan: &Plan, now: Nanos, style: Style) -> Option<String> {
    let held = account.held(now)?;
    let room = style.width.saturating_sub(1);
    let mut parts = vec![(Tone::Plain, format!("held {}", duration(held)))];
    parts.push(promises(account, plan, now));
    for (group, neighbour) in account.neighbours() {
        if let Some(cpus) = neighbour.cpus_now(now) {
            parts.push((Tone::Plain, format!("{group} {}", briefly(cpus))));
        }
    }
    let mut line = String::new();
    let mut used = 0;
    for (tone, text) in parts {
        let between = if used == 0 { "" } else { " | " };
        let left = room.saturating_sub(used + between.len());
        if left < 8 && used > 0 {
            break;
        }
        // A cut figure would be another figure. A sentence may be cut.
        let text = match width(&text) {
            fits if fits <= left => text,
            _ if tone == Tone::Bad => cut(&text, left),
            _ if used == 0 => cut(&text, left),
            _ => continue,
        };
        used += between.len() + width(&text);
        line.push_str(between);
        line.push_str(&style.paint(tone, &text));
    }
    Some(line)
}

fn promises(account: &Account, plan: &Plan, now: Nanos) -> (Tone, String) {
    let shares = account.shares(now);
    let made: Vec<&Share<'_>> = shares
        .iter()
        .filter(|s| s.worth.planned > Level::None)
        .collect();
    let lost: Vec<String> = made
        .iter()
        .filter(|s| s.worth.is_lost())
        .filter_map(|s| plan.promise(s.id))
        .map(named)
        .collect();
    let all = u32::try_from(made.len()).unwrap_or(u32::MAX);
    match (all, lost.as_slice()) {
        (0, _) => (Tone::Plain, "nothing is promised".to_owned()),
        (1, []) => (Tone::Plain, "the promise holds".to_owned()),
        (_, []) => (Tone::Plain, format!("{all}/{all} promises hold")),
        (_, lost) => (
            Tone::Bad,
            format!(
                "LOST {} of {}: {}",
                lost.len(),
                count(all, "promise"),
                lost.join("; ")
            ),
        ),
    }
}

fn named(held: &Held) -> String {
    format!("{}: {}", held.group, held.promise)
}

/// The end of a hold: how long it was, each promise's part of that time, what the neighbours got,
/// what was reverted. The lines have no prefix, and unknown figures are left out. `revoked`: the
/// watchdog had reverted everything before the end.
#[must_use]
pub fn closing(account: &Account, plan: &Plan, undone: &Undone, revoked: bool) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(held) = account.held(Nanos(u64::MAX)) {
        if revoked {
            lines.push(format!(
                "held for less than {}: the watchdog reverted everything before the end",
                duration(held)
            ));
        } else {
            lines.extend(held_for(account, plan, held));
        }
        for (group, neighbour) in account.neighbours() {
            lines.extend(got(group, neighbour));
        }
    }
    for (group, (units, late)) in &account.units {
        let (units, late) = (counted(*units), counted(*late));
        lines.push(format!(
            "{group}: {units} units of work, {late} of them late"
        ));
    }
    let targets = account.targets.iter();
    lines.extend(targets.map(|(group, verdict)| target(group, verdict)));
    lines.extend(account.windows.iter().flat_map(windows::kept));
    lines.extend(account.turns.iter().flat_map(quanta::taken));
    lines.extend(
        account
            .paged
            .iter()
            .map(|(group, (first, last))| paged(group, *first, *last)),
    );
    let processes = account.coloured.iter();
    lines.extend(
        processes.map(|((group, pid), (program, out, pages))| {
            coloured(group, *pid, program, *out, *pages)
        }),
    );
    lines.extend(
        account
            .owners
            .iter()
            .flat_map(|(first, last)| owners::had(first, last)),
    );
    if !revoked || undone.restored > 0 {
        let changes = counted(u64::from(undone.restored));
        let s = if undone.restored == 1 { "" } else { "s" };
        lines.push(format!("reverted: {changes} change{s}"));
    }
    for left in &undone.left {
        lines.push(format!("not reverted: {left}"));
    }
    lines
}

/// Whether a group's units met their target.
pub(crate) fn target(group: &str, of: &TargetVerdict) -> String {
    let met = if of.is_met() { "met" } else { "missed" };
    let programs = of.programs.map_or(String::new(), |programs| {
        format!(", by the worst of {} programs", counted(programs))
    });
    format!(
        "{group}: target {met}{programs}: {} of {} were late, {} may be; the longest took {:.2} ms",
        counted(of.late),
        counted(of.units),
        of.allowed,
        of.longest_ns as f64 / 1e6,
    )
}

/// The pages of a group's memory at the end, and the faults of its processes since the first look.
pub(crate) fn paged(group: &str, first: Paged, last: Paged) -> String {
    let mib = |bytes: u64| format!("{:.1} MiB", bytes as f64 / f64::from(1 << 20));
    let minor = last.minor_faults.saturating_sub(first.minor_faults);
    let major = last.major_faults.saturating_sub(first.major_faults);
    format!(
        "{group}: {} of {} lay in large pages and {} were locked at last, {} and {} at first; {} minor and {} major page faults in between",
        mib(last.large_bytes),
        mib(last.anonymous_bytes),
        mib(last.locked_bytes),
        mib(first.large_bytes),
        mib(first.locked_bytes),
        counted(minor),
        counted(major),
    )
}

/// The colours of a process's pages, and the stops that they took.
pub(crate) fn coloured(
    group: &str,
    pid: u32,
    program: &str,
    out: bool,
    pages: ColouredPages,
) -> String {
    let all = pages.right + pages.wrong;
    let share = pages.right as f64 * 100.0 / all.max(1) as f64;
    let ms = |ns: u64| ns as f64 / 1e6;
    let lay = match out {
        true => "lay outside of reserved colours at last",
        false => "had its colours at last",
    };
    let held = match out {
        true => String::new(),
        false => format!(
            "; {:.1} MiB were held for its group",
            pages.held_bytes as f64 / f64::from(1 << 20)
        ),
    };
    format!(
        "{group}: {share:.1} % of {} pages of process {pid} ({program}) {lay}; {} moved in {} stops of all its threads, 99 % within {:.1} ms, longest {:.1} ms{held}",
        counted(all),
        counted(pages.moved),
        counted(pages.stops),
        ms(pages.p99_ns),
        ms(pages.longest_ns),
    )
}

fn held_for(account: &Account, plan: &Plan, held: Nanos) -> Vec<String> {
    let length = duration(held);
    let shares = account.shares(Nanos(u64::MAX));
    let made = shares.iter().filter(|s| s.worth.planned > Level::None);
    let made: Vec<String> = made
        .filter_map(|share| Some(share_line(share, plan.promise(share.id)?)))
        .collect();
    if made.is_empty() {
        return vec![format!("held for {length}; the plan promised nothing")];
    }
    let mut lines = vec![format!(
        "held for {length}; the part of that time in which each promise held:"
    )];
    lines.extend(made);
    lines
}

fn share_line(share: &Share<'_>, held: &Held) -> String {
    let worth = share.worth;
    let why = worth.least_because.as_ref();
    let why = why.map_or(String::new(), |why| {
        format!(": {}", cut(&why.to_string(), LONGEST))
    });
    let level = if worth.was_lost() {
        format!("; lost{why}")
    } else if worth.least < worth.planned {
        format!("; level {}, {} at least{why}", worth.planned, worth.least)
    } else {
        format!("; level {}", worth.planned)
    };
    format!("  {:>6}  {}{level}", kept(share, held), named(held))
}

/// A share of time. Never 100 % for a lost promise, however short the loss, and none for one that
/// could not be looked at. A target is met by units of work, not in time.
fn kept(share: &Share<'_>, held: &Held) -> String {
    if !share.worth.was_lost() {
        return match share.worth.was_unseen() {
            true => "unseen",
            false => "100 %",
        }
        .to_owned();
    }
    if matches!(held.promise, Promise::Deadline { .. }) {
        return "missed".to_owned();
    }
    let tenths = (share.held.clamp(0.0, 1.0) * 1000.0).floor().min(999.0);
    if tenths < 1.0 && share.held > 0.0 {
        return "< 0.1 %".to_owned();
    }
    format!("{:.1} %", tenths / 10.0)
}

/// What one neighbour got, as far as there are figures.
fn got(group: &str, neighbour: &Neighbour) -> Vec<String> {
    let mut lines = Vec::new();
    if let Some(cpus) = neighbour.cpus() {
        let waited = if neighbour.waited.0 >= 1_000_000 {
            format!(
                "; its threads waited {} for a CPU",
                duration(neighbour.waited)
            )
        } else {
            String::new()
        };
        lines.push(format!(
            "{group} kept {} on average ({} of CPU time){waited}",
            in_cpus(cpus),
            duration(neighbour.ran)
        ));
    }
    if let (Some(moved @ 1..), over @ 1..) = (neighbour.moved, neighbour.over.0) {
        let rate = rate(moved as f64 / (over as f64 / 1e9));
        lines.push(format!("{group} kept {rate} of memory traffic on average"));
    }
    if neighbour.throttles > 0 {
        lines.push(format!(
            "{group} was throttled {} times, {} in all",
            counted(neighbour.throttles),
            duration(neighbour.throttled)
        ));
    }
    lines
}

fn counted(n: u64) -> String {
    thousands(&n.to_string())
}

/// CPU use as text: `0.92 of a CPU`, `3.1 CPUs`.
fn in_cpus(cpus: f64) -> String {
    if cpus < 0.01 {
        "under 0.01 of a CPU".to_owned()
    } else if cpus < 0.995 {
        format!("{cpus:.2} of a CPU")
    } else {
        format!("{cpus:.1} CPUs")
    }
}

/// CPU use where room is scarce.
fn briefly(cpus: f64) -> String {
    if cpus < 0.01 {
        "< 0.01 CPUs".to_owned()
    } else {
        format!("{cpus:.2} CPUs")
    }
}

/// A rate as text: `2.31 GB/s`, `480.0 MB/s`.
fn rate(bytes_per_s: f64) -> String {
    if bytes_per_s >= 1e9 {
        format!("{:.2} GB/s", bytes_per_s / 1e9)
    } else {
        format!("{:.1} MB/s", bytes_per_s / 1e6)
    }
}

/// At most `columns` characters. Where text is missing the last three are dots.
fn cut(text: &str, columns: usize) -> String {
    if width(text) <= columns {
        return text.to_owned();
    }
    let kept = text.chars().take(columns.saturating_sub(3));
    kept.chain("...".chars()).take(columns).collect()
}

/// A duration as text: `340 ms`, `3.2 s`, `47 s`, `3 min 20 s`, `1 h 05 min`.
pub(crate) fn duration(time: Nanos) -> String {
    let (ms, seconds) = (time.0 / 1_000_000, time.0 / 1_000_000_000);
    match seconds {
        0 if ms < 1 => "under 1 ms".to_owned(),
        0 => format!("{ms} ms"),
        1..10 => format!("{seconds}.{} s", ms % 1000 / 100),
        10..60 => format!("{seconds} s"),
        60..3600 => format!("{} min {:02} s", seconds / 60, seconds % 60),
        _ => format!("{} h {:02} min", seconds / 3600, seconds % 3600 / 60),
    }
}

#[cfg(test)]
mod tests;
