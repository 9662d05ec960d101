//! Keeping interrupts and unbound kernel work off CPUs.

use quell_kernel::error::{Error, Result};
use quell_kernel::root::{Files, format_mask, parse_mask};
use quell_kernel::{irq, procfs, workqueue};
use quell_plan::Setting;
use quell_types::cpuset::CpuSet;

use super::{Applied, Enforcer};
use crate::change::JournaledWriter;
use crate::host::Host;

/// Moves interrupts and unbound kernel work off CPUs.
pub(crate) struct Quiet;

impl Enforcer for Quiet {
    fn apply(&mut self, host: &mut Host, _: &str, set: &Setting) -> Applied {
        match set {
            Setting::MoveIrqs { from, to } => {
                let moved = interrupts(&mut host.writer()?, from, to)?;
                let balanced = balanced(&host.files, from)?;
                Ok(Some(moved.note(from).into_iter().chain(balanced).collect()))
            }
            Setting::WorkqueueMask { cpus } => {
                kernel_work(&mut host.writer()?, cpus)?;
                Ok(Some(Vec::new()))
            }
            _ => Ok(None),
        }
    }
}

/// That a program here moves interrupts as well, and how it is told not to. `None` without one.
fn balanced(files: &dyn Files, from: &CpuSet) -> Result<Option<String>> {
    let all = procfs::processes(files)?;
    let balancer = all.iter().find(|process| process.comm == "irqbalance");
    Ok(balancer.map(|process| {
        format!(
            "irqbalance (process {}) may move interrupts back to CPU {from}; set \
             IRQBALANCE_BANNED_CPULIST={from} in its environment, and restart it",
            process.id.pid
        )
    }))
}

/// The result of moving interrupts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Moved {
    /// Number of interrupts that were moved.
    pub moved: u32,
    /// Numbers of the interrupts that may still arrive on the CPUs to be kept quiet.
    pub fixed: Vec<u32>,
}

impl Moved {
    /// A sentence for a person. `None` when no interrupt is left.
    #[must_use]
    pub fn note(&self, from: &CpuSet) -> Option<String> {
        if self.fixed.is_empty() {
            return None;
        }
        let numbers: CpuSet = self.fixed.iter().copied().collect();
        let what = match self.fixed.len() {
            1 => "an interrupt".to_owned(),
            n => format!("{n} interrupts"),
        };
        Some(format!(
            "CPU {from} keeps {what} bound by the kernel: {numbers}"
        ))
    }
}

/// Sends interrupts that could arrive on `from` to `to`, also those registered later.
///
/// # Errors
/// [`Error::File`]. An interrupt that the kernel refuses to move is no error.
pub fn interrupts(writer: &mut JournaledWriter<'_>, from: &CpuSet, to: &CpuSet) -> Result<Moved> {
    if to.is_empty() || !to.intersection(from).is_empty() {
        return Err(Error::refused(format!(
            "interrupts cannot be kept off CPU {from} by sending them to '{to}'"
        )));
    }
    let mut moved = Moved::default();
    if let Some(text) = writer.files.optional(irq::DEFAULT)? {
        let now =
            parse_mask(&text).ok_or_else(|| Error::malformed(irq::DEFAULT, &text, "a CPU mask"))?;
        if let Some(new) = away(&now, from, to) {
            writer.set(irq::DEFAULT, &format_mask(&new))?;
        }
    }
    for number in irq::numbers(writer.files)? {
        let path = format!("{}/{number}/smp_affinity_list", irq::DIR);
        // Interrupts come and go. One that is gone needs no moving.
        let Some(now) = writer.files.cpus(&path)? else {
            continue;
        };
        let Some(new) = away(&now, from, to) else {
            continue;
        };
        match writer.set(&path, &new.to_string()) {
            Ok(true) => moved.moved += 1,
            Ok(false) => {}
            Err(e)
                if matches!(
                    e.errno(),
                    Some(libc::EIO | libc::EPERM | libc::EINVAL | libc::ENOSPC | libc::EACCES)
                ) =>
            {
                moved.fixed.push(number);
            }
            Err(e) if matches!(e.errno(), Some(libc::ENOENT | libc::ENODEV)) => {}
            Err(e) => return Err(e),
        }
    }
    Ok(moved)
}

/// Lets unbound kernel work run only on `cpus`. Returns whether something was changed.
///
/// # Errors
/// [`Error::File`].
pub fn kernel_work(writer: &mut JournaledWriter<'_>, cpus: &CpuSet) -> Result<bool> {
    writer.set(workqueue::MASK, &format_mask(cpus))
}

/// The affinity without `from`, otherwise as it was: a group that handles its interrupts itself
/// keeps them. It is `to` where nothing is left, and `None` where nothing is to be done.
fn away(now: &CpuSet, from: &CpuSet, to: &CpuSet) -> Option<CpuSet> {
    if now.intersection(from).is_empty() {
        return None;
    }
    let kept = now.difference(from);
    Some(if kept.is_empty() { to.clone() } else { kept })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupt_keeps_the_cpus_it_may_keep() {
        let set = |t: &str| t.parse::<CpuSet>().unwrap();
        let away = |now: &str| away(&set(now), &set("0-1"), &set("2-3")).map(|s| s.to_string());
        assert_eq!(
            away("0-7"),
            Some("2-7".into()),
            "4-7 neither quiet nor a refuge"
        );
        assert_eq!(away("1,3"), Some("3".into()));
        assert_eq!(away("0"), Some("2-3".into()));
        assert_eq!(away("4"), None);
    }

    #[test]
    fn a_program_that_moves_interrupts_back_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let at = dir.path().join("proc/41");
        std::fs::create_dir_all(&at).unwrap();
        let stat = |name: &str| {
            let rest = "S 1 41 41 0 -1 4194560 0 0 0 0 0 0 0 0 20 0 1 0 500 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 0 17 0 0 0 0 0 0";
            std::fs::write(at.join("stat"), format!("41 ({name}) {rest}\n")).unwrap();
            let files = quell_kernel::root::Kernel::at(dir.path());
            balanced(&files, &"3".parse().unwrap()).unwrap()
        };
        assert_eq!(stat("bash"), None);
        let said = stat("irqbalance").unwrap();
        assert!(
            said.starts_with("irqbalance (process 41) may move"),
            "{said}"
        );
        assert!(said.contains("IRQBALANCE_BANNED_CPULIST=3 "), "{said}");
    }
}
