//! The commands of README and of the guides run, in the order of the page, and print what the page
//! shows. Figures are left out of the comparison, and so is how lines are broken.
//!
//! What a page may contain:
//! - A block `toml` whose first line is `# NAME.toml` is written to that file.
//! - A block `sh` is run line by line, without `sudo`. Every command ends with status 0, or with
//!   the one in its comment: `# exit 2`.
//! - `quell run` goes on while the rest of its block runs. One that only a signal ends is
//!   interrupted at the end of the block.
//! - A block `text` is what the block `sh` before it prints. A line `…` stands for any lines.
//!
//! - A block `sh user` is run as the user nobody.
//! - A block `console` is not run: it needs programs or time that the tests do not ask for.
//!
//! Without `QUELL_SOAK` a demonstration is two rounds long.

use std::fs::{self, File};
use std::os::unix::fs::{PermissionsExt, symlink};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::common::{Machine, Program, eventually, machine, send};
use rustix::process::Signal;

const ROOT: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../..");
const REDIS: &str = "/usr/bin/redis-server";
/// Not the usual port: a server that runs already is none of ours.
const PORT: &str = "36380";
/// What is typed into `quell init`: what to protect, everything else, no probe.
const ANSWERS: &str = "exe=/usr/bin/redis-server\n\nn\n";
const UNITS: [&str; 17] = [
    "GB/s", "MB/s", "kB/s", "GiB", "MiB", "KiB", "GB", "MB", "kB", "ns", "us", "ms", "s", "min",
    "h", "seconds", "minutes",
];

/// A block of commands, and what it prints.
struct Block {
    line: usize,
    /// Without root.
    user: bool,
    script: String,
    shows: Option<String>,
}

#[derive(Default)]
struct Page {
    files: Vec<(String, String)>,
    blocks: Vec<Block>,
}

impl Page {
    fn read(text: &str) -> Self {
        let mut page = Self::default();
        let mut lines = text.lines().enumerate();
        while let Some((line, opened)) = lines.next() {
            let Some(language) = opened.trim_start().strip_prefix("```") else {
                continue;
            };
            let body: Vec<&str> = lines
                .by_ref()
                .map(|(_, l)| l)
                .take_while(|l| !l.trim_start().starts_with("```"))
                .collect();
            let text = body.join("\n") + "\n";
            match language {
                "sh" | "sh user" => page.blocks.push(Block {
                    line: line + 1,
                    user: language == "sh user",
                    script: text,
                    shows: None,
                }),
                "text" => {
                    let of = page.blocks.last_mut();
                    of.expect("commands before the output").shows = Some(text);
                }
                "toml" => {
                    let name = body.first().and_then(|l| l.strip_prefix("# "));
                    if let Some(name) = name.filter(|n| n.ends_with(".toml")) {
                        page.files.push((name.to_owned(), text));
                    }
                }
                _ => {}
            }
        }
        page
    }
}

/// A word without its figures and without a unit that follows one.
fn without_figures(word: &str) -> String {
    let mut out = String::new();
    let mut rest = word;
    while let Some(at) = rest.find(|c: char| c.is_ascii_digit()) {
        out.push_str(&rest[..at]);
        out.push('#');
        rest = rest[at..].trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ',');
        let unit = UNITS.iter().find(|unit| {
            let after = rest.strip_prefix(**unit);
            after.is_some_and(|a| !a.starts_with(|c: char| c.is_alphanumeric()))
        });
        rest = &rest[unit.map_or(0, |unit| unit.len())..];
    }
    out + rest
}

/// Text as a sequence of words, its figures left out.
fn words(text: &str) -> Vec<String> {
    let mut words: Vec<String> = Vec::new();
    for word in text.split_whitespace() {
        let after_figure = words.last().is_some_and(|w| w.ends_with('#'));
        if !(after_figure && UNITS.contains(&word.trim_end_matches([',', ';', '.', ')']))) {
            words.push(without_figures(word));
        }
    }
    words
}

