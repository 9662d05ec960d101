//! What the policy wants of caches and DRAM banks, in numbers of this machine: which mechanism
//! provides it, and how many ways or colours a size amounts to. Mechanisms that exclude each other
//! are refused together.
//!
//! The same address bits may select both the sets of a cache and the DRAM banks. A page then cannot
//! be chosen for one without being chosen for the other. Asked for together, the two are one
//! partition of fewer, joint colours.

use quell_policy::{Banks, CacheForm, CacheMechanism, CacheWanted, Role, WindowWays};
use quell_types::cpuset::CpuSet;
use quell_types::mechanism::{Level, Mechanism};
use quell_types::partition::{Colouring, Divides, Partitions};
use quell_types::refusal::Remedy;
use quell_types::units::Bytes;

use crate::inventory::Availability;

use super::allot::Want;
use super::amounts::{at_level, cache, exist, parts_of, size_of};
use super::division::{Ask, BOTH, Claim, Claims, Form, Kind, Refused, colouring};
use super::draft::Draft;
use super::nodes;
use super::words::division as words;

/// Reads what all groups want. Refuses what cannot be had.
pub(super) fn read(draft: &mut Draft<'_>) -> Vec<Claims> {
    let before = draft.refusals.len();
    let asks = asks(draft);
    exclusions(draft, &asks);
    for ask in &asks {
        if let Some((why, remedies)) = missing(draft, ask) {
            draft.refuse_for(draft.lack(ask.mechanism), ask.key(), why, remedies);
        }
    }
    if draft.refusals.len() > before {
        return Vec::new();
    }
    let asked = |m| asks.iter().any(|a| a.mechanism == m);
    let joint = asked(Mechanism::Sets)
        && asked(Mechanism::Banks)
        && draft.machine.partitions.joint.is_some();
    if joint {
        joint_note(draft);
    }
    let mut all: Vec<Claims> = Vec::new();
    for ask in &asks {
        if !each_window(draft, ask) {
            continue;
        }
        let (kind, want, locked) = match claim(draft, ask, joint) {
            Ok(claim) => claim,
            Err((why, remedy)) => {
                draft.refuse(ask.key(), why, remedy);
                continue;
            }
        };
        let Some(whole) = kind.whole(&draft.machine.partitions) else {
            continue;
        };
        let known = all.iter().position(|c| c.kind == kind);
        let at = known.unwrap_or_else(|| {
            let list = Vec::new();
            let caches_of = CpuSet::new();
            all.push(Claims {
                kind,
                whole,
                list,
                caches_of,
            });
            all.len() - 1
        });
        let claims = &mut all[at];
        let own = claims.list.iter_mut().find(|c| c.group == ask.group);
        let Some(own) = own else {
            claims.list.push(Claim {
                group: ask.group.to_owned(),
                key: ask.name(),
                window: ask.window(),
                want,
                locked,
                code: ask.code(),
            });
            continue;
        };
        // Sets and banks of the same group become joint colours.
        own.key = BOTH;
        match both(&own.want, &want) {
            Some(both) => own.want = both,
            None => {
                let banks = format!("group.{}.reserve.banks", ask.group);
                let remedies = [
                    Remedy::set_text(banks, "private"),
                    Remedy::from("write the same list twice"),
                ];
                let (banks, cache) = (words::as_written(&want), words::as_written(&own.want));
                let why = words::joint_does_not_fit(&banks, &cache);
                draft.refuse(format!("group.{}.reserve", ask.group), why, remedies);
            }
        }
    }
    all.sort_by_key(|c| match c.kind {
        Kind::Ways(level) => level,
        // Banks come before sets.
        Kind::Colours(Divides::Sets) => u32::MAX,
        Kind::Colours(_) => u32::MAX - 1,
    });
    all
}

/// Whether each window of an ask for ways of windows can have its own. Refuses those that cannot.
fn each_window(draft: &mut Draft<'_>, ask: &Ask<'_>) -> bool {
    let windows = draft.policy.windows.as_ref();
    let windows = windows.filter(|_| ask.window().is_some());
    let all = windows.map(|keys| keys.ways_of(ask.group).collect::<Vec<_>>());
    let before = draft.refusals.len();
    for (place, ways) in all.unwrap_or_default() {
        let form = Form::Windows(place, ways);
        let one = Ask { form, ..*ask };
        if let Err((why, remedies)) = claim(draft, &one, false) {
            draft.refuse(one.key(), why, remedies);
        }
    }
    draft.refusals.len() == before
}

