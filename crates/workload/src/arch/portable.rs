//! Every other processor: accesses of 64-bit words, every word of every line, and what else plain
//! code can do.

use std::hint::black_box;
use std::ptr;
use std::sync::atomic::{Ordering, fence as order};

use super::{LINE, Maker, Request, Streams, Wide};

const WORDS: usize = LINE / size_of::<u64>();

pub static STREAMS: Streams = Streams {
    read,
    write,
    copy,
    non_temporal: None,
    copy_non_temporal: None,
};

pub fn streams() -> &'static Streams {
    &STREAMS
}

#[cfg(test)]
pub fn every_streams() -> Vec<&'static Streams> {
    vec![&STREAMS]
}

// SAFETY: as `Kernel`.
unsafe fn read(_: *mut u8, from: *const u8, lines: usize) {
    let from = from.cast::<u64>();
    let mut seen = [0; WORDS];
    for line in 0..lines {
        for (i, seen) in seen.iter_mut().enumerate() {
            // SAFETY: inside the `lines` lines at `from`, which is aligned to a line.
            *seen |= unsafe { from.add(line * WORDS + i).read() };
        }
    }
    black_box(seen);
}

// SAFETY: as `Kernel`.
unsafe fn write(to: *mut u8, _: *const u8, lines: usize) {
    let to = to.cast::<[u64; WORDS]>();
    let value = black_box([0x5a5a_5a5a_5a5a_5a5a; WORDS]);
    for line in 0..lines {
        // SAFETY: inside the `lines` lines at `to`, which is aligned to a line.
        unsafe { to.add(line).write_volatile(value) };
    }
}

// SAFETY: as `Kernel`.
unsafe fn copy(to: *mut u8, from: *const u8, lines: usize) {
    let (to, from) = (to.cast::<[u64; WORDS]>(), from.cast::<[u64; WORDS]>());
    for line in 0..lines {
        // SAFETY: inside the `lines` lines at both places, which are aligned to a line.
        unsafe { to.add(line).write_volatile(from.add(line).read()) };
    }
}

/// Nothing goes past the caches, so there is nothing to wait for.
pub fn settle() {}

pub fn fence() {
    order(Ordering::SeqCst);
}

pub const STORES_PAST: bool = false;

// SAFETY: as `store_past` of the module above.
#[inline(always)]
pub unsafe fn store_past(to: *mut u64, half: u32) {
    let half = u64::from(half);
    // SAFETY: by the contract.
    unsafe { ptr::write_volatile(to, half << 32 | half) };
}

pub fn request(_: Request) -> Option<Maker> {
    None
}

#[inline]
pub fn ticks() -> Option<u64> {
    None
}

pub fn widest<W: Wide>() -> fn(&mut W::On) {
    W::run
}
