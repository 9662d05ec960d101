//! Expands the configurations of a file into policies. The roles of the subjects' groups come
//! first. What the configuration extends, its own fragment, and one fragment per axis are laid over
//! them in this order.

use std::collections::BTreeMap;

use quell_types::mechanism::Mechanism;
use quell_types::text::{Path, Reader, merge, value_at};
use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::names::hint;
use super::read::{ConfigurationKeys, Keys, SUBJECT};
use super::runs;
use super::{Configuration, Subject};
use crate::policy::{CpusWanted, FRAGMENT_KEYS, Policy, Shape, policy_of};

/// More cells than this in one experiment are a mistake in the axes.
const MOST_CELLS: usize = 1000;

/// Axis and value, for one combination.
type Combination<'a> = Vec<(&'a str, &'a str)>;

/// Expands all configurations, in the order of the file. Adds problems to the reader.
pub(super) fn expand(
    reader: &mut Reader<'_>,
    root: &DeTable<'_>,
    keys: &Keys,
) -> Vec<Configuration> {
    let mut cells: Vec<Configuration> = Vec::new();
    for (key, configuration) in &keys.configuration {
        unknown_keys(reader, root, key);
        let Some(chain) = chain(reader, root, keys, key) else {
            continue;
        };
        let mut base = DeTable::new();
        for link in &chain {
            merge(&mut base, &fragment(root, link));
        }
        let at = Path::of(&["configuration", key]);
        let asks = chain.iter().any(|link| {
            let own = fragment(root, link);
            own.keys().any(|key| key.get_ref() != SUBJECT)
        });
        let mut values = configuration.axis.values().flat_map(|v| v.values());
        let asks = asks || values.any(|v| v.keys().any(|key| key != SUBJECT));
        if configuration.alone && asks {
            let why = format!("{at}: `alone` runs each subject under no policy at all");
            let remedy = "remove `alone`, or everything beside it but what subjects run";
            reader.report(root, &at, &why, Some(remedy.into()));
            continue;
        }
        for combination in combinations(reader, root, key, configuration) {
            let Some(name) = name(reader, root, key, configuration, &combination) else {
                break;
            };
            if cells.iter().any(|c| c.name == name) {
                let why = format!("{at}: there are two configurations '{name}'");
                let axes = !configuration.axis.is_empty();
                let remedy = if axes {
                    "put every axis into `name`, as {AXIS}"
                } else {
                    "rename one"
                };
                reader.report(root, &at.key("name"), &why, Some(remedy.into()));
                break;
            }
            if cells.len() == MOST_CELLS {
                let why = format!("{at}: the experiment has more than {MOST_CELLS} configurations");
                reader.report(root, &at, &why, Some("shorten the axes".into()));
                return cells;
            }
            let mut merged = base.clone();
            for (axis, value) in &combination {
                let way = at.key("axis").key(axis).key(value);
                if let Some(DeValue::Table(table)) = value_at(root, &way).map(Spanned::get_ref) {
                    merge(&mut merged, table);
                }
            }
            reader.context = Some(format!("configuration '{name}'"));
            let varied = runs::variation(reader, &mut merged, root, keys);
            let written = configuration.name.as_deref().unwrap_or(key);
            let parts = written.split_once('@');
            let family = parts.map(|(family, _)| filled(family, &combination));
            let here = |subject: &Subject| subject.takes_part(&name, family.as_deref());
            let mut whole = groups(root, keys, &varied.groups, here);
            merge(&mut whole, &merged);
            let policy = policy(reader, whole, keys, &name, &varied.groups);
            reader.context = None;
            let axes = combination
                .iter()
                .map(|(a, v)| ((*a).to_owned(), (*v).to_owned()));
            cells.extend(policy.map(|policy| Configuration {
                name,
                family,
                cap: parts.map(|(_, cap)| filled(cap, &combination)),
                axes: axes.collect::<BTreeMap<_, _>>(),
                alone: configuration.alone,
                policy,
                runs: varied.runs,
                groups: varied.groups,
            }));
        }
    }
    cells
}

/// Complains of keys that belong neither to a configuration nor to a policy fragment.
fn unknown_keys(reader: &mut Reader<'_>, root: &DeTable<'_>, key: &str) {
    let at = Path::of(&["configuration", key]);
    let Some(DeValue::Table(table)) = value_at(root, &at).map(Spanned::get_ref) else {
        return;
    };
    let known = || ConfigurationKeys::NAMES.into_iter().chain(FRAGMENT_KEYS);
    for name in table.keys().map(|k| k.get_ref().as_ref()) {
        if !known().any(|k| k == name) {
            let why = format!("unknown key '{name}' in {at}");
            reader.report_key(root, &at.key(name), &why, hint(name, known()));
        }
    }
}

/// A configuration's own policy fragment, with what it varies of subjects.
fn fragment<'t>(root: &DeTable<'t>, key: &str) -> DeTable<'t> {
    let at = Path::of(&["configuration", key]);
    let mut own = DeTable::new();
    if let Some(DeValue::Table(table)) = value_at(root, &at).map(Spanned::get_ref) {
        for (name, value) in table {
            if name.get_ref() == SUBJECT || FRAGMENT_KEYS.contains(&name.get_ref().as_ref()) {
                own.insert(name.clone(), value.clone());
            }
        }
    }
    own
}

