//! A number made of address bits: bit i is the parity of the address under mask i.

/// The masks of the single address bits `low..=high`: a plain field.
#[must_use]
pub fn bits(low: u32, high: u32) -> Vec<u64> {
    (low..=high).map(|bit| 1 << bit).collect()
}

/// The functions of a plain cache index: the bits above the offset of a line of `line` bytes that
/// number `sets` sets. Empty where one of them is no power of two: then the index is no function of
/// single bits.
#[must_use]
pub fn of_index(line: u64, sets: u64) -> Vec<u64> {
    if !line.is_power_of_two() || !sets.is_power_of_two() {
        return Vec::new();
    }
    let first = line.trailing_zeros();
    let end = (first + sets.trailing_zeros()).min(u64::BITS);
    (first..end).map(|bit| 1 << bit).collect()
}

/// Functions that together give a number.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Functions {
    masks: Vec<u64>,
    way: Evaluation,
}

/// Both ways give the same number. Which is faster depends on how many address bits the masks use.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Evaluation {
    /// The XOR of shifted fields. A plain field is one term, a field XORed with another is two.
    Diagonals(Vec<Diagonal>),
    /// Bit by bit, for hashes that use most of the address.
    Parities,
}

/// Output bits `mask` take the address bits `right` higher (or `left` lower).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Diagonal {
    right: u32,
    left: u32,
    mask: u64,
}

impl Functions {
    /// From masks, least significant output bit first. A number has 64 bits, so further masks are
    /// ignored.
    #[must_use]
    pub fn new(mut masks: Vec<u64>) -> Self {
        masks.truncate(64);
        let mut diagonals: Vec<Diagonal> = Vec::new();
        for (out, &mask) in (0u32..).zip(&masks) {
            for bit in (0u32..64).filter(|bit| mask >> bit & 1 == 1) {
                let (right, left) = (bit.saturating_sub(out), out.saturating_sub(bit));
                match diagonals
                    .iter_mut()
                    .find(|d| d.right == right && d.left == left)
                {
                    Some(diagonal) => diagonal.mask |= 1 << out,
                    None => diagonals.push(Diagonal {
                        right,
                        left,
                        mask: 1 << out,
                    }),
                }
            }
        }
        // A parity costs about as much as three diagonals.
        let way = if diagonals.len() <= 3 * masks.len() {
            Evaluation::Diagonals(diagonals)
        } else {
            Evaluation::Parities
        };
        Self { masks, way }
    }

    /// The masks, least significant output bit first.
    #[must_use]
    pub fn masks(&self) -> &[u64] {
        &self.masks
    }

    /// The number that `address` selects.
    #[inline]
    #[must_use]
    pub fn of(&self, address: u64) -> u64 {
        match &self.way {
            Evaluation::Diagonals(diagonals) => diagonals
                .iter()
                .fold(0, |n, d| n ^ ((address >> d.right) << d.left & d.mask)),
            Evaluation::Parities => self.masks.iter().rev().fold(0, |n, mask| {
                n << 1 | u64::from((address & mask).count_ones() & 1)
            }),
        }
    }
}
