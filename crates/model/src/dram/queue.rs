//! The waiting requests of one direction: per bank a linked list, oldest first, through an array of
//! fixed size. Only [`Queue::new`] allocates.

/// No place: the end of a list, or no predecessor.
pub(super) const END: u16 = u16::MAX;

/// A waiting request, in the list of its bank.
#[derive(Clone, Copy, Debug)]
pub(super) struct Waiting {
    pub(super) row: u32,
    /// The line within the row.
    pub(super) column: u32,
    /// The requester's number, returned when the request is done.
    pub(super) id: u64,
    /// Order of arrival in the channel, over both directions and all banks.
    pub(super) order: u64,
    /// The next place in the bank's list, or in the list of free places.
    next: u16,
}

/// The waiting requests of one direction.
#[derive(Clone, Debug)]
pub(super) struct Queue {
    pool: Vec<Waiting>,
    free: u16,
    heads: Vec<u16>,
    tails: Vec<u16>,
    len: usize,
}

impl Queue {
    /// A queue of 1 to 4096 places, which the timing configuration has checked.
    pub(super) fn new(places: u32, banks: usize) -> Self {
        let places = u16::try_from(places).expect("invariant: the configuration was checked");
        let pool = (1..=places)
            .map(|next| Waiting {
                row: 0,
                column: 0,
                id: 0,
                order: 0,
                next: if next == places { END } else { next },
            })
            .collect();
        Self {
            pool,
            free: 0,
            heads: vec![END; banks],
            tails: vec![END; banks],
            len: 0,
        }
    }

    /// How many requests wait, over all banks.
    pub(super) fn len(&self) -> usize {
        self.len
    }

    pub(super) fn is_full(&self) -> bool {
        self.free == END
    }

    /// The oldest request to the bank.
    pub(super) fn head(&self, bank: usize) -> Option<&Waiting> {
        self.pool.get(usize::from(self.heads[bank]))
    }

    /// The oldest request to `row`, and the place before it in the list. [`END`]: it is the bank's
    /// first.
    #[inline]
    pub(super) fn first_of_row(&self, bank: usize, row: u32) -> Option<(&Waiting, u16)> {
        let (mut before, mut at) = (END, self.heads[bank]);
        while at != END {
            let waiting = &self.pool[usize::from(at)];
            if waiting.row == row {
                return Some((waiting, before));
            }
            (before, at) = (at, waiting.next);
        }
        None
    }

    /// Whether a request to this row and column waits.
    pub(super) fn holds(&self, bank: usize, row: u32, column: u32) -> bool {
        let mut at = self.heads[bank];
        while at != END {
            let waiting = &self.pool[usize::from(at)];
            if waiting.row == row && waiting.column == column {
                return true;
            }
            at = waiting.next;
        }
        false
    }

    /// Appends a request. The queue must not be full.
    pub(super) fn push(&mut self, bank: usize, row: u32, column: u32, id: u64, order: u64) {
        let at = self.free;
        let place = &mut self.pool[usize::from(at)];
        self.free = place.next;
        *place = Waiting {
            row,
            column,
            id,
            order,
            next: END,
        };
        match self.tails[bank] {
            END => self.heads[bank] = at,
            tail => self.pool[usize::from(tail)].next = at,
        }
        self.tails[bank] = at;
        self.len += 1;
    }

    /// Removes the request after place `before`; [`END`]: the bank's first. There must be one.
    /// `before` comes from [`Self::first_of_row`], and is invalid once another request was taken.
    pub(super) fn take(&mut self, bank: usize, before: u16) -> Waiting {
        let at = if before == END {
            self.heads[bank]
        } else {
            self.pool[usize::from(before)].next
        };
        let waiting = self.pool[usize::from(at)];
        if before == END {
            self.heads[bank] = waiting.next;
        } else {
            self.pool[usize::from(before)].next = waiting.next;
        }
        if self.tails[bank] == at {
            self.tails[bank] = before;
        }
        self.pool[usize::from(at)].next = self.free;
        self.free = at;
        self.len -= 1;
        waiting
    }
}