/// The configurations that `key` extends, outermost first, and `key` itself last.
fn chain<'k>(
    reader: &mut Reader<'_>,
    root: &DeTable<'_>,
    keys: &'k Keys,
    key: &'k str,
) -> Option<Vec<&'k str>> {
    let mut chain = vec![key];
    let mut at_key = key;
    while let Some(parent) = keys
        .configuration
        .get(at_key)
        .and_then(|c| c.extends.as_deref())
    {
        let at = Path::of(&["configuration", at_key, "extends"]);
        let found = keys.configuration.get_key_value(parent);
        let wrong = match found {
            None => {
                let known = keys.configuration.keys().map(String::as_str);
                Some((
                    format!("there is no configuration '{parent}'"),
                    hint(parent, known),
                ))
            }
            Some(_) if chain.contains(&parent) => {
                circle(reader, root, keys, &chain, parent);
                return None;
            }
            Some((_, base)) if !base.axis.is_empty() => {
                let remedy = "extend one without axes, and repeat the axis".to_owned();
                Some((
                    format!("'{parent}' has axes: which of its cells is meant is not said"),
                    Some(remedy),
                ))
            }
            Some((_, base)) if base.alone => Some((
                format!("'{parent}' is `alone`: there is no policy to extend"),
                None,
            )),
            Some(_) => None,
        };
        if let Some((why, remedy)) = wrong {
            reader.report(root, &at, &format!("{at}: {why}"), remedy);
            return None;
        }
        at_key = found?.0;
        chain.push(at_key);
    }
    chain.reverse();
    Some(chain)
}

/// Reports a circle of configurations that extend each other: once, at the one that is first in the
/// file.
fn circle(reader: &mut Reader<'_>, root: &DeTable<'_>, keys: &Keys, chain: &[&str], parent: &str) {
    let mut round: Vec<&str> = chain
        .iter()
        .copied()
        .skip_while(|link| *link != parent)
        .collect();
    let first = keys
        .configuration
        .keys()
        .position(|key| round.contains(&key.as_str()));
    let first = first
        .and_then(|n| keys.configuration.get_index(n))
        .map(|(key, _)| key.as_str());
    let turn = round
        .iter()
        .position(|link| Some(*link) == first)
        .unwrap_or(0);
    round.rotate_left(turn);
    let start = round[0];
    round.push(start);
    let at = Path::of(&["configuration", start, "extends"]);
    let why = format!(
        "{at}: the configurations extend each other in a circle: {}",
        round.join(" → ")
    );
    reader.report(root, &at, &why, None);
}

/// All combinations of the axes' values that are not skipped. The first axis is the slowest.
fn combinations<'k>(
    reader: &mut Reader<'_>,
    root: &DeTable<'_>,
    key: &str,
    configuration: &'k ConfigurationKeys,
) -> Vec<Combination<'k>> {
    let at = Path::of(&["configuration", key]);
    for (i, skip) in configuration.skip.iter().enumerate() {
        for (axis, value) in skip {
            let at = at.key("skip").index(i);
            let (why, remedy) = match configuration.axis.get(axis) {
                None => {
                    let axes = configuration.axis.keys().map(String::as_str);
                    (format!("there is no axis '{axis}'"), hint(axis, axes))
                }
                Some(values) if !values.contains_key(value) => {
                    let values = values.keys().map(String::as_str);
                    (
                        format!("the axis '{axis}' has no value '{value}'"),
                        hint(value, values),
                    )
                }
                Some(_) => continue,
            };
            reader.report(root, &at.key(axis), &format!("{at}: {why}"), remedy);
        }
    }
    let mut all: Vec<Combination<'k>> = vec![Vec::new()];
    for (axis, values) in &configuration.axis {
        if all.len().saturating_mul(values.len()) > MOST_CELLS {
            let why = format!("{at}: its axes multiply to more than {MOST_CELLS} configurations");
            reader.report(root, &at, &why, Some("shorten the axes".into()));
            return Vec::new();
        }
        all = all
            .iter()
            .flat_map(|so_far| {
                values.keys().map(|value| {
                    let mut next = so_far.clone();
                    next.push((axis.as_str(), value.as_str()));
                    next
                })
            })
            .collect();
    }
    all.retain(|combination| {
        !configuration.skip.iter().any(|skip| {
            !skip.is_empty()
                && skip
                    .iter()
                    .all(|(a, v)| combination.contains(&(a.as_str(), v.as_str())))
        })
    });
    all
}

/// The text with each `{AXIS}` replaced by its value.
fn filled(text: &str, combination: &Combination<'_>) -> String {
    let values = combination.iter();
    values.fold(text.to_owned(), |text, (axis, value)| {
        text.replace(&format!("{{{axis}}}"), value)
    })
}

