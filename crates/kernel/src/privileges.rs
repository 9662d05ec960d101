//! What a process of ours gives up once it has begun: capabilities (capabilities(7)), and new
//! privileges by programs that it executes (`PR_SET_NO_NEW_PRIVS`). What calls it gives up:
//! [`crate::refused`].

use std::io;

use rustix::thread::{CapabilitySet, CapabilitySets};

/// What reverting may need (docs/threats.md): the watchdog's.
pub const REVERTING: CapabilitySet = CapabilitySet::DAC_OVERRIDE
    .union(CapabilitySet::IPC_LOCK)
    .union(CapabilitySet::KILL)
    .union(CapabilitySet::SYS_ADMIN)
    .union(CapabilitySet::SYS_NICE)
    .union(CapabilitySet::SYS_PTRACE)
    .union(CapabilitySet::SYS_RAWIO)
    .union(CapabilitySet::SYS_RESOURCE);

/// What holding a plan may need: that, reports of programs that begin (`NET_ADMIN`), records that
/// are given to who called sudo, and a watchdog that keeps less (`SETPCAP`).
pub const HOLDING: CapabilitySet = REVERTING
    .union(CapabilitySet::CHOWN)
    .union(CapabilitySet::FOWNER)
    .union(CapabilitySet::FSETID)
    .union(CapabilitySet::NET_ADMIN)
    .union(CapabilitySet::SETPCAP);

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
    step(lay_down(kept));
    step(rustix::thread::set_no_new_privs(true));
    failed.map_or(Ok(()), |e| Err(e.into()))
}

/// Keeps these capabilities of this thread and those that it begins. A program that root executes
/// has all again.
///
/// # Errors
/// The kernel's.
pub fn lay_down(kept: CapabilitySet) -> rustix::io::Result<()> {
    let now = rustix::thread::capabilities(None)?;
    let sets = CapabilitySets {
        effective: now.effective & kept,
        permitted: now.permitted & kept,
        inheritable: CapabilitySet::empty(),
    };
    rustix::thread::set_capabilities(None, sets)
}

/// Does something without a capability in the effective set of this thread.
pub fn without(one: CapabilitySet, what: impl FnOnce()) {
    let before = rustix::thread::capabilities(None);
    if let Ok(before) = &before {
        let sets = CapabilitySets {
            effective: before.effective & !one,
            ..*before
        };
        let _ = rustix::thread::set_capabilities(None, sets);
    }
    what();
    if let Ok(before) = before {
        let _ = rustix::thread::set_capabilities(None, before);
    }
}
