//! What a configuration varies of its subjects: the groups in which they run, and parameters of
//! their generators, which are laid over `run` key by key.

use std::collections::BTreeMap;

use indexmap::IndexMap;
use quell_types::text::{Path, Reader, merge, value_at};
use serde::Deserialize;
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::Subject;
use super::names::hint;
use super::read::{Keys, SUBJECT};
use crate::workload::Workload;

/// The subjects' generators after the variation was laid over them.
#[derive(Deserialize)]
struct Whole {
    #[serde(default)]
    subject: IndexMap<String, One>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct One {
    run: Workload,
}

fn table<'t>(key: &str, value: Spanned<DeValue<'t>>) -> DeTable<'t> {
    DeTable::from_iter([(Spanned::new(value.span(), key.to_owned().into()), value)])
}

/// `Some` if a varied subject is given another kind of generator than it has.
fn other_kind(varied: &DeTable<'_>, subject: &Path, is: &Subject) -> Option<()> {
    let kind = value_at(varied, &subject.key("run").key("kind"))?;
    let kept = kind.get_ref().as_str() == is.run.as_ref().map(Workload::kind);
    (!kept).then_some(())
}

/// What a configuration varies, by the subject's name.
#[derive(Default)]
pub(super) struct Variation {
    /// What the subject's generator does.
    pub(super) runs: BTreeMap<String, Workload>,
    /// The group in which the subject runs.
    pub(super) groups: BTreeMap<String, String>,
}

/// Removes the groups from the varied subjects, and then the subjects of which nothing else is
/// varied.
fn groups(
    reader: &mut Reader<'_>,
    varied: &mut DeTable<'_>,
    keys: &Keys,
) -> BTreeMap<String, String> {
    let mut groups = BTreeMap::new();
    let Some(DeValue::Table(subjects)) = varied.get_mut(SUBJECT).map(Spanned::get_mut) else {
        return groups;
    };
    for (name, one) in subjects.iter_mut() {
        let DeValue::Table(one) = one.get_mut() else {
            continue;
        };
        let Some(group) = one.remove("group") else {
            continue;
        };
        let name = name.get_ref().to_string();
        // A value that is not text was reported already.
        if let Some(group) = group.get_ref().as_str() {
            groups.insert(name, group.to_owned());
        }
    }
    let all = std::mem::take(subjects).into_iter();
    *subjects = all
        .filter(|(_, one)| !matches!(one.get_ref(), DeValue::Table(t) if t.is_empty()))
        .collect();
    for name in groups
        .keys()
        .filter(|name| !keys.subject.contains_key(*name))
    {
        let known = keys.subject.keys().map(String::as_str);
        let at = Path::of(&[SUBJECT, name]);
        let why = format!("there is no subject '{name}'");
        reader.report_key(varied, &at, &why, hint(name, known));
    }
    let group_of = |name: &str, subject: &Subject| {
        let own = groups.get(name).cloned();
        own.unwrap_or_else(|| subject.group_or(name).to_owned())
    };
    for (name, group) in &groups {
        let Some(role) = keys.subject.get(name).map(|subject| subject.role) else {
            continue;
        };
        let other = keys
            .subject
            .iter()
            .find(|(other, subject)| group_of(other, subject) == *group && subject.role != role);
        if let Some((other, _)) = other {
            let at = Path::of(&[SUBJECT, name, "group"]);
            let why = format!(
                "{at}: '{name}' and '{other}' would be one group '{group}', and their roles differ"
            );
            reader.report_key(varied, &at, &why, None);
        }
    }
    groups
}

/// Removes the subjects from a merged configuration, and reads what is varied of them. Adds
/// problems to the reader.
pub(super) fn variation(
    reader: &mut Reader<'_>,
    merged: &mut DeTable<'_>,
    root: &DeTable<'_>,
    keys: &Keys,
) -> Variation {
    let Some(varied) = merged.remove(SUBJECT) else {
        return Variation::default();
    };
    let mut varied = table(SUBJECT, varied);
    let groups = groups(reader, &mut varied, keys);
    let runs = runs(reader, &varied, root, keys);
    Variation { runs, groups }
}

fn runs(
    reader: &mut Reader<'_>,
    varied: &DeTable<'_>,
    root: &DeTable<'_>,
    keys: &Keys,
) -> BTreeMap<String, Workload> {
    let Some(subjects) = varied.get(SUBJECT) else {
        return BTreeMap::new();
    };
    let names: Vec<String> = match subjects.get_ref() {
        DeValue::Table(subjects) => subjects.keys().map(|k| k.get_ref().to_string()).collect(),
        _ => Vec::new(),
    };
    let mut whole = DeTable::new();
    for name in &names {
        let at = Path::of(&[SUBJECT, name]);
        let (why, remedy) = match keys.subject.get(name) {
            None => {
                let known = keys.subject.keys().map(String::as_str);
                (format!("there is no subject '{name}'"), hint(name, known))
            }
            Some(subject) if subject.run.is_none() => (
                format!("{at}: only generators can be varied, and '{name}' is a command"),
                Some("make two subjects of it".to_owned()),
            ),
            Some(subject) if other_kind(varied, &at, subject).is_some() => (
                format!(
                    "{at}.run.kind: a configuration varies what a generator does, not which it is"
                ),
                Some("make two subjects of it".to_owned()),
            ),
            Some(_) => {
                if let Some(run) = value_at(root, &at.key("run")) {
                    let run = table("run", run.clone());
                    let one = table(name, Spanned::new(0..0, DeValue::Table(run)));
                    merge(
                        &mut whole,
                        &table(SUBJECT, Spanned::new(0..0, DeValue::Table(one))),
                    );
                }
                continue;
            }
        };
        reader.report_key(varied, &at, &why, remedy);
        return BTreeMap::new();
    }
    merge(&mut whole, varied);
    let Some(read) = reader.read::<Whole>(&Spanned::new(0..0, whole.clone())) else {
        return BTreeMap::new();
    };
    let mut runs = BTreeMap::new();
    for (name, one) in read.subject {
        let at = Path::of(&[SUBJECT, &name, "run"]);
        if let Some(fault) = one.run.fault() {
            let at = at.key(fault.key);
            let why = format!("{at}: {}", fault.why);
            reader.report(&whole, &at, &why, Some(fault.remedy.to_owned()));
        }
        runs.insert(name, one.run);
    }
    runs
}
