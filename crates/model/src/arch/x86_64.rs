//! x86-64: the instructions that every such processor has.

use std::arch::x86_64::{
    _MM_HINT_T0, _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32,
    _mm_prefetch, _mm_set_epi32, _mm_set1_epi32,
};

use super::LANES;

#[inline]
pub(super) fn prefetch<T>(wanted: &T) {
    // SAFETY: the instruction is part of every x86-64 processor and only hints. The address is that
    // of a valid element.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(wanted).cast()) }
}

/// A bit for each lane: whether it equals `wanted`.
#[inline]
pub(super) fn equal(lanes: &[u32; LANES], wanted: u32) -> u8 {
    let [a, b, c, d, e, f, g, h] = lanes.map(u32::cast_signed);
    // SAFETY: SSE2 is part of every x86-64 processor.
    let bits = unsafe {
        let wanted = _mm_set1_epi32(wanted.cast_signed());
        let low = _mm_cmpeq_epi32(_mm_set_epi32(d, c, b, a), wanted);
        let high = _mm_cmpeq_epi32(_mm_set_epi32(h, g, f, e), wanted);
        let both = _mm_packs_epi32(low, high);
        _mm_movemask_epi8(_mm_packs_epi16(both, both))
    };
    bits.to_le_bytes()[0]
}
