//! What depends on the processor's architecture and the kernel does not report. System calls are
//! not in here: `libc` has their numbers.

/// The registers EAX, EBX, ECX, EDX after CPUID.
pub type Registers = [u32; 4];

/// What the processor says of itself: a leaf of CPUID and a part of it.
///
/// Only x86-64 has the instruction. Other architectures return zeros, which is what x86-64 answers
/// for unknown leaves. Arm's counterpart (MPAM) has no instruction that a program may use: there
/// only the kernel's resctrl can report it.
#[cfg(target_arch = "x86_64")]
pub fn cpuid(leaf: u32, part: u32) -> Registers {
    #[allow(
        unused_unsafe,
        reason = "safe since a later Rust than the oldest supported"
    )]
    // SAFETY: every x86-64 processor has the instruction, and it changes nothing.
    let r = unsafe { std::arch::x86_64::__cpuid_count(leaf, part) };
    [r.eax, r.ebx, r.ecx, r.edx]
}

/// All zero: only x86-64 has CPUID.
#[cfg(not(target_arch = "x86_64"))]
pub fn cpuid(_: u32, _: u32) -> Registers {
    [0; 4]
}
