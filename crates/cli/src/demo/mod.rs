//! `quell demo`: which neighbours hurt on this machine, and how much of it Quell takes away. Every
//! figure comes from a built-in experiment (`hurts-…`), run the way `quell compare` runs it.

mod budget;
mod fit;
mod stage;

use std::io::{ErrorKind, Write};
use std::num::NonZeroUsize;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use clap::builder::{PossibleValuesParser, TypedValueParser};
use quell_kernel::memory;
use quell_kernel::root::Kernel;
use quell_plan::inventory::{Availability, Inventory};
use quell_record::demo::{DEMO_SCHEMA, DemoResult, Found, LeftOut, Resource, rank};
use quell_report::{DemoStory, demo_html, demo_line, demo_text};
use quell_types::calendar;
use quell_types::mechanism::Mechanism;

use crate::exit::{Exit, Result, failed};
use crate::machine;
use crate::target::On;

use budget::{Pass, first, fit as rounds_that_fit, reserved, sure};
use fit::Facts;
use stage::{Came, With};

/// `quell demo`
#[derive(Debug, clap::Args)]
pub struct Demo {
    /// Only these resources: cpu, memory, cache, bandwidth, sibling, disk
    #[arg(long, value_name = "RESOURCE", value_delimiter = ',', value_parser = resource())]
    pub only: Vec<Resource>,
    /// Neighbours that sleep, and no Quell: nothing may hurt. Shows how far the figures can be
    /// trusted
    #[arg(long)]
    pub control: bool,
    /// Rounds of each resource, however long it takes [default: 3 to 5, within two minutes in all]
    #[arg(long, value_parser = clap::value_parser!(u32).range(2..=100))]
    pub rounds: Option<u32>,
    /// Print the result as JSON
    #[arg(long)]
    pub json: bool,
    /// The directory that gets the record's folder
    #[arg(long, value_name = "DIR", default_value = "runs")]
    pub out: PathBuf,
}

fn resource() -> impl TypedValueParser<Value = Resource> {
    PossibleValuesParser::new(Resource::ALL.map(Resource::name)).try_map(|name| {
        let mut all = Resource::ALL.into_iter();
        all.find(|r| r.name() == name)
            .ok_or("not a resource of this program")
    })
}

/// Looks, tries each resource, ranks, and shows.
pub fn run(args: &Demo) -> Result {
    let begun = Instant::now();
    let mut tour = Tour::new(args, begun);
    say(&format!(
        "looking at this machine, and at what neighbours hurt on it ({} at most)",
        tour.longest()
    ));
    if !tour.root {
        say("not root: what hurts is measured; what Quell does about it needs sudo");
    }
    tour.examine()?;
    let interrupted = tour.go()?;
    let mut resources = tour.found;
    rank(&mut resources);
    let result = DemoResult {
        schema: DEMO_SCHEMA.to_owned(),
        version: env!("CARGO_PKG_VERSION").to_owned(),
        control: args.control,
        took_s: (begun.elapsed().as_secs_f64() * 10.0).round() / 10.0,
        resources,
        left_out: tour.left_out,
        interrupted: interrupted.clone(),
    };
    let page = tour.record.and_then(|dir| keep(&dir, &result, tour.root));
    let text = if args.json {
        serde_json::to_string_pretty(&result).map_err(failed)? + "\n"
    } else {
        let page = page.as_ref().map(|p| p.display().to_string());
        let story = DemoStory {
            page: page.as_deref(),
            root: tour.root,
        };
        demo_text(&result, story, crate::terminal::style())
    };
    print(&text)?;
    match interrupted {
        Some(why) => Err(failed(format!(
            "interrupted ({why}): the result is partial"
        ))),
        None if args.control && result.resources.iter().any(|f| f.hurts) => Ok(Exit::NotHeld),
        None if result.resources.is_empty() => Err(failed(
            "no resource could be measured, for the reasons above; try one alone: quell demo --only cpu",
        )),
        None => Ok(Exit::Done),
    }
}

/// One line of progress.
fn say(text: &str) {
    eprintln!("quell: {text}");
}

/// Results; a reader that has gone wants no more of them.
fn print(text: &str) -> Result<()> {
    let mut out = std::io::stdout().lock();
    match out.write_all(text.as_bytes()).and_then(|()| out.flush()) {
        Err(e) if e.kind() != ErrorKind::BrokenPipe => Err(failed(format!("standard output: {e}"))),
        _ => Ok(()),
    }
}

