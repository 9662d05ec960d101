//! The inner loops of the streams: what is done to whole lines, in the widest registers this processor has among those
//! we know (SSE2 and AVX2 on x86-64, the compiler's choice elsewhere). Their rates define a machine's peak, so they
//! must not be slower than a program's.

use quell_core::workload::Operation;

/// What is done to `lines` whole lines at `to`, reading from `from`. Kernels that only read or only write are given the
/// same place twice.
///
/// # Safety
/// Both places must be 64-byte aligned, `lines` · 64 bytes long, valid for what the operation does, and either the same
/// or disjoint.
pub type Kernel = unsafe fn(to: *mut u8, from: *const u8, lines: usize);

/// A way to stream that is not an experiment's operation but belongs to a machine's peak.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Extra {
    /// Load from one half, store past the caches to the other.
    CopyNonTemporal,
}

/// The fastest kernel for `operation` here; `None` where the processor (or our knowledge of it) has none.
#[must_use]
pub fn kernel(operation: Operation) -> Option<Kernel> {
    table().map_or_else(|| portable::kernel(operation), |t| Some(t.of(operation)))
}

/// [`kernel`] for the other ways to stream.
#[must_use]
pub fn extra(extra: Extra) -> Option<Kernel> {
    match extra {
        Extra::CopyNonTemporal => table().map(|t| t.copy_non_temporal),
    }
}

/// Waits until stores past the caches have left this CPU's buffers.
pub fn settle() {
    #[cfg(target_arch = "x86_64")]
    // SAFETY: SFENCE orders stores and has no other effect; SSE belongs to every x86-64 processor.
    unsafe {
        core::arch::x86_64::_mm_sfence();
    }
}

struct Table {
    read: Kernel,
    write: Kernel,
    copy: Kernel,
    non_temporal: Kernel,
    copy_non_temporal: Kernel,
}

impl Table {
    fn of(&self, operation: Operation) -> Kernel {
        match operation {
            Operation::Read => self.read,
            Operation::Write => self.write,
            Operation::Copy => self.copy,
            Operation::NonTemporal => self.non_temporal,
        }
    }
}

#[cfg(not(target_arch = "x86_64"))]
fn table() -> Option<&'static Table> {
    None
}

#[cfg(target_arch = "x86_64")]
fn table() -> Option<&'static Table> {
    if std::arch::is_x86_feature_detected!("avx2") {
        Some(&avx2::TABLE)
    } else {
        Some(&sse2::TABLE)
    }
}

/// One module per register width: `$per` registers to a line.
#[cfg(target_arch = "x86_64")]
macro_rules! kernels {
    ($module:ident, $feature:literal, $register:ident, $per:literal,
     $zero:ident, $splat:ident, $or:ident, $load:ident, $store:ident, $stream:ident) => {
        mod $module {
            use super::Table;
            use core::arch::x86_64::{$load, $or, $register, $splat, $store, $stream, $zero};
            use std::hint::black_box;

            pub static TABLE: Table = Table {
                read,
                write,
                copy,
                non_temporal,
                copy_non_temporal,
            };

            /// A value unknown to the compiler (so that no loop becomes a call of memset), never zero (so that no
            /// hardware shortcut for zeroes applies).
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
                    // SAFETY: inside the `lines` lines at `to`, which is aligned to a line. The caller fences
                    // (`settle`) before anybody else may read them.
                    unsafe { $stream(to.add(i), value) };
                }
                black_box(to);
            }

            // SAFETY: as `Kernel`.
            #[target_feature(enable = $feature)]
            unsafe fn copy_non_temporal(to: *mut u8, from: *const u8, lines: usize) {
                let (to, from) = (to.cast::<$register>(), from.cast::<$register>());
                for i in 0..lines * $per {
                    // SAFETY: inside the `lines` lines at both places, which are aligned to a line; fenced as above.
                    unsafe { $stream(to.add(i), $load(from.add(i))) };
                }
                black_box(to);
            }
        }
    };
}

#[cfg(target_arch = "x86_64")]
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
#[cfg(target_arch = "x86_64")]
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

/// For every other processor: volatile accesses of 64-bit words, every word of every line.
#[cfg_attr(
    target_arch = "x86_64",
    allow(dead_code, reason = "tested everywhere, used elsewhere")
)]
mod portable {
    use super::Kernel;
    use quell_core::workload::Operation;
    use std::hint::black_box;

    const WORDS: usize = 8;

    pub fn kernel(operation: Operation) -> Option<Kernel> {
        match operation {
            Operation::Read => Some(read),
            Operation::Write => Some(write),
            Operation::Copy => Some(copy),
            Operation::NonTemporal => None,
        }
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Line([u8; 64]);

    /// Runs a kernel over lines 1 to 3 of five, from other five lines, and returns what it left.
    fn run(kernel: Kernel) -> [Line; 5] {
        let mut to = [Line([1; 64]); 5];
        let from = [Line([7; 64]); 5];
        // SAFETY: both places hold three lines from their second one on and are aligned and disjoint.
        unsafe {
            kernel(
                to.as_mut_ptr().add(1).cast(),
                from.as_ptr().add(1).cast(),
                3,
            )
        };
        settle();
        to
    }

    fn middle(value: u8) -> [Line; 5] {
        [1, value, value, value, 1].map(|v| Line([v; 64]))
    }

    fn check(kernel: impl Fn(Operation) -> Option<Kernel>, non_temporal: bool) {
        assert_eq!(run(kernel(Operation::Read).unwrap()), middle(1));
        assert_eq!(run(kernel(Operation::Write).unwrap()), middle(0x5a));
        assert_eq!(run(kernel(Operation::Copy).unwrap()), middle(7));
        assert_eq!(
            kernel(Operation::NonTemporal).map(run),
            non_temporal.then(|| middle(0x5a))
        );
    }

    #[test]
    fn every_kernel_touches_whole_lines_and_nothing_else() {
        check(portable::kernel, false);
        #[cfg(target_arch = "x86_64")]
        {
            check(|o| Some(sse2::TABLE.of(o)), true);
            check(kernel, true);
            assert_eq!(extra(Extra::CopyNonTemporal).map(run), Some(middle(7)));
            assert_eq!(run(sse2::TABLE.copy_non_temporal), middle(7));
        }
    }
}
