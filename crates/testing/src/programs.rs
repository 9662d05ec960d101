//! The test programs of the workspace: built by cargo, asked for their tests.

use std::collections::BTreeSet;
use std::io::{BufReader, Error, Result};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use serde::Deserialize;

/// A test program.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// `PACKAGE/TARGET`.
    pub name: String,
    /// The package's folder by name.
    pub package: String,
    /// The target: `lib` for unit tests of a library.
    pub target: String,
    /// The package's folder, in which its tests run.
    pub folder: PathBuf,
    /// The program.
    pub path: PathBuf,
}

/// A line of `cargo --message-format=json`; other lines lack these fields.
#[derive(Deserialize)]
struct Artifact {
    manifest_path: PathBuf,
    target: Target,
    profile: Profile,
    executable: Option<PathBuf>,
}

#[derive(Deserialize)]
struct Target {
    name: String,
    kind: Vec<String>,
}

#[derive(Deserialize)]
struct Profile {
    test: bool,
}

/// Builds all test programs. An error where that fails; cargo has said why.
pub fn built(cargo: &str) -> Result<Vec<Program>> {
    let mut build = Command::new(cargo)
        .args(["build", "--workspace", "--locked"])
        // The library, too: the lab looks for its plugin beside the program.
        .args(["--lib", "--bins", "--tests", "--message-format=json"])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut programs = Vec::new();
    if let Some(lines) = build.stdout.take() {
        for message in serde_json::Deserializer::from_reader(BufReader::new(lines)).into_iter() {
            programs.extend(program(message?));
        }
    }
    if !build.wait()?.success() {
        return Err(Error::other("the tests cannot be built"));
    }
    Ok(programs)
}

fn program(message: serde_json::Value) -> Option<Program> {
    let artifact: Artifact = serde_json::from_value(message).ok()?;
    let path = artifact.executable.filter(|_| artifact.profile.test)?;
    let folder = artifact.manifest_path.parent()?.to_owned();
    let package = folder.file_name()?.to_str()?.to_owned();
    let target = match artifact.target.kind.first().map(String::as_str) {
        Some("lib" | "rlib" | "cdylib") => "lib".to_owned(),
        Some("bench") => return None,
        _ => artifact.target.name,
    };
    Some(Program {
        name: format!("{package}/{target}"),
        package,
        target,
        folder,
        path,
    })
}

/// The tests of a program by name: those that run, and those that are ignored.
pub fn tests(program: &Program) -> Result<(Vec<String>, Vec<String>)> {
    let all = listed(&program.path, &[])?;
    let ignored: BTreeSet<String> = listed(&program.path, &["--ignored"])?.into_iter().collect();
    let runs = all.into_iter().filter(|test| !ignored.contains(test));
    Ok((runs.collect(), ignored.into_iter().collect()))
}

fn listed(program: &Path, more: &[&str]) -> Result<Vec<String>> {
    let listed = Command::new(program)
        .args(["--list", "--format", "terse"])
        .args(more)
        .output()?;
    if !listed.status.success() {
        let errors = String::from_utf8_lossy(&listed.stderr);
        return Err(Error::other(format!(
            "{} --list: {errors}",
            program.display()
        )));
    }
    let text = String::from_utf8_lossy(&listed.stdout);
    let tests = text.lines().filter_map(|line| line.strip_suffix(": test"));
    Ok(tests.map(str::to_owned).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn programs_are_those_with_tests() {
        let message = |kind: &str, test: bool| {
            serde_json::json!({
                "reason": "compiler-artifact",
                "manifest_path": "/top/crates/linux/Cargo.toml",
                "target": {"name": "quell_linux", "kind": [kind]},
                "profile": {"test": test},
                "executable": "/top/target/debug/deps/one",
            })
        };
        let found = program(message("lib", true)).unwrap();
        assert_eq!(
            (found.name.as_str(), found.target.as_str()),
            ("linux/lib", "lib")
        );
        assert_eq!(found.folder, Path::new("/top/crates/linux"));
        let found = program(message("test", true)).unwrap();
        assert_eq!(found.name, "linux/quell_linux");
        assert_eq!(program(message("bin", false)), None);
        assert_eq!(
            program(serde_json::json!({"reason": "build-finished"})),
            None
        );
    }
}