/// One want that satisfies two keys; `None` where they contradict each other.
fn both(cache: &Want, banks: &Want) -> Option<Want> {
    match (cache, banks) {
        (cache, Want::Even) => Some(cache.clone()),
        (Want::Named(one), Want::Named(other)) => (one == other).then(|| cache.clone()),
        (Want::Named(list), Want::Count(n)) | (Want::Count(n), Want::Named(list)) => {
            (list.len() == *n as usize).then(|| Want::Named(list.clone()))
        }
        (Want::Count(one), Want::Count(other)) => Some(Want::Count(*one.max(other))),
        _ => None,
    }
}

/// Which groups ask for which mechanism.
fn asks<'a>(draft: &mut Draft<'a>) -> Vec<Ask<'a>> {
    let policy = draft.policy;
    let mut asks = Vec::new();
    let mut open: Vec<Ask<'a>> = Vec::new();
    for (name, group) in &policy.groups {
        if group.role == Role::Exempt
            && (group.reserve.cache.is_some() || group.reserve.banks.is_some())
        {
            let keys = ["cache", "banks"].map(|key| format!("group.{name}.reserve.{key}"));
            let remedy = Remedy::LeaveOut {
                keys: keys.to_vec(),
            };
            let key = format!("group.{name}.reserve");
            draft.refuse(key, words::EXEMPT_IS_NOT_CONFINED, remedy);
            continue;
        }
        if let Some(wanted) = &group.reserve.cache {
            let key = format!("group.{name}.reserve.cache");
            let mechanism = match wanted.form {
                CacheForm::Ways(_) | CacheForm::Apart { .. } | CacheForm::Mask(_) => {
                    Some(Mechanism::Ways)
                }
                CacheForm::Colours(_) => Some(Mechanism::Sets),
                CacheForm::Locked(_) => Some(Mechanism::PseudoLock),
                CacheForm::Size(_) | CacheForm::Share(_) => None,
            };
            let given = match policy.mechanisms.cache {
                CacheMechanism::Ways => Some(Mechanism::Ways),
                CacheMechanism::Sets => Some(Mechanism::Sets),
                CacheMechanism::PseudoLock => Some(Mechanism::PseudoLock),
                CacheMechanism::Any => mechanism,
                CacheMechanism::None => {
                    let remedies = ["mechanisms.cache", key.as_str()].map(Remedy::leave_out);
                    draft.refuse(key, words::CACHE_IS_OFF, remedies);
                    continue;
                }
            };
            if let (Some(form), Some(given)) = (mechanism, given)
                && form != given
            {
                let remedy = Remedy::set_text("mechanisms.cache", "any");
                draft.refuse(key, words::in_terms_of(form, given), remedy);
                continue;
            }
            let ask = Ask {
                group: name,
                mechanism: given.unwrap_or(Mechanism::Ways),
                form: Form::Cache(wanted),
            };
            if given.is_some() {
                asks.push(ask);
            } else {
                open.push(ask);
            }
        }
        if let Some(banks) = &group.reserve.banks {
            asks.push(Ask {
                group: name,
                mechanism: Mechanism::Banks,
                form: Form::Banks(banks),
            });
        }
        let in_windows = draft.policy.windows.as_ref();
        let in_windows = in_windows.and_then(|keys| together(keys.ways_of(name)));
        asks.extend(in_windows.map(|(first, ways)| Ask {
            group: name,
            mechanism: Mechanism::Ways,
            form: Form::Windows(first, ways),
        }));
    }
    if let Some(first) = open.first() {
        match strongest(draft, &asks) {
            Ok((mechanism, why)) => {
                let note = why.map(|why| words::given_as(mechanism, &why));
                draft.notes.extend(note);
                let open = open.into_iter().map(|ask| Ask { mechanism, ..ask });
                asks.extend(open);
            }
            Err(why) => {
                let instead = Remedy::leave_out(first.key());
                draft.refuse_lacking(Mechanism::Ways, first.key(), why, instead);
            }
        }
    }
    // The cache of a group comes before its banks; groups are in the order of the policy.
    asks.sort_by_key(|ask| {
        let at = policy.groups.get_index_of(ask.group);
        (at, matches!(ask.form, Form::Banks(_)))
    });
    asks
}

