//! Checks an experiment for what is wrong although every value has the right type.

use indexmap::IndexMap;
use quell_types::ids::REST;
use quell_types::text::{Complaint, Path};
use quell_types::units::{Bytes, Nanos};

use super::names::{MOST_COPIES, hint, instances};
use super::read::Keys;
use super::subject::means;
use super::{Configuration, Pin, Subject, published};
use crate::policy::{Role, VERSION, fit_name};

/// The most rounds that are accepted: more than a person waits for.
const MOST_ROUNDS: u32 = 10_000;
/// The least memory that is accepted: less does not let a generator with its files become ready.
const LEAST_MEMORY: Bytes = Bytes(16 << 20);

fn complaint(at: Path, why: impl Into<String>, remedy: Option<String>) -> Complaint {
    Complaint {
        at,
        why: why.into(),
        remedy,
    }
}

/// All mistakes outside the configurations.
pub(super) fn check(keys: &Keys) -> Vec<Complaint> {
    let mut list = Vec::new();
    let mut say = |at: &[&str], why: String, remedy: Option<&str>| {
        list.push(complaint(Path::of(at), why, remedy.map(str::to_owned)));
    };
    if keys.quell != VERSION {
        let why = format!("format version {} is not known", keys.quell);
        say(&["quell"], why, Some("this program reads version 1"));
    }
    if !keys.name.is_empty() && !fit_name(&keys.name) {
        let why = "the name cannot become a folder".to_owned();
        say(
            &["name"],
            why,
            Some("use letters, digits, '-' and '_', at most 64 of them"),
        );
    }
    if keys.backends.is_empty() {
        say(
            &["backends"],
            "no backend is named".into(),
            Some("write [\"linux\"]"),
        );
    }
    for backend in keys.backends.iter().filter(|b| !is_backend(b)) {
        let why = format!("'{backend}' is not a backend");
        say(
            &["backends"],
            why,
            Some("write linux, sim, sim:PROFILE, lab or lab:PROFILE"),
        );
    }
    for fault in keys.lab.faults() {
        say(&["lab", fault.key], fault.why, Some(fault.remedy));
    }
    let named = |b: &&String| {
        b.strip_prefix("lab:")
            .is_some_and(|p| Some(p) != keys.lab.profile.as_deref())
    };
    if keys.lab.profile.is_some()
        && let Some(backend) = keys.backends.iter().find(named)
    {
        let why = format!("`backends` has '{backend}', another profile");
        say(
            &["lab", "profile"],
            why,
            Some("leave it out, or write \"lab\" there"),
        );
    }
    if keys.subject.is_empty() {
        say(
            &["subject"],
            "no subject is given".into(),
            Some("an experiment needs at least one [subject.NAME]"),
        );
    }
    if keys.configuration.is_empty() {
        let why = "no configuration is given".into();
        say(
            &["configuration"],
            why,
            Some("an experiment needs at least one [configuration.NAME]"),
        );
    }
    measure(&mut list, keys);
    bounds(&mut list, keys);
    for (name, subject) in &keys.subject {
        subject_of(&mut list, name, subject, &keys.subject);
        replayed(&mut list, name, subject, &keys.backends);
    }
    for (i, expect) in keys.expect.iter().enumerate() {
        let at = Path::of(&["expect"]).index(i);
        if expect.conditions().is_empty() && expect.guarantee_at_least.is_none() {
            list.push(complaint(
                at,
                "nothing is expected",
                Some("give a condition, for example normalized_at_least = 0.8".into()),
            ));
        } else if expect
            .conditions()
            .iter()
            .any(|c| c.bound.number().is_nan())
        {
            list.push(complaint(at, "nan is not a bound", None));
        }
    }
    list.extend(published::values(&keys.published));
    list
}

