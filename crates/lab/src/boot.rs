//! One boot: QEMU from its start to its end. What the guest reports is passed on, and the host's
//! requests are sent to it.
//!
//! Between guest and host are four ports (virtio-serial): the command's output, its errors, the
//! files it left in `/out` (a `tar` archive), and control. On the control port the guest reports
//! `started`, `ended STATUS`, or `failed REASON`. The host sends `stop SIGNAL`, which goes to the
//! command and all processes it has started. When the host's end closes, the guest powers off.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, Sender, channel};
use std::time::{Duration, Instant};

use rustix::process::{Signal, set_parent_process_death_signal};

use crate::Error;
use crate::folder::{Folder, at};
use crate::vm::{Lab, Talk};

/// The longest time from QEMU's start to the command's. Normally it is ten seconds, on a busy host
/// much longer.
const BOOT_LIMIT: Duration = Duration::from_secs(600);
/// The CPU time that a boot may take, for each of the guest's CPUs. Normally it is ten seconds of
/// two CPUs.
const BOOT_TIME: Duration = Duration::from_secs(30);
/// How long a command may take after a request to stop. It may have to revert what it did, and to
/// write what it found.
const STOP_LIMIT: Duration = Duration::from_secs(60);
/// How often it is checked whether the machine runs and whether to stop.
const LOOK: Duration = Duration::from_millis(200);
/// The ports, in the order of the module's header.
pub(crate) const PORTS: [&str; 4] = ["control", "output", "errors", "files"];

/// Why there is no outcome: the command had not started, so that another accelerator may succeed;
/// or it failed for good.
pub(crate) enum Stopped {
    Before(Error),
    For(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Before(error)
    }
}

/// What comes in while the machine runs.
enum Incoming {
    /// A line from the control port.
    Line(String),
    /// The command's output has no reader any more.
    Deaf,
}

/// How the command ended.
struct Ended {
    status: i32,
    /// The time from QEMU's start to the command's.
    booted: Duration,
    /// The message that its time was over, if it was stopped for that.
    late: Option<String>,
}

/// Why a running machine is ended.
struct Failed {
    /// Whether the command had started.
    started: bool,
    /// Whether another try may succeed.
    again: bool,
    reason: String,
}

