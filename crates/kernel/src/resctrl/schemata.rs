//! What each group gets: the lines of a group's `schemata`, and of `size`.
//!
//! A line is a resource and a value for each domain (a cache, a memory controller), by the domain's
//! number. Kernels pad names and values differently and promise no order. So values are compared,
//! not texts.

use std::collections::BTreeMap;
use std::fmt;

use quell_types::partition::Mask;

use super::info;

/// The lines of `schemata`, by the name of the resource.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Schemata(pub BTreeMap<String, Values>);

/// The values of one resource, by domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Values {
    /// Masks of the ways of caches.
    Masks(BTreeMap<u32, Mask>),
    /// Percentages, MiB/s, or another unit of the resource.
    Numbers(BTreeMap<u32, u64>),
    /// Text in an unknown form, or `uninitialized` (a group that is set up for pseudo-locking).
    Other(String),
}

impl Schemata {
    /// Parses the lines. A line without a known form is kept as text.
    #[must_use]
    pub fn parse(text: &str) -> Self {
        Self(text.lines().filter_map(line).collect())
    }

    /// One line with the same mask for each domain.
    #[must_use]
    pub fn masks(resource: &str, domains: impl IntoIterator<Item = u32>, mask: Mask) -> Self {
        let values = domains.into_iter().map(|d| (d, mask)).collect();
        Self(BTreeMap::from([(
            resource.to_owned(),
            Values::Masks(values),
        )]))
    }

    /// One line with the same number for each domain.
    #[must_use]
    pub fn numbers(resource: &str, domains: impl IntoIterator<Item = u32>, number: u64) -> Self {
        let values = domains.into_iter().map(|d| (d, number)).collect();
        Self(BTreeMap::from([(
            resource.to_owned(),
            Values::Numbers(values),
        )]))
    }

    /// The masks of a resource, by cache. `None` where it is missing, or has no masks.
    #[must_use]
    pub fn masks_of(&self, resource: &str) -> Option<&BTreeMap<u32, Mask>> {
        match self.0.get(resource)? {
            Values::Masks(masks) => Some(masks),
            _ => None,
        }
    }

    /// Numbers of the domains of a resource, ascending. Empty where it is missing.
    #[must_use]
    pub fn domains(&self, resource: &str) -> Vec<u32> {
        match self.0.get(resource) {
            Some(Values::Masks(values)) => values.keys().copied().collect(),
            Some(Values::Numbers(values)) => values.keys().copied().collect(),
            Some(Values::Other(_)) | None => Vec::new(),
        }
    }

    /// The values of this that `other` names, too.
    #[must_use]
    pub fn only(&self, other: &Self) -> Self {
        let of = |(name, values): (&String, &Values)| {
            let wanted = other.0.get(name)?;
            let values = match (values, wanted) {
                (Values::Masks(all), Values::Masks(w)) => Values::Masks(common(all, w)),
                (Values::Numbers(all), Values::Numbers(w)) => Values::Numbers(common(all, w)),
                (all, _) => all.clone(),
            };
            Some((name.clone(), values))
        };
        Self(self.0.iter().filter_map(of).collect())
    }

    /// Whether this has a value wherever the other one has.
    #[must_use]
    pub fn covers(&self, other: &Self) -> bool {
        let ours = self.only(other);
        let all = |name: &String| ours.domains(name) == other.domains(name);
        other
            .0
            .keys()
            .all(|name| ours.0.contains_key(name) && all(name))
    }

    /// Whether every value of `other` is the same in this.
    #[must_use]
    pub fn holds(&self, other: &Self) -> bool {
        self.only(other) == *other
    }

