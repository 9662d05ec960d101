//! The virtual machine: QEMU with a Debian kernel, an image made for the run, and a command in it.
//! The command's output and files are brought out.

use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use quell_kernel::cpuinfo::Cpuinfo;
use quell_kernel::{root, vm};
use quell_policy::lab::{Accelerator, Guest, Swap};
use quell_types::units::Bytes;

use crate::boot::{PORTS, Stopped};
use crate::emul::{Report, Topology};
use crate::folder::{Folder, at};
use crate::packages::{Kernel, Packages};
use crate::profile::Profile;
use crate::{Error, arch};

/// A machine to boot, and what to do there.
#[derive(Clone, Debug, Default)]
pub struct Lab {
    /// The machine. Each entry of its `with` is a path of this machine, a program's name, or
    /// `quell`: this program, at `/bin/quell`.
    pub guest: Guest,
    /// The folder that gets what the command leaves in `/out`.
    pub out: Option<PathBuf>,
    /// The longest time that the command may take. `None`: no limit.
    pub timeout: Option<Duration>,
    /// The file that gets the messages of the guest's kernel and QEMU.
    pub console: Option<PathBuf>,
    /// The command and its arguments.
    pub command: Vec<String>,
}

/// How the caller communicates with the command.
pub struct Talk<'a> {
    /// Receives the command's output as it comes.
    pub output: &'a mut (dyn Write + Send),
    /// Receives the command's errors as they come.
    pub errors: &'a mut (dyn Write + Send),
    /// Asked several times a second: the signal that the command is to get. A second one ends the
    /// machine.
    pub stop: &'a mut dyn FnMut() -> Option<i32>,
}

/// The outcome of a command that was run.
#[derive(Debug)]
pub struct Outcome {
    /// The command's status, as a shell reports it.
    pub status: i32,
    /// What the emulated processor counted. `None` without the plugin.
    pub report: Option<Report>,
    /// The time from QEMU's start to the command's.
    pub booted: Duration,
    /// The release of the kernel that ran.
    pub release: String,
}

/// Bytes of this machine's memory that programs may take. `None` where the kernel does not report
/// them.
fn free_memory() -> Option<u64> {
    let memory = vm::memory(&root::Kernel::at("/")).ok().flatten()?;
    Some(memory.available.0)
}

const TCG: &str = "tcg,thread=multi";
/// One thread of the host runs all CPUs in turn.
const COUNTED: &str = "tcg,thread=single";
/// An instruction of any CPU takes 4 ns of the guest's time, and an idle machine takes none of the
/// host's.
const COUNT: &str = "shift=2,sleep=off";
/// Switches off what takes an emulated machine seconds and is of no use there: mitigations of
/// Spectre, the kernel's tests of its own cryptography, certificates of modules.
const QUICKER: &str = "mitigations=off cryptomgr.notests initcall_blacklist=jent_mod_init,crypto_kdf108_init,\
    load_system_certificate_list,bpf_tcp_ca_kfunc_init";

