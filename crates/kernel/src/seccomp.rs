//! Filters of system calls (seccomp(2), linux/seccomp.h, linux/filter.h): whether those of a
//! stopped thread allow a call. A filter may kill the program for a call that it denies, so this is
//! asked before the thread is made to do one.

use std::io;

/// `AUDIT_ARCH_X86_64`.
pub(crate) const X86_64: u32 = 0xc000_003e;
/// `SECCOMP_RET_ALLOW`.
pub(crate) const ALLOW: u32 = 0x7fff_0000;
/// The most instructions of a filter (`BPF_MAXINSNS`).
const LONGEST: usize = 4096;
/// Words that a filter may store (`BPF_MEMWORDS`).
const WORDS: usize = 16;
/// The bytes of `struct seccomp_data`.
const SIZE: u32 = 64;
const PTRACE_SECCOMP_GET_FILTER: libc::c_uint = 0x420c;

/// `struct sock_filter`, an instruction of classic BPF.
#[repr(C)]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Instruction {
    /// Class, size, mode and operation.
    pub code: u16,
    /// How many instructions a jump skips where its condition is true.
    pub jump_true: u8,
    /// How many it skips otherwise.
    pub jump_false: u8,
    /// The operand.
    pub operand: u32,
}

/// A system call as a filter sees it (`struct seccomp_data`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Seen {
    /// The call's number.
    pub number: u32,
    /// The address of the instruction that follows the one that enters the kernel.
    pub position: u64,
    /// The call's arguments.
    pub arguments: [u64; 6],
}

impl Seen {
    /// The word at an offset of a multiple of four bytes.
    fn word(&self, offset: u32) -> Option<u32> {
        let (low, at) = (offset.is_multiple_of(8), offset / 8);
        let half = |long: u64| if low { long } else { long >> 32 };
        let long = match (offset, at) {
            (0, _) => return Some(self.number),
            (4, _) => return Some(X86_64),
            (_, 1) => self.position,
            (_, at) => *self
                .arguments
                .get(usize::try_from(at).ok()?.checked_sub(2)?)?,
        };
        let aligned = offset.is_multiple_of(4);
        aligned.then(|| u32::try_from(half(long) & u64::from(u32::MAX)).unwrap_or(0))
    }
}

/// Whether the kernel executes the call, and nothing else, by this filter (SECCOMP_RET_ALLOW,
/// SECCOMP_RET_LOG). `None` for a program that ends nowhere, or divides by zero.
#[must_use]
pub fn allows(filter: &[Instruction], call: &Seen) -> Option<bool> {
    /// `SECCOMP_RET_ACTION_FULL`.
    const ACTION: u32 = 0xffff_0000;
    const LOG: u32 = 0x7ffc_0000;
    run(filter, call).map(|answer| matches!(answer & ACTION, ALLOW | LOG))
}

/// What the program returns. Jumps lead ahead only, so it ends.
fn run(filter: &[Instruction], call: &Seen) -> Option<u32> {
    let (mut a, mut x, mut stored) = (0u32, 0u32, [0u32; WORDS]);
    let mut at = 0;
    loop {
        let Instruction {
            code,
            jump_true,
            jump_false,
            operand,
        } = *filter.get(at)?;
        at += 1;
        let place = usize::try_from(operand).ok()?;
        // BPF_X: the second operand of arithmetic and comparisons.
        let second = if code & 0x08 == 0 { operand } else { x };
        match code {
            // BPF_LD: BPF_W | BPF_ABS, BPF_W | BPF_LEN, BPF_IMM, BPF_MEM.
            0x20 => a = call.word(operand)?,
            0x80 => a = SIZE,
            0x00 => a = operand,
            0x60 => a = *stored.get(place)?,
            // BPF_LDX.
            0x81 => x = SIZE,
            0x01 => x = operand,
            0x61 => x = *stored.get(place)?,
            // BPF_ST, BPF_STX.
            0x02 => *stored.get_mut(place)? = a,
            0x03 => *stored.get_mut(place)? = x,
            // BPF_ALU.
            _ if code & 0x07 == 0x04 => a = arithmetic(code & 0xf0, a, second)?,
            // BPF_JMP | BPF_JA, and with a condition.
            0x05 => at = at.checked_add(place)?,
            _ if code & 0x07 == 0x05 => {
                let skip = match holds(code & 0xf0, a, second)? {
                    true => jump_true,
                    false => jump_false,
                };
                at += usize::from(skip);
            }
            // BPF_RET: a constant, or A.
            0x06 => return Some(operand),
            0x16 => return Some(a),
            // BPF_MISC: BPF_TAX, BPF_TXA.
            0x07 => x = a,
            0x87 => a = x,
            _ => return None,
        }
    }
}

fn arithmetic(operation: u16, a: u32, b: u32) -> Option<u32> {
    Some(match operation {
        0x00 => a.wrapping_add(b),
        0x10 => a.wrapping_sub(b),
        0x20 => a.wrapping_mul(b),
        // A filter that divides by zero denies the call.
        0x30 => a.checked_div(b)?,
        0x40 => a | b,
        0x50 => a & b,
        0x60 => a.wrapping_shl(b),
        0x70 => a.wrapping_shr(b),
        0x80 => a.wrapping_neg(),
        0xa0 => a ^ b,
        _ => return None,
    })
}

fn holds(comparison: u16, a: u32, b: u32) -> Option<bool> {
    Some(match comparison {
        0x10 => a == b,
        0x20 => a > b,
        0x30 => a >= b,
        0x40 => a & b != 0,
        _ => return None,
    })
}

/// The first of these calls that a filter of the stopped thread denies, by its index. Needs
/// CAP_SYS_ADMIN where there is a filter. Allocates nothing.
///
/// # Errors
/// EACCES where this process may not read filters, or has one itself; EMEDIUMTYPE for a filter that
/// was not written in classic BPF.
pub(crate) fn denied(
    tid: i32,
    calls: impl Iterator<Item = Seen> + Clone,
) -> io::Result<Option<usize>> {
    let mut filter = [Instruction::default(); LONGEST];
    for which in 0usize.. {
        // SAFETY: the kernel writes at most `LONGEST` instructions into a live array.
        let length = unsafe {
            let into = filter.as_mut_ptr();
            libc::ptrace(PTRACE_SECCOMP_GET_FILTER, tid, which, into)
        };
        let error = io::Error::last_os_error();
        let Some(filter) = usize::try_from(length).ok().and_then(|n| filter.get(..n)) else {
            return match error.raw_os_error() {
                // There is none, or this was the last one.
                Some(libc::EINVAL | libc::ENOENT) => Ok(None),
                _ => Err(error),
            };
        };
        let denies = |call: Seen| allows(filter, &call) != Some(true);
        if let Some(call) = calls.clone().position(denies) {
            return Ok(Some(call));
        }
    }
    Ok(None)
}

#[cfg(test)]
#[path = "seccomp_tests.rs"]
mod tests;
