//! Text that people write. It reads a TOML document into types and locates *every* problem. It also
//! suggests what an unknown word was probably meant to be.
//!
//! Reading recovers by leaving out: the value with the problem is removed, and the rest is read
//! again, until there are no problems. So one run names all mistakes of a file. Only syntax errors
//! end it early.

mod tree;

use std::borrow::Cow;
use std::collections::HashSet;
use std::fmt;

use serde::de::DeserializeOwned;
use serde_path_to_error::Segment;
use toml::de::{DeTable, Deserializer};
use toml::{Spanned, de};

use tree::{key_at, place, supply};
pub use tree::{merge, remove, value_at};

/// The most problems that are reported for one file. Beyond that they are seldom independent.
const MOST_PROBLEMS: usize = 50;

/// One mistake in a file, with its place.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Problem {
    /// The file's name, as the user gave it.
    pub file: String,
    /// The line, from 1; absent where the text is not from a file.
    pub line: Option<usize>,
    /// The column in characters, from 1.
    pub column: Option<usize>,
    /// The key, for example `group.batch.limit.bandwidth`; empty for syntax errors.
    pub key: String,
    /// What is wrong, naming the key.
    pub why: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

impl fmt::Display for Problem {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.file)?;
        if let (Some(line), Some(column)) = (self.line, self.column) {
            write!(f, ":{line}:{column}")?;
        }
        write!(f, ": {}", self.why)?;
        if let Some(remedy) = &self.remedy {
            write!(f, "; {remedy}")?;
        }
        Ok(())
    }
}

impl std::error::Error for Problem {}

/// One step on the path to a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// A key of a table.
    Key(String),
    /// An element of an array, from 0.
    Index(usize),
}

/// The path from the document's root to a value.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Path(pub Vec<Step>);

impl Path {
    /// A path that consists of keys only.
    #[must_use]
    pub fn of<S: AsRef<str>>(keys: &[S]) -> Self {
        Self(
            keys.iter()
                .map(|k| Step::Key(k.as_ref().to_owned()))
                .collect(),
        )
    }

    /// This path with one more key.
    #[must_use]
    pub fn key(&self, key: &str) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Key(key.to_owned()));
        Self(steps)
    }

    /// This path with an index into an array, from 0.
    #[must_use]
    pub fn index(&self, index: usize) -> Self {
        let mut steps = self.0.clone();
        steps.push(Step::Index(index));
        Self(steps)
    }

    /// Whether one of the two is a prefix of the other, or they are equal.
    fn related(&self, other: &Self) -> bool {
        let shared = self.0.len().min(other.0.len());
        self.0[..shared] == other.0[..shared]
    }
}

impl fmt::Display for Path {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, step) in self.0.iter().enumerate() {
            match step {
                Step::Index(index) => write!(f, "[{index}]")?,
                Step::Key(key) => {
                    if i > 0 {
                        f.write_str(".")?;
                    }
                    let bare = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
                    if !key.is_empty() && key.chars().all(bare) {
                        f.write_str(key)?;
                    } else {
                        write!(f, "{key:?}")?;
                    }
                }
            }
        }
        Ok(())
    }
}

/// A mistake found after reading: the types are right, the meaning is not.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Complaint {
    /// The path to the mistake.
    pub at: Path,
    /// What is wrong, without the key.
    pub why: String,
    /// What to do about it.
    pub remedy: Option<String>,
}

/// Reads a document of a language that another crate defines. Types and unknown keys come first. If
/// those are right, `check` is asked for complaints.
///
/// # Errors
/// Every problem found.
pub fn read<T: DeserializeOwned>(
    text: &str,
    file: &str,
    check: impl FnOnce(&T) -> Vec<Complaint>,
) -> Result<T, Vec<Problem>> {
    let origin = Origin {
        file,
        text: Some(text),
    };
    let root = origin.document(text)?;
    let mut reader = Reader::new(origin);
    let value: Option<T> = reader.read(&root);
    if let (Some(value), true) = (&value, reader.problems.is_empty()) {
        let complaints = check(value);
        reader.complain(root.get_ref(), complaints);
    }
    match value {
        Some(value) if reader.problems.is_empty() => Ok(value),
        _ => Err(reader.problems),
    }
}

