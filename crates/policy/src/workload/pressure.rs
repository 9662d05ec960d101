//! What generators of memory pressure do: a program for which memory must be kept, and programs
//! that take it.

use quell_types::units::{Bytes, Nanos, Rate, Share};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::{Fault, Passes, Reading};

/// An object detector: maps its weights, reads image after image through the page cache at a frame
/// rate.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Detector {
    /// The size of the weights, a file that stays mapped.
    #[serde(default = "weights")]
    pub weights: Bytes,
    /// How much of each page of the weights the arithmetic goes over.
    #[serde(default = "page", rename = "per-page")]
    pub per_page: Bytes,
    /// How many images there are, of 100 to 200 KB each; read in turn.
    #[serde(default = "images")]
    pub images: u32,
    /// Share of the images that are not in the page cache before the run, spread evenly: these are
    /// read for the first time.
    #[serde(default, skip_serializing_if = "is_zero")]
    pub uncached: Share,
    /// Frames that arrive per second.
    #[serde(default = "fps")]
    pub fps: u32,
}

/// Takes anonymous memory and keeps using it.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct AnonHog {
    /// How much it takes.
    pub size: Bytes,
    /// How long it takes to grow to that size.
    #[serde(default = "ramp")]
    pub ramp: Nanos,
}

/// Reads a file, once or again and again.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct FileHog {
    /// Size of the file.
    pub size: Bytes,
    /// By `read` calls or through a mapping.
    #[serde(default)]
    pub reading: Reading,
    /// Once, or again and again.
    #[serde(default)]
    pub passes: Passes,
    /// A target rate; absent: as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

/// Writes a file over and over through the page cache.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct DirtyWriter {
    /// Size of the file.
    pub size: Bytes,
    /// A target rate; absent: as fast as it can.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub rate: Option<Rate>,
}

fn is_zero(share: &Share) -> bool {
    *share == Share(0)
}
const fn weights() -> Bytes {
    Bytes(256 << 20)
}
const fn page() -> Bytes {
    Bytes(4096)
}
const fn images() -> u32 {
    1000
}
const fn fps() -> u32 {
    20
}
const fn ramp() -> Nanos {
    Nanos::secs(5)
}

impl Default for Detector {
    fn default() -> Self {
        Self {
            weights: weights(),
            per_page: page(),
            images: images(),
            uncached: Share(0),
            fps: fps(),
        }
    }
}

fn outside(key: &'static str, value: &str, low: &str, high: &str) -> Option<Fault> {
    Some(Fault {
        key,
        why: format!("{value} is not between {low} and {high}"),
        remedy: "choose another value",
    })
}

/// More bytes than any machine has.
const MOST: u64 = 1 << 44;

fn size(key: &'static str, size: Bytes) -> Option<Fault> {
    let possible = (1 << 20..=MOST).contains(&size.0);
    if possible {
        None
    } else {
        outside(key, &size.to_string(), "1MiB", "16TiB")
    }
}

impl Detector {
    pub(super) fn fault(&self) -> Option<Fault> {
        let per_page = self.per_page;
        if !(64..=4096).contains(&per_page.0) || !per_page.0.is_multiple_of(64) {
            return Some(Fault {
                key: "per-page",
                why: format!("{per_page} is no part of a page in whole lines"),
                remedy: "give a multiple of 64B, up to 4KiB",
            });
        }
        if !(1..=100_000).contains(&self.images) {
            return outside("images", &self.images.to_string(), "1", "100000");
        }
        if self.uncached > Share::WHOLE {
            return outside("uncached", &self.uncached.to_string(), "0%", "100%");
        }
        if !(1..=240).contains(&self.fps) {
            return outside("fps", &self.fps.to_string(), "1", "240");
        }
        size("weights", self.weights)
    }
}

impl AnonHog {
    pub(super) fn fault(&self) -> Option<Fault> {
        if self.ramp > Nanos::secs(3600) {
            return outside("ramp", &self.ramp.to_string(), "0s", "1h");
        }
        size("size", self.size)
    }
}

impl FileHog {
    pub(super) fn fault(&self) -> Option<Fault> {
        size("size", self.size)
    }
}

impl DirtyWriter {
    pub(super) fn fault(&self) -> Option<Fault> {
        size("size", self.size)
    }
}
