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
pub use calls::{
    IS_BUILT, OF_FILTERS, PORTS, TaskRegisters, WAY_BACK, after_call, answer, calling, position,
    way_back,
};

/// What it takes to make a stopped thread do a system call.
#[cfg(target_arch = "x86_64")]
mod calls {
    /// Whether threads can be made to do calls.
    pub const IS_BUILT: bool = true;

    /// How a filter of system calls is told the architecture (`AUDIT_ARCH_X86_64`). `None`: the
    /// filters of this one are not known.
    pub const OF_FILTERS: Option<u32> = Some(crate::seccomp::X86_64);

    /// The system calls that reach the processor's ports.
    pub const PORTS: &[libc::c_long] = &[libc::SYS_ioperm, libc::SYS_iopl];

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
    const FLAGS: usize = 18;
    const RSP: usize = 19;
    /// All general registers, in the order in which instructions number them. RSP is number 4.
    const NUMBERED: [usize; 16] = [
        RAX, 11, RDX, 5, RSP, 4, RSI, RDI, R8, R9, R10, 6, 3, 2, 1, 0,
    ];
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

    /// The address of the instruction that follows the one that enters the kernel.
    pub const fn after_call(at: u64) -> u64 {
        at.wrapping_add(2)
    }

    /// What the system call has returned.
    pub fn answer(registers: &TaskRegisters) -> i64 {
        registers[RAX].cast_signed()
    }

    /// The address of the next instruction.
    pub fn position(registers: &TaskRegisters) -> u64 {
        registers[RIP]
    }

    /// Words of a [`way_back`].
    pub const WAY_BACK: usize = 41;
    const BYTES: usize = WAY_BACK * 8;

    /// Code for the address `at`, with its data. A thread that enters it with registers of
    /// [`calling`] does that system call. Then it gives itself these registers and this mask of
    /// signals, and goes on where they say. A system call that the kernel would restart is begun
    /// again. Writes no memory, and needs no stack. The stack pointer is another one only while all
    /// signals are blocked.
    pub fn way_back(registers: &TaskRegisters, mask: u64, at: u64) -> [u64; WAY_BACK] {
        const SYSCALL: [u8; 2] = [0x0f, 0x05];
        const POP_FLAGS: u8 = 0x9d;
        /// `jmp` to the address that follows.
        const JUMP: [u8; 6] = [0xff, 0x25, 0, 0, 0, 0];
        let resumed = resumed(registers);
        let [all, old, flags] = [3, 2, 1].map(|n| at + (BYTES - n * 8) as u64);
        let mut code = Code::default();
        code.put(&SYSCALL);
        code.set_mask(all);
        code.put(&SYSCALL);
        code.load(4, flags);
        code.put(&[POP_FLAGS]);
        code.load(4, resumed[RSP]);
        code.set_mask(old);
        code.put(&SYSCALL);
        for (number, register) in (0..).zip(NUMBERED) {
            code.load(number, resumed[register]);
        }
        code.put(&JUMP);
        code.put(&resumed[RIP].to_ne_bytes());
        code.used = BYTES - 24;
        for word in [u64::MAX, mask, resumed[FLAGS]] {
            code.put(&word.to_ne_bytes());
        }
        let words = code.bytes.as_chunks::<8>().0;
        std::array::from_fn(|n| u64::from_ne_bytes(words[n]))
    }

    /// Registers with which a thread does what the kernel would let it do. In the kernel it may
    /// wait to begin a system call again.
    fn resumed(registers: &TaskRegisters) -> TaskRegisters {
        const RESTART_SYSCALL: u64 = 219;
        let mut new = *registers;
        // The kernel's own numbers: ERESTARTSYS, ERESTARTNOINTR, ERESTARTNOHAND, and
        // ERESTART_RESTARTBLOCK.
        new[RAX] = match registers[RAX].cast_signed() {
            _ if registers[ORIG_RAX].cast_signed() < 0 => return new,
            -514..=-512 => registers[ORIG_RAX],
            -516 => RESTART_SYSCALL,
            _ => return new,
        };
        // The instruction that enters the kernel has two bytes.
        new[RIP] -= 2;
        new
    }

    /// Instructions, one after the other.
    struct Code {
        bytes: [u8; BYTES],
        used: usize,
    }

    impl Default for Code {
        fn default() -> Self {
            Self {
                bytes: [0; BYTES],
                used: 0,
            }
        }
    }

    impl Code {
        fn put(&mut self, bytes: &[u8]) {
            self.bytes[self.used..][..bytes.len()].copy_from_slice(bytes);
            self.used += bytes.len();
        }

        /// Loads a register, by its number in instructions.
        fn load(&mut self, number: u8, value: u64) {
            self.put(&[0x48 | number >> 3, 0xb8 | number & 7]);
            self.put(&value.to_ne_bytes());
        }

        /// Prepares rt_sigprocmask(SIG_SETMASK, `mask`, NULL, 8). No flag changes.
        fn set_mask(&mut self, mask: u64) {
            let set = libc::SIG_SETMASK.unsigned_abs();
            for (number, value) in [(0, 14), (7, u64::from(set)), (6, mask), (2, 0), (10, 8)] {
                self.load(number, value);
            }
        }
    }
}

/// Not built for other architectures: no instruction is known, so no thread is ever asked.
#[cfg(not(target_arch = "x86_64"))]
mod calls {
    /// They cannot.
    pub const IS_BUILT: bool = false;

    /// Not known.
    pub const OF_FILTERS: Option<u32> = None;

    /// Not known.
    pub const PORTS: &[libc::c_long] = &[];

    /// None.
    pub const WAY_BACK: usize = 0;

    /// None are read.
    pub type TaskRegisters = [u64; 1];

    /// Never possible.
    pub fn calling(_: &TaskRegisters, _: u64, _: u64, _: &[u64; 6]) -> Option<TaskRegisters> {
        None
    }

    /// Zero.
    pub const fn after_call(_: u64) -> u64 {
        0
    }

    /// Zero.
    pub fn answer(_: &TaskRegisters) -> i64 {
        0
    }

    /// Zero.
    pub fn position(_: &TaskRegisters) -> u64 {
        0
    }

    /// Empty.
    pub fn way_back(_: &TaskRegisters, _: u64, _: u64) -> [u64; WAY_BACK] {
        []
    }
}

#[cfg(test)]
#[path = "arch_tests.rs"]
pub mod tests;