/// A file's text, to convert positions into lines.
#[derive(Clone, Copy, Debug)]
pub struct Origin<'t> {
    /// The name that problems use for it.
    pub file: &'t str,
    /// Its text; absent where positions mean nothing to the user.
    pub text: Option<&'t str>,
}

impl Origin<'_> {
    fn position(&self, offset: usize) -> Option<(usize, usize)> {
        let text = self.text?;
        let before = text.get(..offset.min(text.len()))?;
        let line_start = before.rfind('\n').map_or(0, |newline| newline + 1);
        let line = before.matches('\n').count() + 1;
        Some((line, before[line_start..].chars().count() + 1))
    }

    fn problem(
        &self,
        offset: Option<usize>,
        key: String,
        why: String,
        remedy: Option<String>,
    ) -> Problem {
        let place = offset.and_then(|offset| self.position(offset));
        Problem {
            file: self.file.to_owned(),
            line: place.map(|(line, _)| line),
            column: place.map(|(_, column)| column),
            key,
            why,
            remedy,
        }
    }

    /// Parses the TOML. Only syntax errors and duplicate keys are problems here.
    pub fn document<'a>(&self, text: &'a str) -> Result<Spanned<DeTable<'a>>, Vec<Problem>> {
        let (root, errors) = DeTable::parse_recoverable(text);
        if errors.is_empty() {
            return Ok(root);
        }
        // One slip can cause several errors on a line; only the first one helps.
        let mut lines = HashSet::new();
        let problems = errors
            .iter()
            .map(|e| {
                let offset = e.span().map(|span| span.start);
                let remedy =
                    (e.message() == "duplicate key").then(|| "keep one of the two".to_owned());
                self.problem(offset, String::new(), e.message().to_owned(), remedy)
            })
            .filter(|p| lines.insert(p.line))
            .take(MOST_PROBLEMS)
            .collect();
        Err(problems)
    }
}

/// A document being read, and the problems found so far.
#[derive(Debug)]
pub struct Reader<'t> {
    /// Where the text comes from.
    pub origin: Origin<'t>,
    /// For fragments: the key that the user's keys belong to. It is prepended to messages.
    pub context: Option<String>,
    /// Problems, in the order found.
    pub problems: Vec<Problem>,
    /// The paths of all problems so far.
    seen: Vec<Path>,
}

impl<'t> Reader<'t> {
    /// A reader without problems.
    pub fn new(origin: Origin<'t>) -> Self {
        Self {
            origin,
            context: None,
            problems: Vec::new(),
            seen: Vec::new(),
        }
    }

    /// Adds a problem at `path`, located in `root`.
    pub fn report(&mut self, root: &DeTable<'_>, path: &Path, why: &str, remedy: Option<String>) {
        self.report_at(place(root, path), path, why, remedy);
    }

    /// Like [`Self::report`], where the key itself is wrong.
    pub fn report_key(
        &mut self,
        root: &DeTable<'_>,
        path: &Path,
        why: &str,
        remedy: Option<String>,
    ) {
        let offset = key_at(root, path).or_else(|| place(root, path));
        self.report_at(offset, path, why, remedy);
    }

    /// To be called before another document is read: problems of the last one say nothing about it.
    pub fn forget_places(&mut self) {
        self.seen.clear();
    }

    fn report_at(&mut self, offset: Option<usize>, path: &Path, why: &str, remedy: Option<String>) {
        let why = match &self.context {
            Some(context) => format!("{context}: {why}"),
            None => why.to_owned(),
        };
        let problem = self.origin.problem(offset, path.to_string(), why, remedy);
        // Fragments are read once per configuration that has them; each mistake is reported once.
        let known = self.problems.iter().any(|p| {
            (p.line, p.column, &p.key) == (problem.line, problem.column, &problem.key)
                && (self.context.is_some() || p.why == problem.why)
        });
        if !known && self.problems.len() < MOST_PROBLEMS {
            self.problems.push(problem);
        }
        self.seen.push(path.clone());
    }

    /// Adds what was found after reading, except where reading failed nearby. A group without
    /// `match` is no news when its `match` could not be read.
    pub fn complain(&mut self, root: &DeTable<'_>, complaints: Vec<Complaint>) {
        let unread = std::mem::take(&mut self.seen);
        for Complaint { at, why, remedy } in complaints {
            if !unread.iter().any(|path| path.related(&at)) {
                self.report(root, &at, &format!("{at}: {why}"), remedy);
            }
        }
        self.seen.extend(unread);
    }

