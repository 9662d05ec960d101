//! What is done to frames in memory: the passes of an encoder, a decoder and a compositor, with
//! real loads and stores over whole frames. Work is reported in slices, so that demand can be seen
//! at the frame times.
//!
//! This is not a codec, but it has the passes of one: search for motion, transform of the
//! difference, reconstruction, filter, colour conversion, blend. Each does so little arithmetic
//! that memory decides.
//!
//! | pass | loads per byte of frame | stores |
//! |---|---|---|
//! | capture: the camera's frame into the encoder's | 1 | 1 |
//! | encode: search | 1 + `search` | – |
//! | encode: transform, what is left after prediction | 2 | 1 |
//! | encode: reconstruct, prediction and what was kept | 2 | 1 |
//! | decode: the reconstructed frame, filtered, into the display's memory | 1 | 1 |
//! | compose: colours over what is on the screen, four bytes a pixel | 1 + 8/3 | 8/3 |
//! | flip: the composed screen into the framebuffer | 8/3 | 8/3 |

/// Bytes of a piece, for which motion is searched.
pub const PIECE: usize = 64;
/// Work is reported after so many bytes of frame.
const SLICE: usize = 16 << 10;
/// Bytes of a pixel: 3/2 in a frame, 4 on the screen.
const FRAME_PER_SCREEN: (usize, usize) = (3, 8);

/// The size of the screen for a frame, in bytes.
#[must_use]
pub const fn screen_bytes(frame: usize) -> usize {
    frame / FRAME_PER_SCREEN.0 * FRAME_PER_SCREEN.1
}

/// Fills a frame. Numbers give frames that differ as moving pictures do: a shifting pattern, and
/// noise.
pub fn paint(frame: &mut [u8], number: u32) {
    let mut noise = number.wrapping_mul(0x9e37_79b9) | 1;
    for (i, byte) in frame.iter_mut().enumerate() {
        noise ^= noise << 13;
        noise ^= noise >> 17;
        noise ^= noise << 5;
        let shifted = (i / 8).wrapping_add(number as usize * 5);
        *byte = ((shifted & 0xf0) as u8).wrapping_add((noise & 7) as u8);
    }
}

/// Copies a frame. `did` is called with the bytes loaded and stored.
pub fn capture(from: &[u8], to: &mut [u8], did: &mut impl FnMut(usize)) {
    for (from, to) in from.chunks(SLICE).zip(to.chunks_mut(SLICE)) {
        to.copy_from_slice(from);
        did(2 * from.len());
    }
}

fn difference(a: &[u8], b: &[u8]) -> u32 {
    a.iter()
        .zip(b)
        .map(|(a, b)| u32::from(a.abs_diff(*b)))
        .sum()
}

/// Encodes `frame` against the frame `before`. The difference after prediction goes to `kept`, and
/// `rebuilt` becomes what a decoder would see. All have one length. Returns the sum of the
/// differences, so that the search cannot be optimized away.
pub fn encode(
    frame: &[u8],
    before: &[u8],
    kept: &mut [u8],
    rebuilt: &mut [u8],
    search: u32,
    did: &mut impl FnMut(usize),
) -> u64 {
    let mut left = 0;
    let last = before.len().saturating_sub(PIECE);
    let mut told = 0;
    for start in (0..frame.len()).step_by(PIECE) {
        let end = (start + PIECE).min(frame.len());
        let piece = &frame[start..end];
        let at = |candidate: u32| (start + candidate as usize * PIECE).min(last);
        let mut best = (u32::MAX, at(0));
        for candidate in 0..search {
            let at = at(candidate);
            let here = difference(piece, &before[at..at + piece.len()]);
            best = best.min((here, at));
        }
        left += u64::from(best.0);
        let predicted = &before[best.1..best.1 + piece.len()];
        transform(piece, predicted, &mut kept[start..end]);
        rebuild(&kept[start..end], predicted, &mut rebuilt[start..end]);
        told += piece.len();
        if told >= SLICE || end == frame.len() {
            did(told * (search as usize + 7));
            told = 0;
        }
    }
    left
}

/// The difference after prediction, as sums and differences of its halves: a Haar step in wrapping
/// bytes, so that it can be reverted exactly.
fn transform(piece: &[u8], predicted: &[u8], kept: &mut [u8]) {
    let half = piece.len() / 2;
    for i in 0..half {
        let a = piece[i].wrapping_sub(predicted[i]);
        let b = piece[half + i].wrapping_sub(predicted[half + i]);
        kept[i] = a.wrapping_sub(b);
        kept[half + i] = b;
    }
    for i in 2 * half..piece.len() {
        kept[i] = piece[i].wrapping_sub(predicted[i]);
    }
}

fn rebuild(kept: &[u8], predicted: &[u8], rebuilt: &mut [u8]) {
    let half = kept.len() / 2;
    for i in 0..half {
        let b = kept[half + i];
        rebuilt[i] = kept[i].wrapping_add(b).wrapping_add(predicted[i]);
        rebuilt[half + i] = b.wrapping_add(predicted[half + i]);
    }
    for i in 2 * half..kept.len() {
        rebuilt[i] = kept[i].wrapping_add(predicted[i]);
    }
}

