//! QEMU's plugin. It hands the guest's accesses to [`quell_lab::emul::Machine`], and the
//! instructions that ask a processor what it is and what it allows.
//!
//! Arguments, each `KEY=VALUE`:
//! - `profile`: a built-in one or a file;
//! - `sockets`, `cores`, `threads`: as in `-smp`;
//! - `qmp`: the monitor's socket, for counter interrupts;
//! - `report`: a file for what happened, as JSON.
//!
//! When a block of code is translated, its lines are noted, and its loads and stores get a
//! callback. `RDMSR`, `WRMSR` and `RDPMC` are carried out here and skipped. After `CPUID` the
//! registers are changed before the next instruction.
//!
//! Loads, stores and lines are seen only while the machine is watched: callbacks for them make it
//! several times slower. The guest says so in a register of the lab's own ([`WATCH`]); all code is
//! then translated anew.
//!
//! A counter's interrupt goes over QEMU's
//! monitor (`inject-nmi`), from a separate thread, since no plugin can raise one. It arrives on all
//! CPUs, some tenths of a millisecond late.

#![allow(missing_docs, reason = "a shared library: its one user is QEMU")]

mod qemu;

use std::ffi::{CStr, c_char, c_int, c_uint, c_void};
use std::io::{BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, SyncSender, sync_channel};
use std::sync::{Mutex, OnceLock};
use std::time::Duration;

use qemu::{Block, Instruction, Register, Word};
use quell_lab::emul::{After, Answer, Machine, Operand, Topology, WATCH};
use quell_lab::profile::Profile;

/// The version of the plugin interface that this is made for; QEMU reads it.
#[unsafe(no_mangle)]
pub static qemu_plugin_version: c_int = qemu::VERSION;

struct Plugin {
    machine: Machine,
    /// By CPU: what to put into the registers before the next instruction.
    answers: Vec<Mutex<Option<Answer>>>,
    /// By CPU: not 0 where there is such an answer.
    answered: Word,
    interrupts: Option<SyncSender<()>>,
    report: Option<PathBuf>,
    registers: OnceLock<[usize; 16]>,
}

// SAFETY: the scoreboard behind `answered` is QEMU's, made for access from all CPUs' threads.
unsafe impl Send for Plugin {}
// SAFETY: as above.
unsafe impl Sync for Plugin {}

static PLUGIN: OnceLock<Plugin> = OnceLock::new();

/// Whether the kernel proper has begun. Code before it (firmware, and what unpacks the kernel)
/// fills no cache: there is much of it, and no program measures it.
static KERNEL: AtomicBool = AtomicBool::new(false);

/// Whether loads, stores and lines are seen.
static WATCHED: AtomicBool = AtomicBool::new(false);

/// What QEMU calls this plugin.
static ID: AtomicU64 = AtomicU64::new(0);

fn plugin() -> &'static Plugin {
    PLUGIN
        .get()
        .expect("invariant: callbacks are registered after it is set")
}

/// The names of the general registers, in the order in which instructions number them.
const NAMES: [&str; 16] = [
    "rax", "rcx", "rdx", "rbx", "rsp", "rbp", "rsi", "rdi", "r8", "r9", "r10", "r11", "r12", "r13",
    "r14", "r15",
];
const RAX: usize = 0;
const RCX: usize = 1;
const RDX: usize = 2;
const RBX: usize = 3;
/// Those of an answer to `CPUID`.
const ANSWER: [usize; 4] = [RAX, RBX, RCX, RDX];

/// # Safety
/// QEMU calls it, with a list of `argc` arguments.
#[unsafe(no_mangle)]
pub unsafe extern "C" fn qemu_plugin_install(
    id: u64,
    info: *const qemu::Info,
    argc: c_int,
    argv: *const *const c_char,
) -> c_int {
    let arguments = (0..usize::try_from(argc).unwrap_or(0)).map(|n| {
        // SAFETY: QEMU hands over `argc` strings.
        unsafe { CStr::from_ptr(*argv.add(n)) }
            .to_string_lossy()
            .into_owned()
    });
    // SAFETY: valid during this call.
    let cpus = unsafe { (*info).cpus[1] };
    match install(&arguments.collect::<Vec<_>>(), cpus) {
        Ok(plugin) => {
            if PLUGIN.set(plugin).is_err() {
                eprintln!("quell-lab-plugin: loaded twice");
                return 1;
            }
        }
        Err(reason) => {
            eprintln!("quell-lab-plugin: {reason}");
            return 1;
        }
    }
    ID.store(id, Relaxed);
    subscribe(std::ptr::null_mut());
    0
}

