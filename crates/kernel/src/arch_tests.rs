//! A program that knows its registers.

/// Whether all registers but the stack pointer, and a flag, keep what they have for some 100 µs.
#[cfg(target_arch = "x86_64")]
pub fn keeps_registers() -> bool {
    let same: u64;
    // SAFETY: what the compiler has in these registers is put back.
    unsafe {
        std::arch::asm!(
            "push rbx", "push rbp",
            "mov rax, 0x0101010101010101", "mov rbx, 0x0202020202020202",
            "mov rdx, 0x0303030303030303", "mov rsi, 0x0404040404040404",
            "mov rdi, 0x0505050505050505", "mov rbp, 0x0606060606060606",
            "mov r8,  0x0707070707070707", "mov r9,  0x0808080808080808",
            "mov r10, 0x0909090909090909", "mov r11, 0x0a0a0a0a0a0a0a0a",
            "mov r12, 0x0b0b0b0b0b0b0b0b", "mov r13, 0x0c0c0c0c0c0c0c0c",
            "mov r14, 0x0d0d0d0d0d0d0d0d", "mov r15, 0x0e0e0e0e0e0e0e0e",
            "mov rcx, 100000", "stc",
            "2:", "lea rcx, [rcx - 1]", "jrcxz 3f", "jmp 2b", "3:",
            "setc cl",
            "add rax, rbx", "add rax, rdx", "add rax, rsi", "add rax, rdi", "add rax, rbp",
            "add rax, r8", "add rax, r9", "add rax, r10", "add rax, r11", "add rax, r12",
            "add rax, r13", "add rax, r14", "add rax, r15",
            "mov rdx, 0x6969696969696969",
            "sub rax, rdx", "movzx rcx, cl", "dec rcx", "or rax, rcx",
            "pop rbp", "pop rbx",
            out("rax") same, out("rcx") _, out("rdx") _, out("rsi") _, out("rdi") _,
            out("r8") _, out("r9") _, out("r10") _, out("r11") _,
            out("r12") _, out("r13") _, out("r14") _, out("r15") _,
        );
    }
    same == 0
}

/// Nothing is known of the registers.
#[cfg(not(target_arch = "x86_64"))]
pub fn keeps_registers() -> bool {
    true
}
