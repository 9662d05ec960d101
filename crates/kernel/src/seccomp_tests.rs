use proptest::prelude::*;

use super::*;

const KILL: u32 = 0x8000_0000;
const LOG: u32 = 0x7ffc_0000;
const EPERM: u32 = 0x0005_0001;
const MMAP: u32 = 9;
const IOCTL: u32 = 16;

fn one(code: u16, operand: u32) -> Instruction {
    jump(code, 0, 0, operand)
}

fn jump(code: u16, jump_true: u8, jump_false: u8, operand: u32) -> Instruction {
    Instruction {
        code,
        jump_true,
        jump_false,
        operand,
    }
}

fn call(number: u32, arguments: [u64; 6]) -> Seen {
    Seen {
        number,
        position: 0x7fff_0000_1002,
        arguments,
    }
}

/// As libseccomp writes it: the architecture, a list of calls, and all 64 bits of an argument.
fn filter() -> Vec<Instruction> {
    vec![
        one(0x20, 4),
        jump(0x15, 0, 6, X86_64),
        one(0x20, 0),
        jump(0x15, 5, 0, MMAP),
        jump(0x15, 0, 3, IOCTL),
        one(0x20, 28),
        jump(0x15, 0, 1, 0),
        jump(0x05, 0, 0, 2),
        one(0x06, KILL),
        one(0x06, ALLOW),
        one(0x20, 24),
        jump(0x15, 0, 1, 0xaa05),
        one(0x06, LOG),
        one(0x06, EPERM),
    ]
}

#[test]
fn a_list_of_calls_and_an_argument_are_understood() {
    let of = |number, request| allows(&filter(), &call(number, [3, request, 0, 0, 0, 0]));
    assert_eq!(of(MMAP, 7), Some(true));
    assert_eq!(of(IOCTL, 0xaa05), Some(true));
    assert_eq!(of(IOCTL, 0xaa06), Some(false));
    assert_eq!(of(IOCTL, 1 << 32 | 0xaa05), Some(false));
    assert_eq!(of(323, 0), Some(false));
}

#[test]
fn every_operation_is_as_the_kernel_does_it() {
    // A is the low word of the first argument, X the second operand.
    let of = |rest: &[Instruction]| {
        let first = [one(0x20, 16)];
        run(&[&first, rest].concat(), &call(1, [12, 0, 0, 0, 0, 0]))
    };
    let by = |code: u16| of(&[one(0x04 | code, 5), one(0x16, 0)]);
    let found = [0x00, 0x10, 0x20, 0x30, 0x40, 0x50, 0x60, 0x70, 0xa0].map(by);
    assert_eq!(found, [17, 7, 60, 2, 13, 4, 384, 0, 9].map(Some));
    assert_eq!(
        of(&[one(0x84, 0), one(0x16, 0)]),
        Some(12u32.wrapping_neg())
    );
    assert_eq!(of(&[one(0x34, 0), one(0x16, 0)]), None);
    // X: loaded, moved, stored.
    let stored = [one(0x02, 3), one(0x61, 3), one(0x0c, 0), one(0x16, 0)];
    assert_eq!(of(&stored), Some(24));
    let moved = [one(0x07, 0), one(0x00, 1), one(0x87, 0), one(0x16, 0)];
    assert_eq!(of(&moved), Some(12));
    assert_eq!(of(&[one(0x80, 0), one(0x16, 0)]), Some(64));
    let chosen = |code, operand| {
        let ends = [one(0x06, 1), one(0x06, 0)];
        of(&[&[jump(code, 0, 1, operand)], &ends[..]].concat())
    };
    assert_eq!(chosen(0x25, 11), Some(1));
    assert_eq!(chosen(0x25, 12), Some(0));
    assert_eq!(chosen(0x35, 12), Some(1));
    assert_eq!(chosen(0x45, 3), Some(0));
    // What no kernel accepts.
    assert_eq!(of(&[one(0x20, 64), one(0x16, 0)]), None);
    assert_eq!(of(&[one(0x20, 17), one(0x16, 0)]), None);
    assert_eq!(of(&[one(0x61, 16), one(0x16, 0)]), None);
    assert_eq!(of(&[]), None);
}

proptest! {
    /// Whatever a program holds, it comes to an end, and only a return allows a call.
    #[test]
    fn any_program_ends(
        program in proptest::collection::vec((any::<u16>(), any::<u8>(), any::<u8>(), any::<u32>()), 0..64),
        arguments in any::<[u64; 6]>(),
    ) {
        let program: Vec<Instruction> =
            program.into_iter().map(|(code, t, f, k)| jump(code & 0xff, t % 8, f % 8, k)).collect();
        let ends = program.iter().any(|i| matches!(i.code, 0x06 | 0x16));
        prop_assert!(ends || run(&program, &call(1, arguments)).is_none());
    }
}

/// A child has two filters. They are read while it is stopped.
#[test]
fn filters_of_a_stopped_thread_are_read() {
    if std::fs::read_to_string("/proc/self/status").is_ok_and(|s| s.contains("Seccomp:\t2")) {
        return quell_testing::skip("this process has a filter itself");
    }
    let filters = [vec![one(0x06, ALLOW)], filter()];
    // SAFETY: the child makes system calls on prepared values only, and is killed below.
    let child = unsafe { libc::fork() };
    assert!(child >= 0);
    if child == 0 {
        for filter in &filters {
            let program = libc::sock_fprog {
                len: u16::try_from(filter.len()).unwrap_or(0),
                filter: filter.as_ptr().cast_mut().cast(),
            };
            // SAFETY: the kernel copies a live program. A child that a filter kills is the test's
            // failure.
            unsafe {
                libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0);
                libc::prctl(libc::PR_SET_SECCOMP, 2, &raw const program);
            }
        }
        loop {
            std::hint::spin_loop();
        }
    }
    let filtered = || {
        let status = std::fs::read_to_string(format!("/proc/{child}/status")).unwrap();
        let modes = |line: &&str| line.starts_with("Seccomp_filters:");
        status
            .lines()
            .find(modes)
            .is_some_and(|line| line.ends_with('2'))
    };
    while !filtered() {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    crate::ptrace::request(libc::PTRACE_SEIZE, child, 0, 0).unwrap();
    crate::ptrace::request(libc::PTRACE_INTERRUPT, child, 0, 0).unwrap();
    crate::ptrace::stop(child, true).unwrap();
    let calls = [
        call(MMAP, [0; 6]),
        call(IOCTL, [3, 0xaa05, 0, 0, 0, 0]),
        call(323, [0; 6]),
    ];
    let found = denied(child, calls.into_iter());
    let none = denied(child, calls[..2].iter().copied());
    // SAFETY: a child of this process that nothing has waited for since.
    unsafe {
        libc::kill(child, libc::SIGKILL);
        libc::waitpid(child, std::ptr::null_mut(), 0);
    }
    if found
        .as_ref()
        .is_err_and(|e| e.raw_os_error() == Some(libc::EACCES))
    {
        return quell_testing::skip("filters may not be read here");
    }
    assert_eq!((found.unwrap(), none.unwrap()), (Some(2), None));
}