/// Asks for what is to be seen: at the beginning, and after each reset.
extern "C" fn subscribe(_: *mut c_void) {
    let id = ID.load(Relaxed);
    // SAFETY: the callbacks have the types of the interface, and live as long as the library, which
    // is never unloaded.
    unsafe {
        qemu::qemu_plugin_register_vcpu_init_cb(id, on_cpu, std::ptr::null_mut());
        qemu::qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation, std::ptr::null_mut());
        qemu::qemu_plugin_register_atexit_cb(id, on_exit, std::ptr::null_mut());
    }
}

fn install(arguments: &[String], cpus: c_int) -> Result<Plugin, String> {
    let mut profile = None;
    let mut topology = Topology {
        sockets: 1,
        cores: u32::try_from(cpus).unwrap_or(1),
        threads: 1,
    };
    let (mut qmp, mut report) = (None, None);
    for argument in arguments {
        let (key, value) = argument
            .split_once('=')
            .ok_or_else(|| format!("{argument}: arguments are KEY=VALUE"))?;
        let number = || {
            let n = value.parse::<u32>().ok().filter(|n| (1..=256).contains(n));
            n.ok_or_else(|| format!("{argument}: use a number from 1 to 256"))
        };
        match key {
            "profile" => profile = Some(Profile::load(value).map_err(|e| e.to_string())?),
            "sockets" => topology.sockets = number()?,
            "cores" => topology.cores = number()?,
            "threads" => topology.threads = number()?,
            "qmp" => qmp = Some(PathBuf::from(value)),
            "report" => report = Some(PathBuf::from(value)),
            _ => {
                return Err(format!(
                    "{argument}: arguments are profile, sockets, cores, threads, qmp, report"
                ));
            }
        }
    }
    if i64::from(topology.cpus()) != i64::from(cpus) {
        return Err(format!(
            "{} sockets of {} cores of {} threads are not the {cpus} CPUs that QEMU has: say here what -smp says",
            topology.sockets, topology.cores, topology.threads
        ));
    }
    let profile = profile.unwrap_or(Profile::load("icelake").map_err(|e| e.to_string())?);
    let machine = Machine::new(profile, topology).map_err(|e| e.to_string())?;
    let interrupts = qmp.map(|socket| {
        let (send, receive) = sync_channel(1);
        std::thread::spawn(move || interrupter(&socket, &receive));
        send
    });
    // SAFETY: QEMU allocates it, and it is never freed.
    let score = unsafe { qemu::qemu_plugin_scoreboard_new(size_of::<u64>()) };
    Ok(Plugin {
        machine,
        answers: (0..topology.cpus()).map(|_| Mutex::default()).collect(),
        answered: Word { score, offset: 0 },
        interrupts,
        report,
        registers: OnceLock::new(),
    })
}

/// Sends an interrupt for each request. Requests that come while one is under way count as one.
fn interrupter(socket: &PathBuf, requests: &Receiver<()>) {
    let mut monitor = None;
    for () in requests {
        let sent = (|| -> std::io::Result<()> {
            if monitor.is_none() {
                let mut stream = BufReader::new(UnixStream::connect(socket)?);
                stream.read_line(&mut String::new())?;
                command(&mut stream, "qmp_capabilities")?;
                monitor = Some(stream);
            }
            monitor
                .as_mut()
                .map_or(Ok(()), |m| command(m, "inject-nmi"))
        })();
        if let Err(e) = sent {
            eprintln!(
                "quell-lab-plugin: {}: {e}; a counter's interrupt is lost",
                socket.display()
            );
            monitor = None;
        }
    }
}

/// Has the monitor carry out a command, and waits until it has.
fn command(monitor: &mut BufReader<UnixStream>, name: &str) -> std::io::Result<()> {
    writeln!(monitor.get_mut(), "{{\"execute\":\"{name}\"}}")?;
    let mut answer = String::new();
    // Events may come in between.
    while !(answer.contains("\"return\"") || answer.contains("\"error\"")) {
        answer.clear();
        if monitor.read_line(&mut answer)? == 0 {
            return Err(std::io::ErrorKind::UnexpectedEof.into());
        }
    }
    Ok(())
}

