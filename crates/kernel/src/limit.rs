//! How much memory a process may lock: RLIMIT_MEMLOCK. getrlimit(2), prlimit(2).

use std::io;

use quell_types::task::LockLimit;
use rustix::process::{Pid, Resource, Rlimit};

/// Any amount.
pub const ANY: LockLimit = LockLimit {
    soft: None,
    hard: None,
};

/// Sets the limit of a process, if one is given. Returns what it was.
///
/// # Errors
/// ESRCH where the process has ended, EPERM where the limit may not be raised (CAP_SYS_RESOURCE).
pub fn locked_memory(pid: u32, new: Option<LockLimit>) -> io::Result<LockLimit> {
    let none = || io::Error::from_raw_os_error(libc::ESRCH);
    let number = i32::try_from(pid).ok().and_then(Pid::from_raw);
    let number = Some(number.ok_or_else(none)?);
    let old = match new {
        Some(new) => {
            let new = Rlimit {
                current: new.soft,
                maximum: new.hard,
            };
            rustix::process::prlimit(number, Resource::Memlock, new)?
        }
        None => read(pid)?,
    };
    Ok(LockLimit {
        soft: old.current,
        hard: old.maximum,
    })
}

/// The limit of a process, which stays.
fn read(pid: u32) -> io::Result<Rlimit> {
    let pid = i32::try_from(pid).map_err(|_| io::Error::from_raw_os_error(libc::ESRCH))?;
    let mut old = libc::rlimit64 {
        rlim_cur: 0,
        rlim_max: 0,
    };
    // SAFETY: the kernel writes the limit into a live value.
    let done =
        unsafe { libc::prlimit64(pid, libc::RLIMIT_MEMLOCK, std::ptr::null(), &raw mut old) };
    if done != 0 {
        return Err(io::Error::last_os_error());
    }
    let known = |bytes| (bytes != libc::RLIM64_INFINITY).then_some(bytes);
    Ok(Rlimit {
        current: known(old.rlim_cur),
        maximum: known(old.rlim_max),
    })
}

/// Lifts the limit of this process as far as it may: that is enough for a process with
/// CAP_IPC_LOCK, which no limit holds. Allocates nothing, so it may be called between fork and
/// exec.
///
/// # Errors
/// The kernel's.
pub fn lift() -> io::Result<()> {
    let any = Rlimit {
        current: None,
        maximum: None,
    };
    if rustix::process::setrlimit(Resource::Memlock, any).is_ok() {
        return Ok(());
    }
    let maximum = rustix::process::getrlimit(Resource::Memlock).maximum;
    let most = Rlimit {
        current: maximum,
        maximum,
    };
    Ok(rustix::process::setrlimit(Resource::Memlock, most)?)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_limit_that_is_not_set_stays() {
        let own = std::process::id();
        let now = locked_memory(own, None).unwrap();
        assert_eq!(locked_memory(own, Some(now)).unwrap(), now);
        assert_eq!(locked_memory(own, None).unwrap(), now);
        let gone = locked_memory(u32::MAX, None).unwrap_err();
        assert_eq!(gone.raw_os_error(), Some(libc::ESRCH));
    }
}
