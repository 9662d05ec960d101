//! Tests that run where files that they depend on have changed since they last passed: those below
//! a module `changed`, listed with their files in `tests/changed.toml`.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};

use serde::{Deserialize, Serialize};

/// The module that such tests lie in.
pub const MODULE: &str = "changed";

/// The list.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
pub struct Changed {
    /// Files and folders by the name of what they make up, from the top of the tree on.
    files: BTreeMap<String, Vec<String>>,
    /// By test: what it depends on.
    test: BTreeMap<String, Entry>,
}

#[derive(Debug, Deserialize, Serialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    /// Names of `files`.
    on: Vec<String>,
    /// What the files were when it last passed, as a number.
    #[serde(default)]
    passed: String,
}

impl Changed {
    /// Reads `tests/changed.toml`.
    pub fn read(top: &Path) -> Result<Self, String> {
        let path = path(top);
        let text =
            std::fs::read_to_string(&path).map_err(|e| format!("{}: {e}", path.display()))?;
        toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
    }

    /// An error where the list and the tests of this kind that there are differ.
    pub fn matches(&self, tests: &BTreeSet<String>) -> Result<(), String> {
        let listed: BTreeSet<String> = self.test.keys().cloned().collect();
        let differ: Vec<&String> = listed.symmetric_difference(tests).collect();
        if differ.is_empty() {
            return Ok(());
        }
        Err(format!(
            "tests/changed.toml and the tests below a module `{MODULE}` differ: {differ:?}"
        ))
    }

    /// By test: what its files are now. To be taken before the tests run.
    pub fn states(&self, top: &Path) -> Result<BTreeMap<String, String>, String> {
        let state = |(name, entry): (&String, &Entry)| Ok((name.clone(), self.state(top, entry)?));
        self.test.iter().map(state).collect()
    }

    /// The tests whose files are not as they were when the test last passed.
    pub fn due(&self, states: &BTreeMap<String, String>) -> BTreeSet<String> {
        let tests = self.test.iter();
        let due = tests.filter(|(name, entry)| states.get(*name) != Some(&entry.passed));
        due.map(|(name, _)| name.clone()).collect()
    }

    /// Notes that a test passed with its files in that state. Whether that is news.
    pub fn note(&mut self, test: &str, states: &BTreeMap<String, String>) -> bool {
        match (self.test.get_mut(test), states.get(test)) {
            (Some(entry), Some(state)) if entry.passed != *state => {
                entry.passed.clone_from(state);
                true
            }
            _ => false,
        }
    }

    /// Writes `tests/changed.toml` anew. Its first comment stays.
    pub fn write(&self, top: &Path) -> Result<(), String> {
        let path = path(top);
        let told = |e: std::io::Error| format!("{}: {e}", path.display());
        let before = std::fs::read_to_string(&path).map_err(told)?;
        let head = before.lines().take_while(|line| line.starts_with('#'));
        let head: String = head.map(|line| format!("{line}\n")).collect();
        let text = toml::to_string(self).map_err(|e| e.to_string())?;
        std::fs::write(&path, format!("{head}\n{text}")).map_err(told)
    }

    /// A number for names and contents of all files that a test depends on.
    fn state(&self, top: &Path, entry: &Entry) -> Result<String, String> {
        let mut files = BTreeSet::new();
        for name in &entry.on {
            let paths = self.files.get(name);
            let paths = paths.ok_or(format!("tests/changed.toml: no files are named {name}"))?;
            for path in paths {
                below(&top.join(path), &mut files)?;
            }
        }
        let mut hash = Fnv::default();
        for file in files {
            let content = std::fs::read(&file).map_err(|e| format!("{}: {e}", file.display()))?;
            let name = file.strip_prefix(top).unwrap_or(&file);
            hash.take(name.as_os_str().as_encoded_bytes());
            hash.take(&content);
        }
        Ok(format!("{:016x}", hash.0))
    }
}

fn path(top: &Path) -> PathBuf {
    top.join("tests/changed.toml")
}

/// A file, or all files below a folder.
fn below(path: &Path, files: &mut BTreeSet<PathBuf>) -> Result<(), String> {
    if !path.is_dir() {
        files.insert(path.to_owned());
        return Ok(());
    }
    let told = |e: std::io::Error| format!("{}: {e}", path.display());
    for entry in std::fs::read_dir(path).map_err(told)? {
        below(&entry.map_err(told)?.path(), files)?;
    }
    Ok(())
}

/// FNV-1a of 64 bits: the same with every compiler.
struct Fnv(u64);

impl Default for Fnv {
    fn default() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }
}

impl Fnv {
    /// Takes bytes and their number, so that pieces are told from each other.
    fn take(&mut self, bytes: &[u8]) {
        let length = (bytes.len() as u64).to_le_bytes();
        for byte in length.iter().chain(bytes) {
            self.0 = (self.0 ^ u64::from(*byte)).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tree() -> (tempfile::TempDir, Changed) {
        let top = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(top.path().join("tests")).unwrap();
        std::fs::create_dir_all(top.path().join("src/deep")).unwrap();
        std::fs::write(top.path().join("src/deep/a.rs"), "a").unwrap();
        std::fs::write(top.path().join("b.rs"), "b").unwrap();
        let text = "# Head.\n\n[files]\none = [\"src\"]\ntwo = [\"b.rs\"]\n\
            [test.a]\non = [\"one\"]\n[test.b]\non = [\"one\", \"two\"]\n";
        std::fs::write(path(top.path()), text).unwrap();
        let changed = Changed::read(top.path()).unwrap();
        (top, changed)
    }

    fn set(names: &[&str]) -> BTreeSet<String> {
        names.iter().map(|name| (*name).to_owned()).collect()
    }

    #[test]
    fn a_test_is_due_until_it_passes_and_when_a_file_changes() {
        let (top, mut changed) = tree();
        let top = top.path();
        let now = |changed: &Changed| changed.due(&changed.states(top).unwrap());
        assert_eq!(now(&changed), set(&["a", "b"]));
        let states = changed.states(top).unwrap();
        // What changes while the tests run is not what passed.
        std::fs::write(top.join("b.rs"), "c").unwrap();
        assert!(changed.note("a", &states) && changed.note("b", &states));
        assert!(!changed.note("b", &states) && !changed.note("c", &states));
        changed.write(top).unwrap();
        let mut changed = Changed::read(top).unwrap();
        assert_eq!(now(&changed), set(&["b"]));
        changed.note("b", &changed.states(top).unwrap());
        assert_eq!(now(&changed), set(&[]));
        // A file that comes is a change, too.
        std::fs::write(top.join("src/new.rs"), "").unwrap();
        assert_eq!(now(&changed), set(&["a", "b"]));
        let text = std::fs::read_to_string(path(top)).unwrap();
        assert!(text.starts_with("# Head.\n"), "{text}");
    }

    #[test]
    fn a_list_that_differs_from_the_tests_is_refused() {
        let (_top, changed) = tree();
        assert!(changed.matches(&set(&["a", "b"])).is_ok());
        assert!(changed.matches(&set(&["a"])).unwrap_err().contains("\"b\""));
        let more = changed.matches(&set(&["a", "b", "c"])).unwrap_err();
        assert!(more.contains("\"c\""), "{more}");
    }

    #[test]
    fn a_path_that_is_not_there_is_refused() {
        let (top, changed) = tree();
        std::fs::remove_file(top.path().join("b.rs")).unwrap();
        assert!(changed.states(top.path()).unwrap_err().contains("b.rs"));
    }
}
