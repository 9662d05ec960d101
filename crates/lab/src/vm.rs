//! The virtual machine: QEMU with a Debian kernel and an image made for the run, a command in it, what it says and leaves
//! brought out.
//!
//! Between guest and host are four ports (virtio-serial): the command's output, its errors, the files it left in `/out` (an
//! archive as `tar` writes it), and control: `started`, `ended STATUS`, or `failed REASON`.

use std::fs;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use quell_core::units::{Bytes, Rate};

use crate::Error;
use crate::emul::{Report, Topology};
use crate::packages::{Kernel, Packages};
use crate::profile::Profile;

/// The swap space.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Swap {
    /// None.
    None,
    /// In a file of the host's, as a disk of its own.
    File,
    /// In memory, compressed.
    Zram,
}

/// Which of the kernel's ways to age pages.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Lru {
    /// Active and inactive lists.
    Classic,
    /// Generations (MGLRU).
    Generations,
}

/// What runs the guest's instructions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Accelerator {
    /// KVM on bare metal where it can be had and no processor is emulated, else emulation.
    Auto,
    /// The processor.
    Kvm,
    /// QEMU.
    Tcg,
}

/// A machine to be booted and what to do there.
#[derive(Clone, Debug)]
pub struct Lab {
    /// The beginning of the kernel's release.
    pub kernel: String,
    /// The emulated processor: a profile's name or file; none leaves out resource control and counters.
    pub profile: Option<String>,
    /// Hardware threads in all.
    pub cpus: u32,
    /// Sockets, each with a last-level cache of its own.
    pub sockets: u32,
    /// Two threads per core.
    pub smt: bool,
    /// Memory.
    pub memory: Bytes,
    /// Swap.
    pub swap: Swap,
    /// Its size.
    pub swap_size: Bytes,
    /// An empty disk of so much, mounted at `/disk`.
    pub disk: Option<Bytes>,
    /// The rate of the disks together.
    pub disk_rate: Option<Rate>,
    /// How pages are aged; none leaves it as the kernel has it.
    pub lru: Option<Lru>,
    /// What runs it.
    pub accelerator: Accelerator,
    /// More words for the kernel's command line.
    pub append: Vec<String>,
    /// Programs, files and folders of this machine that the guest has at the same places, or with `=PLACE` there (`quell`: this
    /// program, at `/bin/quell`).
    pub with: Vec<String>,
    /// Gets what the command leaves in `/out`.
    pub out: Option<PathBuf>,
    /// At most so long after the start.
    pub timeout: Option<Duration>,
    /// Gets what the guest's kernel and QEMU say.
    pub console: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// What came of it.
#[derive(Debug)]
pub struct Outcome {
    /// The command's status, as a shell tells it.
    pub status: i32,
    /// What the emulated processor saw.
    pub report: Option<Report>,
    /// From QEMU's start to the command's.
    pub booted: Duration,
    /// The kernel's release.
    pub release: String,
}

/// From QEMU's start to the command's; ten seconds where nothing is wrong.
const BOOT_LIMIT: Duration = Duration::from_secs(90);
const TCG: &str = "tcg,thread=multi";
/// What takes emulated machines seconds and is of no use there: mitigations of Spectre, the kernel's tests of its own
/// cryptography, certificates of modules.
const QUICKER: &str = "mitigations=off cryptomgr.notests initcall_blacklist=jent_mod_init,crypto_kdf108_init,\
    load_system_certificate_list,bpf_tcp_ca_kfunc_init";
const PORTS: [&str; 4] = ["control", "output", "errors", "files"];

impl Lab {
    /// How the CPUs hang together.
    ///
    /// # Errors
    /// Where they cannot.
    pub fn topology(&self) -> Result<Topology, Error> {
        let threads = if self.smt { 2 } else { 1 };
        let topology = Topology {
            sockets: self.sockets,
            cores: self.cpus / threads / self.sockets.max(1),
            threads,
        };
        if topology.cpus() == self.cpus && (1..=64).contains(&self.cpus) {
            return Ok(topology);
        }
        Err(Error::Input(format!(
            "{} CPUs are not {} sockets of whole cores of {threads} threads, up to 64 CPUs in all",
            self.cpus, self.sockets
        )))
    }

