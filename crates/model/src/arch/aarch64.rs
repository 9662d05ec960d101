//! 64-bit Arm. Every processor of Rust's target has Advanced SIMD.

use std::arch::aarch64::{
    vaddvq_u16, vandq_u16, vceqq_u32, vcombine_u16, vdupq_n_u32, vld1q_u16, vld1q_u32, vmovn_u32,
};
use std::arch::asm;

use super::LANES;

#[inline]
pub(super) fn prefetch<T>(wanted: &T) {
    let wanted = std::ptr::from_ref(wanted);
    // SAFETY: PRFM only hints.
    unsafe {
        asm!(
            "prfm pldl1keep, [{}]",
            in(reg) wanted,
            options(readonly, nostack, preserves_flags)
        );
    }
}

/// A bit for each lane: whether it equals `wanted`.
#[inline]
pub(super) fn equal(lanes: &[u32; LANES], wanted: u32) -> u8 {
    const BITS: [u16; LANES] = [1, 2, 4, 8, 16, 32, 64, 128];
    // SAFETY: every processor of the target has the instructions; the loads are inside the arrays.
    let bits = unsafe {
        let wanted = vdupq_n_u32(wanted);
        let low = vceqq_u32(vld1q_u32(lanes.as_ptr()), wanted);
        let high = vceqq_u32(vld1q_u32(lanes.as_ptr().add(LANES / 2)), wanted);
        let both = vcombine_u16(vmovn_u32(low), vmovn_u32(high));
        vaddvq_u16(vandq_u16(both, vld1q_u16(BITS.as_ptr())))
    };
    bits.to_le_bytes()[0]
}