/// Writes result and page; where the page is.
fn keep(dir: &Path, result: &DemoResult, root: bool) -> Option<PathBuf> {
    let json = serde_json::to_string_pretty(result).unwrap_or_default() + "\n";
    let page = dir.join("report.html");
    let written = crate::state::write_whole(&dir.join("results.json"), &json)
        .and_then(|()| crate::state::write_whole(&page, &demo_html(result, root)));
    match written {
        Ok(()) => Some(page),
        Err(e) => {
            say(&format!(
                "note: the page could not be written to {}: {e}; give a writable directory with --out",
                dir.display()
            ));
            None
        }
    }
}

/// Whether a record can be written there: tried, since a disk may be full or read-only.
fn writable(dir: &Path) -> std::io::Result<()> {
    quell_files::folder(dir)?;
    let file = dir.join(".space");
    let tried = quell_files::create(&file)?.write_all(&[b' '; 256 << 10]);
    let removed = std::fs::remove_file(&file);
    tried.and(removed)
}

/// The demonstration as it goes on.
struct Tour<'a> {
    args: &'a Demo,
    begun: Instant,
    root: bool,
    whole: Duration,
    /// What is still to be looked at first.
    chosen: Vec<Resource>,
    /// The folder of the records. Absent: none can be written.
    record: Option<PathBuf>,
    /// Whether disks can be limited here.
    disks: bool,
    found: Vec<Found>,
    left_out: Vec<LeftOut>,
}

impl<'a> Tour<'a> {
    fn new(args: &'a Demo, begun: Instant) -> Self {
        let all = Resource::ALL.into_iter();
        let chosen = all.filter(|r| args.only.is_empty() || args.only.contains(r));
        let lab = crate::guest::guest().is_some();
        Self {
            args,
            begun,
            root: quell_kernel::may_change(),
            whole: if lab {
                budget::WHOLE_IN_LAB
            } else {
                budget::WHOLE
            },
            chosen: chosen.collect(),
            record: None,
            disks: false,
            found: Vec::new(),
            left_out: Vec::new(),
        }
    }

    /// How long it takes at most, in words.
    fn longest(&self) -> String {
        match self.args.rounds {
            Some(rounds) => format!("{rounds} rounds each"),
            None if self.whole > budget::WHOLE => "five minutes".to_owned(),
            None => "two minutes".to_owned(),
        }
    }

    fn left(&self) -> Duration {
        self.whole.saturating_sub(self.begun.elapsed())
    }

    /// When no further round begins, so that `others` have their time; never, where rounds were
    /// given.
    fn until(&self, others: Duration) -> Option<Instant> {
        let time = self.whole.saturating_sub(others);
        self.args.rounds.is_none().then(|| self.begun + time)
    }

    fn leave_out(&mut self, name: Resource, why: String) {
        say(&format!("{}: left out: {why}", name.name()));
        self.left_out.push(LeftOut { name, why });
    }

    /// The advice to look at a resource alone. None where Quell can do nothing about it here.
    fn alone(&self, resource: Resource) -> String {
        match resource {
            Resource::Disk if !self.disks => String::new(),
            _ => format!("; try --only {}", resource.name()),
        }
    }

    /// Reads and measures the machine, decides what can be tried on it, and makes the record's
    /// folder.
    fn examine(&mut self) -> Result<()> {
        crate::status::settle()?;
        let (mut target, mut machine) = On::Linux.measured(1, NonZeroUsize::MIN)?;
        let seen = [Resource::Cache, Resource::Bandwidth];
        let emulated = crate::guest::guest().is_some();
        if let crate::target::Target::Linux(linux) = &mut target
            && !emulated
            && self.chosen.iter().any(|r| seen.contains(r))
        {
            // What looks like no shared cache may have been a busy moment.
            let again = machine::unseen(&machine).is_some();
            machine = machine::with_seen_cache(linux, machine, again)?;
        }
        target.end()?;
        say(&about(&machine));
        let disks = machine.mechanisms.get(&Mechanism::IoMax);
        self.disks = matches!(disks, Some(Availability::Yes { .. }));
        let files = Kernel::new().map_err(failed)?;
        let facts = Facts {
            root: self.root,
            emulated,
            available: memory::available(&files).ok().flatten(),
        };
        for resource in std::mem::take(&mut self.chosen) {
            match fit::left_out(resource, &machine, facts) {
                Some(why) => self.leave_out(resource, why),
                None => self.chosen.push(resource),
            }
        }
        let now = calendar::utc(machine::unix_s());
        let now = now.replace(['-', ':'], "").replace(' ', "-");
        let dir = self.args.out.join(format!("demo-{now}"));
        match writable(&dir) {
            Ok(()) => self.record = Some(dir),
            Err(e) => say(&format!(
                "note: no record is kept, since {} cannot be written: {e}; give a writable directory with --out",
                dir.display()
            )),
        }
        Ok(())
    }