/// Complains of what only one kind of machine can run, if the experiment names other kinds, too.
fn replayed(list: &mut Vec<Complaint>, name: &str, subject: &Subject, backends: &[String]) {
    let coarse = |b: &&String| b.starts_with("coarse");
    let sim = backends.iter().find(|b| b.starts_with("sim") || coarse(b));
    let real = backends.iter().find(|b| !b.starts_with("sim"));
    if let Some(run) = &subject.run
        && let Some(other) = backends.iter().find(|b| coarse(b) != run.coarse_only())
    {
        let (kind, only) = (
            run.kind(),
            if run.coarse_only() {
                "runs on"
            } else {
                "does not run on"
            },
        );
        list.push(complaint(
            Path::of(&["subject", name, "run"]),
            format!("a {kind} {only} the coarse machine, and `backends` has '{other}'"),
            Some("name backends that fit".into()),
        ));
        return;
    }
    if let (Some(run), Some(sim)) = (&subject.run, sim)
        && run.kernel_only()
    {
        let kind = run.kind();
        list.push(complaint(
            Path::of(&["subject", name, "run"]),
            format!("a {kind} needs a kernel, and `backends` has '{sim}'"),
            Some("write backends = [\"linux\", \"lab\"]".into()),
        ));
    }
    if let (Some(run), Some(real)) = (&subject.run, real)
        && run.simulated_only()
    {
        let kind = run.kind();
        list.push(complaint(
            Path::of(&["subject", name, "run"]),
            format!(
                "a {kind} is replayed on the simulated machine only, and `backends` has '{real}'"
            ),
            Some("write backends = [\"sim\"], or run the program itself by `command`".into()),
        ));
    }
}

fn is_backend(text: &str) -> bool {
    let profile = |rest: Option<&str>| rest.is_some_and(fit_name);
    matches!(text, "linux" | "sim" | "coarse" | "lab")
        || profile(text.strip_prefix("coarse:"))
        || profile(text.strip_prefix("sim:"))
        || profile(text.strip_prefix("lab:"))
}

fn measure(list: &mut Vec<Complaint>, keys: &Keys) {
    let at = Path::of(&["measure"]);
    let measure = &keys.measure;
    if !(1..=MOST_ROUNDS).contains(&measure.rounds) {
        let why = format!("{} is not between 1 and {MOST_ROUNDS}", measure.rounds);
        list.push(complaint(at.key("rounds"), why, None));
    }
    if !(measure.confidence > 0.0 && measure.confidence < 1.0) {
        let why = format!("{} is not between 0 and 1", measure.confidence);
        list.push(complaint(
            at.key("confidence"),
            why,
            Some("0.95 is usual".into()),
        ));
    }
    let ends = [
        ("duration", measure.duration.is_some()),
        ("units", measure.units.is_some()),
        ("until", measure.until.is_some()),
    ];
    let given: Vec<&str> = ends.iter().filter(|(_, g)| *g).map(|(k, _)| *k).collect();
    if given.len() > 1 {
        let why = format!("{} all say what ends a cell", given.join(" and "));
        list.push(complaint(at.clone(), why, Some("keep one".into())));
    }
    if measure.duration == Some(Nanos(0)) || measure.units == Some(0) {
        list.push(complaint(
            at.key(given[0]),
            "nothing would be measured",
            None,
        ));
    }
    if measure.longest == Nanos(0) {
        let why = "no command ends at once";
        list.push(complaint(at.key("longest"), why, None));
    }
    if let Some(shorter) = &measure.simulated {
        let at = at.key("simulated");
        if let Some(rounds) = shorter.rounds.filter(|r| !(1..=MOST_ROUNDS).contains(r)) {
            let why = format!("{rounds} is not between 1 and {MOST_ROUNDS}");
            list.push(complaint(at.key("rounds"), why, None));
        }
        if shorter.duration == Some(Nanos(0)) {
            let why = "nothing would be measured";
            list.push(complaint(at.key("duration"), why, None));
        }
        if shorter.period == Some(Nanos(0)) {
            let why = "a task needs time between two releases";
            list.push(complaint(at.key("period"), why, None));
        }
        if shorter.duration.is_some() && (measure.units.is_some() || measure.until.is_some()) {
            let why = "measure says otherwise what ends a cell";
            list.push(complaint(at.key("duration"), why, None));
        }
    }
    if let Some((first, second)) = &measure.frontier {
        let at = at.key("frontier");
        let known = instances(&keys.subject);
        for (i, name) in [first, second].into_iter().enumerate() {
            if !known.contains(name) {
                let why = format!("there is no subject '{name}'");
                list.push(complaint(
                    at.index(i),
                    why,
                    hint(name, known.iter().map(String::as_str)),
                ));
            }
        }
        if first == second {
            list.push(complaint(at, "a frontier is between two subjects", None));
        }
    }
}

