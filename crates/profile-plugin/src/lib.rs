//! QEMU's plugin for programs in user mode. It hands a program's instructions and accesses to
//! [`quell_model::demand::Profiler`], and writes the windows when the program ends.
//!
//! Arguments, each `KEY=VALUE`:
//! - `out`: the file that is written, tab-separated with a header;
//! - `window`: instructions of a window;
//! - `sizes`: sizes of the LRU caches in bytes, separated by colons, increasing;
//! - `share`: one of these sizes, for which misses under way together are counted.
//!
//! All threads count as one, on one core. Child processes are not recorded. QEMU runs a repeated
//! string instruction again and again as a block of its own. That counts as one instruction, and
//! its accesses to a line in a row as one.

#![allow(missing_docs, reason = "a shared library: its one user is QEMU")]

mod qemu;

use std::ffi::{CStr, c_int, c_uint, c_void};
use std::fmt::Write;
use std::path::PathBuf;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Mutex, MutexGuard, OnceLock, PoisonError};

use qemu::{Block, Info, Instruction};
use quell_model::demand::{LINE, Plan, Profiler, Touch, WORDS, Window};

/// The version of the plugin interface that this is made for; QEMU reads it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

/// QEMU places programs of 64 bits from here on. Without this bit the line numbers are short, which
/// makes the caches of the model fast. A different address stays a different one.
const BASE: u64 = 1 << 38;

struct Plugin {
    profiler: Mutex<Profiler>,
    out: PathBuf,
    /// The process that was started. A child inherits the plugin, and writes nothing.
    process: u32,
    sizes: Vec<u64>,
    window: u64,
    threads: AtomicU64,
    /// The repeated string instruction that ended the latest block, else 0.
    repeated: AtomicU64,
}

impl Plugin {
    fn profiler(&self) -> MutexGuard<'_, Profiler> {
        self.profiler.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Where the program's address 0 lies in QEMU's address space.
static OFFSET: AtomicU64 = AtomicU64::new(u64::MAX);

fn plugin() -> &'static Plugin {
    PLUGIN
        .get()
        .expect("invariant: callbacks are registered after it is set")
}

/// # Safety
/// QEMU calls it, with a list of `argc` arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    _: *const Info,
    argc: c_int,
    argv: qemu::Arguments,
) -> c_int {
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|n| {
        // SAFETY: QEMU hands over `argc` strings.
        unsafe { CStr::from_ptr(*argv.add(n)) }
            .to_string_lossy()
            .into_owned()
    });
    let set = install(&arguments.collect::<Vec<_>>())
        .and_then(|plugin| PLUGIN.set(plugin).map_err(|_| "loaded twice".to_owned()));
    if let Err(reason) = set {
        eprintln!("quell-profile-plugin: {reason}");
        return 1;
    }
    // SAFETY: the callbacks have the types of the interface, and live as long as the library, which
    // is never unloaded.
    unsafe {
        qemu::qemu_plugin_register_vcpu_init_cb(id, on_thread);
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
        qemu::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
    0
}

fn install(arguments: &[String]) -> Result<Plugin, String> {
    let (mut out, mut window, mut share) = (None, 10_000_000, None);
    let mut sizes = Vec::new();
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("{argument}: arguments are KEY=VALUE"))?;
        let number = |text: &str| {
            let number = text.parse::<u64>();
            number.map_err(|_| format!("{argument}: {text} is no whole number"))
        };
        match key {
            "out" => out = Some(PathBuf::from(value)),
            "window" => window = number(value)?,
            "share" => share = Some(number(value)?),
            "sizes" => sizes = value.split(':').map(number).collect::<Result<_, _>>()?,
            _ => {
                return Err(format!(
                    "{argument}: arguments are out, window, sizes, share"
                ));
            }
        }
    }
    let out = out.ok_or("out=FILE is missing")?;
    let share = sizes.iter().position(|size| Some(*size) == share);
    let plan = Plan {
        window,
        sizes: sizes.clone(),
        share: share.ok_or("share=BYTES is missing, or is none of the sizes")?,
    };
    Ok(Plugin {
        profiler: Mutex::new(Profiler::new(plan).map_err(|e| e.to_string())?),
        out,
        process: std::process::id(),
        sizes,
        window,
        threads: AtomicU64::new(0),
        repeated: AtomicU64::new(0),
    })
}

extern "C" fn on_thread(_: u64, _: c_uint) {
    plugin().threads.fetch_add(1, Relaxed);
}