/// Decodes into the display's memory: the rebuilt frame, each byte smoothed towards that of the
/// line before.
///
/// # Safety
/// `to` must be valid for writes of `rebuilt.len()` bytes, and nothing else may write there
/// meanwhile.
pub unsafe fn decode(rebuilt: &[u8], to: *mut u8, did: &mut impl FnMut(usize)) {
    for (n, from) in rebuilt.chunks(SLICE).enumerate() {
        // SAFETY: as the caller promises; the slices are those of `rebuilt`.
        let to = unsafe { std::slice::from_raw_parts_mut(to.add(n * SLICE), from.len()) };
        for (lines, to) in from.chunks(2 * PIECE).zip(to.chunks_mut(2 * PIECE)) {
            let (above, below) = lines.split_at(lines.len().min(PIECE));
            to[..above.len()].copy_from_slice(above);
            for ((to, a), b) in to[above.len()..].iter_mut().zip(above).zip(below) {
                *to = (a & b) + ((a ^ b) >> 1);
            }
        }
        did(2 * from.len());
    }
}

/// Blends a frame over the screen, pixel by pixel: grey and tint, half and half with the screen.
///
/// # Safety
/// `frame` must be valid for reads of `len` bytes, and nothing may write there meanwhile.
pub unsafe fn compose(
    frame: *const u8,
    len: usize,
    screen: &mut [u32],
    did: &mut impl FnMut(usize),
) {
    // 2/3 of a 4:2:0 frame is light, the rest is colour. Here one byte has both colour components
    // of two pixels.
    let pixels = (len / FRAME_PER_SCREEN.0 * 2).min(screen.len());
    let step = SLICE / 4;
    for start in (0..pixels).step_by(step) {
        let count = step.min(pixels - start) & !1;
        // SAFETY: `start + count` ≤ `pixels` ≤ 2/3 `len`, and half as many bytes of colour lie
        // behind `pixels`.
        let (light, colour) = unsafe {
            (
                std::slice::from_raw_parts(frame.add(start), count),
                std::slice::from_raw_parts(frame.add(pixels + start / 2), count / 2),
            )
        };
        let screen = &mut screen[start..start + count];
        for ((screen, light), colour) in screen
            .chunks_exact_mut(2)
            .zip(light.chunks_exact(2))
            .zip(colour)
        {
            let tint = u32::from(*colour >> 3) << 16 | u32::from(*colour & 7);
            for (screen, light) in screen.iter_mut().zip(light) {
                let new = (u32::from(*light) * 0x0001_0101) ^ tint;
                // The mean of each byte of two pixels, without carries into the next.
                *screen = (*screen & new) + (((*screen ^ new) & 0x00fe_fefe) >> 1);
            }
        }
        did(count * 3 / 2 + count * 8);
    }
}

/// Copies the composed screen into the framebuffer.
pub fn flip(screen: &[u32], front: &mut [u32], did: &mut impl FnMut(usize)) {
    for (from, to) in screen.chunks(SLICE / 4).zip(front.chunks_mut(SLICE / 4)) {
        to.copy_from_slice(from);
        did(8 * from.len());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const FRAME: usize = 96 << 10;

    fn frame(number: u32) -> Vec<u8> {
        let mut frame = vec![0; FRAME];
        paint(&mut frame, number);
        frame
    }

    #[test]
    fn a_frame_is_rebuilt_exactly_from_what_was_kept() {
        let (first, second) = (frame(1), frame(2));
        let (mut kept, mut rebuilt) = (vec![0; FRAME], vec![0; FRAME]);
        encode(&second, &first, &mut kept, &mut rebuilt, 4, &mut |_| ());
        assert_eq!(rebuilt, second);
        assert_ne!(kept, second);
    }

    #[test]
    fn a_longer_search_leaves_no_more() {
        let (first, second) = (frame(1), frame(9));
        let (mut kept, mut rebuilt) = (vec![0; FRAME], vec![0; FRAME]);
        let mut left = |search| {
            encode(
                &second,
                &first,
                &mut kept,
                &mut rebuilt,
                search,
                &mut |_| (),
            )
        };
        let (short, long) = (left(1), left(16));
        assert!(long <= short && short > 0, "{short} {long}");
    }

    #[test]
    fn the_bytes_told_are_those_of_the_table() {
        let (a, b) = (frame(1), frame(2));
        let (mut kept, mut rebuilt) = (vec![0; FRAME], vec![0; FRAME]);
        let mut sum = 0;
        let mut did = |bytes: usize| sum += bytes;
        encode(&b, &a, &mut kept, &mut rebuilt, 4, &mut did);
        assert_eq!(sum, FRAME * (1 + 4 + 3 + 3));
        sum = 0;
        capture(&a, &mut kept, &mut |bytes| sum += bytes);
        // SAFETY: `kept` has the frame's length.
        unsafe { decode(&rebuilt, kept.as_mut_ptr(), &mut |bytes| sum += bytes) };
        assert_eq!(sum, 4 * FRAME);
        let mut screen = vec![0; screen_bytes(FRAME) / 4];
        let mut front = screen.clone();
        sum = 0;
        // SAFETY: `a` has the frame's length.
        unsafe { compose(a.as_ptr(), FRAME, &mut screen, &mut |bytes| sum += bytes) };
        assert_eq!(sum, FRAME + 2 * screen_bytes(FRAME));
        flip(&screen, &mut front, &mut |bytes| sum += bytes);
        assert_eq!(sum, FRAME + 4 * screen_bytes(FRAME));
        assert_eq!(screen, front);
    }

    #[test]
    fn composing_the_same_frame_repeatedly_brings_the_screen_to_it() {
        let a = frame(3);
        let mut screen = vec![0; screen_bytes(FRAME) / 4];
        let mut changed = Vec::new();
        for _ in 0..12 {
            let before = screen.clone();
            // SAFETY: `a` has the frame's length.
            unsafe { compose(a.as_ptr(), FRAME, &mut screen, &mut |_| ()) };
            changed.push(before.iter().zip(&screen).filter(|(a, b)| a != b).count());
        }
        assert!(
            changed[0] > screen.len() / 2 && changed[11] == 0,
            "{changed:?}"
        );
    }
}