extern "C" fn on_cpu(_: c_uint, _: *mut c_void) {
    plugin().registers.get_or_init(|| {
        // SAFETY: in the CPU's context, as the interface demands. Elements may be longer than the
        // known part of them.
        let (list, size) = unsafe {
            let list = qemu::qemu_plugin_get_registers();
            (&*list, qemu::g_array_get_element_size(list) as usize)
        };
        NAMES.map(|name| {
            let found = (0..list.len as usize).find_map(|n| {
                // SAFETY: within the list. Each element begins with a description.
                let one = unsafe { &*list.data.add(n * size).cast::<qemu::Description>() };
                // SAFETY: names are strings that live as long as QEMU.
                let called = unsafe { CStr::from_ptr(one.name) };
                (called.to_bytes() == name.as_bytes()).then_some(one.handle as usize)
            });
            found.unwrap_or(0)
        })
    });
}

extern "C" fn on_exit(_: *mut c_void) {
    let Some(path) = &plugin().report else { return };
    let text = serde_json::to_string_pretty(&plugin().machine.report()).unwrap_or_default();
    if let Err(e) = std::fs::write(path, text + "\n") {
        eprintln!("quell-lab-plugin: {}: {e}", path.display());
    }
}

/// The value of a register of the calling CPU.
fn get(register: usize) -> u64 {
    let handle = plugin().registers.get().map_or(0, |r| r[register]) as *mut Register;
    // SAFETY: only in callbacks that may read registers. The array is ours until it is released.
    unsafe {
        let bytes = qemu::g_byte_array_new();
        qemu::qemu_plugin_read_register(handle, bytes);
        let mut value = [0; 8];
        let len = ((*bytes).len as usize).min(8);
        std::ptr::copy_nonoverlapping((*bytes).data, value.as_mut_ptr(), len);
        qemu::g_byte_array_unref(bytes);
        u64::from_le_bytes(value)
    }
}

fn put(register: usize, value: u64) {
    let handle = plugin().registers.get().map_or(0, |r| r[register]) as *mut Register;
    // SAFETY: only in callbacks that may write registers, all of which have eight bytes.
    unsafe {
        let bytes = qemu::g_byte_array_new();
        qemu::g_byte_array_append(bytes, value.to_le_bytes().as_ptr(), 8);
        qemu::qemu_plugin_write_register(handle, bytes);
        qemu::g_byte_array_unref(bytes);
    }
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "that is what the instructions use"
)]
fn low(register: usize) -> u32 {
    get(register) as u32
}

/// Puts a value into the low halves of EDX and EAX, as `RDMSR` and `RDPMC` leave them.
fn put_pair(value: u64) {
    put(RAX, value & 0xffff_ffff);
    put(RDX, value >> 32);
}

#[inline(always)]
fn after(after: After) {
    if after.interrupt
        && let Some(interrupts) = &plugin().interrupts
    {
        // A full channel: one interrupt is under way and arrives after this.
        let _ = interrupts.try_send(());
    }
    if after.delay > Duration::ZERO {
        std::thread::sleep(after.delay);
    }
}

/// The instructions that are handled here.
enum Special {
    Identify,
    ReadRegister,
    WriteRegister,
    ReadCounter,
    Flush,
    FlushLine(Operand),
}

impl Special {
    /// What is called before such an instruction, what it may do with registers, and what it is
    /// handed. `next` is the address of the instruction that follows.
    fn handler(self, user: bool, next: u64) -> Option<(qemu::OnCpu, c_int, u64)> {
        let skipping = |callback: qemu::OnCpu| {
            // Programs may not read or write registers. Their code lies at other addresses in other
            // processes, so `next` would be wrong for some.
            (!user).then_some((callback, qemu::WRITE_REGISTERS_AND_PC, next))
        };
        match self {
            Self::ReadRegister => skipping(on_read_register),
            Self::WriteRegister => skipping(on_write_register),
            Self::ReadCounter => skipping(on_read_counter),
            Self::Identify => Some((on_identify, qemu::WRITE_REGISTERS, 0)),
            Self::Flush => Some((on_flush, qemu::NO_REGISTERS, 0)),
            Self::FlushLine(operand) => Some((on_flush_line, qemu::READ_REGISTERS, operand.pack())),
        }
    }
}

