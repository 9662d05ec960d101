//! `quell plan`

use std::collections::BTreeMap;
use std::num::NonZeroUsize;
use std::path::Path;

use quell_linux::capture::Capture;
use quell_plan::Plan as Planned;
use quell_plan::inventory::Inventory;
use quell_plan::planner::Solos;
use quell_policy::Policy;
use quell_policy::lab::Guest;
use quell_record::preview::{Met, Preview};
use quell_types::refusal::{Cause, Refusal, Remedy};
use quell_types::text::{place_of, printable};

use crate::exit::{Exit, Failure, Result, failed, problems, usage};
use crate::lab_exec::{self, Bundle};
use crate::named::{BEST_EFFORT, CRITICAL, Named};
use crate::target::On;
use crate::{found, guest, machine, preview};
use std::path::PathBuf;

/// `quell plan`
#[derive(Debug, clap::Args)]
pub struct Plan {
    /// The policy file; leave it out and name groups with --critical and --best-effort as for
    /// `quell run`
    #[arg(conflicts_with_all = ["critical", "best_effort", "limit", "period", "cpus"])]
    pub policy: Option<PathBuf>,
    #[command(flatten)]
    pub named: Named,
    /// Measure this machine's memory rates first, where none are stored (a few seconds of full
    /// memory load). Without it the plan assumes rates, and says so; `quell run` always measures
    #[arg(long, conflicts_with_all = ["machine", "on"])]
    pub measure: bool,
    /// Plan for this machine (from `quell doctor --capture` or `--json`) instead of the one we run
    /// on
    #[arg(long, value_name = "FILE", conflicts_with = "on")]
    pub machine: Option<PathBuf>,
    /// Plan for another machine: a simulated one, sim or sim:PROFILE, or one of the lab, lab or
    /// lab:PROFILE
    #[arg(long, value_name = "BACKEND", default_value = "linux")]
    pub on: On,
    /// With --on lab: what machine: KEY=VALUE as for `quell compare`; repeat for more
    #[arg(long, value_name = "KEY=VALUE")]
    pub lab: Vec<String>,
    /// Show every step with its reason, and what is good to know besides
    #[arg(long)]
    pub steps: bool,
    /// Show every refusal, and every remedy of each, not only the first
    #[arg(long)]
    pub all: bool,
    /// Print the plan as JSON, its steps included
    #[arg(long)]
    pub json: bool,
}

/// Reads a policy file; `open` to a command from the command line, for which a group may be left
/// without tasks.
pub fn policy(path: &Path, open: bool) -> Result<Policy> {
    let name = path.display().to_string();
    let name = printable(&name).replace(['\n', '\t'], "?");
    let text = quell_files::text(path, quell_files::MOST_TEXT)
        .map_err(|e| usage(format!("{name}: the policy cannot be read: {e}")))?;
    let parsed = if open {
        Policy::parse_open(&text, &name)
    } else {
        Policy::parse(&text, &name)
    };
    parsed.map_err(|all| problems(&all))
}

/// Plans a policy for a machine; what is refused names the file, if there is one.
pub fn plan(
    policy: &Policy,
    path: Option<&Path>,
    machine: &Inventory,
    solos: &Solos,
) -> Result<Planned> {
    quell_plan::planner::plan_beside(policy, machine, solos)
        .map_err(|all| refused(&all, path, path.is_none()))
}

