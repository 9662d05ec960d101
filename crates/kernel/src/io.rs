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