fn special(instruction: *const Instruction) -> Option<Special> {
    let mut bytes = [0u8; 15];
    // SAFETY: no more than the array holds.
    let len =
        unsafe { qemu::qemu_plugin_insn_data(instruction, bytes.as_mut_ptr().cast(), bytes.len()) };
    // Prefixes without a meaning here: kernels pad with them.
    let is_prefix =
        |b: &&u8| matches!(b, 0x26 | 0x2e | 0x36 | 0x3e | 0x64..=0x66 | 0xf2 | 0xf3 | 0x40..=0x4f);
    let skipped = bytes[..len].iter().take_while(is_prefix).count();
    let (prefixes, operation) = bytes[..len].split_at(skipped);
    match *operation {
        [0x0f, 0xa2, ..] => Some(Special::Identify),
        [0x0f, 0x32, ..] => Some(Special::ReadRegister),
        [0x0f, 0x30, ..] => Some(Special::WriteRegister),
        [0x0f, 0x33, ..] => Some(Special::ReadCounter),
        [0x0f, 0x09, ..] => Some(Special::Flush),
        // CLFLUSH and CLFLUSHOPT. Other prefixes make it another instruction, or another address.
        [0x0f, 0xae, mode, ..] if mode >> 3 & 7 == 7 => {
            let plain = |b: &u8| matches!(b, 0x66 | 0x40..=0x4f);
            let rex = prefixes.last().copied().filter(|b| b >> 4 == 4);
            let operand = Operand::parse(rex.unwrap_or(0), &operation[2..]);
            let operand = operand.filter(|_| prefixes.iter().all(plain));
            operand.map(Special::FlushLine)
        }
        _ => None,
    }
}

/// Whether an address is a program's. Addresses of the upper half are the kernel's.
fn of_user(address: u64) -> bool {
    address >> 63 == 0
}

/// What is noted of a block of code, packed into the word that QEMU hands back: its first line, how
/// many lines, how many instructions, and whether it is a program's.
const LINES_AT: u32 = 1;
const INSTRUCTIONS_AT: u32 = 8;
const LINE_AT: u32 = 20;

extern "C" fn on_translation(block: *mut Block, _: *mut c_void) {
    // SAFETY: all calls concern a block that QEMU has just handed over, and instructions within it.
    unsafe {
        let n = qemu::qemu_plugin_tb_n_insns(block);
        let start = qemu::qemu_plugin_tb_vaddr(block);
        let user = of_user(start);
        if !KERNEL.load(Relaxed) {
            if user {
                return;
            }
            KERNEL.store(true, Relaxed);
        }
        let watched = WATCHED.load(Relaxed);
        let flag = usize::from(user) as *mut c_void;
        let mut size = 0;
        let mut identified = false;
        for at in 0..n {
            let instruction = qemu::qemu_plugin_tb_get_insn(block, at);
            let length = qemu::qemu_plugin_insn_size(instruction);
            size += length as u64;
            if identified {
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(
                    instruction,
                    on_answer,
                    qemu::WRITE_REGISTERS,
                    std::ptr::null_mut(),
                );
            }
            let special = special(instruction);
            identified = matches!(special, Some(Special::Identify));
            let next = qemu::qemu_plugin_insn_vaddr(instruction) + length as u64;
            let handler = special.and_then(|special| special.handler(user, next));
            if let Some((callback, registers, with)) = handler {
                qemu::qemu_plugin_register_vcpu_insn_exec_cb(
                    instruction,
                    callback,
                    registers,
                    with as *mut c_void,
                );
            }
            if watched {
                let kinds: [(qemu::OnAccess, c_int); 2] =
                    [(on_load, qemu::LOADS), (on_store, qemu::STORES)];
                for (callback, kind) in kinds {
                    qemu::qemu_plugin_register_vcpu_mem_cb(
                        instruction,
                        callback,
                        qemu::NO_REGISTERS,
                        kind,
                        flag,
                    );
                }
            }
        }
        let plugin = plugin();
        qemu::qemu_plugin_register_vcpu_tb_exec_cond_cb(
            block,
            on_answer,
            qemu::WRITE_REGISTERS,
            qemu::NOT_EQUAL,
            plugin.answered,
            0,
            std::ptr::null_mut(),
        );
        let mut physical = 0;
        if watched && qemu::qemu_plugin_translate_vaddr(start, &raw mut physical) {
            let lines = ((physical % 64 + size).div_ceil(64)).min(127);
            let instructions = (n as u64).min(4095);
            let note = (physical / 64) << LINE_AT
                | instructions << INSTRUCTIONS_AT
                | lines << LINES_AT
                | u64::from(user);
            qemu::qemu_plugin_register_vcpu_tb_exec_cb(
                block,
                on_block,
                qemu::NO_REGISTERS,
                note as *mut c_void,
            );
        }
    }
}

extern "C" fn on_block(cpu: c_uint, note: *mut c_void) {
    let note = note as u64;
    let lines = note >> LINES_AT & 0x7f;
    let instructions = note >> INSTRUCTIONS_AT & 0xfff;
    after(plugin().machine.run(
        cpu as usize,
        (note >> LINE_AT) * 64,
        lines,
        instructions,
        note & 1 == 1,
    ));
}

