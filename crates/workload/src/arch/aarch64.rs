//! 64-bit Arm (Arm Architecture Reference Manual for A-profile, DDI 0487). Every processor of
//! Rust's target has Advanced SIMD.
//!
//! - STNP *hints* that what it stores is not needed again soon. Whether it goes past the caches is
//!   the processor's choice.
//! - DC CVAC and DC CIVAC clean to the point of coherency. A system-level cache may be part of
//!   "memory" there. Linux lets programs use both (SCTLR_EL1.UCI), or emulates them where a
//!   processor has an erratum.
//! - CNTVCT_EL0 is the generic timer: 25 MHz to 1 GHz, the same on all CPUs, readable under Linux.

use core::arch::aarch64::{vdupq_n_u8, vld1q_u8, vorrq_u8, vst1q_u8};
use core::arch::asm;
use std::hint::black_box;

use super::{LINE, Maker, Request, Streams, Wide};

/// Bytes of a register, and registers to a line.
const REGISTER: usize = 16;
const PER: usize = LINE / REGISTER;

static STREAMS: Streams = Streams {
    read,
    write,
    copy,
    non_temporal: Some(non_temporal),
    copy_non_temporal: Some(copy_non_temporal),
};

pub fn streams() -> &'static Streams {
    &STREAMS
}

#[cfg(test)]
pub fn every_streams() -> Vec<&'static Streams> {
    vec![&STREAMS]
}

/// Unknown to the compiler, so that no loop becomes a call of memset. Never zero.
fn value() -> u8 {
    black_box(0x5a)
}

// SAFETY: as `Kernel`.
#[target_feature(enable = "neon")]
unsafe fn read(_: *mut u8, from: *const u8, lines: usize) {
    let mut seen = [vdupq_n_u8(0); PER];
    for line in 0..lines {
        for (i, seen) in seen.iter_mut().enumerate() {
            // SAFETY: inside the `lines` lines at `from`.
            *seen = vorrq_u8(*seen, unsafe {
                vld1q_u8(from.add(line * LINE + i * REGISTER))
            });
        }
    }
    black_box(seen);
}

// SAFETY: as `Kernel`.
#[target_feature(enable = "neon")]
unsafe fn write(to: *mut u8, _: *const u8, lines: usize) {
    let value = vdupq_n_u8(value());
    for i in 0..lines * PER {
        // SAFETY: inside the `lines` lines at `to`.
        unsafe { vst1q_u8(to.add(i * REGISTER), value) };
    }
    black_box(to);
}

// SAFETY: as `Kernel`.
#[target_feature(enable = "neon")]
unsafe fn copy(to: *mut u8, from: *const u8, lines: usize) {
    for at in (0..lines * LINE).step_by(REGISTER) {
        // SAFETY: inside the `lines` lines at both places.
        unsafe { vst1q_u8(to.add(at), vld1q_u8(from.add(at))) };
    }
    black_box(to);
}

// SAFETY: as `Kernel`.
#[target_feature(enable = "neon")]
unsafe fn non_temporal(to: *mut u8, _: *const u8, lines: usize) {
    let value = vdupq_n_u8(value());
    for line in 0..lines {
        // SAFETY: four registers are the line, inside the `lines` lines at `to`.
        unsafe {
            asm!(
                "stnp {v:q}, {v:q}, [{to}]",
                "stnp {v:q}, {v:q}, [{to}, #32]",
                v = in(vreg) value,
                to = in(reg) to.add(line * LINE),
                options(nostack, preserves_flags)
            );
        }
    }
}

// SAFETY: as `Kernel`.
#[target_feature(enable = "neon")]
unsafe fn copy_non_temporal(to: *mut u8, from: *const u8, lines: usize) {
    for line in 0..lines {
        // SAFETY: four registers are the line, inside the `lines` lines at both places.
        unsafe {
            let from = from.add(line * LINE);
            asm!(
                "stnp {a:q}, {b:q}, [{to}]",
                "stnp {c:q}, {d:q}, [{to}, #32]",
                a = in(vreg) vld1q_u8(from),
                b = in(vreg) vld1q_u8(from.add(REGISTER)),
                c = in(vreg) vld1q_u8(from.add(2 * REGISTER)),
                d = in(vreg) vld1q_u8(from.add(3 * REGISTER)),
                to = in(reg) to.add(line * LINE),
                options(nostack, preserves_flags)
            );
        }
    }
}

pub fn settle() {
    // SAFETY: a barrier for stores has no other effect.
    unsafe { asm!("dsb ishst", options(nostack, preserves_flags)) };
}

pub fn fence() {
    // SAFETY: a barrier has no other effect. It also waits for cache maintenance before it.
    unsafe { asm!("dsb ish", options(nostack, preserves_flags)) };
}

pub const STORES_PAST: bool = true;

// SAFETY: as `store_past` of the module above.
#[inline(always)]
pub unsafe fn store_past(to: *mut u64, half: u32) {
    // SAFETY: by the contract; two registers of 32 bits are the word.
    unsafe {
        asm!(
            "stnp {half:w}, {half:w}, [{to}]",
            half = in(reg) half,
            to = in(reg) to,
            options(nostack, preserves_flags)
        );
    }
}

#[expect(clippy::unnecessary_wraps, reason = "other processors may have none")]
pub fn request(request: Request) -> Option<Maker> {
    Some(match request {
        Request::Prefetch => prefetch,
        Request::WriteBack => write_back,
        Request::Flush => flush,
    })
}

// SAFETY: as `Maker`; a prefetch touches nothing that a program sees.
unsafe fn prefetch(line: *mut u8) {
    // SAFETY: a hint; of any address harmless.
    unsafe {
        asm!("prfm pldl1keep, [{}]", in(reg) line, options(nostack, preserves_flags));
    }
}

// SAFETY: as `Maker`.
unsafe fn write_back(line: *mut u8) {
    // SAFETY: the address is mapped (the contract); memory keeps its contents.
    unsafe { asm!("dc cvac, {}", in(reg) line, options(nostack, preserves_flags)) };
}

// SAFETY: as `Maker`.
unsafe fn flush(line: *mut u8) {
    // SAFETY: the address is mapped (the contract); memory keeps its contents.
    unsafe { asm!("dc civac, {}", in(reg) line, options(nostack, preserves_flags)) };
}

#[expect(clippy::unnecessary_wraps, reason = "other processors may have none")]
#[inline]
pub fn ticks() -> Option<u64> {
    let now: u64;
    // SAFETY: barriers and the reading of a counter. The first barrier waits for all loads before
    // it. The other two order the reading after that, and what follows after the reading.
    unsafe {
        asm!(
            "dsb ishld",
            "isb",
            "mrs {}, cntvct_el0",
            "isb",
            out(reg) now,
            options(nostack, preserves_flags)
        );
    }
    Some(now)
}

/// The compiler's default registers are already the widest of every such processor.
pub fn widest<W: Wide>() -> fn(&mut W::On) {
    W::run
}
