//! The committed lists in `tests/`: how long tests took, which skips are expected, which tests may
//! have a second try.

use std::collections::BTreeMap;
use std::path::Path;

use serde::{Deserialize, Serialize};

/// What the three files say.
#[derive(Debug, Default)]
pub struct Lists {
    /// Seconds that each test took, of those that take half a second or more.
    pub seconds: BTreeMap<String, f64>,
    /// Tests that no machine of today's can run, and why: hardware.
    pub skips: BTreeMap<String, Skip>,
    /// Tests that may fail once.
    pub flaky: BTreeMap<String, Flaky>,
}

/// An entry of `skips.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Skip {
    /// What the machine lacks.
    pub why: String,
}

/// An entry of `flaky.toml`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Flaky {
    /// The date since which it is listed.
    pub since: String,
    /// What made it fail.
    pub why: String,
    /// What was tried against it.
    pub tried: String,
}

#[derive(Deserialize, Serialize)]
struct Seconds {
    seconds: BTreeMap<String, f64>,
}

#[derive(Deserialize)]
struct Skips {
    #[serde(default)]
    skip: BTreeMap<String, Skip>,
}

#[derive(Deserialize)]
struct Flakies {
    #[serde(default)]
    flaky: BTreeMap<String, Flaky>,
}

/// Below this a test is not listed.
const SHORT: f64 = 0.5;

/// Reads the lists of a folder. A list that is missing is an error, but for the seconds.
pub fn read(folder: &Path) -> Result<Lists, String> {
    let seconds = folder.join("seconds.toml");
    let seconds = if seconds.exists() {
        file::<Seconds>(&seconds)?.seconds
    } else {
        BTreeMap::new()
    };
    Ok(Lists {
        seconds,
        skips: file::<Skips>(&folder.join("skips.toml"))?.skip,
        flaky: file::<Flakies>(&folder.join("flaky.toml"))?.flaky,
    })
}

fn file<T: for<'a> Deserialize<'a>>(path: &Path) -> Result<T, String> {
    let text = std::fs::read_to_string(path).map_err(|e| format!("{}: {e}", path.display()))?;
    toml::from_str(&text).map_err(|e| format!("{}: {e}", path.display()))
}

/// Writes how long each test took. Tests that were not run keep what was written before.
pub fn write(
    folder: &Path,
    took: &BTreeMap<String, f64>,
    there: impl Fn(&str) -> bool,
) -> Result<(), String> {
    let mut seconds = read(folder)?.seconds;
    seconds.retain(|name, _| there(name) && !took.contains_key(name));
    let long = took.iter().filter(|(_, seconds)| **seconds >= SHORT);
    seconds.extend(long.map(|(name, seconds)| (name.clone(), (seconds * 10.0).round() / 10.0)));
    let text = toml::to_string(&Seconds { seconds }).map_err(|e| e.to_string())?;
    let head = "# Seconds that tests took; `scripts/test.sh --write-seconds` writes them anew.\n\n";
    let path = folder.join("seconds.toml");
    std::fs::write(&path, format!("{head}{text}")).map_err(|e| format!("{}: {e}", path.display()))
}