/// Refusals in three lines each: what, why, and what helps. The first cause comes first: missing
/// rights, then the order of the file. The others follow where `all` asks for them.
pub fn refused(refusals: &[Refusal], path: Option<&Path>, all: bool) -> Failure {
    let text = path.and_then(|p| quell_files::text(p, quell_files::MOST_TEXT).ok());
    let place = |refusal: &Refusal| text.as_deref().and_then(|t| place_of(t, &refusal.key));
    let mut placed: Vec<_> = refusals.iter().map(|r| (place(r), r)).collect();
    placed.sort_by_key(|(place, r)| (r.cause != Cause::Rights, *place));
    if path.is_none() {
        // Few options, and no `--all`: the first reason for each.
        placed.dedup_by(|(_, r), (_, before)| r.key == before.key);
    }
    let shown = if all { placed.len() } else { 1 };
    let each: Vec<String> = placed
        .iter()
        .take(shown)
        .enumerate()
        .map(|(n, (place, refusal))| {
            let place = place.map_or(String::new(), |(line, column)| format!(":{line}:{column}"));
            let place = path.map_or(String::new(), |p| format!("{}{place}: ", p.display()));
            let more = match (n, placed.len() - shown, path) {
                (0, more @ 1.., Some(path)) => {
                    format!(" (and {more} more: `quell plan {} --all`)", path.display())
                }
                _ => String::new(),
            };
            let remedies: Vec<&Remedy> = match all {
                true => refusal.remedies.iter().collect(),
                false => refusal.first_remedy().into_iter().collect(),
            };
            let helps: String = remedies
                .iter()
                .map(|remedy| format!("\n  help: {}", helps(remedy, path.is_none())))
                .collect();
            let option = path.is_none().then(|| option_of(&refusal.key)).flatten();
            let what = option.unwrap_or(&refusal.key);
            format!(
                "{place}{what} is refused{more}\n  why:  {}{helps}",
                refusal.why
            )
        })
        .collect();
    problems(&each)
}

/// The option of `quell run` that stands for a key of the policy.
fn option_of(key: &str) -> Option<&'static str> {
    match key.split('.').collect::<Vec<_>>()[..] {
        ["group", CRITICAL, "cpus"] => Some("--cpus"),
        ["group", CRITICAL | BEST_EFFORT, "cpu-weight"] => Some("a weight"),
        ["group", BEST_EFFORT, "limit", "bandwidth"] => Some("--limit"),
        ["regulator", "period"] => Some("--period"),
        _ => None,
    }
}

/// What helps; `options`: the policy came from options, and there is no file to write to.
fn helps(remedy: &Remedy, options: bool) -> String {
    match remedy {
        Remedy::Set { key, value } if options => match option_of(key) {
            Some(option) => format!("{option} {}", value.trim_matches('"')),
            None => format!("{remedy}, in a policy file"),
        },
        Remedy::LeaveOut { keys } if options => {
            let named: Option<Vec<&str>> = keys.iter().map(|key| option_of(key)).collect();
            named.map_or_else(
                || remedy.to_string(),
                |named| format!("leave out {}", named.join(" and ")),
            )
        }
        _ => remedy.to_string(),
    }
}

/// A plan as `quell plan` prints it, with what it meets and what to do next.
fn printed(
    plan: &Planned,
    met: &Met,
    path: Option<&Path>,
    steps: bool,
    style: quell_report::Style,
) -> String {
    let text = match steps {
        true => quell_report::plan_steps_text(plan, style),
        false => quell_report::plan_text(plan, style),
    };
    let text = text + &quell_report::preview_text(met, style);
    let how = if steps { "" } else { ", `--steps` shows how" };
    let run = match path {
        Some(path) => format!("`quell run {}`", path.display()),
        None => "`quell run` with these options".to_owned(),
    };
    let next = match plan.steps.is_empty() {
        true => format!("{run} would change nothing."),
        false => format!("Nothing is changed yet. {run} does this{how}."),
    };
    let blank = if plan.acts.is_empty() || steps || *met != Met::default() {
        "\n"
    } else {
        ""
    };
    format!("{text}{blank}{}", style.wrap("", "", &next))
}

/// Refuses before anything is measured where rights are missing.
fn lacks_no_rights(
    policy: &Policy,
    args: &Plan,
    decide: &dyn Fn(&mut Policy, &Inventory) -> Result<()>,
) -> Result<()> {
    let mut machine = machine::linux()?.1;
    machine::assume(&mut machine);
    let mut policy = policy.clone();
    decide(&mut policy, &machine)?;
    match quell_plan::planner::plan(&policy, &machine) {
        Err(all) if all.iter().any(|r| r.cause == Cause::Rights) => {
            Err(refused(&all, args.policy.as_deref(), args.all))
        }
        _ => Ok(()),
    }
}

