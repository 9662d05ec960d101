//! Recorded traces: the accesses of a real program, to be replayed. `docs/traces.md` describes the
//! format.
//!
//! Writer, reader and importer work on streams. They hold one record at a time, whatever the trace
//! claims about itself. An error for a cut or damaged trace names the byte. The checksum at the end
//! covers all bytes between the header of 16 bytes and itself.

use std::io::{self, BufRead, Read, Write};

use crate::access::Access;

mod summary;
pub use summary::{Cached, Summary, summary};

/// The first bytes of a trace.
pub const MAGIC: [u8; 8] = *b"QUELLTRC";
/// The version of the format.
pub const VERSION: u16 = 1;

/// The largest size of one access in bytes. The largest state that one instruction saves is below.
const MOST_SIZE: u64 = 1 << 16;
/// Kinds of record, in the two low bits of its first number.
const READ: u64 = 0;
const WRITE: u64 = 1;
const MODIFY: u64 = 2;
const END: u64 = 3;

/// What an access does with its bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    /// Only reads the bytes.
    Load,
    /// Only writes the bytes.
    Store,
    /// Reads and then writes the same bytes.
    Modify,
}

/// One access of the recorded program.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Record {
    /// Whether it reads, writes or both.
    pub kind: Kind,
    /// The virtual address of its first byte.
    pub address: u64,
    /// Its size in bytes, 1 to 65536.
    pub size: u32,
    /// Instructions since the previous record, the accessing one included. 0 for a second access of
    /// one instruction.
    pub instructions: u64,
}

/// Why a trace cannot be read.
#[derive(Debug, thiserror::Error)]
pub enum Damaged {
    /// The file is not a trace in Quell's format.
    #[error(
        "{file}: not a trace of Quell's: it begins with {found:?} and not with QUELLTRC; record one with 'valgrind --tool=lackey --trace-mem=yes' and import it"
    )]
    Foreign {
        /// The file's name, as the user gave it.
        file: String,
        /// The file's first bytes.
        found: String,
    },
    /// The trace has another version of the format.
    #[error(
        "{file}: version {found} of the trace format; this Quell reads version {VERSION}: import the trace again"
    )]
    Version {
        /// The file's name, as the user gave it.
        file: String,
        /// The version that it states.
        found: u16,
    },
    /// A header, record, count or checksum that no writer makes, or bytes after the end.
    #[error("{file}: damaged at byte {at}: {why}; copy or import it again")]
    Record {
        /// The file's name, as the user gave it.
        file: String,
        /// The offset of the damaged item in the file, in bytes.
        at: u64,
        /// What is wrong with it.
        why: &'static str,
    },
    /// The file ended before the trace did.
    #[error("{file}: cut off at byte {at}, in the middle of {what}; copy or import it again")]
    Cut {
        /// The file's name, as the user gave it.
        file: String,
        /// The offset of the end, in bytes.
        at: u64,
        /// The part that was being read.
        what: &'static str,
    },
    /// The file could not be read.
    #[error("{file}: {error}")]
    Io {
        /// The file's name, as the user gave it.
        file: String,
        /// The error of the operating system.
        error: io::Error,
    },
}

/// FNV-1a, 64 bits. It finds accidents, not forgery.
#[derive(Clone, Copy, Debug)]
struct Checksum(u64);

impl Checksum {
    fn new() -> Self {
        Self(0xcbf2_9ce4_8422_2325)
    }

    fn add(&mut self, byte: u8) {
        self.0 = (self.0 ^ u64::from(byte)).wrapping_mul(0x100_0000_01b3);
    }
}

/// Maps small magnitudes of either sign to small numbers: 0, -1, 1, -2, …
fn zigzag(n: i64) -> u64 {
    (n << 1 ^ n >> 63).cast_unsigned()
}

fn unzigzag(n: u64) -> i64 {
    (n >> 1).cast_signed() ^ -(n & 1).cast_signed()
}

