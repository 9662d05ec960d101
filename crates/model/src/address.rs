//! From physical address to channel, rank, bank, row and column, and back. The algebra is in
//! [`quell_types::address`].

use quell_types::address::Functions;
use quell_types::address::gf2::{Solutions, Space};

use crate::Invalid;

/// A part of a DRAM location, for [`Fields::plain`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Field {
    /// The memory channel of a line.
    Channel,
    /// Rank within the channel.
    Rank,
    /// Bank within the rank. Its lowest bits are the bank group.
    Bank,
    /// Row within the bank.
    Row,
    /// Column within the row, in lines.
    Column,
}

/// The functions of each part of a location: masks over physical addresses, least significant
/// output bit first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Fields {
    /// log2 of the line size in bytes. Address bits below it choose a byte within the line.
    pub line_shift: u32,
    /// The memory channel of a line.
    pub channel: Vec<u64>,
    /// Rank within the channel.
    pub rank: Vec<u64>,
    /// Bank within the rank. Its lowest bits are the bank group.
    pub bank: Vec<u64>,
    /// Row within the bank.
    pub row: Vec<u64>,
    /// Column within the row, in lines.
    pub column: Vec<u64>,
    /// 0 or 1: `channel` chooses the channel. From 2 on, lines go to so many channels in turn, as
    /// with controllers of three or six channels. Then `channel` must be empty, and the other
    /// functions take the line number divided by this.
    pub channels_in_turn: u64,
}

impl Fields {
    /// Plain fields one after the other above the line offset, lowest first, with their widths in
    /// bits.
    #[must_use]
    pub fn plain(line_shift: u32, lowest_first: &[(Field, u32)]) -> Self {
        let mut fields = Self {
            line_shift,
            ..Self::default()
        };
        let mut at = line_shift;
        for &(field, width) in lowest_first {
            let masks = match field {
                Field::Channel => &mut fields.channel,
                Field::Rank => &mut fields.rank,
                Field::Bank => &mut fields.bank,
                Field::Row => &mut fields.row,
                Field::Column => &mut fields.column,
            };
            masks.extend((at..at + width).map(|bit| 1u64.checked_shl(bit).unwrap_or(0)));
            at += width;
        }
        fields
    }

    /// The same with bank bit i XORed with row bit i, as controllers do to spread rows over banks.
    #[must_use]
    pub fn bank_xor_row(mut self) -> Self {
        for (bank, row) in self.bank.iter_mut().zip(&self.row) {
            *bank ^= row;
        }
        self
    }

    fn masks(&self) -> impl Iterator<Item = (&'static str, u64)> + '_ {
        [
            ("channel", &self.channel),
            ("rank", &self.rank),
            ("bank", &self.bank),
            ("row", &self.row),
            ("column", &self.column),
        ]
        .into_iter()
        .flat_map(|(name, masks)| masks.iter().map(move |&mask| (name, mask)))
    }
}

/// Where a line lies in DRAM.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct Location {
    /// The memory channel, from 0.
    pub channel: u32,
    /// Rank within the channel.
    pub rank: u32,
    /// Bank within the rank. Its lowest bits are the bank group.
    pub bank: u32,
    /// Row within the bank.
    pub row: u32,
    /// Column within the row, in lines.
    pub column: u32,
}

/// A checked set of functions: no two lines within its reach have the same location.
#[derive(Clone, Debug)]
pub struct AddressMap {
    fields: Fields,
    channels: u64,
    channel: Functions,
    rank: Functions,
    bank: Functions,
    row: Functions,
    column: Functions,
}

