//! Reads a policy: first its types ([`quell_types::text::Reader`]), then its meaning
//! ([`super::check`]).

use quell_types::text::{Origin, Path, Problem, Reader, remove, value_at};
use toml::Spanned;
use toml::de::DeTable;

use super::{Policy, check};

/// Keys of earlier versions that no longer exist, and what replaces them.
const REMOVED: [(&[&str], &str); 2] = [
    (
        &["regulator", "floor"],
        "remove it: a limit stops its group only, so that the kernel's floor for ordinary tasks does not apply; small limits get a \
         longer period",
    ),
    (
        &["regulator", "longest"],
        "remove it: a stop holds nothing else up; write regulator.period for shorter stops",
    ),
];

/// The top-level keys of a policy that a configuration of an experiment may have.
pub(crate) const FRAGMENT_KEYS: [&str; 10] = [
    "require",
    "on-drift",
    "group",
    "rest",
    "mechanisms",
    "regulator",
    "pressure",
    "hoard",
    "scheduler",
    "windows",
];

/// What the policy is part of. This decides how its groups get their tasks.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Shape {
    /// It is a whole file: groups match or launch programs.
    File,
    /// It is a file for a command from elsewhere: groups may be without tasks.
    Open,
    /// It is a configuration of an experiment: the runner launches programs.
    Configuration,
}

impl Policy {
    /// Reads a policy. Problems call it `file`; its stem is the policy's name by default.
    ///
    /// # Errors
    /// All problems, in the order found. Types and unknown keys come before impossible values.
    pub fn parse(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        Self::parse_as(text, file, Shape::File)
    }

    /// The same for `quell run POLICY -- CMD`. A group may have neither `match` nor `command`, so
    /// that it can get CMD.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn parse_open(text: &str, file: &str) -> Result<Self, Vec<Problem>> {
        Self::parse_as(text, file, Shape::Open)
    }

    fn parse_as(text: &str, file: &str, shape: Shape) -> Result<Self, Vec<Problem>> {
        let origin = Origin {
            file,
            text: Some(text),
        };
        let root = origin.document(text)?;
        let mut reader = Reader::new(origin);
        match policy_of(&mut reader, root, shape) {
            Some(mut policy) if reader.problems.is_empty() => {
                if policy.name.is_empty() {
                    policy.name = stem(file);
                }
                Ok(policy)
            }
            _ => Err(reader.problems),
        }
    }

    /// Reads a policy that the program composed. Problems call it `origin` and have no lines.
    ///
    /// # Errors
    /// As for [`Self::parse`].
    pub fn from_table(table: &toml::Table, origin: &str) -> Result<Self, Vec<Problem>> {
        let text = table.to_string();
        Self::parse(&text, origin).map_err(|mut problems| {
            for problem in &mut problems {
                (problem.line, problem.column) = (None, None);
            }
            problems
        })
    }
}

/// The file's name without folders and extension.
pub(crate) fn stem(file: &str) -> String {
    let name = file.rsplit('/').next().unwrap_or(file);
    name.strip_suffix(".toml").unwrap_or(name).to_owned()
}

/// Reads a policy from a document that may be merged from several. Adds problems to the reader.
pub(crate) fn policy_of(
    reader: &mut Reader<'_>,
    mut root: Spanned<DeTable<'_>>,
    shape: Shape,
) -> Option<Policy> {
    reader.forget_places();
    for (keys, instead) in REMOVED {
        let path = Path::of(keys);
        if value_at(root.get_ref(), &path).is_some() {
            let why = format!("{path} went with the real-time throttler");
            reader.report_key(root.get_ref(), &path, &why, Some(instead.to_owned()));
            remove(root.get_mut(), &path);
        }
    }
    let policy = reader.read::<Policy>(&root)?;
    reader.complain(root.get_ref(), check::check(&policy, shape));
    Some(policy)
}