    /// Boots, runs the command, and comes back when the machine is off. `output` and `errors` get what the command says as it
    /// says it.
    ///
    /// # Errors
    /// Where the machine cannot be had, does not come to the command or does not come back from it; a command that fails is
    /// no error.
    pub fn run(
        &self,
        packages: &Packages,
        output: &mut (dyn Write + Send),
        errors: &mut (dyn Write + Send),
    ) -> Result<Outcome, Error> {
        let topology = self.topology()?;
        let profile = self.profile.as_deref().map(Profile::load).transpose()?;
        if profile.is_some() && self.accelerator == Accelerator::Kvm {
            return Err(Error::Input(
                "an emulated processor runs on tcg, not on kvm: leave out one of the two"
                    .to_owned(),
            ));
        }
        let plugin = profile.as_ref().map(|_| plugin()).transpose()?;
        let qemu = packages.qemu()?;
        let kernel = packages.kernel(&self.kernel)?;
        let image = self.image(packages, &kernel, profile.as_ref())?;
        let folder = Folder::new(packages.folder())?;
        folder.write("initramfs", &image.archive())?;
        if let Some(profile) = &profile {
            let text = toml::to_string(profile).map_err(|e| Error::Failed(e.to_string()))?;
            folder.write("profile.toml", text.as_bytes())?;
        }
        let mut last = None;
        for accelerator in self.accelerators(profile.is_some()) {
            let mut command = program(&qemu);
            self.machine(&mut command, &folder, &kernel, topology, accelerator)?;
            if let (Some(plugin), Some(profile)) = (&plugin, &profile) {
                emulated(&mut command, &folder, topology, plugin, profile);
            }
            match self.boot(command, &folder, output, errors) {
                Ok((status, booted)) => {
                    let report = fs::read(folder.path("report.json")).ok();
                    return Ok(Outcome {
                        status,
                        report: report.and_then(|r| serde_json::from_slice(&r).ok()),
                        booted,
                        release: kernel.release,
                    });
                }
                Err(Stopped::Before(e)) => last = Some(e),
                Err(Stopped::For(e)) => return Err(e),
            }
        }
        Err(last.unwrap_or_else(|| Error::Failed("no accelerator".to_owned())))
    }

    /// In the order in which they are tried: a machine that does not come to its command is booted another way.
    fn accelerators(&self, emulated: bool) -> Vec<&'static str> {
        let bare = || {
            let cpu = fs::read_to_string("/proc/cpuinfo").unwrap_or_default();
            !cpu.contains(" hypervisor") && fs::File::open("/dev/kvm").is_ok()
        };
        match self.accelerator {
            // Nested KVM may fail or bring the machine to a stand.
            Accelerator::Auto if !emulated && bare() => vec!["kvm", TCG],
            Accelerator::Kvm => vec!["kvm"],
            // Seen: one boot in some twenty stood still, with the CPUs busy.
            Accelerator::Auto | Accelerator::Tcg => vec![TCG, TCG],
        }
    }

    fn machine(
        &self,
        command: &mut Command,
        folder: &Folder,
        kernel: &Kernel,
        topology: Topology,
        accelerator: &str,
    ) -> Result<(), Error> {
        let cpu = if accelerator == "kvm" { "host" } else { "max" };
        let Topology {
            sockets,
            cores,
            threads,
        } = topology;
        let console = folder.path("console");
        command.args([
            "-accel",
            accelerator,
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
        ]);
        command.args(["-cpu", cpu, "-m", &format!("{}M", self.memory.0 >> 20)]);
        command.arg("-smp");
        command.arg(format!(
            "{},sockets={sockets},cores={cores},threads={threads}",
            self.cpus
        ));
        command
            .arg("-serial")
            .arg(format!("file:{}", console.display()));
        command.arg("-kernel").arg(&kernel.image);
        command.arg("-initrd").arg(folder.path("initramfs"));
        command.args(["-device", "virtio-serial-pci"]);
        for port in PORTS {
            let socket = folder.path(port);
            command
                .arg("-chardev")
                .arg(format!("socket,id={port},path={}", socket.display()));
            command
                .arg("-device")
                .arg(format!("virtserialport,chardev={port},name=quell.{port}"));
        }
        // The kernel calls them vda and vdb, in this order.
        let disks = [
            ("disk", self.disk),
            ("swap", (self.swap == Swap::File).then_some(self.swap_size)),
        ];
        for (name, size) in disks
            .into_iter()
            .filter_map(|(name, size)| Some((name, size?)))
        {
            folder.write(name, &[])?;
            let path = folder.path(name);
            let file = fs::OpenOptions::new().write(true).open(&path);
            file.and_then(|f| f.set_len(size.0))
                .map_err(|e| at(&path, e))?;
            let rate = self.disk_rate.map_or(String::new(), |rate| {
                format!(",throttling.group=disks,throttling.bps-total={}", rate.0)
            });
            command.arg("-drive");
            command.arg(format!(
                "file={},format=raw,if=virtio,cache=unsafe{rate}",
                path.display()
            ));
        }
        let mut words = vec![
            "console=ttyS0 loglevel=4 panic=-1 psi=1".to_owned(),
            QUICKER.to_owned(),
        ];
        if self.profile.is_some() {
            words.push("apic_extnmi=all nmi_watchdog=0".to_owned());
        }
        words.extend(self.append.iter().cloned());
        command.arg("-append").arg(words.join(" "));
        Ok(())
    }

