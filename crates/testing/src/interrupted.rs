//! Tests that run when this program is told to end (Ctrl-C) are ended, too. What they started
//! reverts what it has changed first.

use std::io::Result;
use std::process::Command;
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, kill_process_group};

/// The process groups of the tests that run. Held while they are ended: nobody begins another.
static GROUPS: Mutex<Vec<Pid>> = Mutex::new(Vec::new());

/// How long whoever reverts something may take.
pub const PATIENCE: Duration = Duration::from_secs(20);

fn groups() -> MutexGuard<'static, Vec<Pid>> {
    GROUPS.lock().unwrap_or_else(PoisonError::into_inner)
}

/// Starts a test that has a process group of its own.
pub fn begin(command: &mut Command) -> Result<Pid> {
    let mut groups = groups();
    let group = Pid::from_child(&command.spawn()?);
    groups.push(group);
    Ok(group)
}

/// Returns, unless this program is told to end: then it ends meanwhile.
pub fn wait() {
    drop(groups());
}

/// A test has ended, and so has all of its group that is left.
pub fn end(group: Pid) {
    groups().retain(|one| *one != group);
}

/// The signals that a person or the system ends a program with.
pub const SIGNALS: [libc::c_int; 4] = [libc::SIGHUP, libc::SIGINT, libc::SIGQUIT, libc::SIGTERM];

/// Blocks or unblocks them for this thread; their set. Allocates nothing, so it may be called
/// between fork and exec.
pub fn mask(how: libc::c_int) -> Result<libc::sigset_t> {
    // SAFETY: the set is initialised before it is used; the calls take no other pointers.
    unsafe {
        let mut set = std::mem::zeroed::<libc::sigset_t>();
        libc::sigemptyset(&raw mut set);
        for signal in SIGNALS {
            libc::sigaddset(&raw mut set, signal);
        }
        match libc::pthread_sigmask(how, &raw const set, std::ptr::null_mut()) {
            0 => Ok(set),
            error => Err(std::io::Error::from_raw_os_error(error)),
        }
    }
}

/// From here on this program ends as described when it is told to. To be called before it has
/// threads. A program that it starts with [`Command`] has these signals blocked, too.
pub fn watch() -> Result<()> {
    let set = mask(libc::SIG_BLOCK)?;
    std::thread::spawn(move || {
        let mut signal = 0;
        // SAFETY: both pointers are to live values.
        while unsafe { libc::sigwait(&raw const set, &raw mut signal) } != 0 {}
        let groups = groups();
        eprintln!("Told to end: the tests that run are ended first.");
        end_all(&groups, PATIENCE);
        // As without this module, and where a shell has made this program ignore it.
        let _ = mask(libc::SIG_UNBLOCK);
        // SAFETY: no pointers, and no handler.
        unsafe {
            libc::signal(signal, libc::SIG_DFL);
            libc::raise(signal);
        }
    });
    Ok(())
}

/// Asks all processes of these groups to end, and kills what has not after a while.
fn end_all(groups: &[Pid], patience: Duration) {
    let told = |groups: &[Pid], signal| {
        for group in groups {
            // It may be gone.
            let _ = kill_process_group(*group, signal);
        }
    };
    told(groups, Signal::TERM);
    let until = Instant::now() + patience;
    let mut left = groups.to_vec();
    loop {
        left.retain(|group| lives(*group));
        if left.is_empty() || Instant::now() >= until {
            break;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
    told(&left, Signal::KILL);
}

/// Whether a group has a process. Those that are this program's children are waited for: its first
/// one, as a rule.
fn lives(group: Pid) -> bool {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG;
    let _ = rustix::process::waitid(WaitId::Pgid(Some(group)), options);
    rustix::process::test_kill_process_group(group).is_ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::process::CommandExt;

    /// The first process of a group ends at once, another one has to revert something first, and a
    /// third does not end by itself.
    #[test]
    fn who_reverts_something_has_the_time_to() {
        // Nobody else has to wait for those whose parent has ended.
        rustix::process::set_child_subreaper(Some(rustix::process::getpid())).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let script = "(trap 'sleep 0.2; touch reverted; exit' TERM; touch ready; \
                      while :; do sleep 0.01; done) & exec sleep 60";
        let mut command = Command::new("sh");
        command.args(["-c", script]).current_dir(folder.path());
        let group = begin(command.process_group(0)).unwrap();
        while !folder.path().join("ready").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        assert!(groups().contains(&group));
        end_all(&[group], Duration::from_secs(30));
        assert!(folder.path().join("reverted").exists());
        assert!(!lives(group));
        end(group);

        let mut command = Command::new("sh");
        let script = "trap '' TERM; touch deaf; while :; do sleep 0.01; done";
        command.args(["-c", script]).current_dir(folder.path());
        let group = begin(command.process_group(0)).unwrap();
        while !folder.path().join("deaf").exists() {
            std::thread::sleep(Duration::from_millis(5));
        }
        end_all(&[group], Duration::from_millis(50));
        while lives(group) {
            std::thread::sleep(Duration::from_millis(5));
        }
        end(group);
    }
}
