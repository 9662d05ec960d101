//! What generators and probes take from the processor's architecture: streams in its widest
//! registers, stores past the caches, requests about lines, barriers and a time counter.
//!
//! There is one file per architecture, with the same names. `portable.rs` is for every other one:
//! plain loops where these do, and `None` where Quell knows no instruction. The caller then
//! refuses, with the reason.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    allow(dead_code, reason = "tested everywhere, used elsewhere")
)]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as here;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable as here;
#[cfg(target_arch = "x86_64")]
use x86_64 as here;

/// Bytes of a line, as everywhere in Quell.
const LINE: usize = quell_types::units::LINE_BYTES as usize;

/// What is done to `lines` whole lines at `to`, reading from `from`. Kernels that only read or only
/// write get the same place twice.
///
/// # Safety
/// Both places must be 64-byte aligned, `lines` · 64 bytes long, valid for what the operation does,
/// and either the same or disjoint.
pub type Kernel = unsafe fn(to: *mut u8, from: *const u8, lines: usize);

/// The inner loops of the streams.
pub struct Streams {
    pub read: Kernel,
    pub write: Kernel,
    pub copy: Kernel,
    /// Writes past the caches. `None` where Quell knows no such instruction.
    pub non_temporal: Option<Kernel>,
    /// Reads as usual, writes past the caches. `None` as above.
    pub copy_non_temporal: Option<Kernel>,
}

/// The fastest streams of this processor among those we know.
pub fn streams() -> &'static Streams {
    here::streams()
}

/// Waits until stores past the caches have left this CPU's buffers.
pub fn settle() {
    here::settle();
}

/// Waits until all loads, stores and requests before it are done.
pub fn fence() {
    here::fence();
}

/// Whether [`store_past`] goes past the caches here.
pub const STORES_PAST: bool = here::STORES_PAST;

/// Stores a word of two equal halves past the caches, or into them where there is no such store.
///
/// # Safety
/// `to` must be an aligned word of ours. Call [`settle`] before another thread reads it.
#[inline(always)]
pub unsafe fn store_past(to: *mut u64, half: u32) {
    // SAFETY: by the contract.
    unsafe { here::store_past(to, half) };
}

/// A request about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Fetches the line into the first-level cache, without waiting.
    Prefetch,
    /// Writes the line to memory and keeps it.
    WriteBack,
    /// Writes the line to memory and drops it from all caches.
    Flush,
}

/// Makes a request about the line at an address.
///
/// # Safety
/// The address must lie in mapped, writable memory of ours.
pub type Maker = unsafe fn(*mut u8);

/// How a request is made on this processor. `None` where Quell knows no instruction for it.
pub fn request(request: Request) -> Option<Maker> {
    here::request(request)
}

/// A counter of constant rate that a program reads without the kernel's help, in its own unit.
/// Loads before it are done when it is read, and loads after it have not begun. `None` where Quell
/// knows none.
#[inline]
pub fn ticks() -> Option<u64> {
    here::ticks()
}

/// A loop that gains from wide registers. `run` has to be `#[inline(always)]`.
pub trait Wide {
    /// The data that the loop works on.
    type On;

    /// Runs the loop once over `on`.
    fn run(on: &mut Self::On);
}

/// The loop, compiled for the widest registers that this processor has and Quell knows.
pub fn widest<W: Wide>() -> fn(&mut W::On) {
    here::widest::<W>()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[repr(align(64))]
    #[derive(Clone, Copy, PartialEq, Debug)]
    struct Line([u8; LINE]);

    /// Runs a kernel over lines 1 to 3 of five, from five other lines, and returns what it left.
    fn run(kernel: Kernel) -> [Line; 5] {
        let mut to = [Line([1; LINE]); 5];
        let from = [Line([7; LINE]); 5];
        // SAFETY: both places hold three lines from their second one on and are aligned and
        // disjoint.
        unsafe {
            kernel(
                to.as_mut_ptr().add(1).cast(),
                from.as_ptr().add(1).cast(),
                3,
            );
        }
        settle();
        to
    }

    fn middle(value: u8) -> [Line; 5] {
        [1, value, value, value, 1].map(|v| Line([v; LINE]))
    }

    fn check(streams: &Streams) {
        assert_eq!(run(streams.read), middle(1));
        assert_eq!(run(streams.write), middle(0x5a));
        assert_eq!(run(streams.copy), middle(7));
        for (past, left) in [(streams.non_temporal, 0x5a), (streams.copy_non_temporal, 7)] {
            assert_eq!(past.is_some(), streams.non_temporal.is_some());
            assert!(past.is_none_or(|kernel| run(kernel) == middle(left)));
        }
    }

    #[test]
    fn every_kernel_touches_whole_lines_and_nothing_else() {
        check(&portable::STREAMS);
        here::every_streams().into_iter().for_each(check);
        assert_eq!(streams().non_temporal.is_some(), STORES_PAST);
    }

    #[test]
    fn a_word_past_the_caches_is_that_word_and_no_other() {
        let mut words = [7_u64; 3];
        // SAFETY: the second of three words.
        unsafe { store_past(&raw mut words[1], 0x5a5a_1234) };
        settle();
        assert_eq!(words, [7, 0x5a5a_1234_5a5a_1234, 7]);
    }

    #[test]
    fn requests_and_barriers_change_no_contents() {
        let mut line = [7_u8; LINE];
        for asked in [Request::Prefetch, Request::WriteBack, Request::Flush] {
            let Some(make) = request(asked) else {
                quell_testing::skip_part(format_args!("{asked:?} is not known here"));
                continue;
            };
            // SAFETY: the line is ours.
            unsafe { make(line.as_mut_ptr()) };
            fence();
        }
        assert_eq!(line, [7; LINE]);
    }

    #[test]
    fn ticks_go_on_and_never_back() {
        let Some(begin) = ticks() else {
            quell_testing::skip("no counter is known here");
            return;
        };
        std::thread::sleep(std::time::Duration::from_millis(1));
        let end = ticks();
        assert!(end > Some(begin), "{begin} {end:?}");
    }

    #[test]
    fn a_wide_loop_does_what_the_plain_one_does() {
        struct Doubled;
        impl Wide for Doubled {
            type On = [f64; 8];

            #[inline(always)]
            fn run(on: &mut Self::On) {
                on.iter_mut().for_each(|x| *x += *x);
            }
        }
        let mut on = [1.5; 8];
        widest::<Doubled>()(&mut on);
        portable::widest::<Doubled>()(&mut on);
        assert_eq!(on, [6.0; 8]);
    }
}