    fn boot(
        &self,
        mut command: Command,
        folder: &Folder,
        output: &mut (dyn Write + Send),
        errors: &mut (dyn Write + Send),
    ) -> Result<(i32, Duration), Stopped> {
        let listeners = PORTS.map(|port| {
            let _ = fs::remove_file(folder.path(port));
            UnixListener::bind(folder.path(port)).map_err(|e| at(&folder.path(port), e))
        });
        let [control, to_output, to_errors, files] = listeners;
        let log = fs::File::create(folder.path("qemu")).map_err(|e| at(&folder.path("qemu"), e));
        let began = Instant::now();
        let child = command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(log?)
            .spawn();
        let mut machine = Machine(child.map_err(|e| Error::Unavailable(format!("QEMU: {e}")))?);
        // All four connect at its start, or none.
        let accepted = |listener: Result<UnixListener, Error>, machine: &mut Machine| {
            let listener = listener?;
            machine.connected(&listener).map_err(|reason| {
                let said = fs::read_to_string(folder.path("qemu")).unwrap_or_default();
                Error::Failed(format!("QEMU {reason}: {}", last_lines(&said, 3)))
            })
        };
        let control = accepted(control, &mut machine)?;
        let mut to_output = accepted(to_output, &mut machine)?;
        let mut to_errors = accepted(to_errors, &mut machine)?;
        let mut files = accepted(files, &mut machine)?;
        let (tell, told) = channel();
        let done = std::thread::scope(|threads| {
            threads.spawn(|| std::io::copy(&mut to_output, output));
            threads.spawn(|| std::io::copy(&mut to_errors, errors));
            let archive = threads.spawn(|| {
                let mut archive = Vec::new();
                files.read_to_end(&mut archive).map(|_| archive)
            });
            threads.spawn(move || {
                for line in BufReader::new(control).lines().map_while(Result::ok) {
                    if tell.send(line).is_err() {
                        break;
                    }
                }
            });
            let done = self.follow(&mut machine, &told, began);
            // Whatever happened, the ports close with the machine, and the threads end.
            machine.end(done.is_ok());
            let archive = archive.join().ok().and_then(Result::ok).unwrap_or_default();
            done.map(|done| (done, archive))
        });
        let said = ["qemu", "console"].map(|name| fs::read(folder.path(name)).unwrap_or_default());
        if let Some(path) = &self.console {
            fs::write(path, said.concat()).map_err(|e| at(path, e))?;
        }
        let ((status, booted), archive) = done.map_err(|(started, reason)| {
            let console = String::from_utf8_lossy(&said.concat()).replace('\r', "");
            let error = Error::Failed(format!(
                "{reason}; its last lines:\n{}",
                last_lines(&console, 15)
            ));
            if started {
                Stopped::For(error)
            } else {
                Stopped::Before(error)
            }
        })?;
        if let Some(out) = &self.out {
            unpack(&archive, out).map_err(Stopped::For)?;
        }
        Ok((status, booted))
    }

