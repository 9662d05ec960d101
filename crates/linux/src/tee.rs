//! Copies a program's output: it goes to Quell's own standard output unchanged, and also to the
//! reader that finds times in it. This is a separate thread, because the reader of Quell's output
//! may be slow, and the heartbeat must not wait for that.

use std::fs::File;
use std::io::{self, Read, Write};
use std::os::fd::{AsFd, OwnedFd};
use std::process::ChildStdout;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::pipe::PipeFlags;

/// How long to wait for the last output of an ended program, while another process still has its
/// output open.
const LAST_WORDS: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 20_000_000,
};

/// A program's output that is passed on by a thread.
#[derive(Debug)]
pub(crate) struct Tee {
    ending: Arc<AtomicBool>,
    thread: JoinHandle<()>,
}

impl Tee {
    /// Passes on what comes `from` a program. The copy is read from the returned file.
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

    /// To be called when the program has ended. Returns whether all its output has been passed on.
    pub(crate) fn ended(&self) -> bool {
        self.ending.store(true, Ordering::Release);
        self.thread.is_finished()
    }
}

fn pass_on(from: &mut File, copy: File, ending: &AtomicBool) {
    let mut copy = Some(copy);
    let mut chunk = [0u8; 16 << 10];
    loop {
        // Loaded before the wait: output that comes during the wait may have been written before
        // the end.
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
        // The reader of the copy may be gone; the output goes on.
        copy = copy.filter(|copy| (&mut &*copy).write_all(&chunk[..n]).is_ok());
        let mut out = io::stdout().lock();
        // Nothing reads Quell's output any more. The program is to meet that, too, as it would
        // without Quell.
        if out
            .write_all(&chunk[..n])
            .and_then(|()| out.flush())
            .is_err()
        {
            return;
        }
    }
}