/// Tells what would be done.
pub fn run(args: &Plan) -> Result {
    let mut policy = match &args.policy {
        Some(path) => policy(path, false)?,
        None => args.named.policy(false)?.0,
    };
    if let On::Lab(profile) = &args.on {
        let mut bundle = Bundle::default();
        args.policy.iter().for_each(|path| bundle.file(path));
        bundle.policy(&policy);
        return lab_exec::call(&Guest::default(), profile.as_ref(), &args.lab, bundle);
    }
    lab_exec::unasked(&args.lab)?;
    // For a machine of the lab that was booted for the plan no program runs there.
    let here = args.on == On::Linux && args.machine.is_none() && guest::command_line().is_none();
    if here {
        found::critical(&policy, false, true)?;
    }
    let decide = |policy: &mut Policy, machine: &Inventory| match &args.policy {
        Some(_) => Ok(()),
        None => {
            let seen = args.machine.is_some() || args.on != On::Linux || quell_kernel::is_root();
            args.named.decide(policy, machine, seen)
        }
    };
    let machine = match &args.machine {
        Some(file) => {
            let mut machine = captured(file)?;
            machine::assume(&mut machine);
            machine
        }
        None if args.on != On::Linux => args.on.measured(0, NonZeroUsize::MIN)?.1,
        // A machine that was just booted was never measured.
        None if args.measure || guest::guest().is_some() => {
            lacks_no_rights(&policy, args, &decide)?;
            let mut machine = machine::measured()?.1;
            machine::measure_rest(&policy, &mut machine)?;
            machine
        }
        None => {
            let mut machine = machine::linux()?.1;
            if policy.needs_rates() {
                machine::tell_age(&machine);
            }
            machine::assume(&mut machine);
            machine::measure_rest(&policy, &mut machine)?;
            machine
        }
    };
    decide(&mut policy, &machine)?;
    if args.on == On::Linux && args.machine.is_none() {
        machine::tell_holder();
    }
    let solos = crate::kept::solos(&policy, &machine, &args.on, &BTreeMap::new());
    let plan = quell_plan::planner::plan_beside(&policy, &machine, &solos)
        .map_err(|all| refused(&all, args.policy.as_deref(), args.all))?;
    let met = match here {
        true => preview::look(&policy, &plan, &preview::commands(&policy))?,
        false => Met::default(),
    };
    quell_kernel::signals::end_with_the_reader();
    if args.json {
        let all = Preview { plan, met };
        println!("{}", serde_json::to_string_pretty(&all).map_err(failed)?);
    } else {
        print!(
            "{}",
            printed(
                &plan,
                &met,
                args.policy.as_deref(),
                args.steps,
                crate::terminal::style()
            )
        );
    }
    Ok(Exit::Done)
}

/// A machine from a file: a capture, or an inventory, which is JSON.
pub fn captured(file: &Path) -> Result<Inventory> {
    let name = file.display();
    let text = quell_files::text(file, quell_files::MOST_RECORD)
        .map_err(|e| usage(format!("{name}: the machine cannot be read: {e}")))?;
    if text.trim_start().starts_with('{') {
        return serde_json::from_str(&text).map_err(|e| {
            usage(format!(
                "{name}: not a machine as `quell doctor --json` writes it: {e}"
            ))
        });
    }
    let capture = Capture::parse(&text).map_err(|e| {
        usage(format!(
            "{name}: not a machine as `quell doctor --capture` writes it: {e}"
        ))
    })?;
    capture
        .inventory()
        .map_err(|e| usage(format!("{name}: {e}")))
}

#[cfg(test)]
mod zoo;
