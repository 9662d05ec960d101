//! The record of a run: an append-only folder `NAME-YYYYMMDD-HHMMSS` (UTC).
//!
//! While the run lasts, its name begins with a dot and ends in `.partial`. It gets its final name
//! when it is complete. So a folder without that suffix is whole. Events and samples are appended
//! as they come, and survive a crash in the partial folder.

use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::fs::{self, File};
use std::io::{BufWriter, Write};
use std::path::{Path, PathBuf};

use quell_control::bandwidth::Verdict;
use quell_files::{MOST_RECORD, read_within, text_within};
use quell_record::about::About;
use quell_record::attribution::{Account, Row, Unit};
use quell_record::events::{CpuTimes, Decision, EVENTS_SCHEMA, Event, Stamped};
use quell_record::measurement::Measurement;
use quell_record::quanta::Quantum;
use quell_types::calendar;
use quell_types::cpuset::CpuId;
use quell_types::ids::GroupId;
use quell_types::units::Nanos;
use sha2::{Digest, Sha256};

use crate::resume::{self, Done};
use crate::sink::Sink;
use crate::turns::{self, MOST_TURNS, TURNS, TURNS_HEAD};

/// The most decisions of one CPU that a record holds: a quarter of an hour at 1 ms, some 60 MB.
const MOST_DECISIONS: u64 = 1_000_000;
/// The most rows of `samples/machine.csv`: half an hour of 64 CPUs, some 60 MB.
const MOST_TIMES: u64 = 1_000_000;
/// The first line of `samples/decisions-cpuN.csv`.
pub(crate) const DECISIONS_HEAD: &str =
    "at_ns,used_lines,decision,lines,until_ns,reaction_ns,interrupted,group";
/// The same head as older versions wrote it, in which a CPU had one regulator.
pub(crate) const DECISIONS_HEAD_1: &str =
    "at_ns,used_lines,decision,lines,until_ns,reaction_ns,interrupted";
/// The first line of `samples/machine.csv`.
pub(crate) const TIMES_HEAD: &str = "at_ns,cpu,busy_ns,irq_ns,softirq_ns,steal_ns,idle_ns";
/// The file with the CPUs' times.
pub(crate) const TIMES: &str = "samples/machine.csv";

/// Why the record could not be written.
#[derive(Debug, thiserror::Error)]
#[error(
    "the record could not be written: {path}: {why}; give a writable directory with --out, or free some space"
)]
pub struct FolderError {
    path: PathBuf,
    why: std::io::Error,
}

/// A record that is being written.
#[derive(Debug)]
pub struct Folder {
    partial: PathBuf,
    last: PathBuf,
    events: BufWriter<File>,
    /// Per CPU: the file of regulators' decisions, and how many it holds.
    decisions: BTreeMap<CpuId, (BufWriter<File>, u64)>,
    /// Per CPU: decisions that were lost or did not fit any more.
    missing: BTreeMap<CpuId, u64>,
    /// The file of the CPUs' times, and how many rows it holds.
    times: Option<(BufWriter<File>, u64)>,
    /// The file of turns, and how many rows it holds.
    turns: Option<(BufWriter<File>, u64)>,
    begun: Nanos,
    /// How long the resumed runs lasted together, in nanoseconds; 0 for a new record.
    before: u64,
    /// The first failure while appending. [`Folder::check`] reports it, because sinks cannot fail.
    failed: Option<FolderError>,
}

impl Folder {
    /// Begins the record of `name` in the directory `runs`, which is created if need be. `unix_s`:
    /// the time for its name. `begun`: the time on the backend's clock from which events are
    /// counted.
    pub fn begin(runs: &Path, name: &str, unix_s: u64, begun: Nanos) -> Result<Self, FolderError> {
        let base = format!("{}-{}", plain(name), compact(unix_s));
        quell_files::folder(runs).map_err(|why| error(runs, why))?;
        let mut number = 1;
        let (partial, last) = loop {
            let unique = match number {
                1 => base.clone(),
                n => format!("{base}-{n}"),
            };
            let last = runs.join(&unique);
            let partial = runs.join(format!(".{unique}.partial"));
            number += 1;
            if last.exists() {
                continue;
            }
            match fs::create_dir(&partial) {
                Ok(()) => break (partial, last),
                Err(why) if why.kind() == std::io::ErrorKind::AlreadyExists => {}
                Err(why) => return Err(error(&partial, why)),
            }
        };
        let samples = partial.join("samples");
        fs::create_dir(&samples).map_err(|why| error(&samples, why))?;
        let path = partial.join("events.jsonl");
        let mut events =
            BufWriter::new(quell_files::create(&path).map_err(|why| error(&path, why))?);
        writeln!(events, "{{\"schema\":\"{EVENTS_SCHEMA}\"}}")
            .and_then(|()| events.flush())
            .map_err(|why| error(&path, why))?;
        Ok(Self::on(partial, last, events, begun, 0))
    }