fn bounds(list: &mut Vec<Complaint>, keys: &Keys) {
    let Some(memory) = keys.bounds.memory else {
        return;
    };
    let at = Path::of(&["bounds", "memory"]);
    if memory < LEAST_MEMORY {
        let why = format!("in {memory} no program runs");
        let remedy = format!("give {LEAST_MEMORY} at least");
        list.push(complaint(at.clone(), why, Some(remedy)));
    }
    if let Some(sim) = keys.backends.iter().find(|b| b.starts_with("sim")) {
        let why = format!("a limit of memory needs a kernel's cgroups, and `backends` has '{sim}'");
        list.push(complaint(
            at,
            why,
            Some("write backends = [\"linux\", \"lab\"]".into()),
        ));
    }
}

fn subject_of(
    list: &mut Vec<Complaint>,
    name: &str,
    subject: &Subject,
    all: &IndexMap<String, Subject>,
) {
    let at = Path::of(&["subject", name]);
    let mut say = |at: Path, why: String, remedy: Option<&str>| {
        list.push(complaint(at, why, remedy.map(str::to_owned)));
    };
    let letters = Some("use letters, digits, '-' and '_', at most 64 of them");
    if !fit_name(name) {
        say(
            at.clone(),
            "the name cannot become a file's".into(),
            letters,
        );
    }
    let group = subject.group_or(name);
    let at_group = if subject.group.is_some() {
        at.key("group")
    } else {
        at.clone()
    };
    if group == REST {
        say(
            at_group,
            "'rest' is the group of everything unmatched".into(),
            Some("choose another name"),
        );
    } else if !fit_name(group) {
        say(
            at_group,
            format!("the group's name '{group}' cannot become a cgroup's directory"),
            letters,
        );
    } else if let Some((other, role)) = first_with(all, name, group, subject.role) {
        let why = format!(
            "the group '{group}' is {} by subject '{other}', and {} here",
            role.name(),
            subject.role.name()
        );
        say(
            at.key("role"),
            why,
            Some("a group has one role: give the subjects groups of their own"),
        );
    }
    match (&subject.run, &subject.command) {
        (Some(_), Some(_)) => say(
            at.clone(),
            "both `run` and `command` are given".into(),
            Some("keep one"),
        ),
        (None, None) => say(
            at.clone(),
            "there is nothing to run".into(),
            Some("give `run` or `command`"),
        ),
        (None, Some(command)) if command.first().is_none_or(String::is_empty) => {
            say(
                at.key("command"),
                "no program is named".into(),
                Some("write [\"program\", \"argument\"]"),
            );
        }
        (Some(run), None) => {
            if let Some(fault) = run.fault() {
                say(at.key("run").key(fault.key), fault.why, Some(fault.remedy));
            }
        }
        _ => {}
    }
    let none = match &subject.cpus {
        Some(Pin::Count(n)) => *n == 0,
        Some(Pin::List(cpus)) => cpus.is_empty(),
        Some(Pin::With(_) | Pin::SiblingOf(_)) | None => false,
    };
    if none {
        say(
            at.key("cpus"),
            "a subject without CPUs cannot run".into(),
            Some("ask for at least 1"),
        );
    }
    if !(1..=MOST_COPIES).contains(&subject.copies) {
        say(
            at.key("copies"),
            format!("{} is not between 1 and {MOST_COPIES}", subject.copies),
            None,
        );
    }
    for metric in subject.metric.keys().filter(|m| !fit_name(m)) {
        say(
            at.key("metric").key(metric),
            "the name cannot become a file's".into(),
            letters,
        );
    }
    if !subject.metric.is_empty() && subject.run.is_some() {
        let why = "a generator declares its own metrics".to_owned();
        say(
            at.key("metric"),
            why,
            Some("metrics read from output are for `command`"),
        );
    }
    if let Some(primary) = &subject.primary
        && subject.better(primary).is_none()
    {
        let why = format!("the subject has no metric '{primary}'");
        list.push(complaint(
            at.key("primary"),
            why,
            hint(primary, subject.reports().into_iter()),
        ));
    }
    let after = subject.start.as_ref().and_then(|s| s.after.as_deref());
    if let Some(after) = after.filter(|a| *a == name || !all.contains_key(*a)) {
        let others = all.keys().map(String::as_str).filter(|n| *n != name);
        let why = format!("there is no other subject '{after}'");
        list.push(complaint(
            at.key("start").key("after"),
            why,
            hint(after, others),
        ));
    }
}

