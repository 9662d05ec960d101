//! Registers of Intel's processors that allocate caches (`/dev/cpu/N/msr`, msr(4); Software
//! Developer's Manual, volume 3B, "Intel Resource Director Technology").
//!
//! A register is addressed as a file ([`path`]), below the device of its CPUs. So it is recorded,
//! compared and reverted as any other value. No kernel has such files: [`Kernel`] answers these
//! paths through the device of the first of the CPUs that is online. The text is the value in
//! hexadecimal.
//!
//! [`Kernel`]: crate::root::Kernel

use std::collections::BTreeMap;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt;

use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::partition::{CodeData, WayPartition};

use crate::error::{Error, Result};
use crate::root::{Access, Files, gone};

/// Whether code and data of the third level have separate masks (bit 0).
pub const L3_CONFIG: u32 = 0xc81;
/// Whether code and data of the second level have separate masks (bit 0).
pub const L2_CONFIG: u32 = 0xc82;
/// The class of a CPU, in the upper half. The lower half is its monitoring id.
pub const ASSOCIATION: u32 = 0xc8f;
/// The first mask of the third level.
pub const L3_MASKS: u32 = 0xc90;
/// The first mask of the second level.
pub const L2_MASKS: u32 = 0xd10;
/// The first delay of memory bandwidth.
pub const DELAYS: u32 = 0xd50;

/// The part of [`ASSOCIATION`] that is not the class.
const MONITORING_ID: u64 = 0xffff_ffff;

/// The first mask register of a cache level, and the register that separates code and data.
/// `None` for levels without masks.
#[must_use]
pub const fn of_level(level: u32) -> Option<(u32, u32)> {
    match level {
        2 => Some((L2_MASKS, L2_CONFIG)),
        3 => Some((L3_MASKS, L3_CONFIG)),
        _ => None,
    }
}

/// The class in a value of [`ASSOCIATION`].
#[must_use]
pub fn class_in(association: u64) -> u32 {
    u32::try_from(association >> 32).unwrap_or(u32::MAX)
}

/// The value of [`ASSOCIATION`] with this class and no monitoring id. Writing it keeps the id.
#[must_use]
pub fn with_class(class: u32) -> u64 {
    u64::from(class) << 32
}

/// The path of a register that these CPUs share.
#[must_use]
pub fn path(cpus: &CpuSet, number: u32) -> String {
    format!("/dev/cpu/{cpus}/msr/{number:#x}")
}

/// The CPUs and the number of a register's path. `None` for other paths.
#[must_use]
pub fn parse(path: &str) -> Option<(CpuSet, u32)> {
    let (cpus, number) = path.strip_prefix("/dev/cpu/")?.split_once("/msr/")?;
    let number = u32::from_str_radix(number.strip_prefix("0x")?, 16).ok()?;
    Some((
        cpus.parse().ok().filter(|c: &CpuSet| !c.is_empty())?,
        number,
    ))
}

/// The value that a text stands for: hexadecimal with `0x`.
#[must_use]
pub fn value(text: &str) -> Option<u64> {
    u64::from_str_radix(text.trim().strip_prefix("0x")?, 16).ok()
}

/// Whether two texts of a register are the same setting. Two associations are, when their classes
/// are: monitoring ids belong to other tools.
#[must_use]
pub fn same(number: u32, a: &str, b: &str) -> bool {
    let keep = |v: u64| match number {
        ASSOCIATION => v & !MONITORING_ID,
        _ => v,
    };
    matches!((value(a), value(b)), (Some(a), Some(b)) if keep(a) == keep(b))
}

/// Why a register cannot be reverted now, in a sentence.
#[must_use]
pub fn unreached(path: &str) -> String {
    format!("{path} keeps its value: its CPUs are offline, or the module msr is gone")
}

fn device(cpu: CpuId) -> String {
    format!("/dev/cpu/{cpu}/msr")
}