    /// A folder in which events continue from `before` on the record's clock.
    fn on(
        partial: PathBuf,
        last: PathBuf,
        events: BufWriter<File>,
        begun: Nanos,
        before: u64,
    ) -> Self {
        Self {
            partial,
            last,
            events,
            decisions: BTreeMap::new(),
            missing: BTreeMap::new(),
            times: None,
            turns: None,
            begun,
            before,
            failed: None,
        }
    }

    /// Resumes the record in `dir`, under its unfinished name. Files that can be made again from
    /// its cells are removed.
    pub(crate) fn resume(dir: &Path, begun: Nanos) -> Result<Self, FolderError> {
        let last = resume::last(dir);
        let partial = resume::partial(&last);
        // Through no link: what is in there is about to be removed.
        for folder in [dir.to_owned(), dir.join("samples")] {
            quell_files::own_folder(&folder).map_err(|why| error(&folder, why))?;
        }
        if dir != partial {
            fs::rename(dir, &partial).map_err(|why| error(dir, why))?;
        }
        // The latest time in the record.
        let mut before = 0;
        let samples = partial.join("samples");
        let names = fs::read_dir(&samples).map_err(|why| error(&samples, why))?;
        for entry in names {
            let path = entry.map_err(|why| error(&samples, why))?.path();
            let name = path
                .file_name()
                .unwrap_or_default()
                .to_string_lossy()
                .into_owned();
            if name.starts_with("decisions-cpu")
                || [TIMES, TURNS].iter().any(|f| f.ends_with(&name))
            {
                let text = cut(&path)?;
                let last = text.lines().last().and_then(|row| row.split(',').next());
                before = before.max(last.and_then(|at| at.parse().ok()).unwrap_or(0));
            } else {
                fs::remove_file(&path).map_err(|why| error(&path, why))?;
            }
        }
        for name in ["results.json", "report.html"] {
            let path = partial.join(name);
            match fs::remove_file(&path) {
                Err(why) if why.kind() != std::io::ErrorKind::NotFound => {
                    return Err(error(&path, why));
                }
                _ => {}
            }
        }
        let path = partial.join(resume::CELLS);
        if path.exists() {
            cut(&path)?;
        }
        let path = partial.join("events.jsonl");
        let text = cut(&path)?;
        for line in text.lines().skip(1) {
            let event: Stamped = serde_json::from_str(line)
                .map_err(|why| error(&path, std::io::Error::other(why)))?;
            before = before.max(event.at_ns);
        }
        let events = BufWriter::new(quell_files::append(&path).map_err(|why| error(&path, why))?);
        Ok(Self::on(partial, last, events, begun, before))
    }

    /// Keeps a measured cell, so that the experiment can resume after it.
    pub(crate) fn done(&self, cell: &Done) -> Result<(), FolderError> {
        let path = self.partial.join(resume::CELLS);
        let mut line =
            serde_json::to_string(cell).map_err(|why| error(&path, std::io::Error::other(why)))?;
        line.push('\n');
        quell_files::append(&path)
            .and_then(|mut file| file.write_all(line.as_bytes()))
            .map_err(|why| error(&path, why))
    }

    /// The experiment is whole. Nothing will resume it.
    pub(crate) fn whole(&self) {
        let _ = fs::remove_file(self.partial.join(resume::CELLS));
    }

    /// Nanoseconds from the record's begin to this time on the backend's clock.
    pub(crate) fn since(&self, at: Nanos) -> u64 {
        self.before + at.since(self.begun).0
    }

    /// Writes a file of the record as a whole.
    pub fn write(&self, name: &str, content: &str) -> Result<(), FolderError> {
        let path = self.partial.join(name);
        quell_files::put(&path, content).map_err(|why| error(&path, why))
    }