impl Lab {
    /// Boots, runs the command without a way to stop it, and returns its output and errors, as far
    /// as they are text.
    ///
    /// # Errors
    /// Those of [`Self::run`].
    pub fn gather(&self, packages: &Packages) -> Result<(Outcome, String, String), Error> {
        let (mut output, mut errors) = (Vec::new(), Vec::new());
        let talk = Talk {
            output: &mut output,
            errors: &mut errors,
            stop: &mut || None,
        };
        let outcome = self.run(packages, talk)?;
        let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).into_owned();
        Ok((outcome, text(output), text(errors)))
    }

    /// Refuses a machine for which this one lacks memory, and one that the image would fill.
    fn fits(&self, archive: u64, free: Option<u64>) -> Result<(), Error> {
        let memory = self.guest.memory.0;
        if archive > memory / 2 {
            return Err(Error::Input(format!(
                "what comes along takes {} of the guest's memory of {}; give it more memory, or bring less",
                Bytes(archive),
                self.guest.memory
            )));
        }
        match free {
            Some(free) if memory.saturating_add(2 * archive) > free => Err(Error::Input(format!(
                "memory: {} and what comes along are more than this machine has free ({}); give the guest less, or end something",
                self.guest.memory,
                Bytes(free)
            ))),
            _ => Ok(()),
        }
    }

    /// Which CPUs share a core or socket.
    fn topology(&self) -> Topology {
        Topology {
            sockets: self.guest.sockets,
            cores: self.guest.cores(),
            threads: self.guest.threads(),
        }
    }

    /// Boots, runs the command, and returns when the machine is off.
    ///
    /// # Errors
    /// Where the machine is not available, does not reach its command, or does not return from it.
    /// A command that fails is no error.
    pub fn run(&self, packages: &Packages, mut talk: Talk<'_>) -> Result<Outcome, Error> {
        if let Some(fault) = self.guest.faults().first() {
            return Err(Error::Input(format!(
                "{}: {}; {}",
                fault.key, fault.why, fault.remedy
            )));
        }
        arch::runs_here()?;
        let topology = self.topology();
        let profile = self
            .guest
            .profile
            .as_deref()
            .map(Profile::load)
            .transpose()?;
        let plugin = profile.as_ref().map(|_| plugin()).transpose()?;
        let qemu = packages.qemu()?;
        let kernel = packages.kernel(&self.guest.kernel)?;
        let image = self.image(packages, &kernel, profile.as_ref())?;
        let folder = Folder::new(packages.folder(), "run")?;
        let archive = image.archive();
        self.fits(archive.len() as u64, free_memory())?;
        folder.write("initramfs", &archive)?;
        drop(archive);
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
            match self.boot(command, &folder, &mut talk) {
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

    /// The accelerators in the order in which they are tried. A machine that does not reach its
    /// command is booted with the next one.
    fn accelerators(&self, emulated: bool) -> Vec<&'static str> {
        let bare = || {
            let cpu = Cpuinfo::read(&root::Kernel::at("/")).unwrap_or_default();
            !cpu.is_guest() && fs::File::open("/dev/kvm").is_ok()
        };
        match self.guest.accelerator {
            // Nested KVM may fail or make the machine hang.
            Accelerator::Auto if !emulated && bare() => vec!["kvm", TCG],
            Accelerator::Kvm => vec!["kvm"],
            // Seen: one boot in some twenty hung, with the CPUs busy.
            Accelerator::Counted => vec![COUNTED, COUNTED],
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
        if accelerator == COUNTED {
            command.args(["-icount", COUNT]);
        }
        command.args([
            "-cpu",
            cpu,
            "-m",
            &format!("{}M", self.guest.memory.0 >> 20),
        ]);
        if self.guest.nodes > 1 {
            nodes(command, &self.guest);
        }
        command.arg("-smp");
        command.arg(format!(
            "{},sockets={sockets},cores={cores},threads={threads}",
            self.guest.cpus
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
        // The kernel names them vda and vdb, in this order.
        let disks = [
            ("disk", self.guest.disk),
            (
                "swap",
                (self.guest.swap == Swap::File).then_some(self.guest.swap_size),
            ),
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
            let rate = self.guest.disk_rate.map_or(String::new(), |rate| {
                format!(",throttling.group=disks,throttling.bps-total={}", rate.0)
            });
            command.arg("-drive");
            command.arg(format!(
                "file={},format=raw,if=virtio,cache=unsafe{rate}",
                path.display()
            ));
        }
        let mut words = vec![
            // The check of the timer compares interrupts with loops, and on a busy host finds no
            // interrupts.
            "console=ttyS0 loglevel=4 panic=-1 psi=1 no_timer_check".to_owned(),
            QUICKER.to_owned(),
            // The kernel passes parameters that it does not know to the init.
            format!(
                "QUELL_ACCELERATOR={}",
                accelerator.split(',').next().unwrap_or_default()
            ),
        ];
        if self.guest.profile.is_some() {
            words.push("apic_extnmi=all nmi_watchdog=0".to_owned());
        }
        words.extend(self.guest.append.iter().cloned());
        command.arg("-append").arg(words.join(" "));
        Ok(())
    }
}

/// Memory nodes of equal size. All CPUs belong to the first.
fn nodes(command: &mut Command, guest: &Guest) {
    let each = (guest.memory.0 >> 20) / u64::from(guest.nodes);
    for node in 0..guest.nodes {
        command.arg("-object");
        command.arg(format!("memory-backend-ram,id=node{node},size={each}M"));
        let cpus = match node {
            0 => format!(",cpus=0-{}", guest.cpus.saturating_sub(1)),
            _ => String::new(),
        };
        command.arg("-numa");
        command.arg(format!("node,nodeid={node},memdev=node{node}{cpus}"));
    }
}

/// QEMU with the libraries it was built with, whatever this machine has.
fn program(root: &Path) -> Command {
    let loader = root.join(arch::LOADER_FOLDER).join(arch::LOADER);
    let mut command = Command::new(loader);
    command
        .arg("--library-path")
        .arg(root.join(arch::LIBRARIES));
    command.arg(root.join(arch::EMULATOR));
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

/// The path of QEMU's plugin: `QUELL_LAB_PLUGIN`, or else next to this program.
fn plugin() -> Result<PathBuf, Error> {
    const NAME: &str = "libquell_lab_plugin.so";
    if let Some(path) = std::env::var_os("QUELL_LAB_PLUGIN") {
        return Ok(PathBuf::from(path));
    }
    let program = std::env::current_exe().unwrap_or_default();
    // A test program is in a folder of its own below that of all other programs.
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_has_room_for_what_comes_along() {
        let mut lab = Lab::default();
        lab.guest.memory = Bytes(1 << 30);
        let said = |archive, free| match lab.fits(archive, free) {
            Ok(()) => String::new(),
            Err(e) => e.to_string(),
        };
        assert_eq!(said(1 << 20, Some(2 << 30)), "");
        assert_eq!(said(1 << 20, None), "");
        assert!(said(1 << 20, Some(1 << 30)).contains("give the guest less"));
        assert!(said(600 << 20, None).contains("bring less"));
    }
}
