//! A stream prefetcher: which lines to fetch before they are asked for.
//!
//! Method: as Intel describes its streamer ("Intel 64 and IA-32 Architectures Optimization
//! Reference Manual", data prefetching to the second level).
//! - Streams are followed per 4 KiB page, up or down, and never leave it.
//! - From the second access in the same direction on, up to `degree` lines are fetched per access.
//!   They lie at most `distance` lines ahead of it.
//! - A new stream replaces the one that was not used for longest.
//!
//! Deviations from hardware: strides are always one line. Neither usefulness nor a busy bus gives
//! feedback. It is trained by all accesses that it is shown.

use crate::access::LINE;
use crate::access::PAGE_SHIFT;
use crate::profile;

const LINE_SHIFT: u32 = LINE.trailing_zeros();
/// Lines of a page of 4 KiB.
const LINES: i64 = 1 << (PAGE_SHIFT - LINE_SHIFT);

#[derive(Clone, Copy, Debug)]
struct Stream {
    page: u64,
    /// The line within the page that was accessed last.
    last: i64,
    /// 1 or -1; 0 until known.
    direction: i64,
    /// The line furthest ahead that was asked for.
    ahead: i64,
}

/// The prefetcher of a core, with the streams it follows.
#[derive(Clone, Debug)]
pub struct Prefetcher {
    /// The most recently used stream is first.
    streams: Vec<Stream>,
    most: usize,
    degree: u32,
    distance: i64,
}

impl Prefetcher {
    /// A prefetcher that follows no stream yet. `shape`: as accepted by a profile's reader.
    #[must_use]
    pub fn new(shape: &profile::Prefetcher) -> Self {
        Self {
            streams: Vec::new(),
            most: shape.streams as usize,
            degree: shape.degree,
            distance: i64::from(shape.distance),
        }
    }

    /// Takes in an access to the physical `address`. Appends the lines to fetch to `fetch`, nearest
    /// first, at most `room` of them.
    pub fn observe(&mut self, address: u64, room: u32, fetch: &mut Vec<u64>) {
        let page = address >> PAGE_SHIFT;
        let line = (address >> LINE_SHIFT).cast_signed() & (LINES - 1);
        let Some(place) = self.streams.iter().position(|s| s.page == page) else {
            if self.streams.len() == self.most {
                self.streams.pop();
            }
            let stream = Stream {
                page,
                last: line,
                direction: 0,
                ahead: line,
            };
            self.streams.insert(0, stream);
            return;
        };
        self.streams[..=place].rotate_right(1);
        let stream = &mut self.streams[0];
        let step = (line - stream.last).signum();
        stream.last = line;
        if step == 0 {
            return;
        }
        if step != stream.direction {
            stream.direction = step;
            stream.ahead = line;
        }
        // Lines that were skipped are not fetched any more.
        if (line - stream.ahead) * step > 0 {
            stream.ahead = line;
        }
        for _ in 0..self.degree.min(room) {
            let next = stream.ahead + step;
            if !(0..LINES).contains(&next) || (next - line) * step > self.distance {
                break;
            }
            stream.ahead = next;
            fetch.push(page << PAGE_SHIFT | next.cast_unsigned() << LINE_SHIFT);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn prefetcher(degree: u32, distance: u32) -> Prefetcher {
        Prefetcher::new(&profile::Prefetcher {
            on: true,
            streams: 4,
            degree,
            distance,
            source: "a test".into(),
            assumed: Default::default(),
        })
    }

    /// The numbers of the lines that accesses to `lines` have fetched.
    fn fetched(prefetcher: &mut Prefetcher, lines: impl IntoIterator<Item = u64>) -> Vec<u64> {
        let mut fetch = Vec::new();
        for line in lines {
            prefetcher.observe(line * 64, u32::MAX, &mut fetch);
        }
        fetch.iter().map(|address| address / 64).collect()
    }

    #[test]
    fn a_stream_is_followed_up_and_down_to_the_end_of_its_page() {
        assert_eq!(fetched(&mut prefetcher(2, 4), 0..3), [2, 3, 4, 5]);
        let up = fetched(&mut prefetcher(2, 4), 0..64);
        assert_eq!(
            up,
            (2..64).collect::<Vec<_>>(),
            "each once, none beyond the page"
        );
        let down = fetched(&mut prefetcher(2, 4), (64..128).rev());
        assert_eq!(down, (64..126).rev().collect::<Vec<_>>());
    }

    #[test]
    fn distance_bounds_how_far_ahead() {
        let all = fetched(&mut prefetcher(8, 3), [10, 11]);
        assert_eq!(all, [12, 13, 14]);
    }

    #[test]
    fn one_access_per_page_fetches_nothing_and_repeats_do_not_train() {
        assert!(fetched(&mut prefetcher(2, 4), (0..100).map(|n| n * 64)).is_empty());
        assert!(fetched(&mut prefetcher(2, 4), [5, 5, 5, 5]).is_empty());
    }

    #[test]
    fn more_streams_than_it_follows_push_each_other_out() {
        let interleaved =
            |streams: u64| (0..40 * streams).map(move |n| n % streams * 64 + n / streams);
        let four = fetched(&mut prefetcher(1, 4), interleaved(4));
        assert_eq!(four.len(), 4 * 39);
        assert!(fetched(&mut prefetcher(1, 4), interleaved(5)).is_empty());
    }
}
