//! Independent random lists walked in turn: a step accesses each of them, and no access waits for
//! another list. So a core keeps as many misses outstanding as it can (memory-level parallelism).
//! Time ÷ accesses falls with the number of lists until the core's line-fill buffers, or the banks
//! of the lists, are all busy. Sources: IsolBench `pll`; P. Valsan, H. Yun and F. Farshchi, "Taming
//! Non-blocking Caches to Improve Isolation in Multicore Real-Time Systems", RTAS 2016.
//!
//! Lines may be confined to DRAM banks by their physical address. Then as much memory is taken as
//! the banks' share requires, and lines in other banks remain unused.

use std::ptr;

use quell_policy::workload::{Access, Banks, Order, Pages};
use quell_types::units::{Bytes, LINE_BYTES};

use crate::Error;
use crate::latency::{SEED, access_bytes, lines};
use crate::memory::{Buffer, Granted};
use crate::node::{Node, lay, step};
use crate::pagemap;
use crate::procfs::live;
use crate::resolved::Placed;

/// What physical addresses are needed for.
const BANKS: &str = "choosing lines by DRAM bank";
/// Extra memory beyond the banks' share: a quarter of it, because frames are not handed out evenly.
const SPARE: u64 = 4;

/// Makes so many steps in every list, starting at the given nodes, and stores the nodes it reaches.
type Walk = fn(&mut [*const Node], u64);

/// Lists in memory, and the node that each walk has reached.
#[derive(Debug)]
pub struct Lists {
    buffer: Buffer,
    at: Vec<*const Node>,
    walk: Walk,
    operation: Access,
    placed: Option<Placed>,
}

// SAFETY: the pointers point into the buffer that moves along with them.
unsafe impl Send for Lists {}

impl Lists {
    /// Lays out `count` lists (1 to 64) over `size` bytes together.
    ///
    /// # Errors
    /// Those of [`Buffer::new`]. Also when there are fewer lines than lists, too few lines in the
    /// wanted banks, or physical addresses are needed and hidden.
    pub fn new(
        count: u32,
        size: Bytes,
        pages: Pages,
        operation: Access,
        banks: Option<&Banks>,
    ) -> Result<Self, Error> {
        let wanted = lines(size)?;
        let (walk, each) = (
            WALKS.get(count.wrapping_sub(1) as usize),
            wanted / count.max(1),
        );
        let Some(walk) = walk.filter(|_| each > 0) else {
            return Err(Error::refused(
                format!("{count} lists over {size}"),
                "each needs at least a line of its own",
                "ask for 1 to 64 lists, or more memory",
            ));
        };
        let (buffer, chosen, placed) = match banks {
            None => (Buffer::new(size, pages)?, (0..wanted).collect(), None),
            Some(banks) => {
                let (buffer, chosen, placed) = in_banks(wanted, pages, banks)?;
                (buffer, chosen, Some(placed))
            }
        };
        let at = chosen
            .chunks_exact(each as usize)
            .take(count as usize)
            .zip(SEED..)
            // SAFETY: the chosen lines lie in the buffer, all are different, and a piece has at
            // least one of them.
            .map(|(lines, seed)| unsafe { lay(&buffer, lines, Order::Random, seed) })
            .collect();
        Ok(Self {
            buffer,
            at,
            walk: match operation {
                Access::Read => walk.0,
                Access::ReadWrite => walk.1,
            },
            operation,
            placed,
        })
    }

    /// Makes exactly `steps` steps in every list.
    pub fn walk(&mut self, steps: u64) {
        (self.walk)(&mut self.at, steps);
    }

    /// How many lists there are.
    #[must_use]
    pub fn count(&self) -> u64 {
        self.at.len() as u64
    }

    /// Program bytes of one step: an access in every list.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        self.count() * access_bytes(self.operation)
    }

    /// The pages that the lists lie in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }

    /// How the lines were chosen by bank. `None` where they were not.
    #[must_use]
    pub fn placed(&self) -> Option<Placed> {
        self.placed
    }
}

/// A buffer with `wanted` lines in the banks, and which of its lines those are.
fn in_banks(wanted: u32, pages: Pages, banks: &Banks) -> Result<(Buffer, Vec<u32>, Placed), Error> {
    let (some, all) = banks.share();
    let fair = u64::from(wanted) * LINE_BYTES * all / some;
    let size = if some == all {
        fair
    } else {
        fair + fair / SPARE
    };
    let buffer = Buffer::new(Bytes(size), pages)?;
    let page = rustix::param::page_size();
    let count = buffer.len().div_ceil(page);
    let frames = pagemap::addresses(&live(), buffer.start().addr(), count, page, BANKS)?;
    let mut found = matching(&frames, page as u64, banks);
    found.retain(|line| (*line as usize) < buffer.len() / LINE_BYTES as usize);
    let placed = Placed {
        lines: found.len() as u64,
        of: buffer.len() as u64 / LINE_BYTES,
    };
    if found.len() < wanted as usize {
        return Err(Error::refused(
            format!("{wanted} lines in banks {:?}", banks.take()),
            format!(
                "of {} lines taken only {} lie there",
                placed.of, placed.lines
            ),
            "ask for a smaller size, or check the mask or map: banks should be alike in size",
        ));
    }
    found.truncate(wanted as usize);
    Ok((buffer, found, placed))
}