extern "C" fn on_load(cpu: c_uint, info: u32, address: u64, user: *mut c_void) {
    access(cpu, info, address, user, false);
}

extern "C" fn on_store(cpu: c_uint, info: u32, address: u64, user: *mut c_void) {
    access(cpu, info, address, user, true);
}

#[inline(always)]
fn access(cpu: c_uint, info: u32, address: u64, user: *mut c_void, store: bool) {
    let machine = &plugin().machine;
    if machine.repeats(cpu as usize, address, store, !user.is_null()) {
        return;
    }
    // SAFETY: the call concerns the access that QEMU has just reported. The handle is used only
    // here.
    let physical = unsafe {
        let handle = qemu::qemu_plugin_get_hwaddr(info, address);
        if handle.is_null() || qemu::qemu_plugin_hwaddr_is_io(handle) {
            return;
        }
        qemu::qemu_plugin_hwaddr_phys_addr(handle)
    };
    after(machine.data(cpu as usize, physical, store, !user.is_null()));
}

extern "C" fn on_identify(cpu: c_uint, _: *mut c_void) {
    let plugin = plugin();
    let Some(answer) = plugin.machine.cpuid(low(RAX), low(RCX)) else {
        return;
    };
    if let Ok(mut waiting) = plugin.answers[cpu as usize].lock() {
        *waiting = Some(answer);
    }
    // SAFETY: this CPU's word of our scoreboard.
    unsafe { qemu::qemu_plugin_u64_set(plugin.answered, cpu, 1) };
}

extern "C" fn on_answer(cpu: c_uint, _: *mut c_void) {
    let plugin = plugin();
    // SAFETY: this CPU's word of our scoreboard.
    unsafe {
        if qemu::qemu_plugin_u64_get(plugin.answered, cpu) == 0 {
            return;
        }
        qemu::qemu_plugin_u64_set(plugin.answered, cpu, 0);
    }
    let answer = plugin.answers[cpu as usize]
        .lock()
        .ok()
        .and_then(|mut a| a.take());
    match answer {
        Some(Answer::Instead(values)) => {
            for (register, value) in ANSWER.into_iter().zip(values) {
                put(register, u64::from(value));
            }
        }
        Some(Answer::Beside(bits)) => {
            for (register, more) in ANSWER.into_iter().zip(bits).filter(|(_, more)| *more != 0) {
                put(register, get(register) | u64::from(more));
            }
        }
        None => {}
    }
}

/// Continues after an instruction that was carried out here. It does not return, so the caller may
/// hold nothing that has to be dropped.
fn skip_to(next: *mut c_void) {
    // SAFETY: only in callbacks that may write the program counter.
    unsafe { qemu::qemu_plugin_set_pc(next as u64) }
}

extern "C" fn on_read_register(cpu: c_uint, next: *mut c_void) {
    if let Some((value, done)) = plugin().machine.read(cpu as usize, low(RCX)) {
        put_pair(value);
        after(done);
        skip_to(next);
    }
}

extern "C" fn on_write_register(cpu: c_uint, next: *mut c_void) {
    let value = get(RDX) << 32 | get(RAX) & 0xffff_ffff;
    if low(RCX) == WATCH {
        if WATCHED.swap(value == 1, Relaxed) != (value == 1) {
            // SAFETY: QEMU resets once no CPU runs code.
            unsafe { qemu::qemu_plugin_reset(ID.load(Relaxed), subscribe, std::ptr::null_mut()) };
        }
        skip_to(next);
    }
    if let Some(done) = plugin().machine.write(cpu as usize, low(RCX), value) {
        after(done);
        skip_to(next);
    }
}

extern "C" fn on_read_counter(cpu: c_uint, next: *mut c_void) {
    if let Some((value, done)) = plugin().machine.rdpmc(cpu as usize, low(RCX)) {
        put_pair(value);
        after(done);
        skip_to(next);
    }
}

extern "C" fn on_flush_line(cpu: c_uint, operand: *mut c_void) {
    let address = Operand::unpack(operand as u64).address(|n| get(usize::from(n)));
    let mut physical = 0;
    // SAFETY: in the CPU's context, as the interface demands.
    if unsafe { qemu::qemu_plugin_translate_vaddr(address, &raw mut physical) } {
        plugin().machine.flush_line(cpu as usize, physical);
    }
}

extern "C" fn on_flush(cpu: c_uint, _: *mut c_void) {
    plugin().machine.flush(cpu as usize);
}
