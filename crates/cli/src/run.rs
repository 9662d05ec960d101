//! `quell run`: from a policy file, or from what the options name.

mod live;
mod messages;

use std::path::Path;

use quell_engine::folder::Folder;
use quell_engine::hold::{Until, run as hold};
use quell_kernel::{privileges, refused};
use quell_linux::backend::Linux;
use quell_linux::restore;
use quell_plan::inventory::Inventory;
use quell_plan::{Plan, Setting};
use quell_policy::Policy;
use quell_policy::lab::Guest;
use quell_record::backend::{HoldOptions, Program, SubjectSpec};
use quell_types::units::Nanos;

use crate::exit::{Exit, Failure, Result, failed, usage};
use crate::lab_exec::{self, Bundle};
use crate::named::Named;
use crate::target::On;
use crate::{found, machine, preview};
use messages::Messages;
use std::path::PathBuf;

/// `quell run`
#[derive(Debug, clap::Args)]
pub struct Run {
    /// The policy file; leave it out and name groups with --critical and --best-effort instead
    #[arg(conflicts_with_all = ["critical", "best_effort", "limit", "period", "cpus", "save"])]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub named: Named,
    /// Wait until a process of every critical group runs, and change nothing before that; without
    /// it the run is refused
    #[arg(long)]
    pub wait: bool,
    /// The machine to run on: linux, or one of the lab, lab or lab:PROFILE, which is booted for the
    /// run
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Write the policy that the options came to
    #[arg(long, value_name = "FILE")]
    pub save: Option<PathBuf>,
    /// Write a record (manifest, events) into this directory
    #[arg(long, value_name = "DIR")]
    pub out: Option<PathBuf>,
    /// Say nothing but errors
    #[arg(long, short)]
    pub quiet: bool,
    /// A command to launch: in the group that has neither `match` nor `command`; without a policy
    /// file it is the critical one, or the best-effort one if --critical is given
    #[arg(last = true, value_name = "CMD")]
    pub command: Vec<String>,
}

/// `env(1)`: the command cannot be started by us · cannot be executed · cannot be found.
const FAILED: i32 = 125;
const NOT_EXECUTABLE: i32 = 126;
const NOT_FOUND: i32 = 127;

/// Applies, holds, restores.
pub fn run(args: &Run) -> Result {
    let (policy, launched) = wanted(args)?;
    let subjects = subjects(&policy, launched.as_deref(), &args.command)?;
    match &args.on {
        On::Lab(profile) => return in_the_lab(args, &policy, profile.as_ref()),
        On::Sim(_) | On::Coarse(_) => {
            return Err(usage(
                "--on: programs cannot run on a simulated machine; `quell compare` runs generators there",
            ));
        }
        On::Linux => lab_exec::unasked(&args.lab)?,
    }
    for subject in &subjects {
        findable(subject)?;
    }
    let with_command = !subjects.is_empty();
    let result = held(args, &policy, &subjects);
    match result {
        // A failure of ours must not look like the command's.
        Err(failure) if with_command && failure.exit == Exit::Failed => Err(Failure {
            text: failure.text,
            exit: Exit::Status(FAILED),
        }),
        other => other,
    }
}

/// The same inside a machine of the lab.
fn in_the_lab(args: &Run, policy: &Policy, profile: Option<&String>) -> Result {
    let mut bundle = Bundle::default();
    if let Some(path) = &args.policy {
        bundle.file(path);
    }
    bundle.policy(policy);
    bundle.program(&args.command);
    bundle.back(args.out.as_ref());
    bundle.back(args.save.as_ref());
    lab_exec::call(&Guest::default(), profile, &args.lab, bundle)
}