/// Whether an error says that a CPU is offline, or has no device.
fn offline(error: &io::Error) -> bool {
    gone(error) || error.raw_os_error() == Some(libc::ENXIO)
}

/// Calls `with` with the opened device of the first CPU that answers. ENODEV when none does.
fn first<T>(
    cpus: &CpuSet,
    open: impl Fn(CpuId) -> io::Result<File>,
    with: impl Fn(&File) -> io::Result<T>,
) -> io::Result<T> {
    for cpu in cpus.iter() {
        match open(cpu).and_then(|file| with(&file)) {
            Err(e) if offline(&e) => {}
            other => return other,
        }
    }
    Err(io::Error::from_raw_os_error(libc::ENODEV))
}

fn read_at(file: &File, number: u32) -> io::Result<u64> {
    let mut bytes = [0; 8];
    file.read_exact_at(&mut bytes, u64::from(number))?;
    Ok(u64::from_ne_bytes(bytes))
}

/// Reads a register through the devices that `open` opens for reading.
pub(crate) fn read_file(
    cpus: &CpuSet,
    number: u32,
    open: impl Fn(CpuId) -> io::Result<File>,
) -> io::Result<String> {
    first(cpus, open, |file| read_at(file, number)).map(|value| format!("{value:#x}\n"))
}

/// Writes a register through the devices that `open` opens for reading and writing.
pub(crate) fn write_file(
    cpus: &CpuSet,
    number: u32,
    text: &str,
    open: impl Fn(CpuId) -> io::Result<File>,
) -> io::Result<()> {
    let wanted = value(text).ok_or_else(|| io::Error::from_raw_os_error(libc::EINVAL))?;
    first(cpus, open, |file| {
        let value = match number {
            ASSOCIATION => wanted & !MONITORING_ID | read_at(file, number)? & MONITORING_ID,
            _ => wanted,
        };
        file.write_all_at(&value.to_ne_bytes(), u64::from(number))
    })
}

/// The devices of some CPUs, kept open for reading.
#[derive(Debug)]
pub struct Devices {
    /// By CPU. `None` where files have no descriptors.
    open: BTreeMap<CpuId, Option<File>>,
}

impl Devices {
    /// Opens the devices. CPUs that are offline are left out.
    ///
    /// # Errors
    /// [`Error::Refused`] where no CPU has one, or they may not be read, with the remedy.
    pub fn open(files: &dyn Files, cpus: &CpuSet) -> Result<Self> {
        Self::open_any(files, cpus)?.ok_or_else(|| missing(cpus))
    }

    /// The same. `None` where no CPU has a device.
    ///
    /// # Errors
    /// [`Error::Refused`] where they may not be read.
    pub fn open_any(files: &dyn Files, cpus: &CpuSet) -> Result<Option<Self>> {
        let mut open = BTreeMap::new();
        for cpu in cpus.iter() {
            match files.open(&device(cpu), Access::Read) {
                Ok(None) if !files.exists(&path(&CpuSet::one(cpu), ASSOCIATION)) => {}
                Ok(file) => {
                    open.insert(cpu, file);
                }
                Err(e) if offline(&e) => {}
                Err(e) => return Err(unreadable(cpu, &e)),
            }
        }
        Ok((!open.is_empty()).then_some(Self { open }))
    }

    /// The CPUs that were online when the devices were opened.
    pub fn cpus(&self) -> impl Iterator<Item = CpuId> {
        self.open.keys().copied()
    }

    /// The value of a register that these CPUs share. `None` while all of them are offline.
    ///
    /// # Errors
    /// [`Error::Refused`] when the processor does not let it be read.
    pub fn read(&self, files: &dyn Files, cpus: &CpuSet, number: u32) -> Result<Option<u64>> {
        for cpu in cpus.iter() {
            let read = match self.open.get(&cpu) {
                Some(Some(file)) => read_at(file, number),
                Some(None) => {
                    let text = files.read(&path(&CpuSet::one(cpu), number));
                    text.map(|text| value(&text).unwrap_or_default())
                }
                None => continue,
            };
            match read {
                Ok(value) => return Ok(Some(value)),
                Err(e) if offline(&e) => {}
                Err(e) => return Err(refused(cpu, number, &e)),
            }
        }
        Ok(None)
    }

