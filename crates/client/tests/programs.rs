//! Programs that link the library: one in C, built with the header, which forks and dies.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, ExitStatus};
use std::time::Duration;

use quell_client::{Reader, Unit, layout, locked};
use tempfile::TempDir;

const PROGRAM: &str = r#"
#include "quell.h"
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

/* What is locked: 0 if it was mapped and can be used, the error number if not, -1 where there is nothing. */
static int locked(void) {
    size_t bytes = 7;
    char *at = quell_locked_map(&bytes);
    if (!at)
        return bytes ? errno : -1;
    at[bytes - 1] = 1;
    size_t more = 7;
    int once = !quell_locked_map(&more) && !more && at[bytes - 1] == 1;
    quell_locked_unmap(at, bytes);
    return once && bytes == 8192 ? 0 : 99;
}

int main(int argc, char **argv) {
    if (argc > 1 && !strcmp(argv[1], "locked"))
        return locked();
    if (argc > 1 && !strcmp(argv[1], "again"))
        return locked() == locked() ? locked() : 99;
    if (locked() != -1)
        return 98;
    quell_session *session = quell_open();
    if (argc > 1 && !strcmp(argv[1], "without"))
        for (;; session = NULL) {
            if (quell_connected(session) || quell_refused(session) || quell_deadline(session))
                return 1;
            quell_unit(session, 1);
            quell_begin(session);
            quell_end(session);
            quell_beat(session);
            quell_close(session);
            if (!session)
                return 0;
        }
    quell_session *second = quell_open();
    if (!quell_connected(session) || quell_connected(second) || quell_deadline(session) != 16000000)
        return 2;
    quell_close(second);
    quell_set_target(session, 9000000);
    quell_set_demand(session, 4096, 1 << 20);
    quell_unit(session, 1000);
    quell_begin(session);
    quell_end(session);
    quell_beat(session);
    quell_beat(session);
    pid_t child = fork();
    if (child == 0) {
        quell_unit(session, 666);
        _exit(quell_connected(quell_open()) ? 3 : 0);
    }
    int status;
    waitpid(child, &status, 0);
    if (status)
        return 4;
    /* What it starts is not given the session. */
    if (system("test ! -e /proc/self/fd/$QUELL_SESSION"))
        return 5;
    quell_unit(session, 2000);
    if (argc > 1 && !strcmp(argv[1], "die"))
        _exit(7);
    quell_close(session);
    return 0;
}
"#;

/// Builds it; `None` where there is no C compiler.
fn program() -> Option<TempDir> {
    if Command::new("cc").arg("--version").output().is_err() {
        quell_testing::skip("there is no C compiler (cc)");
        return None;
    }
    let dir = tempfile::tempdir().unwrap();
    let source = dir.path().join("program.c");
    std::fs::write(&source, PROGRAM).unwrap();
    let deps = std::env::current_exe().unwrap();
    let library = deps.parent().unwrap().join("libquell_client.a");
    let out = Command::new("cc")
        .args([
            "-std=c99",
            "-D_DEFAULT_SOURCE",
            "-Wall",
            "-Wextra",
            "-Wpedantic",
            "-Werror",
        ])
        .arg(concat!("-I", env!("CARGO_MANIFEST_DIR"), "/include"))
        .arg(&source)
        .arg(&library)
        .args(["-lpthread", "-ldl", "-lm", "-o"])
        .arg(dir.path().join("program"))
        .output()
        .unwrap();
    assert!(
        out.status.success(),
        "{}",
        String::from_utf8_lossy(&out.stderr)
    );
    Some(dir)
}

/// Runs a program with a session.
fn run(program: &Path, argument: &str, reader: &Reader) -> ExitStatus {
    handed(program, argument, layout::VARIABLE, reader.file())
}

/// Runs a program that inherits a file, named by a variable.
fn handed(program: &Path, argument: &str, variable: &str, file: BorrowedFd<'_>) -> ExitStatus {
    let file = file.as_raw_fd();
    let mut command = Command::new(program);
    command
        .arg(argument)
        .env(variable, file.to_string())
        .env(locked::BYTES_VARIABLE, "8192")
        .env(layout::SOCKET_VARIABLE, "/no/such/socket");
    // SAFETY: one system call between fork and exec.
    unsafe {
        command.pre_exec(move || match libc::fcntl(file, libc::F_SETFD, 0) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    command.status().unwrap()
}

#[test]
fn locked_memory_is_mapped_once_and_a_refusal_can_be_retried() {
    let Some(built) = program() else { return };
    let run = |argument: &str, device: &str| {
        let file = File::options().read(true).write(true).open(device).unwrap();
        let program = built.path().join("program");
        let status = handed(&program, argument, locked::FD_VARIABLE, file.as_fd());
        status.code()
    };
    // A device that can be mapped like a region, one that cannot, and a file that is not a device.
    assert_eq!(run("locked", "/dev/zero"), Some(0));
    assert_eq!(run("again", "/dev/null"), Some(libc::ENODEV));
    let file = built.path().join("file");
    std::fs::write(&file, "").unwrap();
    assert_eq!(run("locked", file.to_str().unwrap()), Some(255));
}

fn units(reader: &mut Reader) -> Vec<Unit> {
    let mut units = Vec::new();
    let seen = reader.read(|| u64::MAX, &mut units);
    assert_eq!((seen.lost, seen.strange), (0, 0));
    units
}

#[test]
fn a_c_program_reports_its_units_and_its_forked_child_does_not() {
    let Some(built) = program() else { return };
    let program = built.path().join("program");
    let mut reader = Reader::create(Some(Duration::from_millis(16))).unwrap();
    assert!(run(&program, "", &reader).success());
    let all = units(&mut reader);
    assert_eq!(all.len(), 4, "{all:?}");
    assert_eq!((all[0].took_ns, all[3].took_ns), (1_000, 2_000));
    assert!(all.iter().all(|u| u.target_ns == Some(9_000_000)));
    assert_eq!(reader.demand().working_set, 1 << 20);
    // The next program continues where this one has ended. So does one after a program that dies in
    // the middle.
    assert_eq!(run(&program, "die", &reader).code(), Some(7));
    assert_eq!(units(&mut reader).len(), 4);
    assert!(run(&program, "", &reader).success());
    assert_eq!(units(&mut reader).len(), 4);
}

#[test]
fn without_quell_every_call_does_nothing() {
    let Some(built) = program() else {
        return;
    };
    let run = |session: Option<&str>| {
        let mut command = Command::new(built.path().join("program"));
        command.arg("without").env_remove(layout::VARIABLE);
        command.env(layout::SOCKET_VARIABLE, "/no/such/socket");
        session.map(|s| command.env(layout::VARIABLE, s));
        command.status().unwrap().code()
    };
    for session in [
        None,
        Some(""),
        Some("0"),
        Some("1"),
        Some("77"),
        Some("-3"),
        Some("x"),
    ] {
        assert_eq!(run(session), Some(0), "{session:?}");
    }
}