    /// Looks at each resource, then again at what hurts and was looked at without Quell. Why it
    /// ended early, if it did.
    fn go(&mut self) -> Result<Option<String>> {
        let quell = !self.args.control;
        // A cell of memory takes as long on a busy machine as on a quiet one: the others wait for
        // it.
        let mut chosen = self.chosen.clone();
        chosen.sort_by_key(|resource| *resource != Resource::Memory);
        let mut again = Vec::new();
        for (n, resource) in chosen.iter().enumerate() {
            let others = chosen.get(n + 1..).unwrap_or_default();
            let left = self.left().saturating_sub(reserved(others, quell));
            // Alone it is looked at in full.
            let alone = chosen.len() == 1;
            let full = sure(*resource) || alone;
            let pass = match self.args.rounds {
                Some(rounds) => Some(Pass { quell, rounds }),
                None => first(*resource, alone, quell, left),
            };
            let Some(pass) = pass else {
                let why = format!("no time was left for it{}", self.alone(*resource));
                self.leave_out(*resource, why);
                continue;
            };
            say(&format!(
                "{} of {}: {}",
                n + 1,
                chosen.len(),
                resource.name()
            ));
            let until = self.until(reserved(others, quell));
            let (cell, interrupted) = self.take(*resource, pass, until)?;
            if interrupted.is_some() {
                return Ok(interrupted);
            }
            let hurts = self
                .found
                .last()
                .is_some_and(|f| f.name == *resource && f.hurts);
            if hurts && !full && self.args.rounds.is_none() {
                again.push((*resource, cell));
            }
        }
        for (resource, cell) in again {
            let Some(rounds) = rounds_that_fit(quell, cell, self.left()) else {
                say(&format!(
                    "{}: no time was left to look at it with Quell{}",
                    resource.name(),
                    self.alone(resource)
                ));
                continue;
            };
            say(&format!("{} hurts: once more, with Quell", resource.name()));
            let until = self.until(Duration::ZERO);
            let (_, interrupted) = self.take(resource, Pass { quell, rounds }, until)?;
            if interrupted.is_some() {
                return Ok(interrupted);
            }
        }
        Ok(None)
    }

    /// Takes a look and keeps what it came to: how long a cell took, and why it was ended early.
    fn take(
        &mut self,
        resource: Resource,
        pass: Pass,
        until: Option<Instant>,
    ) -> Result<(Duration, Option<String>)> {
        let mut taken = self.once(resource, pass, until)?;
        // A disk that has filled up is no reason to measure nothing.
        if matches!(taken.0, Came::Nothing(_))
            && let Some(dir) = &self.record
            && let Err(e) = writable(dir)
        {
            say(&format!("note: no record is kept from here on: {e}"));
            self.record = None;
            taken = self.once(resource, pass, until)?;
        }
        let (came, cell) = taken;
        let interrupted = match came {
            Came::Found(found) => {
                self.put(*found);
                None
            }
            Came::Nothing(why) => {
                self.leave_out(resource, why);
                None
            }
            Came::Interrupted(why, found) => {
                if let Some(found) = found {
                    self.put(*found);
                }
                Some(why)
            }
        };
        Ok((cell, interrupted))
    }

    fn once(
        &self,
        resource: Resource,
        pass: Pass,
        until: Option<Instant>,
    ) -> Result<(Came, Duration)> {
        let with = With {
            out: self.record.as_deref(),
            control: self.args.control,
            until,
        };
        stage::examine(resource, pass, with)
    }

    /// The newer look at a resource replaces the older one.
    fn put(&mut self, found: Found) {
        say(&demo_line(&found));
        self.found.retain(|f| f.name != found.name);
        self.found.push(found);
    }
}

/// The machine in a line.
fn about(machine: &Inventory) -> String {
    let cpus = machine.cpus.len();
    let caches = machine.cpus.first().map(|c| machine.data_caches(c.id));
    let cache = caches.map_or_else(String::new, |caches| {
        let seen = if caches.seen < caches.llc {
            format!(
                ", {:.1}MiB of it seen",
                caches.seen.0 as f64 / f64::from(1 << 20)
            )
        } else {
            String::new()
        };
        format!(", {} of last-level cache{seen}", caches.llc)
    });
    let plural = if cpus == 1 { "" } else { "s" };
    format!(
        "{cpus} CPU{plural}{cache}, Linux {}",
        machine.identity.kernel
    )
}