impl Lab {
    /// Boots and waits for the end. Returns the command's status, and how long it took until the
    /// command started.
    pub(crate) fn boot(
        &self,
        mut command: Command,
        folder: &Folder,
        talk: &mut Talk<'_>,
    ) -> Result<(i32, Duration), Stopped> {
        let listeners = PORTS.map(|port| {
            let _ = fs::remove_file(folder.path(port));
            UnixListener::bind(folder.path(port)).map_err(|e| at(&folder.path(port), e))
        });
        let [control, to_output, to_errors, files] = listeners;
        let log = fs::File::create(folder.path("qemu")).map_err(|e| at(&folder.path("qemu"), e));
        let began = Instant::now();
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log?)
            // A signal from the terminal goes to this process only, which passes it on to the
            // command.
            .process_group(0);
        // SAFETY: between fork and exec there is one system call.
        unsafe {
            command.pre_exec(|| Ok(set_parent_process_death_signal(Some(Signal::KILL))?));
        }
        let child = command.spawn();
        let mut machine = Machine(child.map_err(|e| Error::Unavailable(format!("QEMU: {e}")))?);
        // All four connect at QEMU's start, or none does.
        let accepted = |listener: Result<UnixListener, Error>, machine: &mut Machine| {
            let listener = listener?;
            machine.connected(&listener).map_err(|reason| {
                let said = fs::read_to_string(folder.path("qemu")).unwrap_or_default();
                Error::Failed(format!("QEMU {reason}: {}", last_lines(&said, 3)))
            })
        };
        let mut control = accepted(control, &mut machine)?;
        let mut to_output = accepted(to_output, &mut machine)?;
        let mut to_errors = accepted(to_errors, &mut machine)?;
        let mut files = accepted(files, &mut machine)?;
        let heard = control
            .try_clone()
            .map_err(|e| at(&folder.path("control"), e))?;
        let (tell, told) = channel();
        let Talk {
            output,
            errors,
            stop,
        } = talk;
        // From here on signals are for the command. The caller's signal handling has to begin
        // before there are other threads, which would get the signals.
        if let Some(signal) = stop() {
            return Err(Stopped::For(Error::Failed(format!(
                "stopped by signal {signal}"
            ))));
        }
        let done = std::thread::scope(|threads| {
            let deaf = tell.clone();
            threads.spawn(move || pass_on(&mut to_output, output, Some(&deaf)));
            threads.spawn(move || pass_on(&mut to_errors, errors, None));
            let archive = threads.spawn(move || {
                let mut archive = Vec::new();
                files.read_to_end(&mut archive).map(|_| archive)
            });
            threads.spawn(move || {
                for line in BufReader::new(heard).lines().map_while(Result::ok) {
                    if tell.send(Incoming::Line(line)).is_err() {
                        break;
                    }
                }
            });
            let done = self.follow(&mut machine, &told, &mut control, stop, began);
            // The ports close with the machine, whatever happened, and the threads end.
            machine.end(done.is_ok());
            let archive = archive.join().ok().and_then(Result::ok).unwrap_or_default();
            done.map(|done| (done, archive))
        });
        let said = ["qemu", "console"].map(|name| fs::read(folder.path(name)).unwrap_or_default());
        if let Some(path) = &self.console {
            let mut file = quell_files::replace(path).map_err(|e| at(path, e))?;
            file.write_all(&said.concat()).map_err(|e| at(path, e))?;
        }
        let (ended, archive) = done.map_err(|failed| {
            let console = String::from_utf8_lossy(&said.concat()).replace('\r', "");
            let error = Error::Failed(format!(
                "{}; its last lines:\n{}",
                failed.reason,
                last_lines(&console, 15)
            ));
            if failed.started || !failed.again {
                Stopped::For(error)
            } else {
                Stopped::Before(error)
            }
        })?;
        if let Some(out) = &self.out {
            unpack(&archive, out).map_err(Stopped::For)?;
        }
        match ended.late {
            Some(reason) => Err(Stopped::For(Error::Failed(reason))),
            None => Ok((ended.status, ended.booted)),
        }
    }

    /// Waits for the guest's reports, and passes on the caller's requests to stop.
    fn follow(
        &self,
        machine: &mut Machine,
        told: &Receiver<Incoming>,
        control: &mut UnixStream,
        stop: &mut dyn FnMut() -> Option<i32>,
        began: Instant,
    ) -> Result<Ended, Failed> {
        let (mut booted, mut late) = (None, None);
        let mut until = (began + BOOT_LIMIT, "the machine did not boot", BOOT_LIMIT);
        let mut stopping = None;
        loop {
            let started = booted.is_some();
            let fail = |reason: String| Failed {
                started,
                again: stopping.is_none(),
                reason,
            };
            if let Some(signal) = stop() {
                if !started || stopping.is_some() {
                    return Err(Failed {
                        started,
                        again: false,
                        reason: format!("stopped by signal {signal}"),
                    });
                }
                stopping = Some(signal);
                until = tell_to_stop(control, signal);
                continue;
            }
            let left = until.0.saturating_duration_since(Instant::now());
            match told.recv_timeout(left.min(LOOK)) {
                Ok(Incoming::Deaf) if stopping.is_none() && started => {
                    stopping = Some(SIGPIPE);
                    tell_to_stop(control, SIGPIPE);
                    // Many programs ignore SIGPIPE and would go on writing without a reader.
                    until = tell_to_stop(control, SIGTERM);
                }
                Ok(Incoming::Deaf) => {}
                Ok(Incoming::Line(line)) => match line.split_once(' ').unwrap_or((&line, "")) {
                    ("started", _) => {
                        booted = Some(began.elapsed());
                        let limit = self.timeout.unwrap_or(FOREVER);
                        until = (Instant::now() + limit, "the command did not end", limit);
                    }
                    ("ended", status) => {
                        let status = status
                            .parse()
                            .map_err(|_| fail(format!("the guest told '{line}'")))?;
                        return Ok(Ended {
                            status,
                            booted: booted.unwrap_or_default(),
                            late,
                        });
                    }
                    ("failed", reason) => {
                        return Err(Failed {
                            started,
                            again: false,
                            reason: format!("the guest: {reason}"),
                        });
                    }
                    _ => return Err(fail(format!("the guest told '{line}'"))),
                },
                Err(RecvTimeoutError::Disconnected) => {
                    return Err(fail(
                        "the machine stopped before the command ended".to_owned(),
                    ));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let (_, what, limit) = until;
                    let reason = format!("{what} within {} s", limit.as_secs());
                    if !started || stopping.is_some() {
                        return Err(fail(late.unwrap_or(reason)));
                    }
                    // What the command has found until now is worth having.
                    (stopping, late) = (Some(SIGTERM), Some(reason));
                    until = tell_to_stop(control, SIGTERM);
                }
                Err(RecvTimeoutError::Timeout) => {
                    machine.check().map_err(fail)?;
                    if !started && machine.cpu_time() > BOOT_TIME * self.guest.cpus {
                        let time = BOOT_TIME.as_secs() * u64::from(self.guest.cpus);
                        return Err(fail(format!(
                            "the machine did not boot in {time} s of CPU time"
                        )));
                    }
                }
            }
        }
    }
}

