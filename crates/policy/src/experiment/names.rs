//! Names that an experiment's keys refer to, and what to say about one that does not exist.

use indexmap::IndexMap;
use quell_types::text::suggestion;

use super::Subject;

/// The most copies of a subject that are accepted: more than a machine of today has CPUs for.
pub(super) const MOST_COPIES: u32 = 1024;

/// `did you mean 'x'?`, or the list of known words.
pub(super) fn hint<'a>(word: &str, known: impl Iterator<Item = &'a str> + Clone) -> Option<String> {
    if let Some(close) = suggestion(word, known.clone()) {
        return Some(format!("did you mean '{close}'?"));
    }
    let known: Vec<&str> = known.collect();
    (!known.is_empty()).then(|| format!("there is {}", known.join(", ")))
}

/// The subjects' names as other keys refer to them. Each copy has its own.
pub(super) fn instances(subjects: &IndexMap<String, Subject>) -> Vec<String> {
    // An impossible number of copies is reported elsewhere. It must not be counted to its end here.
    let most = usize::try_from(MOST_COPIES).unwrap_or(usize::MAX);
    subjects
        .iter()
        .flat_map(|(name, subject)| super::copies(name, subject).take(most))
        .map(|instance| instance.name)
        .collect()
}
