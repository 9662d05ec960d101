//! Disk traffic of a v2 cgroup: `io.stat`. cgroup-v2.rst ("IO Interface Files").

use crate::error::{Error, Result};

/// Bytes that a cgroup has read and written so far, over all devices, from the text of `io.stat`.
///
/// # Errors
/// [`Error::Malformed`].
pub fn moved(path: &str, text: &str) -> Result<u64> {
    let mut sum = 0u64;
    for line in text.lines() {
        for word in line.split_ascii_whitespace().skip(1) {
            // Some kernels put idle devices before the next one, on its line.
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

/// Bytes or requests of a cgroup to or from one disk so far, from the text of `io.stat`: what the
/// key of a limit (`rbps`, `wbps`, `riops`, `wiops`) limits. Zero where it has none yet.
#[must_use]
pub fn of_disk(text: &str, device: &str, key: &str) -> u64 {
    let counter = match key {
        "rbps" => "rbytes",
        "wbps" => "wbytes",
        "riops" => "rios",
        _ => "wios",
    };
    let mut disk = "";
    for word in text.split_ascii_whitespace() {
        match word.split_once('=') {
            None => disk = word,
            Some((key, value)) if disk == device && key == counter => {
                return value.parse().unwrap_or(0);
            }
            Some(_) => {}
        }
    }
    0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_disk_has_its_own_counters() {
        let text = "7:7 8:0 rbytes=10 wbytes=1 rios=2 wios=3 dbytes=0\n253:0 rbytes=7 wbytes=0";
        let of = |disk, key| of_disk(text, disk, key);
        assert_eq!([of("8:0", "rbps"), of("8:0", "wbps")], [10, 1]);
        assert_eq!([of("8:0", "riops"), of("8:0", "wiops")], [2, 3]);
        assert_eq!([of("253:0", "rbps"), of("253:0", "riops")], [7, 0]);
        assert_eq!([of("7:7", "rbps"), of("8:1", "rbps")], [0, 0]);
        assert_eq!(of_disk("8:0 rbytes=x", "8:0", "rbps"), 0);
    }

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