    /// Whether code and data of these ways have separate masks in the cache of these CPUs. The mask
    /// of a class is another register then.
    ///
    /// # Errors
    /// As for [`Devices::read`].
    pub fn separate(&self, files: &dyn Files, cpus: &CpuSet, ways: &WayPartition) -> Result<bool> {
        // Processors that cannot separate them have no such register.
        let Some((_, config)) = of_level(ways.level).filter(|_| ways.code_data != CodeData::Never)
        else {
            return Ok(false);
        };
        let value = self.read(files, cpus, config)?;
        Ok(value.is_some_and(|value| value & 1 == 1))
    }
}

fn missing(cpus: &CpuSet) -> Error {
    let cpu = cpus.first().unwrap_or_default();
    Error::refused_with(
        format!(
            "the processor's registers cannot be reached: {} is missing, so the kernel module msr is not loaded",
            device(cpu)
        ),
        "modprobe msr",
    )
}

fn unreadable(cpu: CpuId, error: &io::Error) -> Error {
    let what = format!("{} cannot be opened: {error}", device(cpu));
    match error.raw_os_error() {
        Some(libc::EPERM | libc::EACCES) => Error::refused_with(
            what,
            "run as root with CAP_SYS_RAWIO, outside of any container",
        ),
        _ => Error::refused(what),
    }
}

fn refused(cpu: CpuId, number: u32, error: &io::Error) -> Error {
    let what = format!("register {number:#x} of CPU {cpu} cannot be read: {error}");
    match error.raw_os_error() {
        // The processor faults (#GP), or the hypervisor does in its place.
        Some(libc::EIO) => Error::refused_with(
            what + "; the processor refuses it",
            "in a virtual machine ask its host for cache allocation, or look from the host",
        ),
        _ => Error::refused(what),
    }
}

/// Why no register can be written by any process, with the remedy. `None` where nothing says so.
#[must_use]
pub fn locked(files: &dyn Files) -> Option<Error> {
    const LOCKDOWN: &str = "/sys/kernel/security/lockdown";
    const ALLOWED: &str = "/sys/module/msr/parameters/allow_writes";
    let text = |path: &str| files.read(path).unwrap_or_default();
    let lockdown = text(LOCKDOWN);
    if !lockdown.is_empty() && !lockdown.contains("[none]") {
        return Some(Error::refused_with(
            format!("the kernel is locked down and writes no register ({LOCKDOWN})"),
            "boot without lockdown (Secure Boot off), or mount resctrl",
        ));
    }
    (text(ALLOWED).trim() == "off").then(|| {
        Error::refused_with(
            format!("the module msr refuses to write registers ({ALLOWED} is off)"),
            format!("echo on > {ALLOWED}"),
        )
    })
}

