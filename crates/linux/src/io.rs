//! Input and output of a v2 cgroup: `io.stat`, `io.max`. cgroup-v2.rst ("IO Interface Files").

use std::fmt;

use crate::change::Hands;
use crate::error::{Error, Result};
use crate::root::Files;

/// A block device, `major:minor`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct Device {
    /// The driver's number.
    pub major: u32,
    /// The device's.
    pub minor: u32,
}

impl fmt::Display for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// At most this, per second; `None` where nothing limits it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Limit {
    /// Bytes read.
    pub read_bytes: Option<u64>,
    /// Bytes written.
    pub write_bytes: Option<u64>,
    /// Reads.
    pub reads: Option<u64>,
    /// Writes.
    pub writes: Option<u64>,
}

impl fmt::Display for Limit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = |v: Option<u64>| v.map_or_else(|| "max".to_owned(), |n| n.to_string());
        write!(
            f,
            "rbps={} wbps={} riops={} wiops={}",
            text(self.read_bytes),
            text(self.write_bytes),
            text(self.reads),
            text(self.writes)
        )
    }
}

/// What a cgroup has read and written so far, on all devices together, in bytes. Text of `io.stat`.
///
/// # Errors
/// [`Error::Malformed`].
pub fn moved(path: &str, text: &str) -> Result<u64> {
    let mut sum = 0u64;
    for line in text.lines() {
        for word in line.split_ascii_whitespace().skip(1) {
            // Some kernels put the devices that did nothing before the next one, on its line.
            let Some((key, value)) = word.split_once('=') else {
                continue;
            };
            if matches!(key, "rbytes" | "wbytes") {
                let bytes: u64 = value
                    .parse()
                    .map_err(|_| Error::malformed(path, line, "a number of bytes"))?;
                sum = sum.saturating_add(bytes);
            }
        }
    }
    Ok(sum)
}

/// The limit of a cgroup on one device; unlimited where none is listed. `None` without `io.max`.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn limit(files: &dyn Files, dir: &str, device: Device) -> Result<Option<Limit>> {
    let path = format!("{dir}/io.max");
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let mut found = Limit::default();
    let own = format!("{device} ");
    let Some(rest) = text.lines().find_map(|line| line.strip_prefix(&own)) else {
        return Ok(Some(found));
    };
    for word in rest.split_ascii_whitespace() {
        let wrong =
            || Error::malformed(&path, &text, "`MAJOR:MINOR rbps=… wbps=… riops=… wiops=…`");
        let (key, value) = word.split_once('=').ok_or_else(wrong)?;
        let value = match value {
            "max" => None,
            n => Some(n.parse().map_err(|_| wrong())?),
        };
        match key {
            "rbps" => found.read_bytes = value,
            "wbps" => found.write_bytes = value,
            "riops" => found.reads = value,
            "wiops" => found.writes = value,
            _ => return Err(wrong()),
        }
    }
    Ok(Some(found))
}

/// Limits a cgroup on one device, journaled.
///
/// # Errors
/// [`Error::File`]: ENODEV for a device that is not there; [`Error::Refused`] without `io.max`.
pub fn set_limit(hands: &mut Hands<'_>, dir: &str, device: Device, limit: Limit) -> Result<bool> {
    let Some(old) = self::limit(hands.files, dir, device)? else {
        return Err(Error::refused_with(
            format!("{dir} has no io.max"),
            "enable io in the parents' cgroup.subtree_control (cgroup v2, CONFIG_BLK_DEV_THROTTLING)",
        ));
    };
    if old == limit {
        return Ok(false);
    }
    // A line of several: the whole text says nothing of ours alone.
    let path = format!("{dir}/io.max");
    hands.steer(&path, &format!("{device} {old}"))?;
    hands.files.put(&path, &format!("{device} {limit}"))?;
    Ok(true)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_moved_is_summed_over_devices() {
        let text = "8:0 rbytes=10 wbytes=1 rios=1 wios=1 dbytes=5 dios=1\n253:0 rbytes=7 wbytes=0 rios=1 wios=0 dbytes=0 dios=0";
        assert_eq!(moved("/io.stat", text).unwrap(), 18);
        assert_eq!(moved("/io.stat", "").unwrap(), 0);
        let idle_before = "7:7 7:6 7:5 8:0 rbytes=10 wbytes=1 rios=1 wios=1 dbytes=0 dios=0";
        assert_eq!(moved("/io.stat", idle_before).unwrap(), 11);
        assert!(moved("/io.stat", "8:0 rbytes=x").is_err());
    }
}