    /// Reads a `T`, leaving out what cannot be read. `None` when the rest is not enough for one;
    /// there is then at least one problem.
    pub fn read<T: DeserializeOwned>(&mut self, root: &Spanned<DeTable<'_>>) -> Option<T> {
        let mut rest = root.clone();
        loop {
            let mut track = serde_path_to_error::Track::new();
            let deserializer = Deserializer::from(rest.clone());
            let tracked = serde_path_to_error::Deserializer::new(deserializer, &mut track);
            let error = match T::deserialize(tracked) {
                Ok(value) => return Some(value),
                Err(error) => error,
            };
            let mut path = Path(track.path().iter().filter_map(step).collect());
            let said = Said::of(&error);
            if let Said::UnknownKey { key, .. } = &said {
                // The tracked path may or may not end with the unknown key.
                if path.0.last() != Some(&Step::Key(key.clone()))
                    || value_at(rest.get_ref(), &path).is_none()
                {
                    path = path.key(key);
                }
            }
            self.report_said(root.get_ref(), &path, &said);
            if self.problems.len() >= MOST_PROBLEMS {
                return None;
            }
            match said {
                Said::Missing(key) if path.0.is_empty() => supply(rest.get_mut(), &key)?,
                _ => remove(rest.get_mut(), &path)?,
            }
        }
    }

    fn report_said(&mut self, root: &DeTable<'_>, path: &Path, said: &Said) {
        match said {
            Said::UnknownKey { key, known } => {
                let parent = Path(path.0[..path.0.len() - 1].to_vec());
                let within = if parent.0.is_empty() {
                    "at the top".to_owned()
                } else {
                    format!("in {parent}")
                };
                let why = format!("unknown key '{key}' {within}");
                let remedy = match suggestion(key, known.iter().map(String::as_str)) {
                    Some(close) => Some(format!("did you mean '{close}'?")),
                    None if known.is_empty() => None,
                    None => Some(format!("known here: {}", known.join(", "))),
                };
                self.report_key(root, path, &why, remedy);
            }
            Said::UnknownWord { word, known } => {
                let why = format!("{path}: '{word}' is not one of {}", known.join(", "));
                let remedy = suggestion(word, known.iter().map(String::as_str))
                    .map(|close| format!("did you mean '{close}'?"));
                self.report(root, path, &why, remedy);
            }
            Said::Missing(key) => {
                let whole = path.key(key);
                if self.seen.iter().any(|path| path.0.starts_with(&whole.0)) {
                    return; // It was there, and what was wrong with it or within it has been said.
                }
                self.report(root, &whole, &format!("{whole} is missing"), None);
            }
            Said::Other(message) => self.report(root, path, &format!("{path}: {message}"), None),
        }
    }
}

fn step(segment: &Segment) -> Option<Step> {
    match segment {
        Segment::Seq { index } => Some(Step::Index(*index)),
        Segment::Map { key } => Some(Step::Key(key.clone())),
        Segment::Enum { .. } | Segment::Unknown => None,
    }
}

/// What serde's message says. Its wording is part of serde's public behaviour (`serde::de::Error`).
/// A message with other wording is passed on as it is.
enum Said {
    UnknownKey { key: String, known: Vec<String> },
    UnknownWord { word: String, known: Vec<String> },
    Missing(String),
    Other(String),
}

