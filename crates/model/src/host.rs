//! The machine this runs on: what it does faster than plain code.

/// Has the host fetch `slice[index]` into its cache, since it is needed soon; no effect on anything but time.
#[inline]
pub fn hint<T>(slice: &[T], index: usize) {
    #[cfg(target_arch = "x86_64")]
    if let Some(wanted) = slice.get(index) {
        use std::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
        // SAFETY: the instruction is part of every x86-64 processor and only hints; the address is that of a valid element.
        unsafe { _mm_prefetch::<_MM_HINT_T0>(std::ptr::from_ref(wanted).cast()) }
    }
    #[cfg(not(target_arch = "x86_64"))]
    let _ = (slice, index);
}

/// Numbers that [`position`] compares at a time.
pub const LANES: usize = 8;

/// Where in `row`, a whole number of [`LANES`], `wanted` is; it may be there once at most. All are compared: where it is cannot be
/// guessed, and a loop that ends there costs more.
#[inline]
#[must_use]
pub fn position(row: &[u32], wanted: u32) -> Option<usize> {
    let equal = match row.as_chunks().0 {
        // The usual numbers of ways, each in one piece.
        [one] => u64::from(equal(one, wanted)),
        [one, two] => u64::from(equal(one, wanted)) | u64::from(equal(two, wanted)) << LANES,
        more => more.iter().rev().fold(0, |found, lanes| {
            found << LANES | u64::from(equal(lanes, wanted))
        }),
    };
    (equal != 0).then(|| equal.trailing_zeros() as usize)
}

/// A bit for each lane: whether it is `wanted`.
#[cfg(target_arch = "x86_64")]
#[inline]
fn equal(lanes: &[u32; LANES], wanted: u32) -> u8 {
    use std::arch::x86_64::{
        _mm_cmpeq_epi32, _mm_movemask_epi8, _mm_packs_epi16, _mm_packs_epi32, _mm_set_epi32,
        _mm_set1_epi32,
    };
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

/// A bit for each lane: whether it is `wanted`.
#[cfg(not(target_arch = "x86_64"))]
#[inline]
fn equal(lanes: &[u32; LANES], wanted: u32) -> u8 {
    lanes
        .iter()
        .rev()
        .fold(0, |bits, &lane| bits << 1 | u8::from(lane == wanted))
}
