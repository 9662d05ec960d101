//! Every other processor: plain code.

use super::LANES;

/// Does nothing: no hint is known.
#[inline]
pub(super) fn prefetch<T>(_: &T) {}

/// A bit for each lane: whether it equals `wanted`.
#[inline]
pub(super) fn equal(lanes: &[u32; LANES], wanted: u32) -> u8 {
    lanes
        .iter()
        .rev()
        .fold(0, |bits, &lane| bits << 1 | u8::from(lane == wanted))
}
