//! `--on lab`: the command that was called is called inside a virtual machine, with `--on linux`
//! instead. Files that it reads come along to the same places, files that it writes are brought
//! back to the same places, what it says is said as it says it, and its status is ours.
//!
//! A Quell inside knows by a file and three variables where it is and how it was called (module
//! `guest`).

use std::fs;
use std::path::{Path, PathBuf};

use quell_lab::folder::Folder;
use quell_lab::vm;
use quell_policy::Policy;
use quell_policy::lab::Guest;

use crate::exit::{Exit, Failure, Result, failed, usage};
use crate::guest::{COMMAND_LINE, TERMINAL};

/// The status of who was ended by SIGKILL.
const KILLED: i32 = 137;
/// What the words of a terminal depend on.
const PASSED: [&str; 5] = ["NO_COLOR", "TERM", "LC_ALL", "LC_CTYPE", "LANG"];

/// What a command needs inside and leaves there.
#[derive(Debug, Default)]
pub struct Bundle {
    /// Programs by their name, files and folders by their path.
    there: Vec<String>,
    /// Files and folders that it writes.
    back: Vec<PathBuf>,
    /// It keeps profiles.
    profiles: bool,
}

impl Bundle {
    /// A program, by its name or path; what the guest has itself is left to it.
    pub fn program(&mut self, command: &[String]) {
        // Of these every guest has its own, and a shell that is called so may call any of them.
        let own = |name: &str| matches!(name, "sh" | "env" | "busybox" | "quell" | "pqos");
        self.there
            .extend(command.first().filter(|name| !own(name)).cloned());
    }

    /// A file that it reads.
    pub fn file(&mut self, path: &Path) {
        self.there.push(path.display().to_string());
    }

    /// A file or folder that it may write.
    pub fn back(&mut self, path: Option<&PathBuf>) {
        self.back.extend(path.cloned());
    }

    /// The profiles that it keeps.
    pub fn profiles(&mut self) {
        self.profiles = true;
    }

    /// What a policy launches and keeps in memory.
    pub fn policy(&mut self, policy: &Policy) {
        for group in policy.groups.values() {
            self.program(group.command.as_deref().unwrap_or_default());
            // What the command is to make itself is not there yet.
            let files = group.reserve.files.iter().map(Path::new);
            files.filter(|f| f.exists()).for_each(|f| self.file(f));
        }
    }
}

/// The machine: as it is written, with the profile that `--on` names, changed by `--lab`.
fn machine(written: &Guest, profile: Option<&String>, changes: &[String]) -> Result<Guest> {
    let mut guest = written.clone();
    if let Some(profile) = profile {
        guest.profile = Some(profile.clone());
    }
    for change in changes {
        guest = guest
            .with(change)
            .map_err(|why| usage(format!("--lab {change}: {why}")))?;
    }
    if let Some(fault) = guest.faults().first() {
        return Err(usage(format!(
            "--lab {}: {}; {}",
            fault.key, fault.why, fault.remedy
        )));
    }
    Ok(guest)
}

/// Refuses `--lab` where there is none.
pub fn unasked(changes: &[String]) -> Result<()> {
    match changes.first() {
        Some(change) => Err(usage(format!(
            "--lab {change}: it says what machine the lab boots; give --on lab, too"
        ))),
        None => Ok(()),
    }
}