    /// Appends one metric's windows of one round to `samples/CONFIGURATION--SUBJECT.csv`. Columns:
    /// round, window, its begin on the record's clock (empty where unknown), value.
    pub fn samples(
        &self,
        configuration: &str,
        subject: &str,
        metric: &str,
        round: u32,
        measured: &Measurement,
    ) -> Result<(), FolderError> {
        let mut text = String::new();
        let windows = measured.metrics.get(metric).into_iter().flatten();
        for (index, value) in windows.enumerate() {
            let at = measured.begun.filter(|_| measured.window_ns > 0).map(|b| {
                let offset = measured.window_ns.saturating_mul(index as u64);
                b.0.saturating_add(offset)
            });
            let at = at.map_or_else(String::new, |at| at.to_string());
            text.push_str(&format!("{round},{index},{at},{value}\n"));
        }
        let name = samples_name(configuration, subject);
        self.append(&name, &format!("{SAMPLES_HEAD}{metric}\n"), &text)
    }

    /// Appends what the units of one round met in memory to
    /// `samples/memory-CONFIGURATION--SUBJECT.csv`. Nothing is written if the subject reports no
    /// unit ends or its begin is unknown.
    pub fn course(
        &self,
        configuration: &str,
        subject: &str,
        round: u32,
        measured: &Measurement,
    ) -> Result<(), FolderError> {
        let Some(begun) = measured.begun.filter(|_| !measured.ended_ns.is_empty()) else {
            return Ok(());
        };
        let columns = COURSE.map(|name| measured.metrics.get(name));
        let mut text = String::new();
        for (unit, ended) in measured.ended_ns.iter().enumerate() {
            text.push_str(&format!("{round},{}", begun.0.saturating_add(*ended)));
            for values in columns {
                let value = values.and_then(|v| v.get(unit)).unwrap_or(&f64::NAN);
                text.push_str(&format!(",{value}"));
            }
            text.push('\n');
        }
        let name = course_name(configuration, subject);
        self.append(&name, &format!("{COURSE_HEAD}\n"), &text)
    }

    /// Appends the units of one round to `samples/account-CONFIGURATION--SUBJECT.csv`. Attribution
    /// is made from that file.
    pub fn units(
        &self,
        configuration: &str,
        subject: &str,
        round: u32,
        account: &Account,
    ) -> Result<(), FolderError> {
        let name = format!(
            "samples/account-{}--{}.csv",
            plain(configuration),
            plain(subject)
        );
        let mut text = String::new();
        for unit in &account.units {
            let row = Row::from(*unit).map(|n| n.to_string());
            text.push_str(&format!("{round},{}\n", row.join(",")));
        }
        let head = format!("round,{}\n", Unit::COLUMNS.join(","));
        self.append(&name, &head, &text)
    }

    fn append(&self, name: &str, head: &str, rows: &str) -> Result<(), FolderError> {
        let path = self.partial.join(name);
        let text = if path.exists() {
            rows.to_owned()
        } else {
            format!("{head}{rows}")
        };
        quell_files::append(&path)
            .and_then(|mut file| file.write_all(text.as_bytes()))
            .map_err(|why| error(&path, why))
    }

    /// Reports the first failure to write so far. Also hands all events to the kernel.
    pub fn check(&mut self) -> Result<(), FolderError> {
        if let Err(why) = self.events.flush() {
            self.fail("events.jsonl", why);
        }
        let mut failures = Vec::new();
        for (cpu, (file, _)) in &mut self.decisions {
            failures.extend(file.flush().err().map(|why| (*cpu, why)));
        }
        for (cpu, why) in failures {
            self.fail(&decisions_name(cpu), why);
        }
        if let Some(why) = self.times.as_mut().and_then(|(f, _)| f.flush().err()) {
            self.fail(TIMES, why);
        }
        if let Some(why) = self.turns.as_mut().and_then(|(f, _)| f.flush().err()) {
            self.fail(TURNS, why);
        }
        self.failed.take().map_or(Ok(()), Err)
    }