fn held(args: &Run, policy: &Policy, subjects: &[SubjectSpec]) -> Result {
    give_up_rights(subjects.is_empty());
    found::critical(policy, args.wait, args.quiet)?;
    crate::status::settle()?;
    quell_kernel::rt::give_back_code();
    let (mut backend, mut machine) = if policy.needs_rates() {
        machine::measured()?
    } else {
        machine::linux()?
    };
    machine::measure_rest(policy, &mut machine)?;
    quell_kernel::rt::give_back_code();
    let mut policy = policy.clone();
    if args.policy.is_none() {
        let root = quell_kernel::is_root();
        args.named.decide(&mut policy, &machine, root)?;
    }
    let policy = &policy;
    let command = |subject: &SubjectSpec| match &subject.program {
        Program::Command(command) => Some((subject.group.clone(), command.clone())),
        Program::Generator(_) => None,
    };
    let launched = subjects.iter().filter_map(command).collect();
    let solos = crate::kept::solos(policy, &machine, &On::Linux, &launched);
    let plan = crate::plan::plan(policy, args.policy.as_deref(), &machine, &solos)?;
    if let Some(path) = &args.save {
        save(policy, subjects, path)?;
    }
    let begun = machine::unix_s();
    let folder = match &args.out {
        Some(dir) => Some(Folder::begin(dir, &policy.name, begun, now(&backend)).map_err(failed)?),
        None => None,
    };
    let until = match (args.command.is_empty(), subjects.is_empty()) {
        (false, _) => Until::First,
        (true, false) => Until::All,
        (true, true) => Until::Stop,
    };
    let met = preview::look(policy, &plan, subjects)?;
    let mut told = Messages::new(&plan, policy, subjects, until, args.quiet, folder);
    told.show_plan(&met);
    // A brake that waits for a page is late; nothing we touch may be swapped out.
    if let Err(e) = quell_kernel::rt::lock_memory() {
        eprintln!(
            "quell: note: memory could not be locked ({e}); brakes may be late under memory pressure"
        );
    }
    let how = HoldOptions {
        on_drift: policy.on_drift,
    };
    if subjects.is_empty() {
        give_up_calls(&plan);
    }
    let done = hold(&mut backend, &plan, how, subjects, until, &mut told);
    let ended = backend.end();
    if let Some(folder) = told.folder.take() {
        let path = record(folder, policy, &plan, &machine, begun)?;
        eprintln!("quell: the record is in {path}");
    }
    let done = done.map_err(|e| failed(told.also(&e.to_string())))?;
    ended.map_err(failed)?;
    Ok(told.end(&done, !subjects.is_empty()))
}

/// Before there is another thread: keeps what holding a plan needs. What the run launches has all
/// of root's, as if a shell had started it; where it launches nothing, no program that this process
/// executes ever has more.
fn give_up_rights(launches_nothing: bool) {
    if quell_kernel::is_root() {
        let kept = privileges::HOLDING;
        // Where the kernel refuses, it was not allowed more before.
        let _ = match launches_nothing {
            true => privileges::keep(kept),
            false => privileges::lay_down(kept).map_err(Into::into),
        };
    }
}

/// Refuses this process, and the watchdog that it starts, what holding this plan has no need of.
/// Where threads of programs are made to do calls that is nothing: their filters are read.
fn give_up_calls(plan: &Plan) {
    let has = |such: fn(&Setting) -> bool| plan.steps.iter().any(|step| such(&step.set));
    let traces = has(|set| {
        matches!(
            set,
            Setting::Settle { .. }
                | Setting::Vacate { .. }
                | Setting::LockMemory { .. }
                | Setting::PageSize { .. }
        )
    });
    // Budgets are decided on in the interrupts of counters.
    let loads = has(|set| matches!(set, Setting::Regulate(_) | Setting::Windows(_)));
    // A process with a filter may not read those of others, which what an earlier run has left may
    // need.
    let left = restore::folders(Path::new(machine::RUN_ROOT)).is_ok_and(|all| !all.is_empty());
    if traces || left {
        return;
    }
    let mut calls = vec![refused::TRACING];
    if !loads {
        calls.push(refused::LOADING);
    }
    // It fails where the kernel has no filters.
    let _ = refused::refuse(&calls);
}

fn now(backend: &Linux) -> Nanos {
    quell_record::backend::Backend::now(backend)
}

/// The policy, and the group that the command of the command line is launched in.
fn wanted(args: &Run) -> Result<(Policy, Option<String>)> {
    if let Some(path) = &args.policy {
        let policy = crate::plan::policy(path, !args.command.is_empty())?;
        let launched = if args.command.is_empty() {
            None
        } else {
            Some(open_group(&policy, path)?)
        };
        return Ok((policy, launched));
    }
    let (policy, launched) = args.named.policy(!args.command.is_empty())?;
    Ok((policy, launched.map(str::to_owned)))
}

