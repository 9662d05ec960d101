//! The questions of `quell init`, over any reader and writer: a terminal, or the lines of a test.

use std::io::{self, BufRead, Write};

use quell_types::task::TaskMatch;
use quell_types::text::printable;

use super::group::spelled;
use super::scan::Candidate;
use super::text::memory;

/// Programs that are shown.
const SHOWN: usize = 12;

/// What was chosen.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Answers {
    /// What to protect.
    pub critical: Vec<TaskMatch>,
    /// What may be slowed; empty: everything else.
    pub neighbours: Vec<TaskMatch>,
}

/// Why there is no answer.
#[derive(Debug)]
pub enum Stopped {
    /// The input ended, or `q` was typed.
    Ended,
    /// It could not be read or written.
    Failed(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(error: io::Error) -> Self {
        Self::Failed(error)
    }
}

/// The programs as a table, each with its number. `rows`: at most so many.
pub fn table(candidates: &[Candidate], rows: usize) -> String {
    let mut out = format!("  {:>2}  {:>5}  {:>9}  program\n", "", "CPUs", "memory");
    for (n, one) in candidates.iter().take(rows).enumerate() {
        let place = match (&one.matching.container, &one.matching.unit) {
            (Some(id), _) => format!("  (container {id})"),
            (_, Some(unit)) => format!("  (unit {unit})"),
            _ => String::new(),
        };
        let script = one.matching.arg.as_ref().map(|arg| arg.replace('\\', ""));
        let script = script.map_or(String::new(), |arg| format!(" {arg}"));
        let processes = match one.figures.processes {
            1 => String::new(),
            n => format!(", {n} processes"),
        };
        out.push_str(&format!(
            "  {:>2}  {:>5.2}  {:>9}  {}{script}{processes}{place}\n",
            n + 1,
            one.figures.cpus(),
            memory(one.figures.memory),
            one.name,
        ));
    }
    printable(&out).into_owned()
}

/// Asks what to protect, and from what.
///
/// # Errors
/// [`Stopped`].
pub fn ask(
    candidates: &[Candidate],
    from: &mut dyn BufRead,
    to: &mut dyn Write,
) -> Result<Answers, Stopped> {
    let list = "type numbers (1,2), a name, or a match such as exe=/usr/bin/x";
    writeln!(
        to,
        "These programs use most of the CPUs and of the memory:\n"
    )?;
    write!(to, "{}", table(candidates, SHOWN))?;
    let critical = loop {
        write!(to, "\nWhat should stay fast? ({list}; q stops) ")?;
        match chosen(&line(from, to)?, candidates) {
            Ok(tables) if tables.is_empty() => writeln!(to, "Name at least one program.")?,
            Ok(tables) => break tables,
            Err(why) => writeln!(to, "{why}")?,
        }
    };
    let neighbours = loop {
        write!(
            to,
            "What may be slowed for it? (the same; Enter: everything else) "
        )?;
        match chosen(&line(from, to)?, candidates) {
            Ok(tables) => match tables.iter().find(|t| critical.contains(t)) {
                None => break tables,
                Some(both) => writeln!(
                    to,
                    "{} is to stay fast already: name other programs.",
                    spelled(both)
                )?,
            },
            Err(why) => writeln!(to, "{why}")?,
        }
    };
    Ok(Answers {
        critical,
        neighbours,
    })
}

/// Asks a question whose answer is no unless it is yes.
///
/// # Errors
/// [`Stopped`].
pub fn yes(question: &str, from: &mut dyn BufRead, to: &mut dyn Write) -> Result<bool, Stopped> {
    loop {
        write!(to, "{question} [y/N] ")?;
        match line(from, to)?.to_lowercase().as_str() {
            "y" | "yes" => return Ok(true),
            "" | "n" | "no" => return Ok(false),
            _ => writeln!(to, "Type y or n.")?,
        }
    }
}

fn line(from: &mut dyn BufRead, to: &mut dyn Write) -> Result<String, Stopped> {
    to.flush()?;
    let mut text = String::new();
    if from.read_line(&mut text)? == 0 {
        writeln!(to)?;
        return Err(Stopped::Ended);
    }
    match text.trim() {
        "q" => Err(Stopped::Ended),
        text => Ok(text.to_owned()),
    }
}

/// What an answer names; none for an empty one.
fn chosen(text: &str, candidates: &[Candidate]) -> Result<Vec<TaskMatch>, String> {
    let mut found: Vec<TaskMatch> = Vec::new();
    // A comma joins the keys of one match, too.
    if text.contains('=') {
        return Ok(vec![text.parse()?]);
    }
    for word in text.split([',', ' ']).filter(|w| !w.is_empty()) {
        let one = match word.parse::<usize>() {
            Ok(n) => n.checked_sub(1).and_then(|n| candidates.get(n)),
            Err(_) => candidates.iter().find(|c| c.name == word),
        };
        let Some(one) = one else {
            return Err(match word.parse::<usize>() {
                Ok(_) => format!("There is no number {word}."),
                Err(_) => format!("No program named {word} runs. Type its number, or comm={word}."),
            });
        };
        if !found.contains(&one.matching) {
            found.push(one.matching.clone());
        }
    }
    Ok(found)
}