/// Calls the command inside.
pub fn call(
    written: &Guest,
    profile: Option<&String>,
    changes: &[String],
    bundle: Bundle,
) -> Result {
    let mut guest = machine(written, profile, changes)?;
    if let Some(path) = bundle.there.iter().find(|path| path.contains('=')) {
        return Err(usage(format!(
            "{path}: a path with = in it cannot come along into the lab; rename it, or link to it"
        )));
    }
    guest.with.extend(bundle.there);
    guest.with.push("quell".to_owned());
    let state = crate::state::state_dir();
    let mut back = bundle.back;
    if let Some(profiles) = state.as_ref().map(|dir| dir.join("profiles")) {
        if profiles.exists() {
            guest.with.push(profiles.display().to_string());
        }
        back.extend(bundle.profiles.then_some(profiles));
    }
    guest.with = guest.with.iter().map(|w| settled(w)).collect();
    let absolute = |path: &PathBuf| std::path::absolute(path).map_err(failed);
    let back: Vec<PathBuf> = back.iter().map(absolute).collect::<Result<_>>()?;
    let words: Vec<String> = std::env::args().skip(1).collect();
    let script = script(&linux(&words), &back, state.as_deref())?;
    let brought = Folder::new(&std::env::temp_dir(), "quell-lab")
        .map_err(|e| failed(format!("{e}; set TMPDIR to a folder that can be written")))?;
    let lab = vm::Lab {
        guest,
        out: Some(brought.path("")),
        command: ["sh", "-c", &script].map(str::to_owned).to_vec(),
        ..vm::Lab::default()
    };
    let booted = crate::lab::boot(&lab);
    let placed = back.iter().enumerate().try_for_each(|(n, to)| {
        let from = brought.path(&n.to_string());
        let failed = |e| {
            failed(format!(
                "what the lab wrote could not be brought to {}: {e}",
                to.display()
            ))
        };
        place(&from, to).map_err(failed)
    });
    drop(brought);
    let outcome = booted.map_err(|failure| Failure {
        text: match failure.exit {
            Exit::Status(_) => format!(
                "{}. Ways out: make the lab possible (docs/lab.md), run it on this machine (--on linux), or on a simulated one (--on sim)",
                failure.text
            ),
            _ => failure.text,
        },
        exit: match failure.exit {
            Exit::Status(_) => Exit::Failed,
            exit => exit,
        },
    })?;
    placed?;
    if outcome.status == KILLED {
        eprintln!(
            "quell: killed in the lab (status {KILLED}): where its memory runs out, the kernel chooses whom; `--lab memory=…` gives it more"
        );
    }
    Ok(Exit::Status(outcome.status))
}

/// What comes along: a path as it is from here, a program's name as it is.
fn settled(with: &str) -> String {
    let (from, place) = with.split_once('=').unzip();
    let from = from.unwrap_or(with);
    if !from.contains('/') && !Path::new(from).exists() || from == "quell" {
        return with.to_owned();
    }
    let absolute = std::path::absolute(from).map_or(from.to_owned(), |p| p.display().to_string());
    match place {
        Some(place) => format!("{absolute}={place}"),
        None => absolute,
    }
}

/// The same call for the machine that it runs on.
fn linux(words: &[String]) -> Vec<String> {
    let end = words.iter().position(|w| w == "--").unwrap_or(words.len());
    let (own, command) = words.split_at(end);
    let mut there = Vec::new();
    let mut own = own.iter();
    while let Some(word) = own.next() {
        match word.as_str() {
            "--on" | "--lab" => {
                let _ = own.next();
            }
            _ if word.starts_with("--on=") || word.starts_with("--lab=") => {}
            _ => there.push(word.clone()),
        }
    }
    there.extend(["--on", "linux"].map(str::to_owned));
    there.extend_from_slice(command);
    there
}

/// What the guest's shell runs: the call, in a folder that is called as ours, and then what it
/// wrote into `/out`, by number.
fn script(words: &[String], back: &[PathBuf], state: Option<&Path>) -> Result<String> {
    let here = std::env::current_dir().map_err(failed)?;
    let here = crate::terminal::quoted(&here.display().to_string());
    // The shell outlives what stops the command.
    let mut script = format!("trap : INT TERM HUP PIPE\nmkdir -p {here} && cd {here}\n");
    let mut set = |name: &str, value: &str| {
        script.push_str(&format!(
            "export {name}={}\n",
            crate::terminal::quoted(value)
        ));
    };
    set(COMMAND_LINE, &crate::terminal::command_line());
    set(TERMINAL, &terminals());
    if let Some(state) = state {
        set("QUELL_STATE_DIR", &state.display().to_string());
    }
    for name in PASSED {
        if let Ok(value) = std::env::var(name) {
            set(name, &value);
        }
    }
    let words: Vec<String> = words.iter().map(|w| crate::terminal::quoted(w)).collect();
    for folder in back.iter().filter_map(|path| path.parent()) {
        let folder = crate::terminal::quoted(&folder.display().to_string());
        script.push_str(&format!("mkdir -p {folder}\n"));
    }
    script.push_str(&format!("quell {}\nstatus=$?\n", words.join(" ")));
    for (n, path) in back.iter().enumerate() {
        let path = crate::terminal::quoted(&path.display().to_string());
        script.push_str(&format!(
            "[ ! -e {path} ] || cp -a {path} /out/{n} || {{ echo quell: not brought out of the lab: {path} >&2; [ $status != 0 ] || status=1; }}\n"
        ));
    }
    Ok(script + "exit $status\n")
}