    /// Ends events and samples: notes what was left out, and hands everything to the kernel. After
    /// this [`Self::path`] can be read.
    pub fn close(&mut self) -> Result<(), FolderError> {
        for (cpu, missing) in std::mem::take(&mut self.missing) {
            let name = decisions_name(cpu);
            let what = format!("{missing} decisions about CPU {cpu} are not in {name}");
            self.put(self.begun, &Event::finding(About::Record, what, None));
        }
        if self
            .times
            .as_ref()
            .is_some_and(|(_, rows)| *rows >= MOST_TIMES)
        {
            let what = format!("{TIMES} is full: how the CPUs' time was spent later is not in it");
            self.put(self.begun, &Event::finding(About::Record, what, None));
        }
        self.check()
    }

    /// The folder's path while it is being written.
    #[must_use]
    pub fn path(&self) -> &Path {
        &self.partial
    }

    /// Gives the record its final name, and returns that path.
    pub fn finish(mut self) -> Result<PathBuf, FolderError> {
        self.close()?;
        fs::rename(&self.partial, &self.last).map_err(|why| error(&self.last, why))?;
        Ok(self.last)
    }

    fn fail(&mut self, name: &str, why: std::io::Error) {
        let path = self.partial.join(name);
        self.failed.get_or_insert(FolderError { path, why });
    }

    fn decide(
        &mut self,
        group: &GroupId,
        cpu: CpuId,
        decisions: &[Decision],
    ) -> std::io::Result<()> {
        let group = plain(group);
        let (file, rows) = match self.decisions.entry(cpu) {
            Entry::Occupied(there) => there.into_mut(),
            Entry::Vacant(free) => {
                let path = self.partial.join(decisions_name(cpu));
                free.insert(rows_of(&path, DECISIONS_HEAD)?)
            }
        };
        for decision in decisions {
            if *rows == MOST_DECISIONS {
                *self.missing.entry(cpu).or_default() += 1;
                continue;
            }
            *rows += 1;
            let since = |at: Nanos| self.before + at.since(self.begun).0;
            let (at, used) = (since(decision.at), decision.used.0);
            match decision.what {
                Verdict::Rearm(lines) => write!(file, "{at},{used},rearm,{},,", lines.0)?,
                Verdict::NewPeriod(lines) => write!(file, "{at},{used},new-period,{},,", lines.0)?,
                Verdict::ThrottleUntil(until) => {
                    write!(file, "{at},{used},throttle,,{},", since(until))?;
                }
                Verdict::RunFreeUntil(until) => {
                    write!(file, "{at},{used},free,,{},", since(until))?;
                }
            }
            match decision.reaction {
                Some((late, true)) => writeln!(file, "{},kernel,{group}", late.0)?,
                Some((late, false)) => writeln!(file, "{},program,{group}", late.0)?,
                None => writeln!(file, ",,{group}")?,
            }
        }
        Ok(())
    }

    fn account(&mut self, at: Nanos, times: &[CpuTimes]) -> std::io::Result<()> {
        let (file, rows) = match &mut self.times {
            Some(there) => there,
            none => none.insert(rows_of(&self.partial.join(TIMES), TIMES_HEAD)?),
        };
        let at = self.before + at.since(self.begun).0;
        for one in times {
            if *rows >= MOST_TIMES {
                break;
            }
            *rows += 1;
            writeln!(
                file,
                "{at},{},{},{},{},{},{}",
                one.cpu, one.busy_ns, one.irq_ns, one.softirq_ns, one.steal_ns, one.idle_ns
            )?;
        }
        Ok(())
    }
}

impl Folder {
    fn turn(&mut self, quantum: &Quantum) -> std::io::Result<()> {
        let (file, held) = match &mut self.turns {
            Some(there) => there,
            none => none.insert(rows_of(&self.partial.join(TURNS), TURNS_HEAD)?),
        };
        let at = self.before + quantum.at.since(self.begun).0;
        let rows = turns::rows(at, quantum);
        if *held + rows.len() as u64 <= MOST_TURNS {
            *held += rows.len() as u64;
            rows.iter().try_for_each(|row| writeln!(file, "{row}"))?;
        }
        Ok(())
    }
}

impl Sink for Folder {
    fn put(&mut self, at: Nanos, event: &Event) {
        let stamped = Stamped {
            at_ns: self.since(at),
            event: event.clone(),
        };
        let written = serde_json::to_writer(&mut self.events, &stamped)
            .map_err(std::io::Error::from)
            .and_then(|()| self.events.write_all(b"\n"));
        if let Err(why) = written {
            self.fail("events.jsonl", why);
        }
    }

