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

/// The registers of a stopped thread, as ptrace(2) reads and writes them (NT_PRSTATUS).
pub use calls::{INSTRUCTION, TaskRegisters, answer, calling};

/// What it takes to make a stopped thread do a system call.
#[cfg(target_arch = "x86_64")]
mod calls {
    /// The bytes of the instruction that enters the kernel: `syscall`.
    pub const INSTRUCTION: &[u8] = &[0x0f, 0x05];

    /// `struct user_regs_struct`, in its order.
    pub type TaskRegisters = [u64; 27];

    const R10: usize = 7;
    const R9: usize = 8;
    const R8: usize = 9;
    const RAX: usize = 10;
    const RDX: usize = 12;
    const RSI: usize = 13;
    const RDI: usize = 14;
    const ORIG_RAX: usize = 15;
    const RIP: usize = 16;
    const CS: usize = 17;
    /// The code segment of 64-bit programs.
    const USER_CS: u64 = 0x33;

    /// The registers with which a thread does a system call by the instruction at `at`. `None` for
    /// a thread that runs 32-bit code.
    pub fn calling(
        registers: &TaskRegisters,
        at: u64,
        number: u64,
        arguments: &[u64; 6],
    ) -> Option<TaskRegisters> {
        if registers[CS] != USER_CS {
            return None;
        }
        let mut new = *registers;
        for (register, value) in [RDI, RSI, RDX, R10, R8, R9].into_iter().zip(arguments) {
            new[register] = *value;
        }
        new[RAX] = number;
        new[RIP] = at;
        // No system call is being done, so that the kernel restarts none from here.
        new[ORIG_RAX] = u64::MAX;
        Some(new)
    }

    /// What the system call has returned.
    pub fn answer(registers: &TaskRegisters) -> i64 {
        registers[RAX].cast_signed()
    }
}

/// Not built for other architectures: no instruction is known, so no thread is ever asked.
#[cfg(not(target_arch = "x86_64"))]
mod calls {
    /// Empty: not known.
    pub const INSTRUCTION: &[u8] = &[];

    /// None are read.
    pub type TaskRegisters = [u64; 1];

    /// Never possible.
    pub fn calling(_: &TaskRegisters, _: u64, _: u64, _: &[u64; 6]) -> Option<TaskRegisters> {
        None
    }

    /// Zero.
    pub fn answer(_: &TaskRegisters) -> i64 {
        0
    }
}