extern "C" fn on_translation(_: u64, block: *mut Block) {
    // SAFETY: all calls concern a block that QEMU has just handed over, and instructions within it.
    unsafe {
        let instructions = qemu::qemu_plugin_tb_n_insns(block);
        let mut note = instructions as u64;
        for at in 0..instructions {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            if OFFSET.load(Relaxed) == u64::MAX {
                let host = qemu::qemu_plugin_insn_haddr(instruction) as u64;
                let guest = qemu::qemu_plugin_insn_vaddr(instruction);
                OFFSET.store(host.wrapping_sub(guest), Relaxed);
            }
            // QEMU ends a block with it.
            if at + 1 == instructions && repeats(instruction) {
                note |= qemu::qemu_plugin_insn_vaddr(instruction) << COUNT_BITS;
            }
            qemu::qemu_plugin_register_vcpu_mem_cb(
                instruction,
                on_access,
                qemu::NO_REGISTERS,
                qemu::LOADS_AND_STORES,
                at as *mut c_void,
            );
        }
        qemu::qemu_plugin_register_vcpu_tb_exec_cb(
            block,
            on_block,
            qemu::NO_REGISTERS,
            note as *mut c_void,
        );
    }
}

/// A note of a block: how many instructions it has, and above that the address of the repeated
/// string instruction that ends it.
const COUNT_BITS: u32 = 12;

/// Whether an instruction is a string instruction with a prefix that repeats it.
///
/// # Safety
/// The instruction is one of a block that is being translated.
unsafe fn repeats(instruction: *const Instruction) -> bool {
    // SAFETY: QEMU holds the bytes of the instruction while its block is translated.
    let bytes = unsafe {
        let size = qemu::qemu_plugin_insn_size(instruction);
        std::slice::from_raw_parts(qemu::qemu_plugin_insn_data(instruction), size)
    };
    let is_prefix = |b: &&u8| matches!(b, 0x66 | 0x67 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let prefixes = bytes.iter().take_while(is_prefix);
    let repeated = prefixes.clone().any(|b| matches!(b, 0xf2 | 0xf3));
    let code = bytes.get(prefixes.count());
    repeated && matches!(code, Some(0xa4..=0xa7 | 0xaa..=0xaf))
}

extern "C" fn on_block(_: c_uint, note: *mut c_void) {
    let plugin = plugin();
    let (instructions, string) = (note as u64 % (1 << COUNT_BITS), note as u64 >> COUNT_BITS);
    let before = plugin.repeated.swap(string, Relaxed);
    let again = instructions == 1 && string != 0 && string == before;
    plugin
        .profiler()
        .block(if again { 0 } else { instructions });
}

extern "C" fn on_access(_: c_uint, info: u32, address: u64, index: *mut c_void) {
    let mut profiler = plugin().profiler();
    // SAFETY: the calls concern the access that QEMU has just reported.
    let (write, shift) = unsafe {
        (
            qemu::qemu_plugin_mem_is_store(info),
            qemu::qemu_plugin_mem_size_shift(info),
        )
    };
    let last = address.wrapping_add((1 << shift) - 1);
    let mut touch = Touch {
        index: index as u64,
        address: address ^ BASE,
        write,
    };
    profiler.access(touch, words);
    if last / LINE != address / LINE {
        touch.address = (last / LINE * LINE) ^ BASE;
        profiler.access(touch, words);
    }
}

/// The words of the line at an address of the profiler, as addresses of the profiler.
fn words(address: u64) -> [u64; WORDS] {
    let place = (address ^ BASE).wrapping_add(OFFSET.load(Relaxed));
    // SAFETY: the program has just accessed this line, so all of its page is mapped. The words are
    // aligned, and any bytes are words.
    let words = unsafe { std::ptr::read_volatile(place as *const [u64; WORDS]) };
    words.map(|word| word ^ BASE)
}

extern "C" fn on_exit(_: u64, _: *mut c_void) {
    let plugin = plugin();
    if plugin.process != std::process::id() {
        return;
    }
    let text = table(plugin, plugin.profiler().windows());
    if let Err(e) = std::fs::write(&plugin.out, text) {
        eprintln!("quell-profile-plugin: {}: {e}", plugin.out.display());
    }
}

/// The windows as lines of numbers.
fn table(plugin: &Plugin, windows: &[Window]) -> String {
    let mut text = format!(
        "# quell-demand 1 window={} threads={}\n\
         instructions\tloads\tstores\tl1\tl2\tl2_evictions\tl2_writebacks\t\
         near_misses\tnear_epochs\tfar_misses\tfar_epochs",
        plugin.window,
        plugin.threads.load(Relaxed),
    );
    for size in &plugin.sizes {
        let _ = write!(text, "\tmisses_{size}\tevictions_{size}\twritebacks_{size}");
    }
    for window in windows {
        let fixed = [
            window.instructions,
            window.loads,
            window.stores,
            window.first,
            window.second,
            window.evictions,
            window.writebacks,
            window.near.misses,
            window.near.epochs,
            window.far.misses,
            window.far.epochs,
        ];
        let sizes = window
            .sizes
            .iter()
            .flat_map(|size| [size.misses, size.evictions, size.writebacks]);
        let numbers: Vec<String> = fixed
            .into_iter()
            .chain(sizes)
            .map(|n| n.to_string())
            .collect();
        let _ = write!(text, "\n{}", numbers.join("\t"));
    }
    text + "\n"
}
