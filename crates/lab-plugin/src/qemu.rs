//! The part of QEMU's plugin interface that is used, version 7 (QEMU 11), and of GLib's byte
//! arrays, which hold registers. Names and layouts are those of the interface; see QEMU's manual,
//! "QEMU TCG Plugins".

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface.
pub const VERSION: c_int = 7;

/// What QEMU reports about itself.
#[repr(C)]
pub struct Info {
    target: *const c_char,
    /// The oldest version of the interface that QEMU supports, and its present one.
    pub version: [c_int; 2],
    system: bool,
    /// How many CPUs there are at first, and at most.
    pub cpus: [c_int; 2],
}

/// Opaque types of QEMU's that are only passed around.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// An opaque type of QEMU's.
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )*};
}
opaque!(Block, Instruction, Register, Scoreboard, PhysicalAddress);

/// GLib's growing array of bytes.
#[repr(C)]
pub struct ByteArray {
    /// The first byte, or null.
    pub data: *mut u8,
    /// How many bytes there are.
    pub len: c_uint,
}

/// GLib's growing array of elements.
#[repr(C)]
pub struct Array {
    /// The first element; elements may be longer than known.
    pub data: *mut c_char,
    /// How many elements there are.
    pub len: c_uint,
}

/// The beginning of an element of the list of registers.
#[repr(C)]
pub struct Description {
    /// The handle by which the register is read and written.
    pub handle: *mut Register,
    /// The register's name, a C string.
    pub name: *const c_char,
}

/// An entry of a scoreboard: a word per CPU.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct Word {
    /// The scoreboard that the word belongs to.
    pub score: *mut Scoreboard,
    /// The offset of the word in each element, in bytes.
    pub offset: usize,
}

/// A callback's access to registers: none.
pub const NO_REGISTERS: c_int = 0;
/// A callback's access to registers: it may read all of them.
pub const READ_REGISTERS: c_int = 1;
/// A callback's access to registers: it may write all of them.
pub const WRITE_REGISTERS: c_int = 2;
/// The same, and it may write the program counter.
pub const WRITE_REGISTERS_AND_PC: c_int = 3;
/// Which accesses get a callback: loads.
pub const LOADS: c_int = 1;
/// Which accesses get a callback: stores.
pub const STORES: c_int = 2;
/// A condition for a callback: not equal.
pub const NOT_EQUAL: c_int = 3;

/// A callback on a CPU.
pub type OnCpu = extern "C" fn(c_uint, *mut c_void);
/// A callback when code is translated.
pub type OnTranslation = extern "C" fn(*mut Block, *mut c_void);
/// A callback after an access: the CPU, information on the access, its virtual address.
pub type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);
/// A callback outside of any CPU.
pub type Outside = extern "C" fn(*mut c_void);

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: u64, cb: OnCpu, data: *mut c_void);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, cb: OnTranslation, data: *mut c_void);
    pub fn qemu_plugin_register_atexit_cb(id: u64, cb: Outside, data: *mut c_void);
    pub fn qemu_plugin_reset(id: u64, cb: Outside, data: *mut c_void);
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Block,
        cb: OnCpu,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_tb_exec_cond_cb(
        tb: *mut Block,
        cb: OnCpu,
        flags: c_int,
        cond: c_int,
        entry: Word,
        imm: u64,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_insn_exec_cb(
        insn: *mut Instruction,
        cb: OnCpu,
        flags: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_register_vcpu_mem_cb(
        insn: *mut Instruction,
        cb: OnAccess,
        flags: c_int,
        rw: c_int,
        data: *mut c_void,
    );
    pub fn qemu_plugin_tb_n_insns(tb: *const Block) -> usize;
    pub fn qemu_plugin_tb_vaddr(tb: *const Block) -> u64;
    pub fn qemu_plugin_tb_get_insn(tb: *const Block, n: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_data(insn: *const Instruction, into: *mut c_void, len: usize) -> usize;
    pub fn qemu_plugin_insn_size(insn: *const Instruction) -> usize;
    pub fn qemu_plugin_insn_vaddr(insn: *const Instruction) -> u64;
    pub fn qemu_plugin_get_hwaddr(info: u32, vaddr: u64) -> *mut PhysicalAddress;
    pub fn qemu_plugin_hwaddr_is_io(address: *const PhysicalAddress) -> bool;
    pub fn qemu_plugin_hwaddr_phys_addr(address: *const PhysicalAddress) -> u64;
    pub fn qemu_plugin_translate_vaddr(vaddr: u64, physical: *mut u64) -> bool;
    pub fn qemu_plugin_get_registers() -> *mut Array;
    pub fn qemu_plugin_read_register(register: *mut Register, into: *mut ByteArray) -> bool;
    pub fn qemu_plugin_write_register(register: *mut Register, from: *mut ByteArray) -> bool;
    pub fn qemu_plugin_set_pc(vaddr: u64);
    pub fn qemu_plugin_scoreboard_new(size: usize) -> *mut Scoreboard;
    pub fn qemu_plugin_u64_get(entry: Word, cpu: c_uint) -> u64;
    pub fn qemu_plugin_u64_set(entry: Word, cpu: c_uint, value: u64);

    pub fn g_array_get_element_size(array: *mut Array) -> c_uint;
    pub fn g_byte_array_new() -> *mut ByteArray;
    pub fn g_byte_array_append(
        array: *mut ByteArray,
        data: *const u8,
        len: c_uint,
    ) -> *mut ByteArray;
    pub fn g_byte_array_unref(array: *mut ByteArray);
}
