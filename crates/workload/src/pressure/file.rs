//! Hogs of the page cache: one reads a file, one writes it.

use std::fs::File;
use std::hint::black_box;
use std::os::unix::fs::FileExt;

use quell_policy::workload::{self, BANDWIDTH_MB_S, Passes, Reading};
use quell_record::measurement::Measurement;
use quell_types::units::Bytes;

use super::files::{Cached, Map, forget, make, noise};
use super::page;
use super::progress::{Hog, Work};
use crate::Error;
use crate::generator::{Generator, Span};
use crate::memory::Granted;

/// Bytes of a piece, short enough that the end is noticed soon on a slow disk.
const PIECE: usize = 256 << 10;

/// Reads its file piece by piece.
#[derive(Debug)]
struct Reader {
    file: File,
    len: usize,
    passes: Passes,
    mapped: Option<Map>,
    reading: Reading,
    buffer: Vec<u8>,
    at: usize,
}

impl Reader {
    fn ended(&mut self) -> Result<(), Error> {
        self.at = 0;
        if self.passes == Passes::Once {
            // Mapped pages would remain in memory, so the mapping goes first.
            self.mapped = None;
            forget(&self.file)?;
        }
        Ok(())
    }
}

impl Work for Reader {
    fn some(&mut self) -> Result<u64, Error> {
        let piece = PIECE.min(self.len - self.at);
        match self.reading {
            Reading::Read => {
                let buffer = &mut self.buffer[..piece];
                self.file
                    .read_exact_at(buffer, self.at as u64)
                    .map_err(Error::kernel("reading the hog's file"))?;
            }
            Reading::Mmap => {
                if self.mapped.is_none() {
                    self.mapped = Some(Map::new(&self.file, self.len)?);
                }
                if let Some(map) = &self.mapped {
                    let piece = &map.bytes()[self.at..self.at + piece];
                    let sum = piece.iter().step_by(page()).fold(0u8, |s, b| s ^ b);
                    black_box(sum);
                }
            }
        }
        self.at += piece;
        if self.at == self.len {
            self.ended()?;
        }
        Ok(piece as u64)
    }
}

/// The reader as a generator.
#[derive(Debug)]
pub(crate) struct FileHog(Hog<Reader>);

impl FileHog {
    pub(crate) fn new(spec: &workload::FileHog) -> Result<Self, Error> {
        let len = length(spec.size)?;
        let reader = Reader {
            file: make(spec.size, Cached::Dropped)?,
            len,
            passes: spec.passes,
            mapped: None,
            reading: spec.reading,
            buffer: vec![0; PIECE],
            at: 0,
        };
        Ok(Self(Hog::new(reader, spec.rate.map(|r| r.0))))
    }
}

fn length(size: Bytes) -> Result<usize, Error> {
    let pages = size.0.next_multiple_of(page() as u64);
    usize::try_from(pages).map_err(|_| {
        Error::refused(
            format!("a file of {size}"),
            "it exceeds the address space",
            "ask for less",
        )
    })
}

/// Writes over its file piece by piece.
#[derive(Debug)]
struct Overwriter {
    file: File,
    len: usize,
    buffer: Vec<u8>,
    seed: u64,
    at: usize,
}

impl Work for Overwriter {
    fn some(&mut self) -> Result<u64, Error> {
        let piece = PIECE.min(self.len - self.at);
        noise(&mut self.buffer[..64], &mut self.seed);
        self.file
            .write_all_at(&self.buffer[..piece], self.at as u64)
            .map_err(Error::kernel("writing the hog's file"))?;
        self.at = (self.at + piece) % self.len;
        Ok(piece as u64)
    }
}

/// The writer as a generator.
#[derive(Debug)]
pub(crate) struct Writer(Hog<Overwriter>);

impl Writer {
    pub(crate) fn new(spec: &workload::DirtyWriter) -> Result<Self, Error> {
        let len = length(spec.size)?;
        let (mut buffer, mut seed) = (vec![0; PIECE], 1);
        noise(&mut buffer, &mut seed);
        let writer = Overwriter {
            file: make(spec.size, Cached::Dropped)?,
            len,
            buffer,
            seed,
            at: 0,
        };
        Ok(Self(Hog::new(writer, spec.rate.map(|r| r.0))))
    }
}

macro_rules! generators {
    ($($of:ty),+) => {$(
        impl Generator for $of {
            fn span(
                &mut self,
                span: Span,
                asked: &mut dyn FnMut() -> bool,
            ) -> Result<Option<Measurement>, Error> {
                self.0.span(span, BANDWIDTH_MB_S, asked)
            }

            fn hold(&mut self, asked: &mut dyn FnMut() -> bool) -> Result<(), Error> {
                self.0.run(u64::MAX, None, asked).map(|_| ())
            }

            fn granted(&self) -> Granted {
                Granted::Base
            }
        }
    )+};
}
generators!(FileHog, Writer);

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pressure::span_of;
    use quell_types::units::Rate;

    fn spec(reading: Reading, passes: Passes, rate: Option<Rate>) -> workload::FileHog {
        workload::FileHog {
            size: Bytes(4 << 20),
            reading,
            passes,
            rate,
        }
    }

    #[test]
    fn a_file_is_read_at_its_rate_and_every_byte_is_counted() {
        for reading in Reading::ALL {
            let rate = Some(Rate(20_000_000));
            let spec = spec(reading, Passes::Repeatedly, rate);
            let mut hog = FileHog::new(&spec).unwrap();
            let measured = hog.span(span_of(400), &mut || false).unwrap().unwrap();
            let values = &measured.metrics[BANDWIDTH_MB_S];
            assert_eq!(values.len(), 4);
            let sum: f64 = values.iter().map(|v| v * 1e5).sum();
            assert!((sum - measured.bytes as f64).abs() < 1.0, "{values:?}");
            assert!(
                (4_000_000..=9_000_000).contains(&measured.bytes),
                "{reading}: {}",
                measured.bytes
            );
        }
    }

    #[test]
    fn what_is_read_once_is_gone_before_the_next_pass() {
        for (passes, left) in [(Passes::Once, 1024), (Passes::Repeatedly, 0)] {
            for reading in Reading::ALL {
                let mut hog = FileHog::new(&spec(reading, passes, None)).unwrap();
                let reader = &mut hog.0.work_mut();
                while reader.some().is_ok() && reader.at != 0 {}
                let map = Map::new(&reader.file, reader.len).unwrap();
                let missing = map.missing(0, reader.len, &mut [0; 1024]).unwrap();
                assert_eq!(missing, left, "{passes} {reading}");
            }
        }
    }

    #[test]
    fn the_writer_goes_round_and_ends_when_asked() {
        let mut writer = Writer::new(&workload::DirtyWriter {
            size: Bytes(1 << 20),
            rate: Some(Rate(50_000_000)),
        })
        .unwrap();
        let measured = writer.span(span_of(400), &mut || false).unwrap().unwrap();
        assert!(measured.bytes > 2 << 20, "{}", measured.bytes);
        assert!(writer.span(span_of(400), &mut || true).unwrap().is_none());
    }
}