/// What a page shows and the program does not print.
fn missing(page: &str, printed: &str) -> Option<String> {
    let printed = words(printed);
    let mut from = 0;
    let mut parts = vec![String::new()];
    for line in page.lines() {
        match line.trim() {
            "…" => parts.push(String::new()),
            _ => parts.last_mut().unwrap().extend([line, "\n"]),
        }
    }
    for part in parts {
        let wanted = words(&part);
        if wanted.is_empty() {
            continue;
        }
        let at = printed[from..]
            .windows(wanted.len())
            .position(|w| w == wanted);
        let Some(at) = at else { return Some(part) };
        from += at + wanted.len();
    }
    None
}

/// The status that a command ends with.
fn status(command: &str) -> i32 {
    let said = command.split_once("# exit ").map(|(_, n)| n.trim());
    said.map_or(0, |n| n.parse().expect("a status"))
}

/// A folder with what a reader has, and the commands that run in it.
struct Reader<'m> {
    machine: &'m Machine,
    out: PathBuf,
}

impl<'m> Reader<'m> {
    fn new(machine: &'m Machine, page: &Page) -> Self {
        for name in ["examples", "experiments", "tests", "scripts"] {
            symlink(Path::new(ROOT).join(name), machine.path(name)).unwrap();
        }
        for (name, text) in &page.files {
            machine.file(name, text);
        }
        // The program that a page protects.
        machine.file("detector", "#!/bin/sh\nsleep 2\n");
        let mode = |path: &Path, mode| {
            fs::set_permissions(path, PermissionsExt::from_mode(mode)).unwrap();
        };
        mode(&machine.path("detector"), 0o755);
        // Every user may run the program, wherever it was built, and write to the folder.
        mode(machine.folder.path(), 0o777);
        fs::create_dir(machine.path("bin")).unwrap();
        fs::copy(env!("CARGO_BIN_EXE_quell"), machine.path("bin/quell")).unwrap();
        Self {
            machine,
            out: machine.path("printed"),
        }
    }

    fn printed(&self) -> String {
        String::from_utf8_lossy(&fs::read(&self.out).unwrap_or_default()).into_owned()
    }

    fn start(&self, command: &str, user: bool) -> Child {
        let soak = quell_testing::soak();
        let (typed, _) = command.split_once('#').unwrap_or((command, ""));
        let typed = typed.trim().trim_start_matches("sudo ");
        let mut line = typed.to_owned();
        if let Some(target) = typed.strip_prefix("make") {
            line = format!("make -n -C {ROOT}{target}");
        }
        if typed.starts_with("quell demo") && !soak {
            line += " --rounds 2";
            if !typed.contains("--only") {
                line += " --only cpu";
            }
        }
        if typed == "quell init" {
            let answers = self.machine.file("answers", ANSWERS);
            line = format!("script -qec 'quell init' /dev/null <{answers}");
        }
        if user {
            line = format!("setpriv --reuid=65534 --regid=65534 --clear-groups {line}");
        }
        let path = std::env::var("PATH").unwrap();
        let out = File::options()
            .append(true)
            .create(true)
            .open(&self.out)
            .unwrap();
        println!("$ {line}");
        Command::new("sh")
            .args(["-c", &format!("exec {line}")])
            .current_dir(self.machine.folder.path())
            .env(
                "PATH",
                format!("{}:{path}", self.machine.path("bin").display()),
            )
            .env(
                "QUELL_STATE_DIR",
                self.machine.path(if user { "user" } else { "root" }),
            )
            .stdin(Stdio::null())
            .stdout(out.try_clone().unwrap())
            .stderr(out)
            .spawn()
            .unwrap()
    }

    fn ends(&self, mut child: Child, command: &str, line: usize) {
        let status_of = child.wait().unwrap();
        let said = self.printed();
        assert_eq!(
            status_of.code(),
            Some(status(command)),
            "line {line}: {command}\n{said}"
        );
    }