/// Why a register was not written, with the remedy. `error` is what the writing returned.
#[must_use]
pub fn unwritten(files: &dyn Files, register: &str, error: &Error) -> Error {
    let (why, remedy) = match error.errno() {
        Some(libc::EPERM | libc::EACCES) => match locked(files) {
            Some(locked) => return Error::refused(format!("{register} was not written: {locked}")),
            None => (
                "this process may not",
                "run as root with CAP_SYS_RAWIO, outside of any container",
            ),
        },
        Some(libc::EIO) => (
            "the processor, or its hypervisor, refuses the value",
            "leave out mechanisms.registers, and mount resctrl",
        ),
        Some(libc::ENOENT | libc::ENODEV | libc::ENXIO) => (
            "its CPUs are offline, or the module msr is gone",
            "bring the CPUs online, modprobe msr, and plan again",
        ),
        _ => return Error::refused(format!("{register} was not written: {error}")),
    };
    Error::refused_with(format!("{register} was not written: {why}"), remedy)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cpus(list: &str) -> CpuSet {
        list.parse().unwrap()
    }

    #[test]
    fn paths_of_registers_are_read_as_written() {
        for (list, number) in [("0", ASSOCIATION), ("0-3,8", L3_MASKS + 2)] {
            let found = parse(&path(&cpus(list), number));
            assert_eq!(found, Some((cpus(list), number)));
        }
        for other in [
            "/dev/cpu/0/msr",
            "/dev/cpu/0/cpuid/0x1",
            "/dev/cpu/x/msr/0x1",
            "/dev/cpu//msr/0x1",
            "/dev/cpu/0/msr/1",
            "/sys/dev/cpu/0/msr/0x1",
        ] {
            assert_eq!(parse(other), None, "{other}");
        }
    }

    #[test]
    fn a_monitoring_id_does_not_tell_two_associations_apart() {
        assert!(same(ASSOCIATION, "0x200000007", "0x200000000"));
        assert!(!same(ASSOCIATION, "0x200000007", "0x100000007"));
        assert!(!same(L3_MASKS, "0x7", "0x0") && same(L3_MASKS, "0x0f", "0xf"));
        assert_eq!(class_in(with_class(3) | 5), 3);
    }

    #[test]
    fn a_register_is_reached_through_the_first_cpu_that_is_online() {
        // Offsets of a plain file stand for numbers.
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("1");
        std::fs::write(&file, vec![0u8; 0x1000]).unwrap();
        let open = |cpu: CpuId| {
            let mut options = std::fs::OpenOptions::new();
            options.read(true).write(true);
            options.open(dir.path().join(cpu.to_string()))
        };
        write_file(&cpus("0-1"), L3_MASKS, "0xf0\n", open).unwrap();
        assert_eq!(read_file(&cpus("0-1"), L3_MASKS, open).unwrap(), "0xf0\n");
        // A class is written, and the monitoring id stays.
        std::fs::write(&file, vec![0u8; 0x1000]).unwrap();
        let at = u64::from(ASSOCIATION);
        open(1)
            .unwrap()
            .write_all_at(&5u64.to_ne_bytes(), at)
            .unwrap();
        write_file(&cpus("1"), ASSOCIATION, "0x200000000", open).unwrap();
        assert_eq!(
            read_file(&cpus("1"), ASSOCIATION, open).unwrap(),
            "0x200000005\n"
        );
        let none = read_file(&cpus("0"), ASSOCIATION, open).unwrap_err();
        assert_eq!(none.raw_os_error(), Some(libc::ENODEV));
        let wrong = write_file(&cpus("1"), L3_MASKS, "15", open).unwrap_err();
        assert_eq!(wrong.raw_os_error(), Some(libc::EINVAL));
    }

    #[test]
    fn what_keeps_a_register_from_being_written_is_named() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = crate::root::Kernel::at(dir.path());
        let error = |errno| {
            let source = io::Error::from_raw_os_error(errno);
            Error::file("write", "/dev/cpu/0/msr/0xc90", Some("0xf"), source)
        };
        let said = |errno| unwritten(&kernel, "register 0xc90", &error(errno)).to_string();
        assert!(said(libc::EPERM).contains("CAP_SYS_RAWIO"));
        assert!(said(libc::EIO).contains("refuses the value"));
        assert!(said(libc::ENODEV).contains("offline"));
        let put = |path: &str, text: &str| {
            let path = dir.path().join(path);
            std::fs::create_dir_all(path.parent().unwrap()).unwrap();
            std::fs::write(path, text).unwrap();
        };
        put("sys/module/msr/parameters/allow_writes", "off\n");
        assert!(said(libc::EPERM).contains("echo on >"));
        put(
            "sys/kernel/security/lockdown",
            "none [integrity] confidentiality\n",
        );
        assert!(said(libc::EPERM).contains("locked down"));
    }
}