/// The configuration's name with its placeholders replaced.
fn name(
    reader: &mut Reader<'_>,
    root: &DeTable<'_>,
    key: &str,
    configuration: &ConfigurationKeys,
    combination: &Combination<'_>,
) -> Option<String> {
    let name = filled(configuration.name.as_deref().unwrap_or(key), combination);
    let at = Path::of(&["configuration", key, "name"]);
    if let Some((_, rest)) = name.split_once('{') {
        let axis = rest.split('}').next().unwrap_or_default();
        let axes = configuration.axis.keys().map(String::as_str);
        let why = format!("{at}: there is no axis '{axis}'");
        reader.report(root, &at, &why, hint(axis, axes));
        return None;
    }
    let fit = |c: char| c.is_ascii_alphanumeric() || "-_@+%./".contains(c);
    if name.is_empty() || name.len() > 128 || !name.chars().all(fit) {
        let why = format!("{at}: '{name}' is not a name");
        let remedy = "use letters, digits and - _ @ + % . /, at most 128 of them";
        reader.report(root, &at, &why, Some(remedy.into()));
        return None;
    }
    Some(name)
}

/// The subjects' groups with their roles: the policy over which all fragments are laid.
fn groups<'t>(
    root: &DeTable<'t>,
    keys: &Keys,
    varied: &BTreeMap<String, String>,
    here: impl Fn(&Subject) -> bool,
) -> DeTable<'t> {
    let span = |name: &str| {
        let role = value_at(root, &Path::of(&["subject", name, "role"]));
        role.map(Spanned::span).unwrap_or_default()
    };
    let table = |entries: Vec<(String, Spanned<DeValue<'t>>)>| {
        let spanned = |(key, value): (String, Spanned<DeValue<'t>>)| {
            (Spanned::new(value.span(), key.into()), value)
        };
        DeValue::Table(entries.into_iter().map(spanned).collect())
    };
    let subjects = keys.subject.iter().filter(|(_, subject)| here(subject));
    let groups = subjects.map(|(name, subject)| {
        let span = span(name);
        let role = Spanned::new(span.clone(), DeValue::String(subject.role.name().into()));
        let group = table(vec![("role".to_owned(), role)]);
        let named = varied.get(name).map(String::as_str);
        let named = named.unwrap_or_else(|| subject.group_or(name));
        (named.to_owned(), Spanned::new(span, group))
    });
    let groups = Spanned::new(0..0, table(groups.collect()));
    DeTable::from_iter([(Spanned::new(0..0, "group".into()), groups)])
}

/// Reads the merged policy, and decides what a configuration leaves open.
fn policy(
    reader: &mut Reader<'_>,
    mut merged: DeTable<'_>,
    keys: &Keys,
    name: &str,
    varied: &BTreeMap<String, String>,
) -> Option<Policy> {
    unknown_groups(reader, &mut merged, keys, varied);
    if let Ok(version) = DeTable::parse("quell = 1") {
        merge(&mut merged, version.get_ref());
    }
    let mut policy = policy_of(reader, Spanned::new(0..0, merged), Shape::Configuration)?;
    name.clone_into(&mut policy.name);
    policy.bounds = keys.bounds;
    // What is left open here must not be planned as in a user's policy, in which "critical" alone
    // asks for CPUs.
    let partition = policy
        .groups
        .values()
        .any(|g| g.cpus.as_ref().is_some_and(|c| *c != CpusWanted::Any));
    let open = if partition {
        CpusWanted::Remaining
    } else {
        CpusWanted::Any
    };
    for group in policy.groups.values_mut() {
        if group.role == crate::policy::Role::Exempt {
            continue;
        }
        group.cpus.get_or_insert_with(|| open.clone());
    }
    // "best-effort" alone does not ask for a low weight either: a configuration shows the
    // mechanisms that it names.
    if policy.groups.values().all(|g| g.cpu_weight.is_none())
        && !policy.mechanisms.deny.contains(&Mechanism::Weight)
    {
        policy.mechanisms.deny.push(Mechanism::Weight);
    }
    Some(policy)
}

/// Complains of groups in a fragment in which no subject runs.
fn unknown_groups(
    reader: &mut Reader<'_>,
    merged: &mut DeTable<'_>,
    keys: &Keys,
    varied: &BTreeMap<String, String>,
) {
    let known = || {
        keys.subject.iter().map(|(name, subject)| {
            let named = varied.get(name).map(String::as_str);
            named.unwrap_or_else(|| subject.group_or(name))
        })
    };
    let Some(DeValue::Table(groups)) =
        value_at(merged, &Path::of(&["group"])).map(Spanned::get_ref)
    else {
        return;
    };
    let unknown: Vec<String> = groups
        .keys()
        .map(|k| k.get_ref().to_string())
        .filter(|name| !known().any(|k| k == name))
        .collect();
    for name in unknown {
        let at = Path::of(&["group", &name]);
        let why = format!("no subject runs in a group '{name}'");
        reader.report_key(merged, &at, &why, hint(&name, known()));
        if let Some(DeValue::Table(groups)) = merged.get_mut("group").map(Spanned::get_mut) {
            groups.remove(name.as_str());
        }
    }
}
