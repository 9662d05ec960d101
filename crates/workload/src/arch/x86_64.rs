//! x86-64: every such processor has SSE2, most have AVX2 (Intel SDM vol. 2: MOVNTDQ, MOVNTI,
//! PREFETCHT0, CLWB, CLFLUSHOPT, CLFLUSH, RDTSC).

use core::arch::asm;
use core::arch::x86_64::{
    __cpuid, __cpuid_count, _MM_HINT_T0, _mm_clflush, _mm_lfence, _mm_mfence, _mm_prefetch,
    _mm_sfence, _mm_stream_si64, _rdtsc,
};

use super::{Maker, Request, Streams, Wide};

fn has_avx2() -> bool {
    std::arch::is_x86_feature_detected!("avx2")
}

pub fn streams() -> &'static Streams {
    if has_avx2() {
        &avx2::STREAMS
    } else {
        &sse2::STREAMS
    }
}

#[cfg(test)]
pub fn every_streams() -> Vec<&'static Streams> {
    vec![&sse2::STREAMS, streams()]
}

/// One module per register width: `$per` registers to a line.
macro_rules! kernels {
    ($module:ident, $feature:literal, $register:ident, $per:literal,
     $zero:ident, $splat:ident, $or:ident, $load:ident, $store:ident, $stream:ident) => {
        mod $module {
            use super::super::Streams;
            use core::arch::x86_64::{$load, $or, $register, $splat, $store, $stream, $zero};
            use std::hint::black_box;

            pub static STREAMS: Streams = Streams {
                read,
                write,
                copy,
                non_temporal: Some(non_temporal),
                copy_non_temporal: Some(copy_non_temporal),
            };

            /// A value unknown to the compiler (so that no loop becomes a call of memset), never
            /// zero (so that no hardware shortcut for zeroes applies).
            #[target_feature(enable = $feature)]
            fn value() -> $register {
                $splat(black_box(0x5a))
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn read(_: *mut u8, from: *const u8, lines: usize) {
                let from = from.cast::<$register>();
                let mut seen = [$zero(); $per];
                for line in 0..lines {
                    for (i, seen) in seen.iter_mut().enumerate() {
                        // SAFETY: inside the `lines` lines at `from`, which is aligned to a line.
                        *seen = $or(*seen, unsafe { $load(from.add(line * $per + i)) });
                    }
                }
                black_box(seen);
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn write(to: *mut u8, _: *const u8, lines: usize) {
                let to = to.cast::<$register>();
                let value = value();
                for i in 0..lines * $per {
                    // SAFETY: inside the `lines` lines at `to`, which is aligned to a line.
                    unsafe { $store(to.add(i), value) };
                }
                black_box(to);
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn copy(to: *mut u8, from: *const u8, lines: usize) {
                let (to, from) = (to.cast::<$register>(), from.cast::<$register>());
                for i in 0..lines * $per {
                    // SAFETY: inside the `lines` lines at both places, which are aligned to a line.
                    unsafe { $store(to.add(i), $load(from.add(i))) };
                }
                black_box(to);
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn non_temporal(to: *mut u8, _: *const u8, lines: usize) {
                let to = to.cast::<$register>();
                let value = value();
                for i in 0..lines * $per {
                    // SAFETY: inside the `lines` lines at `to`, which is aligned to a line. The
                    // caller fences (`settle`) before another thread may read them.
                    unsafe { $stream(to.add(i), value) };
                }
                black_box(to);
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn copy_non_temporal(to: *mut u8, from: *const u8, lines: usize) {
                let (to, from) = (to.cast::<$register>(), from.cast::<$register>());
                for i in 0..lines * $per {
                    // SAFETY: inside the `lines` lines at both places, which are aligned to a line;
                    // fenced as above.
                    unsafe { $stream(to.add(i), $load(from.add(i))) };
                }
                black_box(to);
            }
        }
    };
}

kernels!(
    avx2,
    "avx2",
    __m256i,
    2,
    _mm256_setzero_si256,
    _mm256_set1_epi8,
    _mm256_or_si256,
    _mm256_load_si256,
    _mm256_store_si256,
    _mm256_stream_si256
);
kernels!(
    sse2,
    "sse2",
    __m128i,
    4,
    _mm_setzero_si128,
    _mm_set1_epi8,
    _mm_or_si128,
    _mm_load_si128,
    _mm_store_si128,
    _mm_stream_si128
);

pub fn settle() {
    // SAFETY: SFENCE orders stores and has no other effect; SSE belongs to every x86-64 processor.
    unsafe { _mm_sfence() };
}

pub fn fence() {
    // SAFETY: a fence has no other effect.
    unsafe { _mm_mfence() };
}

pub const STORES_PAST: bool = true;

// SAFETY: as `store_past` of the module above.
#[inline(always)]
pub unsafe fn store_past(to: *mut u64, half: u32) {
    let half = u64::from(half);
    let word = (half << 32 | half).cast_signed();
    // SAFETY: by the contract; SSE2 belongs to every x86-64 processor.
    unsafe { _mm_stream_si64(to.cast(), word) };
}

pub fn request(request: Request) -> Option<Maker> {
    let extended = extended();
    match request {
        Request::Prefetch => Some(prefetch),
        Request::WriteBack => (extended >> 24 & 1 == 1).then_some(write_back as Maker),
        Request::Flush if extended >> 23 & 1 == 1 => Some(flush_any_order),
        Request::Flush => Some(flush),
    }
}

/// Leaf 7, sub-leaf 0, EBX: which of the newer instructions exist.
fn extended() -> u32 {
    #[allow(
        unused_unsafe,
        reason = "CPUID is unsafe to call in older compilers, safe in newer ones"
    )]
    // SAFETY: every x86-64 processor has CPUID; the leaf is asked for only where leaf 0 says that
    // it is there.
    unsafe {
        if __cpuid(0).eax < 7 {
            return 0;
        }
        __cpuid_count(7, 0).ebx
    }
}

// SAFETY: as `Maker`; a prefetch touches nothing that a program sees.
unsafe fn prefetch(line: *mut u8) {
    // SAFETY: a prefetch of any address is harmless, and SSE belongs to every x86-64 processor.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast()) };
}

// SAFETY: as `Maker`.
unsafe fn write_back(line: *mut u8) {
    // SAFETY: the processor has CLWB (`request`), the address is mapped (the contract); memory
    // keeps its contents.
    unsafe { asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
}

// SAFETY: as `Maker`.
unsafe fn flush_any_order(line: *mut u8) {
    // SAFETY: the processor has CLFLUSHOPT (`request`), the address is mapped (the contract);
    // memory keeps its contents.
    unsafe { asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
}

// SAFETY: as `Maker`.
unsafe fn flush(line: *mut u8) {
    // SAFETY: CLFLUSH came with SSE2, which every x86-64 processor has; the address is mapped (the
    // contract).
    unsafe { _mm_clflush(line.cast_const()) };
}

#[expect(clippy::unnecessary_wraps, reason = "other processors may have none")]
#[inline]
pub fn ticks() -> Option<u64> {
    // SAFETY: both belong to every x86-64 processor; Linux leaves the counter readable. The fences
    // keep loads on their side of the reading.
    unsafe {
        _mm_lfence();
        let now = _rdtsc();
        _mm_lfence();
        Some(now)
    }
}

pub fn widest<W: Wide>() -> fn(&mut W::On) {
    #[target_feature(enable = "avx2")]
    fn in_avx2<W: Wide>(on: &mut W::On) {
        W::run(on);
    }
    if has_avx2() {
        // SAFETY: the processor has the feature.
        return |on| unsafe { in_avx2::<W>(on) };
    }
    W::run
}
