//! What was done under every configuration, with the reasons and what each promise was worth. What
//! several plans share is said once: first what all of them share, then what those of a family
//! share, then what one plan adds.

use maud::{Markup, html};
use quell_plan::{Held, Plan, Setting, Step};

use crate::plan::describe;
use crate::text::list;

use super::page::{Page, Section};

pub(crate) fn section(page: &Page<'_>) -> Option<Section> {
    let record = page.record;
    // Each configuration with its family.
    let mut names: Vec<(&str, &str)> = match page.result() {
        Some(result) => {
            let all = result.configurations.iter();
            all.map(|c| (c.name.as_str(), c.family())).collect()
        }
        None => {
            let all = record.plans.keys().map(String::as_str);
            all.map(|name| (name, name)).collect()
        }
    };
    names.retain(|(n, _)| record.plans.contains_key(*n) || record.refused.contains_key(*n));
    if names.is_empty() {
        return None;
    }
    let plans = names.iter().filter_map(|(name, family)| {
        let plan = record.plans.get(*name)?;
        (!record.refused.contains_key(*name)).then_some(Under { name, family, plan })
    });
    let (idle, busy): (Vec<_>, Vec<_>) = plans.partition(|under| under.plan.steps.is_empty());
    let idle: Vec<String> = idle.iter().map(|under| under.name.to_owned()).collect();
    let refused = names.iter().filter_map(|(name, _)| {
        let why = record.refused.get(*name)?.iter().map(ToString::to_string);
        Some((*name, why.collect::<Vec<_>>().join("; ")))
    });
    let body = html! {
        @if page.result().is_some() {
            p.faint { "First what plans share, then what each adds: steps in their order, each with its reason; then promises and what each is worth." }
        }
        @if !idle.is_empty() { p { b { (list(&idle)) } ": nothing is changed." } }
        (all(&busy))
        @for (name, why) in refused {
            p { b { (name) } ": " span.bad { "refused" } ". " (why) }
        }
    };
    Some(Section {
        id: "plans",
        title: "What was done, and what it is worth",
        body,
    })
}

/// The plan of a configuration.
#[derive(Clone, Copy)]
struct Under<'p> {
    name: &'p str,
    family: &'p str,
    plan: &'p Plan,
}

/// A promise with the steps that hold it, compared without their numbers.
#[derive(Clone)]
struct Promised<'p> {
    held: &'p Held,
    by: Vec<&'p Step>,
}

/// A group, and what would first break a promise to it.
type Reason<'p> = (&'p str, &'p str);

fn reason(held: &Held) -> Option<Reason<'_>> {
    Some((&held.group, held.weakest.as_deref()?))
}

/// Whether two steps do the same for the same reason, whatever their numbers.
fn same(a: &Step, b: &Step) -> bool {
    a.group == b.group && a.mechanism == b.mechanism && a.set == b.set && a.because == b.because
}

impl Promised<'_> {
    fn same(&self, other: &Self) -> bool {
        let (a, b) = (self.held, other.held);
        let alike = a.group == b.group && a.promise == b.promise && a.level == b.level;
        let by = self.by.len() == other.by.len();
        let by = by && self.by.iter().zip(&other.by).all(|(a, b)| same(a, b));
        alike && a.weakest == b.weakest && by
    }
}

/// Some of the steps, promises and notes of plans.
#[derive(Clone, Default)]
struct Part<'p> {
    steps: Vec<&'p Step>,
    promises: Vec<Promised<'p>>,
    notes: Vec<&'p String>,
}

impl<'p> Part<'p> {
    fn of(plan: &'p Plan) -> Self {
        let by = |held: &'p Held| {
            let holds = plan.steps.iter().filter(|s| held.held_by.contains(&s.id));
            Promised {
                held,
                by: holds.collect(),
            }
        };
        Self {
            steps: plan.steps.iter().collect(),
            promises: plan.promises.iter().map(by).collect(),
            notes: plan.acts.iter().chain(&plan.notes).collect(),
        }
    }

    /// Keeps what the other part has too (`shared`), or what it lacks.
    fn keep(mut self, other: &Self, shared: bool) -> Self {
        let has = |step: &&Step| other.steps.iter().any(|o| same(o, step)) == shared;
        self.steps.retain(has);
        let has = |one: &Promised<'_>| other.promises.iter().any(|o| o.same(one)) == shared;
        self.promises.retain(has);
        self.notes.retain(|n| other.notes.contains(n) == shared);
        self
    }

    /// What all parts have. Empty for a single part, which shares nothing.
    fn shared(parts: &[Self]) -> Self {
        match parts {
            [first, rest @ ..] if !rest.is_empty() => {
                let first = first.clone();
                rest.iter()
                    .fold(first, |shared, other| shared.keep(other, true))
            }
            _ => Self::default(),
        }
    }

    /// What would first break a promise to a group, where it is the same in all parts and each has
    /// one promise to that group.
    fn reasons(parts: &[Self]) -> Vec<Reason<'p>> {
        let [first, rest @ ..] = parts else {
            return Vec::new();
        };
        let of = |part: &Self| -> Vec<Reason<'p>> {
            let single = |group: &str| {
                let of_group = part.promises.iter().filter(|p| p.held.group == group);
                of_group.count() == 1
            };
            let held = part.promises.iter().map(|p| p.held);
            let single = held.filter(|held| single(&held.group));
            single.filter_map(reason).collect()
        };
        let mut all = of(first);
        all.retain(|reason| !rest.is_empty() && rest.iter().all(|r| of(r).contains(reason)));
        all
    }

    fn is_empty(&self) -> bool {
        self.steps.is_empty() && self.promises.is_empty() && self.notes.is_empty()
    }
}