impl Said {
    fn of(error: &de::Error) -> Self {
        let message = error.message();
        let mut quoted = message.split('`').skip(1).step_by(2).map(str::to_owned);
        let mut words = || {
            let first = quoted.next().unwrap_or_default();
            (first, quoted.by_ref().collect::<Vec<_>>())
        };
        if message.starts_with("unknown field ") {
            let (key, known) = words();
            Self::UnknownKey { key, known }
        } else if message.starts_with("unknown variant ") {
            let (word, known) = words();
            Self::UnknownWord { word, known }
        } else if message.starts_with("missing field ") {
            Self::Missing(words().0)
        } else if let Some((found, wanted)) = message
            .strip_prefix("invalid type: ")
            .or_else(|| message.strip_prefix("invalid value: "))
            .and_then(|rest| rest.split_once(", expected "))
        {
            let found = match found {
                "map" => "a table".to_owned(),
                "sequence" => "a list".to_owned(),
                other => other.replace('`', "'"),
            };
            let range = |most: u64| format!("a whole number from 0 to {most}");
            let wanted = match wanted {
                "u8" => range(u8::MAX.into()),
                "u16" => range(u16::MAX.into()),
                "u32" => range(u32::MAX.into()),
                "u64" | "usize" => range(i64::MAX.unsigned_abs()),
                other => other.to_owned(),
            };
            Self::Other(format!("{found} is not {wanted}"))
        } else {
            Self::Other(message.to_owned())
        }
    }
}

/// Line and column, both from 1, of a dotted key in a TOML text: the place that a
/// [`crate::refusal::Refusal`] names. If the key is not there, the innermost table of it that is.
#[must_use]
pub fn place_of(text: &str, key: &str) -> Option<(usize, usize)> {
    let (root, _) = DeTable::parse_recoverable(text);
    let keys: Vec<&str> = key.split('.').collect();
    let file = "";
    let text = Some(text);
    Origin { file, text }.position(place(root.get_ref(), &Path::of(&keys))?)
}

/// Whether a character is not shown, but steers a terminal or the direction of text.
#[must_use]
pub fn steers(c: char) -> bool {
    c.is_control()
        || matches!(c, '\u{200b}'..='\u{200f}' | '\u{2028}'..='\u{202e}' | '\u{2060}'..='\u{206f}' | '\u{feff}')
}

/// The text as a terminal may show it: what steers it, but line breaks and tabs, is `?`. Names
/// of processes, programs and cgroups are their owners', and could move the cursor or clear the
/// screen of the reader.
#[must_use]
pub fn printable(text: &str) -> Cow<'_, str> {
    let steers = |c: char| steers(c) && c != '\n' && c != '\t';
    match text.contains(steers) {
        true => Cow::Owned(text.replace(steers, "?")),
        false => Cow::Borrowed(text),
    }
}

/// The known word that is closest to `word`; `None` if none is close enough.
pub fn suggestion<'a>(word: &str, known: impl IntoIterator<Item = &'a str>) -> Option<&'a str> {
    let length = word.chars().count();
    known
        .into_iter()
        .map(|candidate| (1 + candidate.chars().count() / 4, candidate))
        .filter(|(most, candidate)| length.abs_diff(candidate.chars().count()) <= *most)
        .map(|(most, candidate)| (distance(word, candidate), most, candidate))
        .filter(|(d, most, _)| d <= most)
        .map(|(d, _, candidate)| (d, candidate))
        .min_by_key(|(d, _)| *d)
        .map(|(_, candidate)| candidate)
}

/// Edit distance with swaps of neighbours (optimal string alignment). Case is ignored, and `_`
/// counts as `-`.
fn distance(a: &str, b: &str) -> usize {
    let fold = |text: &str| text.replace('_', "-").to_ascii_lowercase();
    strsim::osa_distance(&fold(a), &fold(b))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_steers_a_terminal_or_the_direction_of_text_is_not_shown() {
        let name = "a\u{1b}[2J\u{202e}b\u{2066}c\u{200d}d\u{feff}e\u{e9}";
        assert_eq!(printable(name), "a?[2J?b?c?d?e\u{e9}");
    }

    #[test]
    fn control_characters_are_not_printed() {
        assert_eq!(printable("a\u{1b}[2J\r\u{9b}b\n\tc"), "a?[2J??b\n\tc");
        assert!(matches!(printable("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn suggests_what_was_probably_meant() {
        let keys = ["bandwidth", "memory", "cpu-time"];
        assert_eq!(suggestion("bandwith", keys), Some("bandwidth"));
        assert_eq!(suggestion("cpu_time", keys), Some("cpu-time"));
        assert_eq!(suggestion("Memroy", keys), Some("memory"));
        assert_eq!(suggestion("colour", keys), None);
    }

    #[test]
    fn paths_read_as_keys() {
        let path = Path::of(&["group", "a b", "match"]).index(1).key("exe");
        assert_eq!(path.to_string(), "group.\"a b\".match[1].exe");
    }
}