#[expect(
    clippy::cast_possible_truncation,
    reason = "widths are checked when the map is made"
)]
impl AddressMap {
    /// Checks the functions: none uses the line offset, all are independent, and no part is wider
    /// than 32 bits.
    ///
    /// # Errors
    /// Names the function at fault.
    pub fn new(fields: Fields) -> Result<Self, Invalid> {
        let offset = !u64::MAX.checked_shl(fields.line_shift).unwrap_or(0);
        let in_turn = fields.channels_in_turn.max(1);
        if in_turn > 1 && !fields.channel.is_empty() {
            return Err(Invalid::new(
                "address map",
                "has channel functions and channels in turn: use one of them",
            ));
        }
        let mut space = Space::default();
        for (name, mask) in fields.masks() {
            if mask & offset != 0 {
                let reason = format!(
                    "{mask:#x} uses bits below the line size 2^{}: the parts of a line lie together",
                    fields.line_shift
                );
                return Err(Invalid::new(format!("{name} function"), reason));
            }
            if !space.insert(mask) {
                let reason = format!(
                    "{mask:#x} is zero or the XOR of others: two lines would have the same location; remove or change it"
                );
                return Err(Invalid::new(format!("{name} function"), reason));
            }
        }
        for (name, masks) in [
            ("channel", &fields.channel),
            ("rank", &fields.rank),
            ("bank", &fields.bank),
            ("row", &fields.row),
            ("column", &fields.column),
        ] {
            if masks.len() > 31 {
                return Err(Invalid::new(
                    format!("{name} functions"),
                    format!("{} bits, at most 31 are possible", masks.len()),
                ));
            }
        }
        Ok(Self {
            channels: in_turn << fields.channel.len(),
            channel: Functions::new(fields.channel.clone()),
            rank: Functions::new(fields.rank.clone()),
            bank: Functions::new(fields.bank.clone()),
            row: Functions::new(fields.row.clone()),
            column: Functions::new(fields.column.clone()),
            fields: Fields {
                channels_in_turn: in_turn,
                ..fields
            },
        })
    }

    /// The functions that the map is made of.
    #[must_use]
    pub fn fields(&self) -> &Fields {
        &self.fields
    }

    /// How many channels there are.
    #[must_use]
    pub fn channels(&self) -> u32 {
        self.channels as u32
    }

    /// How many ranks a channel has.
    #[must_use]
    pub fn ranks(&self) -> u32 {
        1 << self.fields.rank.len()
    }

    /// How many banks a rank has.
    #[must_use]
    pub fn banks(&self) -> u32 {
        1 << self.fields.bank.len()
    }

    /// The address bits that some function uses or that lie within a line, as a size. Addresses
    /// beyond it wrap around.
    #[must_use]
    pub fn reach(&self) -> u64 {
        self.fields.masks().fold(
            !u64::MAX.checked_shl(self.fields.line_shift).unwrap_or(0),
            |all, (_, mask)| all | mask,
        )
    }

    /// The channel of the line that contains `address`, and the address that the other functions
    /// take.
    #[inline]
    fn split(&self, address: u64) -> (u32, u64) {
        let n = self.fields.channels_in_turn;
        if n > 1 {
            let line = address >> self.fields.line_shift;
            ((line % n) as u32, (line / n) << self.fields.line_shift)
        } else {
            (self.channel.of(address) as u32, address)
        }
    }

    /// The channel of the line that contains `address`.
    #[inline]
    #[must_use]
    pub fn channel(&self, address: u64) -> u32 {
        self.split(address).0
    }

    /// The location of the line that contains `address`.
    #[inline]
    #[must_use]
    pub fn locate(&self, address: u64) -> Location {
        let (channel, address) = self.split(address);
        Location {
            channel,
            rank: self.rank.of(address) as u32,
            bank: self.bank.of(address) as u32,
            row: self.row.of(address) as u32,
            column: self.column.of(address) as u32,
        }
    }

    /// The lowest address of `location`. `None` where a part is out of range.
    #[must_use]
    pub fn address(&self, location: Location) -> Option<u64> {
        let n = self.fields.channels_in_turn;
        let parts = [
            (
                if n > 1 { 0 } else { location.channel },
                &self.fields.channel,
            ),
            (location.rank, &self.fields.rank),
            (location.bank, &self.fields.bank),
            (location.row, &self.fields.row),
            (location.column, &self.fields.column),
        ];
        let (mut value, mut width) = (0u64, 0u32);
        for (part, masks) in parts {
            if u64::from(part) >> masks.len() != 0 {
                return None;
            }
            value |= u64::from(part).checked_shl(width).unwrap_or(0);
            width += masks.len() as u32;
        }
        let functions: Vec<u64> = self.fields.masks().map(|(_, mask)| mask).collect();
        let address = Solutions::of(&functions, value, self.reach())?.nth(0)?;
        if n == 1 {
            return Some(address);
        }
        let line = (address >> self.fields.line_shift).checked_mul(n)?;
        (u64::from(location.channel) < n)
            .then(|| line + u64::from(location.channel))
            .map(|line| line << self.fields.line_shift)
    }
}