/// The lines with a physical address in one of the wanted banks, counted from the first frame's
/// beginning.
fn matching(frames: &[u64], page: u64, banks: &Banks) -> Vec<u32> {
    let lines = page / LINE_BYTES;
    let of_frame = |(n, frame): (usize, &u64)| {
        let (first, frame) = (n as u64 * lines, *frame);
        (0..lines)
            .filter(move |line| banks.wants(frame + line * LINE_BYTES))
            .filter_map(move |line| u32::try_from(first + line).ok())
    };
    frames.iter().enumerate().flat_map(of_frame).collect()
}

fn walk<const N: usize, const STORE: bool>(heads: &mut [*const Node], steps: u64) {
    let mut at = [ptr::null(); N];
    for (at, head) in at.iter_mut().zip(heads.iter()) {
        *at = *head;
    }
    for _ in 0..steps {
        for at in &mut at {
            // SAFETY: there are `N` heads (`WALKS`), nodes of the caller's lists, and every node
            // points to another.
            *at = unsafe { step::<STORE>(*at) };
        }
    }
    for (head, at) in heads.iter_mut().zip(at) {
        *head = at;
    }
}

macro_rules! walks {
    ($($n:literal)+) => {
        [$((walk::<$n, false>, walk::<$n, true>)),+]
    };
}

/// A loop per number of lists, so that the pointers of few lists stay in registers. The first of
/// each pair only reads, the second also stores.
static WALKS: [(Walk, Walk); quell_policy::workload::MOST_LISTS as usize] = walks!(
    1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 19 20 21 22 23 24 25 26 27 28 29 30 31 32 33 34 35 36 37 38 39 40 41 42 43 44 45 46 47 48 49 50 51 52 53 54 55 56 57 58 59 60 61 62 63 64
);

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::collections::BTreeSet;

    /// Every node of every list, found by walking each list once round.
    fn rounds(lists: &mut Lists) -> Vec<BTreeSet<usize>> {
        let first = lists.at.clone();
        let mut seen = vec![BTreeSet::new(); first.len()];
        loop {
            for (seen, at) in seen.iter_mut().zip(&lists.at) {
                seen.insert(at.addr());
            }
            lists.walk(1);
            if lists.at == first {
                return seen;
            }
        }
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(24))]
        #[test]
        fn lists_are_cycles_that_share_no_line_and_leave_none_out(count in 1u32..=64, kib in 4u64..64) {
            let size = Bytes(kib << 10);
            let mut lists = Lists::new(count, size, Pages::Base, Access::ReadWrite, None).unwrap();
            let each = usize::try_from(size.0 / 64 / u64::from(count)).unwrap();
            let seen = rounds(&mut lists);
            prop_assert_eq!(seen.len(), count as usize);
            prop_assert!(seen.iter().all(|list| list.len() == each));
            let all: BTreeSet<usize> = seen.into_iter().flatten().collect();
            prop_assert_eq!(all.len(), each * count as usize);
            prop_assert!(all.iter().all(|address| address % 64 == 0));
        }

        #[test]
        fn lines_are_kept_by_their_own_address(frames in prop::collection::vec(1u64..1 << 30, 1..8), bank in 0u32..8) {
            // A function within the page, one across its border, one beyond it.
            let functions = vec![1 << 7, 1 << 11 | 1 << 14, 1 << 13 | 1 << 17];
            let banks = Banks::new(functions, vec![bank]).unwrap();
            let addresses: Vec<u64> = frames.iter().map(|f| f << 12).collect();
            let kept = matching(&addresses, 4096, &banks);
            let mut expected = Vec::new();
            for line in 0..u32::try_from(frames.len() * 64).unwrap() {
                let address = addresses[line as usize / 64] + u64::from(line % 64) * 64;
                if banks.of(address) == bank {
                    expected.push(line);
                }
            }
            prop_assert_eq!(kept, expected);
        }
    }

    #[test]
    fn lists_without_a_line_each_are_refused() {
        let text = |count, size| {
            let made = Lists::new(count, Bytes(size), Pages::Base, Access::Read, None);
            made.unwrap_err().to_string()
        };
        assert!(text(0, 4096).contains("1 to 64"));
        assert!(text(65, 1 << 20).contains("1 to 64"));
        assert!(text(64, 128).contains("64 lists over 128B"));
    }

    #[test]
    fn lines_lie_in_the_banks_asked_for_or_the_lack_is_said() {
        // Bits that have both values in any frame, so that banks are alike.
        let banks = Banks::new(vec![1 << 12, 1 << 13 | 1 << 6], vec![1, 2]).unwrap();
        let size = Bytes(1 << 20);
        let mut lists = match Lists::new(4, size, Pages::Base, Access::Read, Some(&banks)) {
            Ok(lists) => lists,
            Err(refused) => {
                let text = refused.to_string();
                quell_testing::skip_part(&text);
                assert!(text.contains("CAP_SYS_ADMIN"), "{text}");
                return;
            }
        };
        let nodes: BTreeSet<usize> = rounds(&mut lists).into_iter().flatten().collect();
        assert_eq!(nodes.len() as u64, size.0 / 64);
        for node in nodes {
            let page = pagemap::addresses(&live(), node, 1, 4096, BANKS).unwrap()[0];
            assert!(banks.wants(page + node as u64 % 4096));
        }
        let placed = lists.placed().unwrap();
        assert!(placed.lines >= size.0 / 64 && placed.of >= 2 * size.0 / 64);
    }
}