/// The first subject before `name` that gives `group` another role.
fn first_with<'a>(
    all: &'a IndexMap<String, Subject>,
    name: &str,
    group: &str,
    role: Role,
) -> Option<(&'a str, Role)> {
    all.iter()
        .take_while(|(other, _)| *other != name)
        .find(|(other, subject)| subject.group_or(other) == group && subject.role != role)
        .map(|(other, subject)| (other.as_str(), subject.role))
}

/// Complains of references to configurations and subjects that do not exist.
pub(super) fn names(keys: &Keys, configurations: &[Configuration]) -> Vec<Complaint> {
    let mut list = Vec::new();
    let known = configurations.iter().map(|c| c.name.as_str());
    let is_known = |name: &str| configurations.iter().any(|c| c.name == name);
    if let Some(baseline) = keys.measure.baseline.as_deref().filter(|b| !is_known(b)) {
        let why = format!("there is no configuration '{baseline}'");
        list.push(complaint(
            Path::of(&["measure", "baseline"]),
            why,
            hint(baseline, known.clone()),
        ));
    }
    for (name, subject) in &keys.subject {
        let exists = |wanted: &str| {
            let is = |c: &Configuration| means(wanted, &c.name, c.family.as_deref());
            configurations.iter().any(is)
        };
        if let Some(wrong) = subject.only.iter().find(|only| !exists(only)) {
            let at = Path::of(&["subject", name, "only"]);
            let why = format!("there is no configuration '{wrong}'");
            list.push(complaint(at, why, hint(wrong, known.clone())));
        }
    }
    let subjects = instances(&keys.subject);
    for (i, expect) in keys.expect.iter().enumerate() {
        let at = Path::of(&["expect"]).index(i);
        if !is_known(&expect.configuration) {
            let why = format!("there is no configuration '{}'", expect.configuration);
            list.push(complaint(
                at.key("configuration"),
                why,
                hint(&expect.configuration, known.clone()),
            ));
        }
        if !subjects.contains(&expect.subject) {
            let why = format!("there is no subject '{}'", expect.subject);
            list.push(complaint(
                at.key("subject"),
                why,
                hint(&expect.subject, subjects.iter().map(String::as_str)),
            ));
        }
    }
    list.extend(published::names(
        &keys.published,
        &keys.subject,
        configurations,
        keys.measure.baseline.is_some() || configurations.iter().any(|c| c.alone),
    ));
    list
}