fn all(plans: &[Under<'_>]) -> Markup {
    let parts: Vec<Part<'_>> = plans.iter().map(|under| Part::of(under.plan)).collect();
    let common = Part::shared(&parts);
    let mut families: Vec<Vec<Under<'_>>> = Vec::new();
    for under in plans {
        let is = |f: &&mut Vec<Under<'_>>| f.iter().any(|u| u.family == under.family);
        match families.iter_mut().find(is) {
            Some(family) => family.push(*under),
            None => families.push(vec![*under]),
        }
    }
    html! {
        @if !common.is_empty() {
            p { b { "The " (plans.len()) " plans" } " share:" }
            (listed(&common, &[], &Said::default()))
        }
        @for members in &families { (family(members, &common)) }
    }
}

/// The plans of a family, without what all plans share.
fn family(members: &[Under<'_>], common: &Part<'_>) -> Markup {
    let plans = members.iter().map(|under| Part::of(under.plan));
    let parts: Vec<Part<'_>> = plans.map(|p| p.keep(common, false)).collect();
    let shared = Part::shared(&parts);
    let parts: Vec<Part<'_>> = parts.into_iter().map(|p| p.keep(&shared, false)).collect();
    let reasons = Part::reasons(&parts);
    let (first, named) = members.first().map_or(("", ""), |u| (u.name, u.family));
    let said = |n: usize| match n {
        0 => Said {
            reasons: &reasons,
            ..Said::default()
        },
        _ => Said {
            reasons: &reasons,
            first: parts.first().map(|part| (first, part)),
        },
    };
    let before: Vec<&Step> = common.steps.iter().chain(&shared.steps).copied().collect();
    html! {
        @if !shared.is_empty() || !reasons.is_empty() {
            p { b { (named) } ": its " (members.len()) " plans share:" }
            (listed(&shared, &common.steps, &Said::default()))
            @if !reasons.is_empty() {
                ul { @for (group, reason) in &reasons { li.faint { (group) ": weakest: " (reason) } } }
            }
        }
        @for (n, (under, part)) in members.iter().zip(&parts).enumerate() {
            details.print open[members.len() == 1 || part.is_empty()] {
                summary { b { (under.name) } ": level " (under.plan.level()) }
                @if part.is_empty() { p { "Nothing else." } }
                (listed(part, &before, &said(n)))
            }
        }
    }
}

/// What the page has said of a family before a plan, and so does not repeat.
#[derive(Default)]
struct Said<'t> {
    reasons: &'t [Reason<'t>],
    /// The family's first plan and its name.
    first: Option<(&'t str, &'t Part<'t>)>,
}

impl Said<'_> {
    /// A step in words: in full, or how it differs from a step of the first plan where only a
    /// number differs.
    fn step(&self, step: &Step) -> String {
        let differs = self.first.and_then(|(name, first)| {
            let mut all = first.steps.iter().filter(|other| other.group == step.group);
            let budget = all.find_map(|other| other_budget(&other.set, &step.set))?;
            Some(format!("as under {name}, but {budget}"))
        });
        differs.unwrap_or_else(|| describe(&step.set))
    }
}

/// The second regulation's budget, if that is the only difference.
fn other_budget(one: &Setting, other: &Setting) -> Option<String> {
    let (Setting::Regulate(one), Setting::Regulate(other)) = (one, other) else {
        return None;
    };
    let mut alike = one.clone();
    alike.budget = other.budget;
    (alike == *other).then(|| format!("{} cache lines per {}", other.budget.0, other.period))
}

/// Steps numbered after those `before` them, promises and notes.
fn listed(part: &Part<'_>, before: &[&Step], said: &Said<'_>) -> Markup {
    let all: Vec<&Step> = before.iter().chain(&part.steps).copied().collect();
    html! {
        @if !part.steps.is_empty() {
            ol start=(before.len() + 1) {
                @for step in &part.steps {
                    li {
                        @if let Some(group) = &step.group { (group) ": " }
                        (said.step(step)) " " span.faint { (step.because) }
                    }
                }
            }
        }
        @if !part.promises.is_empty() || !part.notes.is_empty() {
            ul {
                @for one in &part.promises {
                    li {
                        (one.held.group) ": " (one.held.promise) ": " b { (one.held.level) }
                        " " span.faint { (why(one, &all, said.reasons)) }
                    }
                }
                @for note in &part.notes { li.faint { (note) } }
            }
        }
    }
}

/// What holds a promise, by the numbers of the steps on the page, and what would break it first.
fn why(one: &Promised<'_>, all: &[&Step], said: &[Reason<'_>]) -> String {
    let place = |step: &&Step| all.iter().position(|other| same(other, step));
    let numbers = one.by.iter().filter_map(place).map(|n| (n + 1).to_string());
    let by: Vec<String> = numbers.collect();
    let steps = if by.len() == 1 { "step" } else { "steps" };
    let by = (!by.is_empty()).then(|| format!("held by {steps} {}", list(&by)));
    let weakest = reason(one.held).filter(|reason| !said.contains(reason));
    let weakest = weakest.map(|(_, reason)| format!("weakest: {reason}"));
    let said: Vec<String> = by.into_iter().chain(weakest).collect();
    said.join("; ")
}
