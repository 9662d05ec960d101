//! A policy from options: what `quell run` and `quell plan` take instead of a file.

use quell_plan::choose::{HIGH, Known, Mean, choose};
use quell_plan::inventory::Inventory;
use quell_policy::{Bandwidth, CpusWanted, Group, Policy, Role};
use quell_types::options::CpuWeight;
use quell_types::task::TaskMatch;
use quell_types::text::Complaint;
use quell_types::units::Nanos;

use crate::exit::{Result, failed, usage};

/// The group of `--critical`.
pub const CRITICAL: &str = "critical";
/// The group of `--best-effort`.
pub const BEST_EFFORT: &str = "best-effort";

/// Groups by option.
#[derive(Clone, Debug, clap::Args)]
pub struct Named {
    /// Tasks to protect: KEY=VALUE[,KEY=VALUE…] with pid, exe, comm, arg, user, cgroup, unit,
    /// container; repeat for more
    #[arg(long, value_name = "MATCH")]
    pub critical: Vec<TaskMatch>,
    /// Tasks that may be slowed; written as for --critical
    #[arg(long, value_name = "MATCH")]
    pub best_effort: Vec<TaskMatch>,
    /// At most this memory bandwidth for the best-effort tasks: part of what their CPUs can draw,
    /// or a rate [default: no limit; a low weight lets others go first]
    #[arg(long, value_name = "LIMIT")]
    pub limit: Option<Bandwidth>,
    /// How often the limit is a new one, 100us to 1s [default: the plan says which]
    #[arg(long, value_name = "TIME", requires = "limit")]
    pub period: Option<Nanos>,
    /// CPUs of their own for the critical tasks: a number, a list such as 0,2-3, or auto [default:
    /// none; a weight comes first]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub cpus: Option<CpusWanted>,
}

fn cpus(text: &str) -> std::result::Result<CpusWanted, String> {
    match text.parse::<u32>() {
        Ok(n) => Ok(CpusWanted::Count(n)),
        Err(_) => text.parse(),
    }
}

/// What is wrong with the value of an option. Tasks that fit two groups are named once they are
/// looked at.
fn complaint(wrong: &Complaint) -> Option<String> {
    let key = wrong.at.to_string();
    let option = match key.rsplit('.').next()? {
        "bandwidth" => "--limit",
        "period" => "--period",
        _ => return None,
    };
    let remedy = wrong.remedy.as_deref();
    let remedy = remedy.map_or_else(String::new, |remedy| format!("; {remedy}"));
    Some(format!("{option}: {}{remedy}", wrong.why))
}

impl Named {
    /// The policy, and the group that a command is launched in; `command`: there is one.
    pub fn policy(&self, command: bool) -> Result<(Policy, Option<&'static str>)> {
        let critical = self.critical.is_empty() && command;
        let best_effort = self.best_effort.is_empty() && command && !critical;
        if self.critical.is_empty() && !critical {
            return Err(usage(
                "name what to protect: a policy file, --critical MATCH, or a command after --",
            ));
        }
        if command && !critical && !best_effort {
            return Err(usage(
                "the command after -- has no group, since --critical and --best-effort both name running tasks; leave one of them out",
            ));
        }
        let mut policy = Policy::new("run");
        let mut victim = Group::new(Role::Critical);
        victim.matching.clone_from(&self.critical);
        victim.cpus.clone_from(&self.cpus);
        policy.groups.insert(CRITICAL.to_owned(), victim);
        if best_effort || !self.best_effort.is_empty() {
            let mut others = Group::new(Role::BestEffort);
            others.matching.clone_from(&self.best_effort);
            others.limit.bandwidth = self.limit;
            policy.regulator.period = self.period;
            policy.groups.insert(BEST_EFFORT.to_owned(), others);
        } else if self.limit.is_some() {
            return Err(usage(
                "--limit needs --best-effort: unmatched tasks are not limited",
            ));
        }
        let launched = match (critical, best_effort) {
            (true, _) => Some(CRITICAL),
            (_, true) => Some(BEST_EFFORT),
            _ => None,
        };
        if let Some(wrong) = policy.check().iter().find_map(complaint) {
            return Err(usage(wrong));
        }
        Ok((policy, launched))
    }

    /// Adds the least that is enough on this machine to a policy of [`Named::policy`]. `root`:
    /// Quell runs as root. Else the machine seems to offer less than it does.
    pub fn decide(&self, policy: &mut Policy, machine: &Inventory, root: bool) -> Result<()> {
        let named = policy.groups.contains_key(BEST_EFFORT);
        let known = Known {
            root,
            named,
            ..Known::default()
        };
        let choice = choose(machine, &known);
        let means = choice.means;
        if let Some(others) = policy.groups.get_mut(BEST_EFFORT).filter(|_| !root) {
            // What is written is refused with what is missing.
            let in_place = others.matching.iter().any(TaskMatch::in_place);
            others.cpu_weight = (!in_place).then_some(CpuWeight::Idle);
        }
        let critical = policy.groups.get_mut(CRITICAL);
        let critical = critical.ok_or_else(|| failed("there is no critical group"))?;
        if self.cpus.is_some() {
            return Ok(());
        }
        critical.cpus = Some(CpusWanted::Any);
        critical.cpu_weight = means.high.then_some(HIGH);
        if means.low || means.high || self.limit.is_some() {
            return Ok(());
        }
        let mut why = choice.left_out.into_iter();
        let why = why.find(|(mean, _)| *mean == Mean::Weight);
        let why = why.map_or_else(String::new, |(_, why)| format!(" {why}"));
        Err(usage(format!(
            "nothing is known to protect it here.{why} Give it CPUs of its own (--cpus 1) if its \
             clients and all others can do with those that are left"
        )))
    }
}
