//! A policy from options: what `quell run` and `quell plan` take instead of a file.

use quell_policy::{Bandwidth, CpusWanted, Group, Policy, Role};
use quell_types::task::TaskMatch;
use quell_types::units::Nanos;

use crate::exit::{Result, usage};

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
    /// CPUs for the critical tasks: a number, or a list such as 0,2-3 [default: auto]
    #[arg(long, value_name = "CPUS", value_parser = cpus)]
    pub cpus: Option<CpusWanted>,
}

fn cpus(text: &str) -> std::result::Result<CpusWanted, String> {
    match text.parse::<u32>() {
        Ok(n) => Ok(CpusWanted::Count(n)),
        Err(_) => text.parse(),
    }
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
        Ok((policy, launched))
    }
}
