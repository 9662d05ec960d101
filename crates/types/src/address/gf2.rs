//! Linear algebra over GF(2) on 64-bit vectors: bit i of a word is coordinate i, and addition is
//! XOR.
//!
//! Method: Gauss-Jordan elimination. A [`Space`] is kept in reduced row echelon form. That form is
//! unique, so equal spaces compare equal.

/// A linear subspace of GF(2)^64.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Space {
    /// Ascending by leading bit. The leading bit of a row occurs in no other row.
    rows: Vec<u64>,
}

/// The highest set bit of a nonzero vector, as a mask.
fn leading(v: u64) -> u64 {
    1 << (63 - v.leading_zeros())
}

impl Space {
    /// The space that `vectors` span.
    #[must_use]
    pub fn spanned(vectors: impl IntoIterator<Item = u64>) -> Self {
        let mut space = Self::default();
        for vector in vectors {
            space.insert(vector);
        }
        space
    }

    /// Adds a vector. False if the space already contained it.
    pub fn insert(&mut self, vector: u64) -> bool {
        let rest = self.reduce(vector);
        if rest == 0 {
            return false;
        }
        let lead = leading(rest);
        for row in &mut self.rows {
            if *row & lead != 0 {
                *row ^= rest;
            }
        }
        let at = self.rows.partition_point(|&row| row < rest);
        self.rows.insert(at, rest);
        true
    }

    /// The dimension of the space.
    #[must_use]
    pub fn rank(&self) -> u32 {
        u32::try_from(self.rows.len()).expect("invariant: at most 64 rows")
    }

    /// The basis in reduced row echelon form, ascending.
    #[must_use]
    pub fn rows(&self) -> &[u64] {
        &self.rows
    }

    /// `vector` with all leading bits of the basis cleared. The result is the smallest vector of
    /// its coset, and zero exactly for members.
    #[must_use]
    pub fn reduce(&self, vector: u64) -> u64 {
        self.rows.iter().fold(
            vector,
            |v, &row| if v & leading(row) != 0 { v ^ row } else { v },
        )
    }

    /// Whether `vector` is a member.
    #[must_use]
    pub fn contains(&self, vector: u64) -> bool {
        self.reduce(vector) == 0
    }

    /// The smallest space that contains both.
    #[must_use]
    pub fn sum(&self, other: &Self) -> Self {
        Self::spanned(self.rows.iter().chain(&other.rows).copied())
    }

    /// The vectors that both spaces contain.
    #[must_use]
    pub fn intersection(&self, other: &Self) -> Self {
        // The complement of a sum is the intersection of the complements.
        self.orthogonal(u64::MAX)
            .sum(&other.orthogonal(u64::MAX))
            .orthogonal(u64::MAX)
    }

    /// The members that use no coordinate outside `bits`.
    #[must_use]
    pub fn within(&self, bits: u64) -> Self {
        let mut pivots: Vec<u64> = Vec::new();
        let mut kept = Self::default();
        for &row in &self.rows {
            let rest = pivots.iter().fold(row, |v, &p| {
                if v & leading(p & !bits) != 0 {
                    v ^ p
                } else {
                    v
                }
            });
            if rest & !bits == 0 {
                kept.insert(rest);
            } else {
                pivots.push(rest);
            }
        }
        kept
    }

    /// The vectors within `bits` that have even parity with every member.
    #[must_use]
    pub fn orthogonal(&self, bits: u64) -> Self {
        let masked = Self::spanned(self.rows.iter().map(|row| row & bits));
        let pivots = masked.rows.iter().fold(0, |all, &row| all | leading(row));
        let mut free = bits & !pivots;
        let mut kernel = Self::default();
        while free != 0 {
            let bit = free & free.wrapping_neg();
            free ^= bit;
            kernel.insert(
                masked
                    .rows
                    .iter()
                    .filter(|&&row| row & bit != 0)
                    .fold(bit, |v, &row| v | leading(row)),
            );
        }
        kernel
    }

    /// A largest part of this space that has only zero in common with `other`.
    #[must_use]
    pub fn independent_of(&self, other: &Self) -> Self {
        let mut taken = other.clone();
        Self::spanned(
            self.rows
                .iter()
                .copied()
                .filter(|&row| taken.insert(row))
                .collect::<Vec<_>>(),
        )
    }
}

/// Every vector that solves a system of equations, ascending.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Solutions {
    smallest: u64,
    directions: Space,
}

impl Solutions {
    /// The vectors x within `bits` with `parity(x & functions[i])` = bit i of `value`. `None` if
    /// there are none.
    #[must_use]
    pub fn of(functions: &[u64], value: u64, bits: u64) -> Option<Self> {
        // Each row is an equation: coordinates and right-hand side. Pivots are cleared from all
        // other rows.
        let mut rows: Vec<(u64, bool)> = Vec::with_capacity(functions.len());
        for (i, &function) in functions.iter().enumerate() {
            let mut new = (function & bits, value >> i & 1 == 1);
            for &(row, right) in &rows {
                if new.0 & leading(row) != 0 {
                    new = (new.0 ^ row, new.1 ^ right);
                }
            }
            if new.0 == 0 {
                if new.1 {
                    return None;
                }
                continue;
            }
            let lead = leading(new.0);
            for row in &mut rows {
                if row.0 & lead != 0 {
                    *row = (row.0 ^ new.0, row.1 ^ new.1);
                }
            }
            rows.push(new);
        }
        let any = rows
            .iter()
            .filter(|row| row.1)
            .fold(0, |x, row| x | leading(row.0));
        let directions = Space::spanned(functions.iter().copied()).orthogonal(bits);
        Some(Self {
            smallest: directions.reduce(any),
            directions,
        })
    }

    /// log2 of the number of solutions.
    #[must_use]
    pub fn log2_count(&self) -> u32 {
        self.directions.rank()
    }

    /// The n-th solution in ascending order, from 0. `None` beyond the last.
    #[inline]
    #[must_use]
    pub fn nth(&self, n: u64) -> Option<u64> {
        if self.log2_count() < 64 && n >> self.log2_count() != 0 {
            return None;
        }
        // Ascending, because no row has another row's leading bit and `smallest` has none of them.
        let rows = self.directions.rows.iter().enumerate();
        Some(rows.fold(
            self.smallest,
            |x, (i, &row)| if n >> i & 1 == 1 { x ^ row } else { x },
        ))
    }

    /// All solutions in ascending order.
    pub fn iter(&self) -> impl Iterator<Item = u64> + '_ {
        (0..).map_while(|n| self.nth(n))
    }
}
