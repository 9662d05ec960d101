//! Files that are read: with an end, whatever they are.

use std::fs::{File, OpenOptions};
use std::io::{self, Read};
use std::os::unix::fs::OpenOptionsExt;
use std::path::Path;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec};
use rustix::fs::OFlags;
use rustix::io::Errno;

/// The most bytes of what people write: policies, experiments, profiles, maps.
pub const MOST_TEXT: usize = 4 << 20;
/// The most bytes of a file of a record.
pub const MOST_RECORD: usize = 1 << 30;

/// How long a pipe may say nothing before it ends.
const PATIENCE: Duration = Duration::from_secs(10);

/// Reads a file, a pipe or what is typed, up to its end or `most` bytes.
///
/// # Errors
/// FileTooLarge beyond `most`, TimedOut for a pipe that says nothing for ten seconds, and the
/// kernel's.
pub fn read(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    whole(open(path, OFlags::NONBLOCK)?, most)
}

/// Reads as [`read`] a file of text.
///
/// # Errors
/// As [`read`]; InvalidData for what is not UTF-8.
pub fn text(path: &Path, most: usize) -> io::Result<String> {
    utf8(read(path, most)?)
}

/// Reads as [`read_within`] a file of text.
///
/// # Errors
/// As [`read_within`]; InvalidData for what is not UTF-8.
pub fn text_within(path: &Path, most: usize) -> io::Result<String> {
    utf8(read_within(path, most)?)
}

fn utf8(bytes: Vec<u8>) -> io::Result<String> {
    String::from_utf8(bytes)
        .map_err(|_| io::Error::new(io::ErrorKind::InvalidData, "it is no text (UTF-8)"))
}

/// Reads a file of a record: a regular file, and no link, since a record may be another user's.
///
/// # Errors
/// FileTooLarge beyond `most`, InvalidInput for what is no file, and the kernel's.
pub fn read_within(path: &Path, most: usize) -> io::Result<Vec<u8>> {
    let file = match open(path, OFlags::NONBLOCK | OFlags::NOFOLLOW) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::LOOP) => {
            return Err(irregular("is a link"));
        }
        file => file?,
    };
    match file.metadata()?.is_file() {
        true => whole(file, most),
        false => Err(irregular("is no file")),
    }
}

/// Opens a file. A pipe that nobody writes to does not keep it waiting.
fn open(path: &Path, flags: OFlags) -> io::Result<File> {
    let flags = i32::try_from(flags.bits()).unwrap_or_default();
    OpenOptions::new().read(true).custom_flags(flags).open(path)
}

fn irregular(what: &str) -> io::Error {
    io::Error::new(io::ErrorKind::InvalidInput, format!("it {what}"))
}

fn whole(mut file: File, most: usize) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    let mut chunk = vec![0; 64 << 10];
    let mut heard = Instant::now();
    loop {
        match file.read(&mut chunk) {
            Ok(0) => return Ok(bytes),
            Ok(n) => {
                heard = Instant::now();
                bytes.extend_from_slice(&chunk[..n]);
            }
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => wait(&file, heard)?,
            Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
            Err(e) => return Err(e),
        }
        if bytes.len() > most {
            let text = format!("it has more than the {} MiB that are read", most >> 20);
            return Err(io::Error::new(io::ErrorKind::FileTooLarge, text));
        }
    }
}

/// Waits until there is something to read. A person may take the time that it takes.
fn wait(file: &File, since: Instant) -> io::Result<()> {
    let left = PATIENCE.saturating_sub(since.elapsed());
    let limit = Timespec::try_from(left).ok();
    let typed = rustix::termios::isatty(file);
    let mut fds = [PollFd::new(file, PollFlags::IN)];
    match rustix::event::poll(&mut fds, limit.as_ref().filter(|_| !typed)) {
        Ok(0) => Err(io::Error::new(
            io::ErrorKind::TimedOut,
            "nothing has come from it for ten seconds",
        )),
        Ok(_) | Err(Errno::INTR) => Ok(()),
        Err(e) => Err(e.into()),
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write;
    use std::os::fd::AsRawFd;
    use std::os::unix::fs::symlink;

    use rustix::fs::{FileType, Mode};

    use super::*;

    #[test]
    fn a_file_is_read_up_to_what_is_allowed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a");
        std::fs::write(&path, [7; 100]).unwrap();
        assert_eq!(read(&path, 100).unwrap(), [7; 100]);
        assert_eq!(read_within(&path, 100).unwrap(), [7; 100]);
        for error in [read(&path, 99), read_within(&path, 99)] {
            assert_eq!(error.unwrap_err().kind(), io::ErrorKind::FileTooLarge);
        }
        let endless = read(Path::new("/dev/zero"), MOST_TEXT).unwrap_err();
        assert!(endless.to_string().contains("more than the 4 MiB"));
        assert!(read(dir.path(), 9).is_err());
    }

    #[test]
    fn a_pipe_is_read_and_one_without_a_writer_is_empty() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("pipe");
        rustix::fs::mknodat(rustix::fs::CWD, &path, FileType::Fifo, Mode::from(0o600), 0).unwrap();
        assert_eq!(read(&path, 9).unwrap(), b"");
        let (from, mut to) = io::pipe().unwrap();
        let name = format!("/proc/self/fd/{}", from.as_raw_fd());
        let writer = std::thread::spawn(move || {
            to.write_all(b"one ").unwrap();
            std::thread::sleep(Duration::from_millis(50));
            to.write_all(b"two").unwrap();
        });
        assert_eq!(read(Path::new(&name), 9).unwrap(), b"one two");
        writer.join().unwrap();
    }

    #[test]
    fn a_record_has_files_only() {
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("a"), "x").unwrap();
        symlink("a", dir.path().join("link")).unwrap();
        let link = read_within(&dir.path().join("link"), 9).unwrap_err();
        assert!(link.to_string().contains("is a link"));
        assert!(read_within(Path::new("/dev/zero"), 9).is_err());
        assert!(read_within(dir.path(), 9).is_err());
        assert_eq!(read(&dir.path().join("link"), 9).unwrap(), b"x");
    }
}
