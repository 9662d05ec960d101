//! The eBPF instructions that the program needs
//! (`Documentation/bpf/standardization/instruction-set.rst`).

use std::os::fd::RawFd;

/// Register 0: what a call and the program return.
pub const R0: u8 = 0;
/// Register 1: the program's context, and the first argument of a call.
pub const R1: u8 = 1;
pub const R2: u8 = 2;
pub const R3: u8 = 3;
/// Preserved over calls, as are registers 7 and 8.
pub const R6: u8 = 6;
pub const R7: u8 = 7;
pub const R8: u8 = 8;
/// The end of the stack, which grows down. Read-only.
pub const R10: u8 = 10;

/// `BPF_LDX | BPF_MEM | BPF_DW`.
pub const LOAD: u8 = 0x79;
/// `BPF_STX | BPF_MEM | BPF_DW`.
pub const STORE: u8 = 0x7b;
/// `BPF_LD | BPF_IMM | BPF_DW`: two slots.
pub const LOAD_WIDE: u8 = 0x18;
/// `BPF_ALU64 | BPF_MOV | BPF_X`.
pub const MOVE: u8 = 0xbf;
/// `BPF_ALU64 | BPF_MOV | BPF_K`.
pub const MOVE_IMM: u8 = 0xb7;
/// `BPF_ALU64 | BPF_ADD | BPF_X`.
pub const ADD: u8 = 0x0f;
/// `BPF_ALU64 | BPF_ADD | BPF_K`.
pub const ADD_IMM: u8 = 0x07;
/// `BPF_ALU64 | BPF_SUB | BPF_X`.
pub const SUB: u8 = 0x1f;
/// `BPF_JMP | BPF_JEQ | BPF_K`.
pub const IF_EQUAL_IMM: u8 = 0x15;
/// `BPF_JMP | BPF_JNE | BPF_K`.
pub const IF_NOT_EQUAL_IMM: u8 = 0x55;
/// `BPF_JMP | BPF_JLT | BPF_X`, unsigned.
pub const IF_LESS: u8 = 0xad;
/// `BPF_JMP | BPF_JGT | BPF_X`, unsigned.
pub const IF_MORE: u8 = 0x2d;
/// Call of a helper: `BPF_JMP | BPF_CALL`.
pub const CALL: u8 = 0x85;
/// End of the program: `BPF_JMP | BPF_EXIT`.
pub const EXIT: u8 = 0x95;

/// Source register of [`LOAD_WIDE`]: the address of an array map's values (`BPF_PSEUDO_MAP_VALUE`).
const MAP_VALUE: u8 = 2;

/// One instruction, as the kernel's `struct bpf_insn`.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Insn {
    pub code: u8,
    /// The destination is in the lower four bits of the byte, the source in the upper four (little
    /// endian; on big endian the other way round).
    registers: u8,
    /// The offset of an address in bytes, or of a jump in instructions.
    pub offset: i16,
    pub imm: i32,
}

#[cfg(test)]
impl Insn {
    /// The register that the instruction changes or compares.
    #[must_use]
    pub fn destination(self) -> u8 {
        if cfg!(target_endian = "little") {
            self.registers & 15
        } else {
            self.registers >> 4
        }
    }

    #[must_use]
    pub fn source(self) -> u8 {
        if cfg!(target_endian = "little") {
            self.registers >> 4
        } else {
            self.registers & 15
        }
    }
}

/// Assembles instructions one after the other. All jumps lead to one place, which
/// [`Assembler::land`] sets.
#[derive(Debug, Default)]
pub struct Assembler {
    code: Vec<Insn>,
    jumps: Vec<usize>,
}

impl Assembler {
    fn put(&mut self, code: u8, destination: u8, source: u8, offset: i16, imm: i32) {
        let registers = if cfg!(target_endian = "little") {
            source << 4 | destination
        } else {
            destination << 4 | source
        };
        self.code.push(Insn {
            code,
            registers,
            offset,
            imm,
        });
    }

    pub fn registers(&mut self, code: u8, destination: u8, source: u8) {
        self.put(code, destination, source, 0, 0);
    }

    /// An operation on a register and a number.
    pub fn number(&mut self, code: u8, destination: u8, imm: i32) {
        self.put(code, destination, 0, 0, imm);
    }

    /// Loads 8 bytes from where `address` points, `offset` bytes further.
    pub fn load(&mut self, destination: u8, address: u8, offset: i16) {
        self.put(LOAD, destination, address, offset, 0);
    }

    /// Stores 8 bytes where `address` points, `offset` bytes further.
    pub fn store(&mut self, address: u8, offset: i16, source: u8) {
        self.put(STORE, address, source, offset, 0);
    }

    /// Loads the address of the first value of an array map.
    pub fn map_value(&mut self, destination: u8, map: RawFd) {
        self.put(LOAD_WIDE, destination, MAP_VALUE, 0, map);
        self.put(0, 0, 0, 0, 0);
    }

    /// Calls a kernel helper by its number.
    pub fn call(&mut self, helper: i32) {
        self.put(CALL, 0, 0, 0, helper);
    }

    /// Jumps to the place set by [`Self::land`] if the comparison of two registers holds.
    pub fn jump_if(&mut self, code: u8, left: u8, right: u8) {
        self.jumps.push(self.code.len());
        self.put(code, left, right, 0, 0);
    }

    /// Jumps as [`Self::jump_if`], comparing with a number.
    pub fn jump_if_number(&mut self, code: u8, left: u8, imm: i32) {
        self.jumps.push(self.code.len());
        self.put(code, left, 0, 0, imm);
    }

    /// Returns `imm` from the program.
    pub fn return_number(&mut self, imm: i32) {
        self.number(MOVE_IMM, R0, imm);
        self.put(EXIT, 0, 0, 0, 0);
    }

    /// Makes this the place where all jumps so far lead.
    pub fn land(&mut self) {
        let here = self.code.len();
        for from in self.jumps.drain(..) {
            self.code[from].offset = i16::try_from(here - from - 1).unwrap_or(i16::MAX);
        }
    }

    #[must_use]
    pub fn finish(self) -> Vec<Insn> {
        self.code
    }
}