/// Writes a trace. [`Writer::finish`] completes it.
#[derive(Debug)]
pub struct Writer<W: Write> {
    to: W,
    checksum: Checksum,
    last: u64,
    count: u64,
}

impl<W: Write> Writer<W> {
    /// Begins a trace by writing its head.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn new(mut to: W) -> io::Result<Self> {
        to.write_all(&MAGIC)?;
        to.write_all(&VERSION.to_le_bytes())?;
        to.write_all(&[0; 6])?;
        Ok(Self {
            to,
            checksum: Checksum::new(),
            last: 0,
            count: 0,
        })
    }

    fn number(&mut self, mut n: u64) -> io::Result<()> {
        let mut bytes = [0; 10];
        let mut length = 0;
        loop {
            let more = n > 0x7f;
            bytes[length] = (n & 0x7f) as u8 | u8::from(more) << 7;
            self.checksum.add(bytes[length]);
            length += 1;
            n >>= 7;
            if !more {
                return self.to.write_all(&bytes[..length]);
            }
        }
    }

    /// Appends an access.
    ///
    /// # Errors
    /// Where it cannot be written, or its size is zero or above 65536 bytes.
    pub fn push(&mut self, record: Record) -> io::Result<()> {
        let size = u64::from(record.size);
        if !(1..=MOST_SIZE).contains(&size) {
            let why = format!("an access of {size} bytes: 1 to {MOST_SIZE} are possible");
            return Err(io::Error::new(io::ErrorKind::InvalidInput, why));
        }
        let kind = match record.kind {
            Kind::Load => READ,
            Kind::Store => WRITE,
            Kind::Modify => MODIFY,
        };
        self.number(size << 2 | kind)?;
        self.number(zigzag(record.address.wrapping_sub(self.last).cast_signed()))?;
        self.number(record.instructions)?;
        self.last = record.address;
        self.count += 1;
        Ok(())
    }

    /// Completes the trace. Returns the stream, flushed.
    ///
    /// # Errors
    /// Where it cannot be written.
    pub fn finish(mut self) -> io::Result<W> {
        self.number(END)?;
        self.number(self.count)?;
        let sum = self.checksum.0.to_le_bytes();
        self.to.write_all(&sum)?;
        self.to.flush()?;
        Ok(self.to)
    }
}

/// Reads a trace, record by record. Nothing follows after an error or the end.
#[derive(Debug)]
pub struct Reader<R: BufRead> {
    from: R,
    file: String,
    at: u64,
    checksum: Checksum,
    last: u64,
    count: u64,
    over: bool,
}

impl<R: BufRead> Reader<R> {
    /// Begins to read. `file` is its name in errors.
    ///
    /// # Errors
    /// Where the header cannot be read, or is not that of a trace of this version.
    pub fn new(mut from: R, file: &str) -> Result<Self, Damaged> {
        let file = file.to_owned();
        let mut header = Vec::with_capacity(16);
        if let Err(error) = from.by_ref().take(16).read_to_end(&mut header) {
            return Err(Damaged::Io { file, error });
        }
        let magic = &header[..header.len().min(8)];
        if magic != &MAGIC[..magic.len()] || magic.is_empty() {
            let found = String::from_utf8_lossy(magic).into_owned();
            return Err(Damaged::Foreign { file, found });
        }
        let &[.., low, high, a, b, c, d, e, f] = header.as_slice() else {
            return Err(Damaged::Cut {
                file,
                at: header.len() as u64,
                what: "the header",
            });
        };
        if header.len() < 16 {
            return Err(Damaged::Cut {
                file,
                at: header.len() as u64,
                what: "the header",
            });
        }
        let found = u16::from_le_bytes([low, high]);
        if found != VERSION {
            return Err(Damaged::Version { file, found });
        }
        if [a, b, c, d, e, f] != [0; 6] {
            return Err(Damaged::Record {
                file,
                at: 10,
                why: "reserved bytes are not zero",
            });
        }
        Ok(Self {
            from,
            file,
            at: 16,
            checksum: Checksum::new(),
            last: 0,
            count: 0,
            over: false,
        })
    }

