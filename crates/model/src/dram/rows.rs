//! Open rows without time: whether accesses, one after the other, hit each bank's row buffer.
//!
//! Method: a bank keeps the row of its last access open (open page). It serves users that have
//! addresses but no clock, such as the lab.
//!
//! Deviations from hardware, in addition to those of [`super`]: accesses take effect in the order
//! of the calls, since nothing waits that could be overtaken. No refresh closes a row. A write is
//! like a read.

use crate::address::AddressMap;

/// What an access found in its bank.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Row {
    /// Its row was open.
    Hit,
    /// No row was open, so it costs an ACTIVATE.
    Miss,
    /// Another row was open, so it costs a PRECHARGE and an ACTIVATE.
    Conflict,
}

/// How many accesses of a bank found what.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RowCounts {
    /// Accesses with their row open.
    pub hits: u64,
    /// Accesses with no row open.
    pub misses: u64,
    /// Accesses with another row open.
    pub conflicts: u64,
}

/// The row buffers of all banks behind one address map.
#[derive(Clone, Debug)]
pub struct OpenRows {
    map: AddressMap,
    open: Vec<Option<u32>>,
    counts: Vec<RowCounts>,
}

impl OpenRows {
    /// Row buffers that are all closed.
    #[must_use]
    pub fn new(map: AddressMap) -> Self {
        let banks = (map.channels() * map.ranks() * map.banks()) as usize;
        Self {
            map,
            open: vec![None; banks],
            counts: vec![RowCounts::default(); banks],
        }
    }

    /// Where an address lies: the number of its bank ([`Self::counts`]) and its row.
    #[inline]
    #[must_use]
    pub fn locate(&self, address: u64) -> (usize, u32) {
        let at = self.map.locate(address);
        let bank = (at.channel * self.map.ranks() + at.rank) * self.map.banks() + at.bank;
        (bank as usize, at.row)
    }

    /// Reads or writes the line at an address.
    #[inline]
    pub fn access(&mut self, address: u64) -> Row {
        let (bank, row) = self.locate(address);
        let counts = &mut self.counts[bank];
        match self.open[bank].replace(row) {
            Some(open) if open == row => {
                counts.hits += 1;
                Row::Hit
            }
            Some(_) => {
                counts.conflicts += 1;
                Row::Conflict
            }
            None => {
                counts.misses += 1;
                Row::Miss
            }
        }
    }

    /// By number of the bank: those of the first rank of the first channel, of its second rank, and
    /// so on.
    #[must_use]
    pub fn counts(&self) -> &[RowCounts] {
        &self.counts
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::address::{Field, Fields};

    /// Two channels, two ranks of four banks, rows of 512 bytes.
    fn rows() -> OpenRows {
        let fields = [
            (Field::Channel, 1),
            (Field::Column, 3),
            (Field::Bank, 2),
            (Field::Rank, 1),
            (Field::Row, 6),
        ];
        OpenRows::new(AddressMap::new(Fields::plain(6, &fields).bank_xor_row()).unwrap())
    }

    #[test]
    fn a_row_is_opened_once_and_closed_by_another() {
        let mut rows = rows();
        let (near, far) = (0x80, 1 << 17);
        assert_eq!(rows.locate(0).0, rows.locate(far).0);
        let found = [0, near, far, far + near, 0].map(|a| rows.access(a));
        use Row::{Conflict, Hit, Miss};
        assert_eq!(found, [Miss, Hit, Conflict, Hit, Conflict]);
    }

    proptest! {
        /// Every access belongs to one bank, and found what that bank's earlier accesses left.
        #[test]
        fn counts_sum_to_accesses(addresses in prop::collection::vec(0u64..1 << 20, 0..300)) {
            let mut rows = rows();
            for (n, address) in addresses.iter().enumerate() {
                let (bank, row) = rows.locate(*address);
                let before = addresses[..n].iter().rev().map(|a| rows.locate(*a)).find(|at| at.0 == bank);
                let due = match before {
                    None => Row::Miss,
                    Some((_, open)) if open == row => Row::Hit,
                    Some(_) => Row::Conflict,
                };
                prop_assert_eq!(rows.access(*address), due);
            }
            prop_assert_eq!(rows.counts().len(), 16);
            let all: u64 = rows.counts().iter().map(|c| c.hits + c.misses + c.conflicts).sum();
            prop_assert_eq!(all, addresses.len() as u64);
            prop_assert!(rows.counts().iter().all(|c| c.misses <= 1));
        }
    }
}