    fn decisions(&mut self, group: &GroupId, cpu: CpuId, decisions: &[Decision], missed: u64) {
        if missed > 0 {
            *self.missing.entry(cpu).or_default() += missed;
        }
        if let Err(why) = self.decide(group, cpu, decisions) {
            self.fail(&decisions_name(cpu), why);
        }
    }

    fn quanta(&mut self, quanta: &[Quantum]) {
        if let Err(why) = quanta.iter().try_for_each(|quantum| self.turn(quantum)) {
            self.fail(TURNS, why);
        }
    }

    fn cpu_times(&mut self, at: Nanos, times: &[CpuTimes]) {
        if let Err(why) = self.account(at, times) {
            self.fail(TIMES, why);
        }
    }

    fn wants_cpu_times(&self) -> bool {
        true
    }
}

/// The first columns of a subject's samples. The metric's column follows.
pub(crate) const SAMPLES_HEAD: &str = "round,window,at_ns,";

/// The file of a subject's windows.
pub(crate) fn samples_name(configuration: &str, subject: &str) -> String {
    format!("samples/{}--{}.csv", plain(configuration), plain(subject))
}

/// The metrics of `samples/memory-…csv`, behind round and time.
const COURSE: [&str; 3] = ["resident_mb", "cache_misses", "major_faults"];
pub(crate) const COURSE_HEAD: &str = "round,at_ns,resident_mb,cache_misses,major_faults";

/// The file of what a subject's units met in memory.
pub(crate) fn course_name(configuration: &str, subject: &str) -> String {
    let (configuration, subject) = (plain(configuration), plain(subject));
    format!("samples/memory-{configuration}--{subject}.csv")
}

/// A file of rows under `head`, new or resumed, and how many rows it holds.
fn rows_of(path: &Path, head: &str) -> std::io::Result<(BufWriter<File>, u64)> {
    let file = quell_files::append(path)?;
    let lines = text_within(path, MOST_RECORD)?.lines().count() as u64;
    let mut file = BufWriter::new(file);
    if lines == 0 {
        writeln!(file, "{head}")?;
    }
    Ok((file, lines.saturating_sub(1)))
}

/// Cuts off what follows the last line break: it was being written when the run ended. Returns the
/// rest.
fn cut(path: &Path) -> Result<String, FolderError> {
    let bytes = read_within(path, MOST_RECORD).map_err(|why| error(path, why))?;
    let text = resume::whole_lines(&String::from_utf8_lossy(&bytes)).to_owned();
    quell_files::put(path, &text).map_err(|why| error(path, why))?;
    Ok(text)
}

fn decisions_name(cpu: CpuId) -> String {
    format!("samples/decisions-cpu{cpu}.csv")
}

fn error(path: &Path, why: std::io::Error) -> FolderError {
    FolderError {
        path: path.to_owned(),
        why,
    }
}

/// A name as a file name. All but letters, digits and `@%+=._-` becomes `_`, as does a leading dot.
fn plain(name: &str) -> String {
    let text: String = name
        .chars()
        .map(|c| {
            if c.is_alphanumeric() || "@%+=._-".contains(c) {
                c
            } else {
                '_'
            }
        })
        .collect();
    match text.strip_prefix('.') {
        Some(rest) => format!("_{rest}"),
        None => text,
    }
}

/// Seconds since 1970 as `YYYYMMDD-HHMMSS` in UTC.
fn compact(unix_s: u64) -> String {
    calendar::utc(unix_s)
        .replace(['-', ':'], "")
        .replace(' ', "-")
}

/// A cryptographic hash of bytes, as `ALGORITHM:HEX`. SHA-256: other bytes with the same hash
/// cannot be made. Older records have `fnv1a64:…`, which only identifies.
#[must_use]
pub fn hash(bytes: impl AsRef<[u8]>) -> String {
    let digest = Sha256::digest(bytes);
    let hex = digest.iter().map(|byte| format!("{byte:02x}"));
    format!("sha256:{}", hex.collect::<String>())
}

/// A number that identifies a text but does not protect it: FNV-1a, 64 bits (Fowler, Noll and Vo;
/// RFC 9923).
pub(crate) fn fnv1a64(text: &str) -> u64 {
    text.bytes().fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests;