    fn damaged(&self, at: u64, why: &'static str) -> Damaged {
        let file = self.file.clone();
        Damaged::Record { file, at, why }
    }

    fn byte(&mut self, what: &'static str) -> Result<u8, Damaged> {
        let mut byte = [0];
        match self.from.read_exact(&mut byte) {
            Ok(()) => {
                self.at += 1;
                Ok(byte[0])
            }
            Err(error) => {
                let file = self.file.clone();
                Err(if error.kind() == io::ErrorKind::UnexpectedEof {
                    let at = self.at;
                    Damaged::Cut { file, at, what }
                } else {
                    Damaged::Io { file, error }
                })
            }
        }
    }

    fn number(&mut self, what: &'static str) -> Result<u64, Damaged> {
        let start = self.at;
        let mut n = 0;
        for shift in (0..64).step_by(7) {
            let byte = self.byte(what)?;
            self.checksum.add(byte);
            let part = u64::from(byte & 0x7f);
            if part << shift >> shift != part || byte == 0 && shift > 0 {
                return Err(self.damaged(
                    start,
                    "a number above 64 bits, or in more bytes than it needs",
                ));
            }
            n |= part << shift;
            if byte & 0x80 == 0 {
                return Ok(n);
            }
        }
        Err(self.damaged(start, "a number above 64 bits"))
    }

    fn record(&mut self) -> Result<Option<Record>, Damaged> {
        let start = self.at;
        let first = self.number("the records")?;
        let kind = match first & 3 {
            READ => Kind::Load,
            WRITE => Kind::Store,
            MODIFY => Kind::Modify,
            _ => return self.end(start, first).map(|()| None),
        };
        if !(1..=MOST_SIZE).contains(&(first >> 2)) {
            return Err(self.damaged(start, "an access of no or of more than 65536 bytes"));
        }
        let size = u32::try_from(first >> 2).unwrap_or(u32::MAX);
        let step = unzigzag(self.number("a record")?);
        let instructions = self.number("a record")?;
        self.last = self.last.wrapping_add_signed(step);
        self.count += 1;
        Ok(Some(Record {
            kind,
            address: self.last,
            size,
            instructions,
        }))
    }

    fn end(&mut self, start: u64, first: u64) -> Result<(), Damaged> {
        if first != END {
            return Err(self.damaged(start, "an unknown kind of record"));
        }
        if self.number("the end")? != self.count {
            return Err(self.damaged(start, "the end states another number of records"));
        }
        let expected = self.checksum.0;
        let at = self.at;
        let mut sum = [0; 8];
        for byte in &mut sum {
            *byte = self.byte("the checksum")?;
        }
        if u64::from_le_bytes(sum) != expected {
            return Err(self.damaged(at, "the checksum is not that of the records"));
        }
        match self.byte("") {
            Err(Damaged::Cut { .. }) => Ok(()),
            Err(error) => Err(error),
            Ok(_) => Err(self.damaged(self.at - 1, "bytes follow the end")),
        }
    }
}

impl<R: BufRead> Iterator for Reader<R> {
    type Item = Result<Record, Damaged>;

    fn next(&mut self) -> Option<Self::Item> {
        if self.over {
            return None;
        }
        let record = self.record().transpose();
        self.over = !matches!(record, Some(Ok(_)));
        record
    }
}

/// Why lackey's output cannot be imported.
#[derive(Debug, thiserror::Error)]
pub enum Import {
    /// A line that lackey does not write.
    #[error(
        "{file}:{line}: '{text}' is not a line of 'valgrind --tool=lackey --trace-mem=yes'; keep the program's own output separate with --log-file"
    )]
    Line {
        /// The file's name, as the user gave it.
        file: String,
        /// The line, from 1. A line above 4096 bytes counts as several.
        line: u64,
        /// The beginning of the line.
        text: String,
    },
    /// The input has not a single access.
    #[error("{file}: no access in it; was lackey run with --trace-mem=yes?")]
    Empty {
        /// The file's name, as the user gave it.
        file: String,
    },
    /// The input could not be read.
    #[error("{file}: {error}")]
    Io {
        /// The file's name, as the user gave it.
        file: String,
        /// The error of the operating system.
        error: io::Error,
    },
    /// The trace could not be written.
    #[error("the trace could not be written: {0}")]
    Write(io::Error),
}

