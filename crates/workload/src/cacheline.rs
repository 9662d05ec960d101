//! What can be asked of one line besides loads and stores: to be fetched ahead, written back, dropped (Intel SDM vol. 2,
//! PREFETCHT0, CLWB, CLFLUSHOPT, CLFLUSH).

use crate::Error;

/// A request about a line.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Request {
    /// Into the first-level cache, without waiting.
    Prefetch,
    /// To memory, and kept.
    WriteBack,
    /// To memory, and dropped from all caches.
    Flush,
}

impl Request {
    const fn name(self) -> &'static str {
        match self {
            Self::Prefetch => "prefetch",
            Self::WriteBack => "write-back",
            Self::Flush => "flush",
        }
    }

    /// How it is made on this processor.
    ///
    /// # Errors
    /// When the processor, or our knowledge of it, does not have it.
    pub fn maker(self) -> Result<Maker, Error> {
        maker(self).ok_or_else(|| {
            Error::refused(
                format!("the operation '{}'", self.name()),
                format!(
                    "this processor ({}) has no instruction for it that Quell knows",
                    std::env::consts::ARCH
                ),
                "use another operation, or an x86-64 processor with it",
            )
        })
    }
}

/// Makes a request about the line at an address.
///
/// # Safety
/// The address must lie in mapped, writable memory of ours.
pub type Maker = unsafe fn(*mut u8);

#[cfg(not(target_arch = "x86_64"))]
fn maker(_: Request) -> Option<Maker> {
    None
}

#[cfg(target_arch = "x86_64")]
fn maker(request: Request) -> Option<Maker> {
    let extended = extended();
    match request {
        Request::Prefetch => Some(prefetch),
        Request::WriteBack => (extended >> 24 & 1 == 1).then_some(write_back as Maker),
        Request::Flush if extended >> 23 & 1 == 1 => Some(flush_any_order),
        Request::Flush => Some(flush),
    }
}

/// Leaf 7, sub-leaf 0, EBX: which of the newer instructions there are.
#[cfg(target_arch = "x86_64")]
fn extended() -> u32 {
    use core::arch::x86_64::{__cpuid, __cpuid_count};
    #[allow(
        unused_unsafe,
        reason = "CPUID is unsafe to call in older compilers, safe in newer ones"
    )]
    // SAFETY: every x86-64 processor has CPUID; the leaf is asked for only where leaf 0 says that it is there.
    unsafe {
        if __cpuid(0).eax < 7 {
            return 0;
        }
        __cpuid_count(7, 0).ebx
    }
}

// SAFETY: as `Maker`; a prefetch touches nothing that a program sees.
#[cfg(target_arch = "x86_64")]
unsafe fn prefetch(line: *mut u8) {
    use core::arch::x86_64::{_MM_HINT_T0, _mm_prefetch};
    // SAFETY: a prefetch of any address is harmless, and SSE belongs to every x86-64 processor.
    unsafe { _mm_prefetch::<_MM_HINT_T0>(line.cast_const().cast()) };
}

// SAFETY: as `Maker`.
#[cfg(target_arch = "x86_64")]
unsafe fn write_back(line: *mut u8) {
    // SAFETY: the processor has CLWB (`maker`), the address is mapped (the contract); memory keeps its contents.
    unsafe { core::arch::asm!("clwb [{}]", in(reg) line, options(nostack, preserves_flags)) };
}

// SAFETY: as `Maker`.
#[cfg(target_arch = "x86_64")]
unsafe fn flush_any_order(line: *mut u8) {
    // SAFETY: the processor has CLFLUSHOPT (`maker`), the address is mapped (the contract); memory keeps its contents.
    unsafe { core::arch::asm!("clflushopt [{}]", in(reg) line, options(nostack, preserves_flags)) };
}

// SAFETY: as `Maker`.
#[cfg(target_arch = "x86_64")]
unsafe fn flush(line: *mut u8) {
    // SAFETY: CLFLUSH came with SSE2, which every x86-64 processor has; the address is mapped (the contract).
    unsafe { core::arch::x86_64::_mm_clflush(line.cast_const()) };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_request_changes_no_contents() {
        let mut line = [7_u8; 64];
        for request in [Request::Prefetch, Request::WriteBack, Request::Flush] {
            match request.maker() {
                // SAFETY: the line is ours.
                Ok(make) => unsafe { make(line.as_mut_ptr()) },
                Err(refused) => {
                    println!("skipped: {refused}");
                    assert!(refused.to_string().contains(request.name()));
                }
            }
        }
        assert_eq!(line, [7; 64]);
    }
}
