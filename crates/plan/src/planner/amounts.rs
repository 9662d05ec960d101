//! How much of a cache a policy asks for, in whole ways or colours of this machine.

use quell_policy::{CacheForm, CacheWanted};
use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;
use quell_types::refusal::Remedy;
use quell_types::units::{Bytes, Share};

use crate::inventory::CacheKind;

use super::allot::{Want, runs};
use super::codedata;
use super::division::{Ask, Kind, Refused};
use super::draft::Draft;
use super::words::division as words;

pub(super) fn at_level(
    wanted: &CacheWanted,
    level: Option<u32>,
    what: &str,
) -> Result<(), Refused> {
    match (wanted.level, level) {
        (Some(asked), Some(level)) if u32::from(asked) != level => Err((
            words::another_level(what, level, asked),
            vec![Remedy::from(format!(
                "write level = \"L{level}\" in the value"
            ))],
        )),
        _ => Ok(()),
    }
}

/// Reads one part of a cache, in ways or colours.
pub(super) fn cache(
    draft: &mut Draft<'_>,
    ask: &Ask<'_>,
    wanted: &CacheWanted,
    kind: Kind,
) -> Result<Want, Refused> {
    let Some(whole) = kind.whole(&draft.machine.partitions) else {
        let ways = draft.machine.partitions.ways.iter();
        let levels: Vec<String> = ways.map(|w| format!("L{}", w.level)).collect();
        let why = words::no_level(&kind.name(), &levels.join(", "));
        return Err((why, vec![Remedy::from("leave the level out")]));
    };
    let counted = |n: u32| {
        if n < whole.least {
            let why = words::at_least(whole.least, &kind.name());
            return Err((why, vec![Remedy::from(format!("write {}", whole.least))]));
        }
        Ok(Want::Count(n))
    };
    match &wanted.form {
        CacheForm::Ways(n) => counted(*n),
        CacheForm::Apart { code, data } => {
            codedata::possible(draft, kind)?;
            counted(*code)?;
            counted(*data)?;
            Ok(Want::Count(code.saturating_add(*data)))
        }
        CacheForm::Mask(mask) => {
            let ways = ways_of(Mask(*mask));
            let ways = exist(draft, kind, &ways)?;
            if !whole.sparse && runs(&ways).len() > 1 {
                let why = words::has_holes(*mask, &kind.name());
                let remedy = Remedy::from("name ways that follow each other");
                return Err((why, vec![remedy]));
            }
            counted(mask.count_ones())?;
            Ok(Want::Named(ways))
        }
        CacheForm::Colours(list) => Ok(Want::Named(exist(draft, kind, list)?)),
        CacheForm::Locked(size) | CacheForm::Size(size) => {
            let n = parts_of(draft, ask.group, kind, *size).max(whole.least);
            Ok(rounded(draft, ask, kind, &size.to_string(), n))
        }
        CacheForm::Share(share) => {
            let parts = u64::from(whole.count) * share.0;
            let n = u32::try_from(parts.div_ceil(Share::WHOLE.0)).unwrap_or(u32::MAX);
            Ok(rounded(
                draft,
                ask,
                kind,
                &share.to_string(),
                n.max(whole.least),
            ))
        }
    }
}

/// A size or share in whole ways or colours. Adds a note on what it amounts to.
fn rounded(draft: &mut Draft<'_>, ask: &Ask<'_>, kind: Kind, what: &str, n: u32) -> Want {
    let each = size_of(draft, ask.group, kind);
    let of = kind.whole(&draft.machine.partitions).map_or(0, |w| w.count);
    let asked = format!("{} {what}", ask.name());
    let note = words::comes_to(ask.group, &asked, n, of, &kind.name(), each);
    draft.notes.push(note);
    Want::Count(n)
}

/// The named numbers; refused unless all of them exist.
pub(super) fn exist(draft: &Draft<'_>, kind: Kind, list: &CpuSet) -> Result<CpuSet, Refused> {
    let count = kind.whole(&draft.machine.partitions).map_or(0, |w| w.count);
    let missing: CpuSet = list.iter().filter(|n| *n >= count).collect();
    if missing.is_empty() {
        return Ok(list.clone());
    }
    let last = count.saturating_sub(1);
    let remedy = Remedy::from(format!("name some of 0-{last}"));
    Err((words::not_here(&missing, count, &kind.name()), vec![remedy]))
}

/// The bytes of cache in one way or colour.
pub(super) fn size_of(draft: &Draft<'_>, group: &str, kind: Kind) -> Bytes {
    let caches = draft
        .machine
        .caches
        .iter()
        .filter(|c| c.kind != CacheKind::Instruction);
    let level = match kind {
        Kind::Ways(level) => Some(level),
        Kind::Colours(_) => caches.clone().map(|c| c.level).max(),
    };
    let cpus = &draft.division.of(group).cpus;
    let size = caches
        .filter(|c| Some(c.level) == level)
        .filter(|c| cpus.is_empty() || !c.cpus.intersection(cpus).is_empty())
        .map(|c| c.size.0)
        .min();
    let count = kind
        .whole(&draft.machine.partitions)
        .map_or(1, |w| w.count.max(1));
    Bytes((size.unwrap_or(0) / u64::from(count)).max(1))
}

/// How many ways or colours hold `size`.
pub(super) fn parts_of(draft: &Draft<'_>, group: &str, kind: Kind, size: Bytes) -> u32 {
    u32::try_from(size.0.div_ceil(size_of(draft, group, kind).0)).unwrap_or(u32::MAX)
}

/// The numbers of the bits of a mask.
fn ways_of(mask: Mask) -> CpuSet {
    (0..u64::BITS)
        .filter(|bit| mask.0 >> bit & 1 == 1)
        .collect()
}

/// The mask of ways with these numbers.
pub(super) fn mask_of(ways: &CpuSet) -> Mask {
    Mask(ways.iter().fold(0, |mask, bit| mask | Mask::run(bit, 1).0))
}