/// The widths of our streams, as module `terminal` reads them.
fn terminals() -> String {
    let width = |columns: Option<usize>| columns.map_or("-".to_owned(), |n| n.to_string());
    format!(
        "{},{}",
        width(crate::terminal::columns(&std::io::stdout(), 0)),
        width(crate::terminal::columns(&std::io::stderr(), 1))
    )
}

/// Copies a file, or a folder into what is there already.
fn place(from: &Path, to: &Path) -> std::io::Result<()> {
    if !from.exists() {
        return Ok(());
    }
    if from.is_file() {
        if let Some(folder) = to.parent() {
            quell_files::folder(folder)?;
        }
        let mut file = quell_files::replace(to)?;
        return std::io::copy(&mut fs::File::open(from)?, &mut file).map(drop);
    }
    quell_files::folder(to)?;
    for entry in fs::read_dir(from)? {
        let entry = entry?;
        place(&entry.path(), &to.join(entry.file_name()))?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(text: &str) -> Vec<String> {
        text.split(' ').map(str::to_owned).collect()
    }

    #[test]
    fn the_call_inside_is_the_call_for_this_machine() {
        for (here, there) in [
            ("compare x --on lab", "compare x --on linux"),
            (
                "compare --on=lab:icelake x --json",
                "compare x --json --on linux",
            ),
            (
                "compare x --lab memory=2GiB --lab=cpus=4",
                "compare x --on linux",
            ),
            (
                "run --on lab p.toml -- prog --on lab",
                "run p.toml --on linux -- prog --on lab",
            ),
        ] {
            assert_eq!(linux(&words(here)), words(there), "{here}");
        }
    }

    #[test]
    fn the_command_line_goes_over_the_experiment() {
        let written = Guest {
            kernel: "6.12".to_owned(),
            profile: Some("sparse".to_owned()),
            ..Guest::default()
        };
        let profile = "icelake".to_owned();
        let changes = ["memory=2GiB".to_owned()];
        let guest = machine(&written, Some(&profile), &changes).unwrap();
        assert_eq!((guest.kernel.as_str(), guest.memory.0), ("6.12", 2 << 30));
        assert_eq!(guest.profile.as_deref(), Some("icelake"));
        for (change, told) in [
            ("memory=2", "--lab memory=2: memory: "),
            ("cpus=3", "--lab"),
            ("smt=maybe", "--lab smt=maybe"),
        ] {
            let changes = [change.to_owned(), "smt=true".to_owned()];
            let failure = machine(&written, None, &changes).unwrap_err();
            assert!(failure.text.starts_with(told), "{}", failure.text);
        }
    }

    #[test]
    fn what_is_brought_joins_what_is_there() {
        let dir = tempfile::tempdir().unwrap();
        let (from, to) = (dir.path().join("0"), dir.path().join("runs"));
        fs::create_dir_all(from.join("new/samples")).unwrap();
        fs::create_dir_all(to.join("old")).unwrap();
        fs::write(from.join("new/samples/a.csv"), "1").unwrap();
        place(&from, &to).unwrap();
        assert!(to.join("old").exists());
        assert_eq!(
            fs::read_to_string(to.join("new/samples/a.csv")).unwrap(),
            "1"
        );
        place(&dir.path().join("nothing"), &to).unwrap();
    }
}