/// As good as no limit, and it can be added to a point in time.
const FOREVER: Duration = Duration::from_secs(100 * 365 * 86400);
const SIGPIPE: i32 = 13;
const SIGTERM: i32 = 15;

/// Sends a stop. Returns until when the command has to end, and what is wrong if it does not.
fn tell_to_stop(control: &mut UnixStream, signal: i32) -> (Instant, &'static str, Duration) {
    // The end of the guest is noticed elsewhere.
    let _ = writeln!(control, "stop {signal}");
    let what = "the command was told to stop and did not end";
    (Instant::now() + STOP_LIMIT, what, STOP_LIMIT)
}

/// Copies output as it comes. A closed listener is reported once. The rest is still read, so that
/// the guest does not block.
fn pass_on(from: &mut UnixStream, to: &mut (dyn Write + Send), gone: Option<&Sender<Incoming>>) {
    let mut buffer = [0; 16 << 10];
    let mut listening = true;
    while let Ok(n @ 1..) = from.read(&mut buffer) {
        if listening
            && to
                .write_all(&buffer[..n])
                .and_then(|()| to.flush())
                .is_err()
        {
            listening = false;
            if let Some(gone) = gone {
                let _ = gone.send(Incoming::Deaf);
            }
        }
    }
}

/// The QEMU process, which is killed on drop.
struct Machine(Child);

impl Machine {
    /// Waits until QEMU has connected, which it does before the guest runs.
    fn connected(&mut self, listener: &UnixListener) -> Result<UnixStream, String> {
        listener.set_nonblocking(true).map_err(|e| e.to_string())?;
        let began = Instant::now();
        while began.elapsed() < Duration::from_secs(30) {
            match listener.accept() {
                Ok((stream, _)) => {
                    stream.set_nonblocking(false).map_err(|e| e.to_string())?;
                    return Ok(stream);
                }
                Err(e) if e.kind() == std::io::ErrorKind::WouldBlock => {}
                Err(e) => return Err(e.to_string()),
            }
            self.check()?;
            std::thread::sleep(Duration::from_millis(5));
        }
        Err("does not connect to its ports".to_owned())
    }

    fn check(&mut self) -> Result<(), String> {
        match self.0.try_wait() {
            Ok(None) => Ok(()),
            Ok(Some(status)) => Err(format!("ended with {status}")),
            Err(e) => Err(e.to_string()),
        }
    }

    /// The CPU time that QEMU has taken; zero where the kernel does not report it.
    fn cpu_time(&self) -> Duration {
        let stat = fs::read_to_string(format!("/proc/{}/stat", self.0.id())).unwrap_or_default();
        // After the name, which may have spaces: the 12th and 13th field, in hundredths of a
        // second.
        let fields = stat.rsplit(')').next().unwrap_or_default();
        let ticks = fields.split_whitespace().skip(11).take(2);
        Duration::from_millis(10 * ticks.filter_map(|n| n.parse::<u64>().ok()).sum::<u64>())
    }

    /// Ends QEMU: waits a while for a machine that was asked to power off (`by_itself`), then kills
    /// it.
    fn end(&mut self, by_itself: bool) {
        let began = Instant::now();
        while by_itself && self.check().is_ok() && began.elapsed() < Duration::from_secs(20) {
            std::thread::sleep(Duration::from_millis(5));
        }
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Drop for Machine {
    fn drop(&mut self) {
        self.end(false);
    }
}

fn unpack(archive: &[u8], out: &Path) -> Result<(), Error> {
    quell_files::folder(out).map_err(|e| at(out, e))?;
    let mut tar = Command::new("tar")
        .args(["-x", "-m", "--no-same-owner", "-C"])
        .arg(out)
        .stdin(Stdio::piped())
        .spawn()
        .map_err(|e| Error::Unavailable(format!("tar: {e}")))?;
    let written = tar
        .stdin
        .take()
        .map_or(Ok(()), |mut to| to.write_all(archive));
    let status = tar.wait();
    match (written, status) {
        (Ok(()), Ok(status)) if status.success() => Ok(()),
        _ => Err(Error::Failed(format!(
            "{}: what the guest left could not be unpacked",
            out.display()
        ))),
    }
}

fn last_lines(text: &str, n: usize) -> String {
    let lines: Vec<_> = text
        .lines()
        .filter(|line| !line.trim().is_empty())
        .collect();
    lines[lines.len().saturating_sub(n)..].join("\n")
}
