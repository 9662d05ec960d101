//! What the machine that this runs on does faster than plain code. All code that depends on the
//! processor's architecture is below this module, one file for each.

#[cfg(target_arch = "aarch64")]
mod aarch64;
#[cfg_attr(
    any(target_arch = "x86_64", target_arch = "aarch64"),
    allow(dead_code, reason = "tested everywhere, used elsewhere")
)]
mod portable;
#[cfg(target_arch = "x86_64")]
mod x86_64;

#[cfg(target_arch = "aarch64")]
use aarch64 as here;
#[cfg(not(any(target_arch = "x86_64", target_arch = "aarch64")))]
use portable as here;
#[cfg(target_arch = "x86_64")]
use x86_64 as here;

/// Has the host fetch `slice[index]` into its cache, since it is needed soon. This only affects
/// time.
#[inline]
pub fn hint<T>(slice: &[T], index: usize) {
    if let Some(wanted) = slice.get(index) {
        here::prefetch(wanted);
    }
}

/// How many numbers [`position`] compares at a time.
pub const LANES: usize = 8;

/// The index of `wanted` in `row`, a whole number of [`LANES`] in which it occurs at most once. All
/// are compared: its place cannot be predicted, and a loop that ends there costs more.
#[inline]
#[must_use]
pub fn position(row: &[u32], wanted: u32) -> Option<usize> {
    let equal = match row.as_chunks().0 {
        // The usual numbers of ways, each in one piece.
        [one] => u64::from(here::equal(one, wanted)),
        [one, two] => {
            u64::from(here::equal(one, wanted)) | u64::from(here::equal(two, wanted)) << LANES
        }
        more => more.iter().rev().fold(0, |found, lanes| {
            found << LANES | u64::from(here::equal(lanes, wanted))
        }),
    };
    (equal != 0).then(|| equal.trailing_zeros() as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_processors_compare_does_what_the_plain_loop_does() {
        let lanes: [u32; LANES] = [7, 0, u32::MAX, 7, 1 << 31, 9, 7, 3];
        for wanted in [0, 3, 7, 9, 1 << 31, u32::MAX, 1] {
            let plain = portable::equal(&lanes, wanted);
            assert_eq!(here::equal(&lanes, wanted), plain, "{wanted}");
        }
        assert_eq!(portable::equal(&lanes, 7), 0b100_1001);
    }

    #[test]
    fn a_number_is_found_wherever_it_is() {
        for lanes in 1..=4 {
            let row: Vec<u32> = (100..).take(lanes * LANES).collect();
            for (at, number) in row.iter().enumerate() {
                assert_eq!(position(&row, *number), Some(at));
            }
            assert_eq!(position(&row, 99), None);
        }
        hint(&[1, 2], 1);
        hint(&[1, 2], 2);
    }
}