    /// Waits for what the guest tells. On failure, whether the command had started.
    fn follow(
        &self,
        machine: &mut Machine,
        told: &Receiver<String>,
        began: Instant,
    ) -> Result<(i32, Duration), (bool, String)> {
        let mut booted = None;
        loop {
            let limit = match booted {
                None => Some(BOOT_LIMIT),
                Some(_) => self.timeout,
            };
            let left = limit.map_or(Duration::MAX, |l| l.saturating_sub(began.elapsed()));
            let started = booted.is_some();
            match told.recv_timeout(left.min(Duration::from_millis(200))) {
                Ok(line) => match line.split_once(' ').unwrap_or((&line, "")) {
                    ("started", _) => booted = Some(began.elapsed()),
                    ("ended", status) => {
                        let status = status
                            .parse()
                            .map_err(|_| (started, format!("the guest told '{line}'")))?;
                        return Ok((status, booted.unwrap_or_default()));
                    }
                    ("failed", reason) => return Err((true, format!("the guest: {reason}"))),
                    _ => return Err((started, format!("the guest told '{line}'"))),
                },
                Err(RecvTimeoutError::Disconnected) => {
                    return Err((
                        started,
                        "the machine stopped before the command ended".to_owned(),
                    ));
                }
                Err(RecvTimeoutError::Timeout) if left.is_zero() => {
                    let what = if started {
                        "the command did not end"
                    } else {
                        "the machine did not boot"
                    };
                    let limit = limit.unwrap_or_default().as_secs();
                    return Err((started, format!("{what} within {limit} s")));
                }
                Err(RecvTimeoutError::Timeout) => machine.check().map_err(|e| (started, e))?,
            }
        }
    }
}

/// Why there is no outcome: before the command had started, when another accelerator may do better, or for good.
enum Stopped {
    Before(Error),
    For(Error),
}

impl From<Error> for Stopped {
    fn from(error: Error) -> Self {
        Self::Before(error)
    }
}

/// QEMU; it ends with this.
struct Machine(Child);

impl Machine {
    /// Waits until QEMU has connected; it does before anything runs.
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

    /// By itself, if it was told to power off, which takes it a moment; else at once.
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

/// A folder for one run.
struct Folder(PathBuf);

impl Folder {
    fn new(within: &Path) -> Result<Self, Error> {
        let path = within.join(format!("run-{}-{}", std::process::id(), unique()));
        fs::create_dir_all(&path).map_err(|e| at(&path, e))?;
        Ok(Self(path))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }

    fn write(&self, name: &str, bytes: &[u8]) -> Result<(), Error> {
        fs::write(self.path(name), bytes).map_err(|e| at(&self.path(name), e))
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        let _ = fs::remove_dir_all(&self.0);
    }
}

/// A number no other run of this process has.
fn unique() -> u64 {
    use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
    static NEXT: AtomicU64 = AtomicU64::new(0);
    NEXT.fetch_add(1, Relaxed)
}

/// QEMU with the libraries it was built with, whatever this machine has.
fn program(root: &Path) -> Command {
    let mut command = Command::new(root.join("usr/lib64/ld-linux-x86-64.so.2"));
    command
        .arg("--library-path")
        .arg(root.join("usr/lib/x86_64-linux-gnu"));
    command.arg(root.join("usr/bin/qemu-system-x86_64"));
    for share in ["usr/share/qemu", "usr/share/seabios"] {
        command.arg("-L").arg(root.join(share));
    }
    command
}

fn emulated(
    command: &mut Command,
    folder: &Folder,
    topology: Topology,
    plugin: &Path,
    profile: &Profile,
) {
    let Topology {
        sockets,
        cores,
        threads,
    } = topology;
    let qmp = folder.path("qmp");
    // Of several, the last counts.
    command.arg("-cpu").arg(&profile.cpu);
    command
        .arg("-qmp")
        .arg(format!("unix:{},server=on,wait=off", qmp.display()));
    command.arg("-plugin").arg(format!(
        "{},profile={},sockets={sockets},cores={cores},threads={threads},qmp={},report={}",
        plugin.display(),
        folder.path("profile.toml").display(),
        qmp.display(),
        folder.path("report.json").display(),
    ));
}

/// QEMU's plugin: `QUELL_LAB_PLUGIN`, else beside this program.
fn plugin() -> Result<PathBuf, Error> {
    const NAME: &str = "libquell_lab_plugin.so";
    if let Some(path) = std::env::var_os("QUELL_LAB_PLUGIN") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().unwrap_or_default();
    // A test program is in a folder of its own below the others.
    let mut beside = program
        .ancestors()
        .skip(1)
        .take(2)
        .map(|dir| dir.join(NAME));
    beside.find(|path| path.exists()).ok_or_else(|| {
        Error::Unavailable(format!(
            "{NAME} is not beside {}: build it with cargo build --release -p quell-lab-plugin, or name it in QUELL_LAB_PLUGIN",
            program.display()
        ))
    })
}

fn unpack(archive: &[u8], out: &Path) -> Result<(), Error> {
    fs::create_dir_all(out).map_err(|e| at(out, e))?;
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

fn at(path: &Path, e: std::io::Error) -> Error {
    Error::Failed(format!("{}: {e}", path.display()))
}
