//! A request server with a client that asks on a fixed schedule.

use quell_types::units::Bytes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::Fault;

/// A server thread, and a client thread that sends it requests on a fixed schedule (open loop).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Requests {
    /// Requests per second, at equal distances.
    #[serde(default = "per_second", rename = "per-second")]
    pub per_second: u32,
    /// How many bytes the server computes a checksum of, for each request.
    #[serde(default = "work")]
    pub work: Bytes,
    /// How many bytes the server writes to a file for each request, and waits until the disk has
    /// them. Absent: nothing is written.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub commit: Option<Bytes>,
}

const fn per_second() -> u32 {
    500
}
const fn work() -> Bytes {
    Bytes(64 << 10)
}

impl Default for Requests {
    fn default() -> Self {
        Self {
            per_second: per_second(),
            work: work(),
            commit: None,
        }
    }
}

impl Requests {
    pub(super) fn fault(&self) -> Option<Fault> {
        let outside = |key, why: String, remedy| Some(Fault { key, why, remedy });
        if !(1..=100_000).contains(&self.per_second) {
            let why = format!("{} is not between 1 and 100000", self.per_second);
            return outside("per-second", why, "choose another rate");
        }
        if !(64..=16 << 20).contains(&self.work.0) {
            let why = format!("{} is not between 64B and 16MiB", self.work);
            return outside("work", why, "choose another size");
        }
        match self.commit {
            Some(bytes) if !(1..=1 << 20).contains(&bytes.0) => {
                let why = format!("{bytes} is not between 1B and 1MiB");
                outside("commit", why, "choose another size, or leave it out")
            }
            _ => None,
        }
    }
}
