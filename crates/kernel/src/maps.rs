//! The mappings of a process: `/proc/PID/maps` (proc_pid_maps(5)).

use std::ops::Range;

use crate::error::{Error, Result};
use crate::root::Files;

/// What a mapping is of, as far as the line says.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Backing {
    /// No file: memory of the program's own. The kernel names some of it (`[anon:NAME]`).
    Nothing,
    /// The heap that `brk` extends.
    Heap,
    /// The stack of the first thread. Other threads' stacks are plain memory.
    Stack,
    /// A file.
    File,
    /// Pages of the kernel's, such as `[vdso]`.
    Kernel,
}

/// A line of the file.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Mapping {
    /// The virtual addresses.
    pub range: Range<u64>,
    /// Whether the program may read, write or execute it.
    pub accessible: bool,
    /// Whether the program may read and write it.
    pub writable: bool,
    /// Whether the program may execute it.
    pub executable: bool,
    /// Whether what is written is seen by other processes that map the same.
    pub shared: bool,
    /// What it is of.
    pub backing: Backing,
}

impl Mapping {
    /// `55d0c000-55d0d000 r-xp 00001000 08:01 1234   /usr/bin/cat`, a line of `maps` or the first
    /// of a mapping in `smaps`. `None`: it is no such line.
    #[must_use]
    pub fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let (from, to) = words.next()?.split_once('-')?;
        let number = |digits| u64::from_str_radix(digits, 16).ok();
        let range = number(from)?..number(to)?;
        let flags = words.next()?.as_bytes();
        let (_offset, _device, inode) = (words.next()?, words.next()?, words.next()?);
        let inode: u64 = inode.parse().ok()?;
        // Memory that processes share has a name of a file that was deleted, and an inode.
        let backing = match words.next() {
            Some("[heap]") => Backing::Heap,
            Some("[stack]") => Backing::Stack,
            Some(name) if name.starts_with("[anon") => Backing::Nothing,
            Some(name) if name.starts_with('[') && inode == 0 => Backing::Kernel,
            Some(_) => Backing::File,
            None if inode == 0 => Backing::Nothing,
            None => Backing::File,
        };
        let valid = range.start < range.end && flags.len() == 4;
        valid.then(|| Self {
            range,
            accessible: !flags.starts_with(b"---"),
            writable: flags.starts_with(b"rw"),
            executable: flags.get(2) == Some(&b'x'),
            shared: flags.get(3) == Some(&b's'),
            backing,
        })
    }
}

/// The mappings of a process, ascending. `None` when there is no such process (any more). Empty for
/// a kernel thread and a zombie.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn of(files: &dyn Files, pid: u32) -> Result<Option<Vec<Mapping>>> {
    let path = format!("/proc/{pid}/maps");
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let mapping = |line: &str| {
        let wanted = "a mapping such as `55d0c000-55d0d000 r-xp 00001000 08:01 1234 /bin/cat`";
        Mapping::parse(line).ok_or_else(|| Error::malformed(&path, line, wanted))
    };
    text.lines().map(mapping).collect::<Result<_>>().map(Some)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    fn read(text: &str) -> Result<Option<Vec<Mapping>>> {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir_all(dir.path().join("proc/7")).unwrap();
        std::fs::write(dir.path().join("proc/7/maps"), text).unwrap();
        of(&Kernel::at(dir.path()), 7)
    }

    #[test]
    fn every_kind_of_mapping_is_recognized() {
        let text = "\
55d0c000-55d0d000 r-xp 00001000 08:01 1234                       /usr/bin/a b (deleted)
55d0e000-55d0f000 rw-p 00000000 00:00 0                          [heap]
7f000000-7f100000 rw-p 00000000 00:00 0
7f100000-7f200000 rw-p 00000000 00:00 0                          [anon:arena]
7f200000-7f300000 rw-s 00000000 00:01 99                         /dev/zero (deleted)
7ffc0000-7ffe0000 rw-p 00000000 00:00 0                          [stack]
7fff0000-7fff2000 r-xp 00000000 00:00 0                          [vdso]
ffffffffff600000-ffffffffff601000 --xp 00000000 00:00 0          [vsyscall]
";
        let found = read(text).unwrap().unwrap();
        let told: Vec<_> = found
            .iter()
            .map(|m| (m.backing, m.executable, m.shared))
            .collect();
        assert_eq!(
            told,
            [
                (Backing::File, true, false),
                (Backing::Heap, false, false),
                (Backing::Nothing, false, false),
                (Backing::Nothing, false, false),
                (Backing::File, false, true),
                (Backing::Stack, false, false),
                (Backing::Kernel, true, false),
                (Backing::Kernel, true, false),
            ]
        );
        assert_eq!(found[0].range, 0x55d0_c000..0x55d0_d000);
        assert_eq!(found[7].range.start, 0xffff_ffff_ff60_0000);
        assert_eq!(read("").unwrap(), Some(Vec::new()));
    }

    #[test]
    fn other_lines_are_refused_and_no_process_is_none() {
        for wrong in [
            "55d0c000 r-xp 0 08:01 1 /a",
            "9-8 r-xp 0 08:01 1 /a",
            "8-9 r-x 0 08:01 1 /a",
            "8-9 r-xp 0 08:01",
            "8-9 r-xp 0 08:01 x",
        ] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains("/proc/7/maps"), "{wrong}: {said}");
        }
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(of(&Kernel::at(dir.path()), 7).unwrap(), None);
    }
}