/// Longer lines are read in pieces of this many bytes. Lackey's lines are below 40 bytes.
/// Valgrind's own messages have a few hundred.
const LONGEST_LINE: u64 = 4096;

/// Imports what `valgrind --tool=lackey --trace-mem=yes` wrote. Returns the number of accesses.
/// Empty lines and valgrind's own (beginning with `==` or `--`) are skipped. `file` is the input's
/// name in errors.
///
/// # Errors
/// For other lines, sizes outside 1 to 65536, input without an access, and where reading or writing
/// fails. `to` holds an incomplete trace then.
pub fn import_lackey<W: Write>(mut from: impl BufRead, file: &str, to: W) -> Result<u64, Import> {
    let io = |error| Import::Io {
        file: file.to_owned(),
        error,
    };
    let mut writer = Writer::new(to).map_err(Import::Write)?;
    let (mut line, mut instructions) = (0, 0);
    let mut bytes = Vec::new();
    loop {
        bytes.clear();
        line += 1;
        if from
            .by_ref()
            .take(LONGEST_LINE)
            .read_until(b'\n', &mut bytes)
            .map_err(io)?
            == 0
        {
            break;
        }
        let text = String::from_utf8_lossy(&bytes);
        let text = text.trim_end();
        if text.is_empty() || text.starts_with("==") || text.starts_with("--") {
            continue;
        }
        let Some((kind, address, size)) = lackey_line(text) else {
            return Err(Import::Line {
                file: file.to_owned(),
                line,
                text: text.chars().take(60).collect(),
            });
        };
        let Some(kind) = kind else {
            instructions += 1;
            continue;
        };
        let record = Record {
            kind,
            address,
            size,
            instructions: std::mem::take(&mut instructions),
        };
        writer.push(record).map_err(Import::Write)?;
    }
    let count = writer.count;
    if count == 0 {
        let file = file.to_owned();
        return Err(Import::Empty { file });
    }
    writer.finish().map_err(Import::Write)?;
    Ok(count)
}

/// Parses `I 04016d60,3`, ` L 1ffeffe7e0,8`, ` S …`, ` M …`: kind (`None` for an instruction),
/// address and size.
fn lackey_line(text: &str) -> Option<(Option<Kind>, u64, u32)> {
    let (word, rest) = text.trim_start().split_once(' ')?;
    let kind = match word {
        "I" => None,
        "L" => Some(Kind::Load),
        "S" => Some(Kind::Store),
        "M" => Some(Kind::Modify),
        _ => return None,
    };
    let (address, size) = rest.trim_start().split_once(',')?;
    let address = u64::from_str_radix(address, 16).ok()?;
    let size: u32 = size.parse().ok()?;
    (1..=MOST_SIZE)
        .contains(&u64::from(size))
        .then_some((kind, address, size))
}

impl Record {
    /// The line accesses that it makes: one per line of 64 bytes that it touches. [`Kind::Modify`]
    /// makes one write. Before the first the program computes, a cycle for each instruction before
    /// the accessing one. Dependences are unknown, so none is assumed.
    pub fn accesses(self) -> impl Iterator<Item = Access> {
        let first = self.address >> 6;
        let last = self.address.saturating_add(u64::from(self.size) - 1) >> 6;
        (first..=last).map(move |line| {
            let instructions = if line == first { self.instructions } else { 0 };
            let instructions = u32::try_from(instructions).unwrap_or(u32::MAX);
            Access {
                address: line << 6,
                write: self.kind != Kind::Load,
                compute: instructions.saturating_sub(1),
                instructions: Some(instructions),
                ..Access::default()
            }
        })
    }
}