    /// Divides the values that were written over `old` as `new`, while `self` is the present text.
    /// Returns what of `old` is to be written back, and what other programs have set since. A value
    /// that is missing now (its caches are offline) is in neither: it comes back with its default.
    #[must_use]
    pub fn back(&self, old: &Self, new: &Self) -> (Self, Self) {
        let (mut back, mut theirs) = (Self::default(), Self::default());
        for new in new.each() {
            let now = self.only(&new);
            let old = old.only(&new);
            if now.is_empty() || now == old {
                continue;
            }
            if now == new {
                back = back.with(&old);
            } else {
                theirs = theirs.with(&now);
            }
        }
        (back, theirs)
    }

    /// The values, each as a `Schemata` of its own.
    fn each(&self) -> impl Iterator<Item = Self> {
        self.0.iter().flat_map(|(name, values)| -> Vec<Self> {
            let one = |values| Self(BTreeMap::from([(name.clone(), values)]));
            let mask = |(id, mask): (&u32, &Mask)| one(Values::Masks([(*id, *mask)].into()));
            let number = |(id, n): (&u32, &u64)| one(Values::Numbers([(*id, *n)].into()));
            match values {
                Values::Masks(all) => all.iter().map(mask).collect(),
                Values::Numbers(all) => all.iter().map(number).collect(),
                Values::Other(_) => vec![one(values.clone())],
            }
        })
    }

    /// Whether it has no value.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.values().all(|values| match values {
            Values::Masks(all) => all.is_empty(),
            Values::Numbers(all) => all.is_empty(),
            Values::Other(_) => false,
        })
    }

    /// This, with the values of `other` where it has any.
    #[must_use]
    pub fn with(mut self, other: &Self) -> Self {
        for (name, values) in &other.0 {
            match (self.0.get_mut(name), values) {
                (Some(Values::Masks(all)), Values::Masks(new)) => all.extend(new),
                (Some(Values::Numbers(all)), Values::Numbers(new)) => all.extend(new),
                _ => {
                    self.0.insert(name.clone(), values.clone());
                }
            }
        }
        self
    }
}

fn common<T: Copy>(all: &BTreeMap<u32, T>, wanted: &BTreeMap<u32, T>) -> BTreeMap<u32, T> {
    let both = all.iter().filter(|(id, _)| wanted.contains_key(*id));
    both.map(|(id, value)| (*id, *value)).collect()
}

fn line(line: &str) -> Option<(String, Values)> {
    let (name, text) = line.split_once(':')?;
    let (name, text) = (name.trim().to_owned(), text.trim());
    let masks = || by_domain(text, |v| u64::from_str_radix(v, 16).ok().map(Mask));
    let values = if info::cache(&name).is_some() {
        masks().map(Values::Masks)
    } else {
        by_domain(text, |v| v.parse().ok()).map(Values::Numbers)
    };
    Some((
        name,
        values.unwrap_or_else(|| Values::Other(text.to_owned())),
    ))
}

fn by_domain<T>(text: &str, value: impl Fn(&str) -> Option<T>) -> Option<BTreeMap<u32, T>> {
    let part = |part: &str| {
        let (id, text) = part.split_once('=')?;
        Some((id.trim().parse().ok()?, value(text.trim())?))
    };
    text.split(';').map(part).collect()
}

/// The sizes of a group's parts in bytes (the text of `size`), by resource and domain. Lines that
/// are not about caches are left out.
#[must_use]
pub fn sizes(text: &str) -> BTreeMap<String, BTreeMap<u32, u64>> {
    let of = |line: &str| {
        let (name, text) = line.split_once(':')?;
        let name = name.trim();
        info::cache(name)?;
        Some((name.to_owned(), by_domain(text, |v| v.parse().ok())?))
    };
    text.lines().filter_map(of).collect()
}

/// The text to write: a line for each resource.
impl fmt::Display for Schemata {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (name, values)) in self.0.iter().enumerate() {
            let line = match values {
                Values::Masks(masks) => joined(masks, |mask| format!("{:x}", mask.0)),
                Values::Numbers(numbers) => joined(numbers, u64::to_string),
                Values::Other(text) => text.clone(),
            };
            write!(f, "{}{name}:{line}", if i > 0 { "\n" } else { "" })?;
        }
        Ok(())
    }
}

