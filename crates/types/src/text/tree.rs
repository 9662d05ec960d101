//! A document as a tree. Values and keys are found by their [`Path`], removed or added, and one
//! tree is laid over another.

use toml::Spanned;
use toml::de::{DeTable, DeValue};

use super::{Path, Step};

/// The value at `path`.
pub fn value_at<'a, 't>(root: &'a DeTable<'t>, path: &Path) -> Option<&'a Spanned<DeValue<'t>>> {
    let (first, rest) = path.0.split_first()?;
    let Step::Key(key) = first else { return None };
    rest.iter()
        .try_fold(root.get(key.as_str())?, |value, step| {
            match (step, value.get_ref()) {
                (Step::Key(key), DeValue::Table(table)) => table.get(key.as_str()),
                (Step::Index(index), DeValue::Array(array)) => array.get(*index),
                _ => None,
            }
        })
}

/// The position to show for `path`, or for the innermost part of it that exists. For a table it is
/// the position of its key, for any other value that of the value.
pub(super) fn place(root: &DeTable<'_>, path: &Path) -> Option<usize> {
    (1..=path.0.len()).rev().find_map(|n| {
        let prefix = Path(path.0[..n].to_vec());
        let value = value_at(root, &prefix)?;
        let leaf = n == path.0.len() && !value.get_ref().is_table();
        let key = if leaf { None } else { key_at(root, &prefix) };
        Some(key.unwrap_or(value.span().start))
    })
}

/// The position of the key that `path` ends with.
pub(super) fn key_at(root: &DeTable<'_>, path: &Path) -> Option<usize> {
    let (Step::Key(key), way) = path.0.split_last()? else {
        return None;
    };
    let table = match way {
        [] => root,
        _ => value_at(root, &Path(way.to_vec()))?.get_ref().as_table()?,
    };
    table
        .get_key_value(key.as_str())
        .map(|(key, _)| key.span().start)
}

/// Removes the value at `path`. `None` if that is the root or does not exist.
pub fn remove(root: &mut DeTable<'_>, path: &Path) -> Option<()> {
    let (last, way) = path.0.split_last()?;
    let Some((Step::Key(first), way)) = way.split_first() else {
        let Step::Key(key) = last else { return None };
        return root.remove(key.as_str()).map(|_| ());
    };
    let mut value = root.get_mut(first.as_str())?;
    for step in way {
        value = match (step, value.get_mut()) {
            (Step::Key(key), DeValue::Table(table)) => table.get_mut(key.as_str())?,
            (Step::Index(index), DeValue::Array(array)) => array.get_mut(*index)?,
            _ => return None,
        };
    }
    match (last, value.get_mut()) {
        (Step::Key(key), DeValue::Table(table)) => table.remove(key.as_str()).map(|_| ()),
        // Removing one element would renumber the rest, so the whole array is removed.
        (Step::Index(_), DeValue::Array(_)) => {
            remove(root, &Path(path.0[..path.0.len() - 1].to_vec()))
        }
        _ => None,
    }
}

/// Adds a top-level key that is missing and was reported, so that the rest can be read.
pub(super) fn supply(root: &mut DeTable<'_>, key: &str) -> Option<()> {
    let text = match key {
        "quell" => "quell = 1",
        "name" => "name = ''",
        _ => return None,
    };
    merge(root, DeTable::parse(text).ok()?.get_ref());
    Some(())
}

/// Lays `over` on `base`. Tables are merged key by key; all else is replaced.
pub fn merge<'t>(base: &mut DeTable<'t>, over: &DeTable<'t>) {
    for (key, value) in over {
        if let (Some(below), DeValue::Table(table)) =
            (base.get_mut(key.get_ref().as_ref()), value.get_ref())
            && let DeValue::Table(below) = below.get_mut()
        {
            merge(below, table);
            continue;
        }
        base.insert(key.clone(), value.clone());
    }
}

#[cfg(test)]
mod tests {
    use toml::de::Deserializer;

    use super::*;

    #[test]
    fn a_fragment_is_laid_over_another_key_by_key() {
        let mut base = DeTable::parse("a.b = 1\na.c = 2\nd = [1]")
            .unwrap()
            .into_inner();
        let over = DeTable::parse("a.c = 3\nd = [2, 3]\ne = true").unwrap();
        merge(&mut base, over.get_ref());
        let whole = DeTable::parse("a.b = 1\na.c = 3\nd = [2, 3]\ne = true").unwrap();
        assert_eq!(
            format!("{:?}", strip(&base)),
            format!("{:?}", strip(whole.get_ref()))
        );
    }

    fn strip(table: &DeTable<'_>) -> toml::Table {
        serde::Deserialize::deserialize(Deserializer::from(Spanned::new(0..0, table.clone())))
            .unwrap()
    }
}