    fn plays(&self, block: &Block) {
        fs::write(&self.out, "").unwrap();
        let script = block.script.replace("\\\n", " ");
        let lines = script.lines().map(str::trim);
        let mut held: Option<(Child, &str)> = None;
        for command in lines.filter(|l| !l.is_empty() && !l.starts_with('#')) {
            let mut child = self.start(command, block.user);
            if !command.trim_start_matches("sudo ").starts_with("quell run") {
                self.ends(child, command, block.line);
                continue;
            }
            eventually("it holds or has ended", || {
                self.printed().contains("quell: holding:") || child.try_wait().unwrap().is_some()
            });
            held = Some((child, command));
        }
        let Some((child, command)) = held else {
            return;
        };
        if self.printed().contains("ends it and reverts everything") {
            send(child.id(), Signal::INT);
        }
        self.ends(child, command, block.line);
    }
}

/// Runs all of a page.
fn runs(name: &str) {
    let page = Page::read(&fs::read_to_string(Path::new(ROOT).join(name)).unwrap());
    assert!(!page.blocks.is_empty(), "{name} has no commands");
    let Some(mut machine) = machine() else {
        return;
    };
    let server = Path::new(REDIS)
        .exists()
        .then(|| Program::start(&[REDIS, "--port", PORT, "--save", ""]));
    machine.remember();
    let reader = Reader::new(&machine, &page);
    let mut differ = Vec::new();
    for block in &page.blocks {
        if server.is_none() && block.script.contains(REDIS) {
            quell_testing::skip_part(format_args!(
                "line {} of {name}: {REDIS} is not installed",
                block.line
            ));
            continue;
        }
        reader.plays(block);
        let printed = reader.printed();
        if let Some(part) = block.shows.as_ref().and_then(|s| missing(s, &printed)) {
            differ.push(format!(
                "{name}, line {}: the page shows\n{part}\nand this is printed:\n{printed}",
                block.line
            ));
        }
    }
    assert!(differ.is_empty(), "{}", differ.join("\n\n"));
    drop(server);
}

#[test]
fn readme() {
    runs("README.md");
}

#[test]
fn a_video_call_on_a_laptop() {
    runs("docs/guides/laptop-call.md");
}

#[test]
fn is_my_cat_set_up_doing_anything() {
    runs("docs/guides/cache.md");
}

#[test]
fn no_root_a_container_a_cloud_machine() {
    runs("docs/guides/cloud.md");
}

#[test]
fn every_guide_is_run_and_short() {
    let mut guides: Vec<String> = fs::read_dir(Path::new(ROOT).join("docs/guides"))
        .unwrap()
        .map(|entry| entry.unwrap().file_name().into_string().unwrap())
        .collect();
    guides.sort();
    let known = [
        "cache.md",
        "cloud.md",
        "control-loop.md",
        "detector.md",
        "laptop-call.md",
    ];
    assert_eq!(guides, known);
    for guide in guides {
        let text = fs::read_to_string(Path::new(ROOT).join("docs/guides").join(&guide)).unwrap();
        assert!(text.lines().count() <= 150, "{guide}");
    }
    let readme = fs::read_to_string(Path::new(ROOT).join("README.md")).unwrap();
    let is_word = |word: &&str| word.contains(char::is_alphanumeric);
    let count = readme.split_whitespace().filter(is_word).count();
    assert!(count <= 700, "README.md has {count} words");
}

#[test]
fn figures_and_line_breaks_are_left_out_of_the_comparison() {
    assert_eq!(
        words("took 1,234.5 ms (0.3–2.1 times),\n 24MB/s on CPU 0-1"),
        words("took 7 s (10–2 times), 9GB/s\non CPU 3-12")
    );
    assert_ne!(words("level enforced"), words("level estimated"));
    let page = "a 1 b\n…\nd 3\n";
    assert_eq!(missing(page, "x\na 2 b\nc\nd 9\ny"), None);
    assert!(missing(page, "a 2 b\nc\n").is_some());
    assert!(missing(page, "d 9\na 2 b\n").is_some(), "in this order");
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn the_detector_on_a_small_box() {
        runs("docs/guides/detector.md");
    }

    #[test]
    #[ignore = "where its files have changed"]
    fn bandwidth_for_a_control_loop() {
        runs("docs/guides/control-loop.md");
    }
}
