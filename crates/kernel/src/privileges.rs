//! What a process of ours gives up once it has begun: capabilities (capabilities(7)), and new
//! privileges by programs that it executes (`PR_SET_NO_NEW_PRIVS`).
//!
//! It has no filter of system calls: a process with one may not read those of others
//! (PTRACE_SECCOMP_GET_FILTER), which is needed before a thread of theirs is made to do a call.

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// Keeps these capabilities alone, for ever: all others leave all sets, the bounding set included.
///
/// # Errors
/// The kernel's, of the first step that failed. The others are done all the same.
pub fn keep(kept: CapabilitySet) -> io::Result<()> {
    let mut failed = None;
    let mut step = |result: rustix::io::Result<()>| {
        if let Err(e) = result {
            failed.get_or_insert(e);
        }
    };
    let others = (0..u64::BITS)
        .map(|bit| CapabilitySet::from_bits_retain(1 << bit))
        .filter(|one| !kept.contains(*one));
    for one in others {
        // The kernel does not know the numbers after its last one.
        if rustix::thread::capability_is_in_bounding_set(one).unwrap_or(false) {
            step(rustix::thread::remove_capability_from_bounding_set(one));
        }
    }
    step(fewer(kept));
    step(rustix::thread::set_no_new_privs(true));
    failed.map_or(Ok(()), |e| Err(e.into()))
}

fn fewer(kept: CapabilitySet) -> rustix::io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}
