//! One test in a process of its own: its output, its skips, its end, its CPU time.

use std::fs::File;
use std::io::{Read, Result, Seek};
use std::os::fd::{AsFd, AsRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use crate::interrupted;
use quell_testing::SKIPS;
use rustix::fs::MemfdFlags;
use rustix::process::{Pid, Signal, WaitId, WaitIdOptions, WaitIdStatus};

/// What a process came to.
#[derive(Debug)]
pub struct Ended {
    /// Exit 0 within its time.
    pub passed: bool,
    /// Why not, where its output does not say it.
    pub why: Option<String>,
    /// Lines as [`quell_testing::skip`] writes them.
    pub skips: String,
    /// Both streams as they came.
    pub output: String,
    /// How long it took.
    pub wall: Duration,
    /// CPU time of it and of all processes below it that it waited for.
    pub cpu: Duration,
}

/// Runs a command to its end, so much nicer than this process. What is left of its process group
/// afterwards is killed. Where the command was killed it may revert what it has changed first. Its
/// output is kept in memory: a full disk hides nothing.
pub fn run(command: &mut Command, nicer: i32, longest: Duration) -> Result<Ended> {
    let output = memory("output")?;
    let skips = memory("skips")?;
    // The test opens this process's file: a number that it inherits would pass on to its programs.
    let path = format!(
        "/proc/{}/fd/{}",
        std::process::id(),
        skips.as_fd().as_raw_fd()
    );
    command
        .env(SKIPS, path)
        .stdin(Stdio::null())
        .stdout(output.try_clone()?)
        .stderr(output.try_clone()?)
        .process_group(0);
    // SAFETY: system calls alone between fork and exec. The thread that starts a test waits for it.
    unsafe {
        command.pre_exec(move || {
            rustix::process::nice(nicer)?;
            // A shell ignores them for what it starts in the background, and this program blocks
            // them. Both are inherited.
            for signal in interrupted::SIGNALS {
                libc::signal(signal, libc::SIG_DFL);
            }
            interrupted::mask(libc::SIG_UNBLOCK)?;
            let killed = Some(Signal::KILL);
            rustix::process::set_parent_process_death_signal(killed).map_err(Into::into)
        });
    }
    let began = Instant::now();
    let pid = interrupted::begin(command)?;
    let (mut late, mut pause) = (false, Duration::from_micros(500));
    while !ended(pid)? {
        if began.elapsed() > longest {
            late = true;
            let _ = rustix::process::kill_process(pid, Signal::KILL);
        }
        std::thread::sleep(pause);
        pause = (pause * 2).min(Duration::from_millis(20));
    }
    let wall = began.elapsed();
    // It is not waited for yet, so its number is still its own.
    if was_killed(pid)? {
        let _ = rustix::process::kill_process_group(pid, Signal::TERM);
        let told = Instant::now();
        while has_others(pid) && told.elapsed() < interrupted::PATIENCE {
            std::thread::sleep(Duration::from_millis(20));
        }
    }
    interrupted::end(pid);
    let _ = rustix::process::kill_process_group(pid, Signal::KILL);
    let (status, cpu) = reaped(pid)?;
    let why = match status.signal() {
        _ if late => Some(format!("not ended after {longest:?}")),
        Some(signal) => Some(format!("ended by signal {signal}")),
        None => None,
    };
    Ok(Ended {
        passed: status.success(),
        why,
        skips: text(skips)?,
        output: text(output)?,
        wall,
        cpu,
    })
}

fn memory(name: &str) -> Result<File> {
    Ok(rustix::fs::memfd_create(name, MemfdFlags::CLOEXEC)?.into())
}

fn text(mut file: File) -> Result<String> {
    let mut bytes = Vec::new();
    file.rewind()?;
    file.read_to_end(&mut bytes)?;
    Ok(String::from_utf8_lossy(&bytes).into_owned())
}

/// How it has ended, if it has; it stays to be waited for.
fn seen(pid: Pid) -> Result<Option<WaitIdStatus>> {
    let options = WaitIdOptions::EXITED | WaitIdOptions::NOHANG | WaitIdOptions::NOWAIT;
    Ok(rustix::process::waitid(WaitId::Pid(pid), options)?)
}

fn ended(pid: Pid) -> Result<bool> {
    Ok(seen(pid)?.is_some())
}

fn was_killed(pid: Pid) -> Result<bool> {
    Ok(seen(pid)?.is_some_and(|status| !status.exited()))
}

/// Whether a group has processes besides its first one that have not ended.
fn has_others(group: Pid) -> bool {
    let group = group.as_raw_nonzero().get();
    let belongs = |entry: std::fs::DirEntry| {
        let pid: i32 = entry.file_name().to_str()?.parse().ok()?;
        let stat = std::fs::read_to_string(entry.path().join("stat")).ok()?;
        // State, parent, group.
        let (_, rest) = stat.rsplit_once(") ")?;
        let mut words = rest.split(' ');
        let ended = words.next() == Some("Z");
        let of: i32 = words.nth(1)?.parse().ok()?;
        Some(of == group && pid != group && !ended)
    };
    let all = std::fs::read_dir("/proc").into_iter().flatten().flatten();
    all.filter_map(belongs).any(|belongs| belongs)
}

/// Waits for an ended process: its status and CPU time.
fn reaped(pid: Pid) -> Result<(ExitStatus, Duration)> {
    let mut status = 0;
    // SAFETY: all zeros is a value of this structure of numbers.
    let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
    // SAFETY: both pointers are to live values of the types that wait4(2) writes.
    let waited = unsafe { libc::wait4(pid.as_raw_nonzero().get(), &mut status, 0, &mut usage) };
    if waited < 0 {
        return Err(std::io::Error::last_os_error());
    }
    let seconds = |time: libc::timeval| time.tv_sec as f64 + time.tv_usec as f64 / 1e6;
    let cpu = Duration::from_secs_f64(seconds(usage.ru_utime) + seconds(usage.ru_stime));
    Ok((ExitStatus::from_raw(status), cpu))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shell(script: &str, longest: Duration) -> Ended {
        run(Command::new("sh").args(["-c", script]), 0, longest).unwrap()
    }

    const LONG: Duration = Duration::from_secs(60);

    #[test]
    fn it_is_as_much_nicer_as_asked() {
        let own = rustix::process::getpriority_process(None).unwrap();
        let done = run(&mut Command::new("nice"), 3, Duration::from_secs(9)).unwrap();
        assert_eq!(done.output.trim(), (own + 3).min(19).to_string());
    }

    #[test]
    fn output_and_skips_of_a_process_are_kept_apart() {
        let ended = shell(
            "echo out; echo err >&2; echo all no root >>$QUELL_TEST_SKIPS",
            LONG,
        );
        assert!(ended.passed && ended.why.is_none(), "{ended:?}");
        assert_eq!(ended.output, "out\nerr\n");
        assert_eq!(ended.skips, "all no root\n");
    }

    #[test]
    fn a_process_that_fails_or_is_killed_is_told() {
        let ended = shell("exit 3", LONG);
        assert!(!ended.passed && ended.why.is_none(), "{ended:?}");
        let ended = shell("kill -9 $$", LONG);
        assert!(!ended.passed, "{ended:?}");
        assert_eq!(ended.why.as_deref(), Some("ended by signal 9"));
    }

    #[test]
    fn what_a_killed_test_has_started_may_revert_something() {
        let folder = tempfile::tempdir().unwrap();
        let script = format!(
            "cd {}; (trap 'sleep 0.2; touch reverted; exit' TERM; touch ready; \
             while :; do sleep 0.01; done) & while [ ! -e ready ]; do sleep 0.01; done; kill -9 $$",
            folder.path().display()
        );
        let ended = shell(&script, LONG);
        assert_eq!(ended.why.as_deref(), Some("ended by signal 9"));
        assert!(folder.path().join("reverted").exists());
    }

    #[test]
    fn a_process_that_does_not_end_is_killed_with_its_group() {
        // On a busy machine the shell takes its time before it says who waits.
        let killed = [200, 2_000, 20_000].map(Duration::from_millis).into_iter();
        let mut killed = killed.map(|limit| shell("sleep 600 & echo $!; wait", limit));
        let ended = killed.find(|ended| !ended.output.is_empty()).unwrap();
        assert!(!ended.passed, "{ended:?}");
        let left = ended
            .output
            .trim()
            .parse()
            .ok()
            .and_then(Pid::from_raw)
            .unwrap();
        let gone = || rustix::process::test_kill_process(left).is_err() || zombie(left);
        let began = Instant::now();
        while !gone() {
            assert!(began.elapsed() < LONG, "{left:?} is left");
            std::thread::sleep(Duration::from_millis(5));
        }
    }

    fn zombie(pid: Pid) -> bool {
        let stat = std::fs::read_to_string(format!("/proc/{}/stat", pid.as_raw_nonzero()));
        stat.is_ok_and(|stat| stat.contains(") Z "))
    }
}
