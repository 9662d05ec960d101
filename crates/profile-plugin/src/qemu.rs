//! The part of QEMU's plugin interface that is used, version 1. Names and layouts are those of the
//! interface; see QEMU's manual, "QEMU TCG Plugins".

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The version of the interface.
pub const VERSION: c_int = 1;
/// A callback's access to registers: none.
pub const NO_REGISTERS: c_int = 0;
/// Which accesses get a callback: loads and stores.
pub const LOADS_AND_STORES: c_int = 3;

/// Opaque types of QEMU's that are only passed around.
macro_rules! opaque {
    ($($name:ident),*) => {$(
        /// An opaque type of QEMU's.
        #[repr(C)]
        pub struct $name { _private: [u8; 0] }
    )*};
}
opaque!(Block, Instruction, Info);

/// A thread begins.
pub type OnThread = extern "C" fn(u64, c_uint);
/// A block of code is translated.
pub type OnTranslation = extern "C" fn(u64, *mut Block);
/// A block of code begins to run, on a thread.
pub type OnBlock = extern "C" fn(c_uint, *mut c_void);
/// An access: the thread, information on the access, its virtual address.
pub type OnAccess = extern "C" fn(c_uint, u32, u64, *mut c_void);
/// The program ends.
pub type OnExit = extern "C" fn(u64, *mut c_void);
/// Arguments of the plugin.
pub type Arguments = *const *const c_char;

unsafe extern "C" {
    pub fn qemu_plugin_register_vcpu_init_cb(id: u64, cb: OnThread);
    pub fn qemu_plugin_register_vcpu_tb_trans_cb(id: u64, cb: OnTranslation);
    pub fn qemu_plugin_register_atexit_cb(id: u64, cb: OnExit, data: *mut c_void);
    pub fn qemu_plugin_register_vcpu_tb_exec_cb(
        tb: *mut Block,
        cb: OnBlock,
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
    pub fn qemu_plugin_tb_get_insn(tb: *const Block, n: usize) -> *mut Instruction;
    pub fn qemu_plugin_insn_vaddr(insn: *const Instruction) -> u64;
    pub fn qemu_plugin_insn_haddr(insn: *const Instruction) -> *const c_void;
    pub fn qemu_plugin_insn_data(insn: *const Instruction) -> *const u8;
    pub fn qemu_plugin_insn_size(insn: *const Instruction) -> usize;
    pub fn qemu_plugin_mem_size_shift(info: u32) -> c_uint;
    pub fn qemu_plugin_mem_is_store(info: u32) -> bool;
}