fn joined<T>(values: &BTreeMap<u32, T>, text: impl Fn(&T) -> String) -> String {
    let all = values
        .iter()
        .map(|(id, value)| format!("{id}={}", text(value)));
    all.collect::<Vec<_>>().join(";")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn what_kernels_write_differently_is_the_same() {
        let old = Schemata::parse("    MB:0= 100;1=  50\n    L3:0=00ff;1=7ff\n");
        let new = Schemata::parse("L3:0=ff;1=7ff\nMB:0=100;1=50");
        assert_eq!(old, new);
        assert_eq!(new.to_string(), "L3:0=ff;1=7ff\nMB:0=100;1=50");
        assert_eq!(old.masks_of("L3").unwrap()[&0], Mask(0xff));
        assert_eq!(old.domains("MB"), [0, 1]);
    }

    #[test]
    fn a_part_is_held_by_the_whole_and_only_then() {
        let whole = Schemata::parse("L2:0=f;1=f\nL3:0=f0\nMB:0=20");
        let part = Schemata::masks("L2", [1], Mask(0xf));
        assert!(whole.holds(&part) && !part.holds(&whole));
        assert!(!whole.holds(&Schemata::masks("L2", [1, 2], Mask(0xf))));
        assert!(!whole.holds(&Schemata::masks("L2", [1], Mask(0x7))));
        assert!(whole.covers(&Schemata::masks("L2", [1], Mask(0x7))));
        assert!(!part.covers(&Schemata::masks("L2", [0, 1], Mask(0xf))));
        assert!(!part.covers(&Schemata::masks("L3", [1], Mask(0xf))));
        let with = whole.clone().with(&Schemata::parse("L2:1=3\nNB:0=1"));
        assert_eq!(with.to_string(), "L2:0=f;1=3\nL3:0=f0\nMB:0=20\nNB:0=1");
    }

    #[test]
    fn each_value_goes_back_by_itself() {
        let back = |now: &str, old: &str, new: &str| {
            let (back, theirs) =
                Schemata::parse(now).back(&Schemata::parse(old), &Schemata::parse(new));
            (back.to_string(), theirs.to_string())
        };
        let (old, new) = ("L3:0=ff;1=ff\nMB:0=100", "L3:0=f;1=3\nMB:0=20");
        let nothing = String::new;
        assert_eq!(back(new, old, new), (old.to_owned(), nothing()));
        assert_eq!(back(old, old, new), (nothing(), nothing()));
        // One cache is offline, and another program has changed the bandwidth.
        assert_eq!(
            back("L3:1=3\nMB:0=50", old, new),
            ("L3:1=ff".to_owned(), "MB:0=50".to_owned())
        );
    }

    #[test]
    fn forms_that_are_not_known_are_kept() {
        let text = "L3:uninitialized\nMB:0=1.5";
        assert_eq!(Schemata::parse(text).to_string(), text);
        assert!(Schemata::parse(text).domains("L3").is_empty());
        assert_eq!(sizes("L3:0=1024;1=512\n MB:0=100")["L3"][&1], 512);
        assert!(!sizes("MB:0=100").contains_key("MB"));
    }

    proptest! {
        #[test]
        fn what_is_written_reads_back(masks in prop::collection::btree_map(0u32..9, 1u64..0xffff, 1..4), mb in 1u64..101) {
            let masks = masks.into_iter().map(|(id, bits)| (id, Mask(bits))).collect();
            let all = Schemata(BTreeMap::from([("L3".to_owned(), Values::Masks(masks))]))
                .with(&Schemata::numbers("MB", [0, 3], mb));
            prop_assert_eq!(Schemata::parse(&all.to_string()), all);
        }

        #[test]
        fn any_text_is_read(text in "[L3MB0-9a-f:;= \n]{0,60}") {
            let once = Schemata::parse(&text);
            prop_assert_eq!(Schemata::parse(&once.to_string()), once);
        }
    }
}
