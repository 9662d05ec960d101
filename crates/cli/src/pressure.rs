//! `quell bench detector`, `anon-hog`, `file-hog`, `dirty-writer`, `requests`: generators that need
//! a kernel.

use clap::Subcommand;
use quell_policy::workload::{
    AnonHog, Detector, DirtyWriter, FileHog, Passes, Reading, Requests, Workload,
};
use quell_types::units::{Bytes, Nanos, Rate, Share};

use crate::options::{Common, word};

/// The generators of memory pressure.
#[derive(Debug, Subcommand)]
pub enum Pressure {
    /// An object detector: weights that stay mapped, an image read through the page cache for every
    /// frame. Its files, as those of the next three, lie in the folder for temporary files
    /// (TMPDIR), which has to be on a disk
    Detector {
        /// The size of the weights
        #[arg(long, default_value = "256MiB")]
        weights: Bytes,
        /// How much of each page of the weights the arithmetic goes over
        #[arg(long, default_value = "4KiB")]
        per_page: Bytes,
        /// How many images of 100 to 200 KB there are, read in turn
        #[arg(long, default_value_t = 1000)]
        images: u32,
        /// Share of the images that is not in the page cache before the run
        #[arg(long, default_value = "0%")]
        uncached: Share,
        /// Frames per second
        #[arg(long, default_value_t = 20)]
        fps: u32,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// Grows to a size in anonymous memory and keeps using it: pages per second
    AnonHog {
        /// How much it takes
        #[arg(long)]
        size: Bytes,
        /// How long it takes to grow to that
        #[arg(long, default_value = "5s")]
        ramp: Nanos,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// Reads a file, once or again and again: program bytes per second
    FileHog {
        /// The file's size
        #[arg(long)]
        size: Bytes,
        /// How it is read
        #[arg(long, value_parser = word::<Reading>(), default_value_t)]
        reading: Reading,
        /// How often it is read
        #[arg(long, value_parser = word::<Passes>(), default_value_t)]
        passes: Passes,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// Writes a file over and over through the page cache: program bytes per second
    DirtyWriter {
        /// The file's size
        #[arg(long)]
        size: Bytes,
        /// A target rate such as 500MB/s
        #[arg(long)]
        rate: Option<Rate>,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
    /// A request server with a client that asks on a fixed schedule: latency from the intended
    /// start
    Requests {
        /// Requests per second
        #[arg(long, default_value_t = 500)]
        per_second: u32,
        /// How many bytes the server computes a checksum of, for each request
        #[arg(long, default_value = "64KiB")]
        work: Bytes,
        /// How many bytes each request writes, and waits until the disk has them
        #[arg(long)]
        commit: Option<Bytes>,
        /// Common options
        #[command(flatten)]
        common: Common,
    },
}

impl Pressure {
    /// What is to run, and how.
    pub fn workload(&self) -> (Workload, &Common) {
        match self {
            Self::Detector {
                weights,
                per_page,
                images,
                uncached,
                fps,
                common,
            } => (
                Workload::Detector(Detector {
                    weights: *weights,
                    per_page: *per_page,
                    images: *images,
                    uncached: *uncached,
                    fps: *fps,
                }),
                common,
            ),
            Self::AnonHog { size, ramp, common } => (
                Workload::AnonHog(AnonHog {
                    size: *size,
                    ramp: *ramp,
                }),
                common,
            ),
            Self::FileHog {
                size,
                reading,
                passes,
                rate,
                common,
            } => (
                Workload::FileHog(FileHog {
                    size: *size,
                    reading: *reading,
                    passes: *passes,
                    rate: *rate,
                }),
                common,
            ),
            Self::DirtyWriter { size, rate, common } => (
                Workload::DirtyWriter(DirtyWriter {
                    size: *size,
                    rate: *rate,
                }),
                common,
            ),
            Self::Requests {
                per_second,
                work,
                commit,
                common,
            } => (
                Workload::Requests(Requests {
                    per_second: *per_second,
                    work: *work,
                    commit: *commit,
                }),
                common,
            ),
        }
    }
}
