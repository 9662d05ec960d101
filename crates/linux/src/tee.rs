//! Reads along a program's output: what it writes goes on to our own standard output unchanged, and
//! a copy to whoever looks for times in it. A thread of its own, since whoever reads our output may
//! be slow, and the heartbeat must not wait for that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

/// How long the program's last words are waited for once it has ended, while somebody else still
/// has its output open.
const LAST_WORDS: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A program's output on its way.
#[derive(Debug)]
pub(crate) struct Tee {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tee {
    /// Passes on what comes `from` a program; the copy is read from the file returned.
    pub(crate) fn start(from: ChildStdout) -> io::Result<(Self, File)> {
        let (read, write) = rustix::pipe::pipe_with(PipeFlags::CLOEXEC)?;
        let ending = Arc::new(AtomicBool::new(false));
        let ended = Arc::clone(&ending);
        let thread = std::thread::Builder::new()
            .name("quell/output".to_owned())
            .spawn(move || {
                pass_on(
                    &mut File::from(OwnedFd::from(from)),
                    File::from(write),
                    &ended,
                )
            })?;
        Ok((Self { ending, thread }, File::from(read)))
    }

    /// The program has ended: whether everything it wrote has been passed on.
    pub(crate) fn ended(&self) -> bool {
        self.ending.store(true, Ordering::Release);
        self.thread.is_finished()
    }
}

fn pass_on(from: &mut File, copy: File, ending: &AtomicBool) {
    let mut copy = Some(copy);
    let mut chunk = [0u8; 16 << 10];
    loop {
        // Asked before the wait: what comes during it may have been written before the end.
        let last = ending.load(Ordering::Acquire);
        let mut watched = [PollFd::from_borrowed_fd(from.as_fd(), PollFlags::IN)];
        match rustix::event::poll(&mut watched, Some(&LAST_WORDS)) {
            Ok(0) if last => return,
            Ok(0) | Err(rustix::io::Errno::INTR) => continue,
            Ok(_) | Err(_) => {}
        }
        let n = match from.read(&mut chunk) {
            Err(e) if e.kind() == io::ErrorKind::Interrupted => continue,
            Ok(0) | Err(_) => return,
            Ok(n) => n,
        };
        // Whoever looks for times may be gone; the output goes on.
        copy = copy.filter(|copy| (&mut &*copy).write_all(&chunk[..n]).is_ok());
        let mut out = io::stdout().lock();
        // Nobody reads us any more: then the program is to meet that, too, as it would without us.
        if out
            .write_all(&chunk[..n])
            .and_then(|()| out.flush())
            .is_err()
        {
            return;
        }
    }
}