/// The ways that hold those of all windows of a group, with the place of the first window. `None`
/// where no window has any.
fn together(mut windows: impl Iterator<Item = (usize, WindowWays)>) -> Option<(usize, WindowWays)> {
    let first = windows.next()?;
    Some(windows.fold(first, |(at, all), (_, one)| {
        let all = match (all, one) {
            (WindowWays::Count(all), WindowWays::Count(n)) => WindowWays::Count(all.max(n)),
            (WindowWays::Mask(all), WindowWays::Mask(mask)) => WindowWays::Mask(all | mask),
            // Refused when the policy was read.
            (all, _) => all,
        };
        (at, all)
    }))
}

/// The mechanism for parts of the cache for which the policy names none. It has to go with what is
/// asked for in any case. The text says why it is not ways, the cheapest one.
fn strongest(draft: &Draft<'_>, asks: &[Ask<'_>]) -> Result<(Mechanism, Option<String>), String> {
    let mut reasons = Vec::new();
    let mut best: Option<(Level, Mechanism)> = None;
    for mechanism in [Mechanism::Ways, Mechanism::Sets] {
        let excluded = asks.iter().find_map(|ask| {
            let partitions = &draft.machine.partitions;
            let why = partitions.excluded(mechanism, ask.mechanism)?;
            let (other, key) = (ask.mechanism, ask.key());
            Some(words::not_together(mechanism, other, &key, why))
        });
        match draft.unavailable(mechanism).or(excluded) {
            Some(why) => reasons.push(why),
            None => {
                let level = best_of(draft, mechanism);
                if best.is_none_or(|(most, _)| level > most) {
                    best = Some((level, mechanism));
                }
            }
        }
    }
    match best {
        Some((_, Mechanism::Ways)) => Ok((Mechanism::Ways, None)),
        Some((_, mechanism)) => Ok((mechanism, reasons.into_iter().next())),
        None => Err(reasons.join("; ")),
    }
}

/// The best level that a promise can reach with this mechanism on this machine.
pub(super) fn best_of(draft: &Draft<'_>, mechanism: Mechanism) -> Level {
    match draft.machine.mechanisms.get(&mechanism) {
        Some(Availability::Yes { best, .. }) => *best,
        _ => Level::None,
    }
}

/// Refuses mechanisms that exclude each other: each pair once, by the first keys that ask for it.
fn exclusions(draft: &mut Draft<'_>, asks: &[Ask<'_>]) {
    let mut told: Vec<(Mechanism, Mechanism)> = Vec::new();
    for (i, one) in asks.iter().enumerate() {
        for other in &asks[i + 1..] {
            let pair = (
                one.mechanism.min(other.mechanism),
                one.mechanism.max(other.mechanism),
            );
            let partitions = &draft.machine.partitions;
            let Some(reason) = partitions.excluded(pair.0, pair.1) else {
                continue;
            };
            if told.contains(&pair) {
                continue;
            }
            told.push(pair);
            let at = format!("here and in {}", other.key());
            let why = words::not_together(one.mechanism, other.mechanism, &at, reason);
            let beside = |m: Mechanism| {
                draft.unavailable(m).is_none()
                    && asks
                        .iter()
                        .filter(|a| !matches!(a.form, Form::Cache(_)))
                        .all(|a| partitions.excluded(m, a.mechanism).is_none())
            };
            let mut remedies = vec![Remedy::leave_out(one.key()), Remedy::leave_out(other.key())];
            if pair.0 == Mechanism::Ways && beside(Mechanism::Sets) {
                remedies.push(Remedy::from("write the cache as { colours = \"…\" }"));
            }
            draft.refuse(one.key(), why, remedies);
        }
    }
}