/// The one group of a policy file that a command can be launched in.
fn open_group(policy: &Policy, path: &Path) -> Result<String> {
    let open: Vec<&String> = policy
        .groups
        .iter()
        .filter(|(_, g)| g.matching.is_empty() && g.command.is_none())
        .map(|(n, _)| n)
        .collect();
    match open.as_slice() {
        [one] => Ok((*one).clone()),
        [] => Err(usage(format!(
            "{}: no group is left for the command after --: leave `match` and `command` out of the group it belongs to",
            path.display()
        ))),
        several => {
            let names: Vec<&str> = several.iter().map(|n| n.as_str()).collect();
            Err(usage(format!(
                "{}: the command after -- could belong to any of {}; give all but one of them `match` or `command`",
                path.display(),
                names.join(", ")
            )))
        }
    }
}

fn subjects(
    policy: &Policy,
    launched: Option<&str>,
    command: &[String],
) -> Result<Vec<SubjectSpec>> {
    let mut all = preview::commands(policy);
    match launched {
        Some(group) => all.insert(0, preview::subject(group, command)),
        None if policy
            .groups
            .values()
            .all(|g| g.matching.is_empty() && g.command.is_none()) =>
        {
            return Err(usage(
                "the policy matches and launches nothing: give its groups `match` or `command`, or a command after --",
            ));
        }
        None => {}
    }
    Ok(all)
}

/// Before anything is changed: can the command be executed at all?
fn findable(subject: &SubjectSpec) -> Result<()> {
    let Program::Command(command) = &subject.program else {
        return Ok(());
    };
    let Some(program) = command.first() else {
        return Ok(());
    };
    let fail = |text: String, status| {
        Err(Failure {
            text,
            exit: Exit::Status(status),
        })
    };
    let found = machine::files_of(program);
    if found.is_empty() {
        return fail(
            format!("{program}: command not found; nothing was changed; give its full path"),
            NOT_FOUND,
        );
    }
    if !found.iter().any(|p| quell_kernel::is_executable(p)) {
        return fail(
            format!("{program}: not executable; nothing was changed; chmod +x would make it so"),
            NOT_EXECUTABLE,
        );
    }
    Ok(())
}

/// The command of the command line becomes its group's, so that the file stands for itself.
fn save(policy: &Policy, subjects: &[SubjectSpec], path: &Path) -> Result<()> {
    let mut policy = policy.clone();
    for subject in subjects {
        if let (Program::Command(command), Some(group)) =
            (&subject.program, policy.groups.get_mut(&subject.group))
        {
            group.command = Some(command.clone());
        }
    }
    let policy = &policy;
    let text = toml::to_string_pretty(policy).map_err(failed)?;
    quell_files::put(path, &text).map_err(|e| {
        failed(format!(
            "the policy could not be saved to {}: {e}",
            path.display()
        ))
    })
}

/// Completes the record, its page included.
fn record(
    mut folder: Folder,
    policy: &Policy,
    plan: &Plan,
    machine: &Inventory,
    begun_unix_s: u64,
) -> Result<String> {
    let text = toml::to_string_pretty(policy).map_err(failed)?;
    let manifest = serde_json::json!({
        "schema": quell_record::events::MANIFEST_SCHEMA,
        "version": env!("CARGO_PKG_VERSION"),
        "created_unix_s": begun_unix_s,
        "command_line": crate::terminal::command_line(),
        "machine": machine,
        "policy": policy,
        "policy_text": text,
        "policy_hash": quell_engine::folder::hash(&text),
        "plan": plan,
    });
    let manifest = serde_json::to_string_pretty(&manifest).map_err(failed)?;
    folder.write("manifest.json", &manifest).map_err(failed)?;
    folder.close().map_err(failed)?;
    let record = quell_engine::read::read(folder.path()).map_err(failed)?;
    folder
        .write("report.html", &quell_report::html(&record))
        .map_err(failed)?;
    Ok(folder.finish().map_err(failed)?.display().to_string())
}
