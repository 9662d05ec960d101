//! `bpf(2)`: an array map that is mapped into this process, and a program that uses it.

use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::ptr;

use super::insn::Insn;

const MAP_CREATE: libc::c_int = 0;
const PROG_LOAD: libc::c_int = 5;
/// The type of the map: `BPF_MAP_TYPE_ARRAY`.
const ARRAY: u32 = 2;
/// Map flag: `BPF_F_MMAPABLE` (Linux 5.5).
const MMAPABLE: u32 = 1 << 10;
/// The type of the program: `BPF_PROG_TYPE_PERF_EVENT`.
const PERF_EVENT: u32 = 7;
/// Both helpers may be used only by programs with a GPL-compatible licence.
const LICENSE: &std::ffi::CStr = c"Dual MIT/GPL";

/// The first fields of `union bpf_attr` for `BPF_MAP_CREATE`, as many as are needed.
#[repr(C)]
struct MapAttr {
    kind: u32,
    key_size: u32,
    value_size: u32,
    entries: u32,
    flags: u32,
}

/// The first fields of `union bpf_attr` for `BPF_PROG_LOAD`, as many as are needed.
#[repr(C)]
struct ProgramAttr {
    kind: u32,
    instructions: u32,
    code: u64,
    license: u64,
    log_level: u32,
    log_size: u32,
    log: u64,
}

fn bpf<T>(command: libc::c_int, attr: &T) -> io::Result<OwnedFd> {
    // SAFETY: `attr` is plain data of the stated size, with pointers to data that outlives the
    // call. The kernel takes the rest of its union for zero.
    let raw = unsafe { libc::syscall(libc::SYS_bpf, command, ptr::from_ref(attr), size_of::<T>()) };
    match i32::try_from(raw) {
        // SAFETY: the kernel just returned this descriptor, and nothing else owns it.
        Ok(raw) if raw >= 0 => Ok(unsafe { OwnedFd::from_raw_fd(raw) }),
        _ => Err(io::Error::last_os_error()),
    }
}

/// One value of type `T` in an array map, shared with the kernel. It is zero at first.
#[derive(Debug)]
pub(super) struct Map<T> {
    fd: OwnedFd,
    value: ptr::NonNull<T>,
}

// SAFETY: the mapping has one owner, which alone unmaps it. Its content is only accessed through a
// shared reference.
unsafe impl<T: Sync> Send for Map<T> {}

impl<T> Map<T> {
    /// Makes a new map. `T` consists of atomic integers, for which all bits zero are a value.
    ///
    /// # Safety
    /// `T` fits on a page, may be zero, and may be written by the kernel at any time.
    pub(super) unsafe fn new() -> io::Result<Self> {
        let attr = MapAttr {
            kind: ARRAY,
            key_size: 4,
            value_size: u32::try_from(size_of::<T>()).unwrap_or(u32::MAX),
            entries: 1,
            flags: MMAPABLE,
        };
        let fd = bpf(MAP_CREATE, &attr)?;
        // SAFETY: a fresh mapping of the map's one page, at an address the kernel chooses.
        let address = unsafe {
            libc::mmap(
                ptr::null_mut(),
                rustix::param::page_size(),
                libc::PROT_READ | libc::PROT_WRITE,
                libc::MAP_SHARED,
                fd.as_raw_fd(),
                0,
            )
        };
        if address == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let value = ptr::NonNull::new(address.cast()).ok_or_else(io::Error::last_os_error)?;
        Ok(Self { fd, value })
    }

    pub(super) fn get(&self) -> &T {
        // SAFETY: the page is mapped for as long as `self` lives and begins with a `T`, as `new`
        // demands.
        unsafe { self.value.as_ref() }
    }

    pub(super) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }
}

impl<T> Drop for Map<T> {
    fn drop(&mut self) {
        // SAFETY: the mapping was made in `new`, and nothing else unmaps it.
        unsafe {
            libc::munmap(self.value.as_ptr().cast(), rustix::param::page_size());
        }
    }
}

/// Loads a program that `PERF_EVENT_IOC_SET_BPF` can attach to an event.
pub(super) fn program(code: &[Insn]) -> io::Result<OwnedFd> {
    bpf(
        PROG_LOAD,
        &ProgramAttr {
            kind: PERF_EVENT,
            instructions: u32::try_from(code.len()).unwrap_or(u32::MAX),
            code: code.as_ptr() as u64,
            license: LICENSE.as_ptr() as u64,
            log_level: 0,
            log_size: 0,
            log: 0,
        },
    )
}