/// Why a mechanism that is asked for is not available at all; `None` if it is.
fn missing(draft: &Draft<'_>, ask: &Ask<'_>) -> Option<Refused> {
    let partitions = &draft.machine.partitions;
    let there = match ask.mechanism {
        Mechanism::Ways => !partitions.ways.is_empty(),
        Mechanism::Sets => partitions.sets.is_some(),
        Mechanism::Banks => partitions.banks.is_some(),
        _ => partitions
            .lock
            .is_some_and(|level| Kind::Ways(level).whole(partitions).is_some()),
    };
    // Locked memory is protected by taking its ways from all other classes.
    let masks = || match ask.mechanism {
        Mechanism::PseudoLock => draft.unavailable(Mechanism::Ways),
        _ => None,
    };
    let why = match draft.unavailable(ask.mechanism).or_else(masks) {
        Some(why) => why,
        None if !there => words::does_not_tell(ask.mechanism),
        None => return nodes::refused(draft, ask.mechanism, ask.key()),
    };
    if let Form::Cache(CacheWanted {
        form: CacheForm::Locked(size) | CacheForm::Size(size),
        ..
    }) = ask.form
        && ask.mechanism == Mechanism::PseudoLock
        && draft.unavailable(Mechanism::Ways).is_none()
        && let Some(level) = last_level(partitions)
    {
        let ways = parts_of(draft, ask.group, Kind::Ways(level), *size).max(1);
        // Ways of that size, which no other group has, are the closest to it here.
        let value = format!("{{ ways = {ways}, level = \"L{level}\" }}");
        return Some((why, vec![Remedy::set(ask.key(), value)]));
    }
    let mut remedies = draft.enables(ask.mechanism);
    remedies.push(Remedy::leave_out(ask.key()));
    Some((why, remedies))
}

/// The last cache level that has ways.
fn last_level(partitions: &Partitions) -> Option<u32> {
    partitions.ways.iter().map(|w| w.level).max()
}

fn joint_note(draft: &mut Draft<'_>) {
    let partitions = &draft.machine.partitions;
    let count = |divides| colouring(partitions, divides).map_or(0, Colouring::count);
    let bits = partitions.joint.as_ref().map_or(0, |j| j.functions.len());
    let [joint, banks, sets] = [Divides::Joint, Divides::Banks, Divides::Sets].map(count);
    draft.notes.push(words::joint(bits, joint, banks, sets));
}

/// What one key amounts to on this machine.
fn claim(
    draft: &mut Draft<'_>,
    ask: &Ask<'_>,
    joint: bool,
) -> Result<(Kind, Want, Option<Bytes>), Refused> {
    let coloured = |divides| Kind::Colours(if joint { Divides::Joint } else { divides });
    match ask.form {
        Form::Banks(banks) => {
            let kind = coloured(Divides::Banks);
            let want = match banks {
                Banks::Count(n) => Want::Count(*n),
                Banks::List(list) => Want::Named(exist(draft, kind, list)?),
                Banks::Private => Want::Even,
            };
            Ok((kind, want, None))
        }
        Form::Windows(_, ways) => {
            let level = last_level(&draft.machine.partitions);
            let kind = Kind::Ways(level.unwrap_or(0));
            let form = match ways {
                WindowWays::Count(n) => CacheForm::Ways(n),
                WindowWays::Mask(mask) => CacheForm::Mask(mask),
            };
            let want = cache(draft, ask, &CacheWanted { form, level: None }, kind)?;
            Ok((kind, want, None))
        }
        Form::Cache(wanted) => {
            let kind = match ask.mechanism {
                Mechanism::Sets => {
                    let last = draft.machine.caches.iter().map(|c| c.level).max();
                    at_level(wanted, last, "sets are coloured")?;
                    coloured(Divides::Sets)
                }
                Mechanism::PseudoLock => {
                    let level = draft.machine.partitions.lock;
                    at_level(wanted, level, "memory is locked")?;
                    Kind::Ways(level.unwrap_or(0))
                }
                _ => {
                    let last = last_level(&draft.machine.partitions);
                    Kind::Ways(wanted.level.map(u32::from).or(last).unwrap_or(0))
                }
            };
            let want = cache(draft, ask, wanted, kind)?;
            if ask.mechanism != Mechanism::PseudoLock {
                return Ok((kind, want, None));
            }
            let Want::Count(n) = want else {
                return Ok((kind, want, None));
            };
            let size = match wanted.form {
                CacheForm::Locked(size) | CacheForm::Size(size) => size,
                _ => Bytes(
                    size_of(draft, ask.group, kind)
                        .0
                        .saturating_mul(u64::from(n)),
                ),
            };
            Ok((kind, Want::Top(n), Some(size)))
        }
    }
}
