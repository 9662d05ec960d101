//! System calls that a process of ours refuses itself and all that it begins, for ever, by a filter
//! (seccomp(2)).
//!
//! A process with a filter may not read those of others, which is asked before a thread of theirs
//! is made to do a call. So a process that traces others has none.

use std::io;

use libc::c_long;

use crate::arch;
use crate::seccomp::{ALLOW, Instruction};

/// What no process of ours does while it holds a plan: load modules or kernels, open files by
/// number, leave its namespaces, set clocks, reach ports.
const NEVER: &[c_long] = &[
    libc::SYS_acct,
    libc::SYS_add_key,
    libc::SYS_adjtimex,
    libc::SYS_chroot,
    libc::SYS_clock_adjtime,
    libc::SYS_clock_settime,
    libc::SYS_delete_module,
    libc::SYS_finit_module,
    libc::SYS_init_module,
    libc::SYS_io_uring_setup,
    libc::SYS_kexec_file_load,
    libc::SYS_kexec_load,
    libc::SYS_keyctl,
    libc::SYS_open_by_handle_at,
    libc::SYS_pivot_root,
    libc::SYS_reboot,
    libc::SYS_request_key,
    libc::SYS_setns,
    libc::SYS_settimeofday,
    libc::SYS_swapoff,
    libc::SYS_swapon,
    libc::SYS_unshare,
];

/// What reaches into other programs: their threads, memory and files.
pub const TRACING: &[c_long] = &[
    libc::SYS_pidfd_getfd,
    libc::SYS_process_vm_writev,
    libc::SYS_ptrace,
    libc::SYS_userfaultfd,
];

/// What loads programs into the kernel.
pub const LOADING: &[c_long] = &[libc::SYS_bpf];

/// What begins another program.
pub const EXECUTING: &[c_long] = &[libc::SYS_execve, libc::SYS_execveat];

/// Refuses these calls, and those that no process of ours does, to this process and all that it
/// begins: they fail with EPERM. The process has `no_new_privs` (else CAP_SYS_ADMIN).
///
/// # Errors
/// ENOTSUP on an architecture whose filters are not known; else the kernel's.
pub fn refuse(calls: &[&[c_long]]) -> io::Result<()> {
    let architecture = arch::OF_FILTERS.ok_or(io::Error::from_raw_os_error(libc::ENOTSUP))?;
    let mut filter = filter(architecture, calls);
    let program = libc::sock_fprog {
        len: u16::try_from(filter.len()).unwrap_or(u16::MAX),
        filter: filter.as_mut_ptr().cast(),
    };
    // SAFETY: the kernel copies the program, whose instructions have the layout of `sock_filter`.
    let refused = unsafe {
        libc::syscall(
            libc::SYS_seccomp,
            libc::SECCOMP_SET_MODE_FILTER,
            libc::SECCOMP_FILTER_FLAG_TSYNC,
            &raw const program,
        )
    };
    match refused {
        0 => Ok(()),
        // The number of a thread that cannot have it.
        1.. => Err(io::Error::from_raw_os_error(libc::ESRCH)),
        _ => Err(io::Error::last_os_error()),
    }
}

/// Whether this process has a filter.
#[must_use]
pub fn has_filter() -> bool {
    // SAFETY: takes no pointers.
    unsafe { libc::prctl(libc::PR_GET_SECCOMP) == 2 }
}

fn filter(architecture: u32, calls: &[&[c_long]]) -> Vec<Instruction> {
    /// `SECCOMP_RET_ERRNO` with EPERM.
    const EPERM: u32 = 0x0005_0001;
    /// The first number of x32's calls.
    const X32: u32 = 0x4000_0000;
    let step = |code, jump_true, jump_false, operand| Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    };
    let deny = || step(0x06, 0, 0, EPERM);
    let mut all = vec![
        step(0x20, 0, 0, 4),
        step(0x15, 1, 0, architecture),
        deny(),
        step(0x20, 0, 0, 0),
        step(0x35, 0, 1, X32),
        deny(),
    ];
    let numbers = [NEVER, arch::PORTS].iter().chain(calls).copied().flatten();
    for number in numbers.filter_map(|number| u32::try_from(*number).ok()) {
        all.extend([step(0x15, 0, 1, number), deny()]);
    }
    all.push(step(0x06, 0, 0, ALLOW));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::seccomp::{Seen, X86_64, allows};

    #[test]
    fn what_is_named_is_refused_and_nothing_else() {
        let filter = filter(X86_64, &[TRACING, EXECUTING]);
        let does = |number: c_long| {
            let seen = Seen {
                number: u32::try_from(number).unwrap(),
                position: 0,
                arguments: [0; 6],
            };
            allows(&filter, &seen)
        };
        let refused = [TRACING, EXECUTING, NEVER, arch::PORTS].concat();
        for number in 0..500 {
            assert_eq!(does(number), Some(!refused.contains(&number)), "{number}");
        }
        assert_eq!(does(0x4000_0000 | libc::SYS_getpid), Some(false));
    }

    #[test]
    fn a_process_is_refused_what_it_refuses_itself() {
        if arch::OF_FILTERS.is_none() {
            return;
        }
        // SAFETY: the child makes system calls and allocates a little, of which no thread of this
        // process can hold the lock for ever, and ends by `_exit`.
        let child = unsafe { libc::fork() };
        assert!(child >= 0);
        if child == 0 {
            let fails = |number| {
                // SAFETY: calls without arguments that would do nothing.
                let answer = unsafe { libc::syscall(number, 0, 0, 0, 0) };
                answer < 0 && io::Error::last_os_error().raw_os_error() == Some(libc::EPERM)
            };
            // SAFETY: takes numbers.
            unsafe { libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) };
            let done = refuse(&[EXECUTING]).is_ok()
                && fails(libc::SYS_execve)
                && fails(libc::SYS_io_uring_setup)
                && !fails(libc::SYS_getppid);
            // SAFETY: runs nothing of the parent's.
            unsafe { libc::_exit(i32::from(!done)) };
        }
        let mut status = 0;
        // SAFETY: a child of ours, and a live value.
        unsafe { libc::waitpid(child, &raw mut status, 0) };
        assert_eq!(status, 0);
    }
}
