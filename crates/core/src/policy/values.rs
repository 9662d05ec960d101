//! Values of the policy language that have several spellings: `cpus = 2` or `cpus = "0,2-3"`. Each is read by hand, so
//! that a mistake is answered with what would be right instead of "no variant matched".

use std::fmt;
use std::marker::PhantomData;
use std::str::FromStr;

use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, Unexpected, Visitor};
use serde::{Deserialize, Serialize, Serializer};

use crate::cpuset::CpuSet;
use crate::options::CpuWeight;
use crate::source::{Pattern, Source};
use crate::units::{Bytes, Rate, Share};

/// A value with several spellings.
pub(crate) trait Spelled: Sized {
    /// What a correct spelling looks like.
    const WANTED: &'static str;
    /// The keys of its table form.
    type Table: TableForm;
    /// From a number, where that is a spelling.
    fn integer(_: u32) -> Option<Self> {
        None
    }
    /// From text.
    fn text(text: &str) -> Result<Self, String>;
    /// From its table form.
    fn table(table: Self::Table) -> Result<Self, String>;
}

/// The keys of a value's table form.
pub(crate) trait TableForm: DeserializeOwned {
    /// Whether there is such a form.
    const EXISTS: bool = true;
}

/// For values without a table form.
#[derive(Deserialize)]
pub(crate) enum NoTable {}

impl TableForm for NoTable {
    const EXISTS: bool = false;
}

impl TableForm for ReadWriteKeys {}
impl TableForm for CacheKeys {}

pub(crate) struct Spelling<T>(pub PhantomData<T>);

impl<'de, T: Spelled> Visitor<'de> for Spelling<T> {
    type Value = T;
    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(T::WANTED)
    }
    fn visit_i64<E: de::Error>(self, n: i64) -> Result<T, E> {
        u32::try_from(n)
            .ok()
            .and_then(T::integer)
            .ok_or_else(|| E::invalid_value(Unexpected::Signed(n), &self))
    }
    fn visit_u64<E: de::Error>(self, n: u64) -> Result<T, E> {
        u32::try_from(n)
            .ok()
            .and_then(T::integer)
            .ok_or_else(|| E::invalid_value(Unexpected::Unsigned(n), &self))
    }
    fn visit_str<E: de::Error>(self, text: &str) -> Result<T, E> {
        T::text(text).map_err(E::custom)
    }
    fn visit_map<A: MapAccess<'de>>(self, map: A) -> Result<T, A::Error> {
        if !T::Table::EXISTS {
            return Err(de::Error::invalid_type(Unexpected::Map, &self));
        }
        let table = T::Table::deserialize(MapAccessDeserializer::new(map))?;
        T::table(table).map_err(de::Error::custom)
    }
}

macro_rules! spelled {
    ($($name:ident),*) => {$(
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::policy::Spelling(std::marker::PhantomData))
            }
        }
    )*};
}
pub(crate) use spelled;
spelled!(
    CpusWanted,
    Bandwidth,
    CacheWanted,
    Banks,
    MemoryWanted,
    Sustainable,
    CpuWeight,
    Source
);

pub(crate) fn no_table<T>(table: NoTable) -> Result<T, String> {
    match table {}
}

pub(super) fn wanted<T: Spelled>(text: &str) -> String {
    format!("'{text}' is not {}", T::WANTED)
}

/// The CPUs a group wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpusWanted {
    /// So many; which ones is the planner's choice.
    Count(u32),
    /// These.
    List(CpuSet),
    /// As many as the planner finds right.
    Auto,
    /// What other groups leave.
    Remaining,
    /// Wherever the kernel puts it: no core partition is made for it.
    Any,
}

impl FromStr for CpusWanted {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "remaining" => Ok(Self::Remaining),
            "any" => Ok(Self::Any),
            _ if text.starts_with(|c: char| c.is_ascii_digit()) => text
                .parse()
                .map(Self::List)
                .map_err(|e: crate::cpuset::CpuSetError| e.to_string()),
            _ => Err(wanted::<Self>(text)),
        }
    }
}

impl Spelled for CpusWanted {
    const WANTED: &'static str =
        "a number of CPUs, a list such as \"0,2-3\", or one of \"auto\", \"remaining\", \"any\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        Some(Self::Count(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn table(table: NoTable) -> Result<Self, String> {
        no_table(table)
    }
}

impl Serialize for CpusWanted {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(n) => s.serialize_u32(*n),
            Self::List(list) => list.serialize(s),
            Self::Auto => s.serialize_str("auto"),
            Self::Remaining => s.serialize_str("remaining"),
            Self::Any => s.serialize_str("any"),
        }
    }
}

/// An amount of memory bandwidth.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bandwidth {
    /// A rate, reads and writes together.
    Rate(Rate),
    /// A part of what the group's CPUs can draw together ([`crate::inventory::Inventory::sustainable`]).
    Share(Share),
    /// Reads and writes apart: lines that come in, those that a store fetches included, and lines that are written back.
    ReadWrite {
        /// Reads; absent: unlimited or unreserved.
        read: Option<Rate>,
        /// Writes.
        write: Option<Rate>,
    },
}

impl FromStr for Bandwidth {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_end().ends_with('%') {
            text.parse()
                .map(Self::Share)
                .map_err(|_| wanted::<Self>(text))
        } else {
            text.parse()
                .map(Self::Rate)
                .map_err(|_| wanted::<Self>(text))
        }
    }
}

/// The table form of [`Bandwidth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ReadWriteKeys {
    #[serde(default, skip_serializing_if = "Option::is_none")]
    read: Option<Rate>,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    write: Option<Rate>,
}

impl Spelled for Bandwidth {
    const WANTED: &'static str = "a rate such as 600MB/s, a share such as 20%, or a table such as { read = \"500MB/s\", write = \"100MB/s\" }";
    type Table = ReadWriteKeys;
    fn text(text: &str) -> Result<Self, String> {
        text.parse()
    }
    fn table(ReadWriteKeys { read, write }: ReadWriteKeys) -> Result<Self, String> {
        if read.is_none() && write.is_none() {
            return Err("neither `read` nor `write` is given".into());
        }
        Ok(Self::ReadWrite { read, write })
    }
}

impl Serialize for Bandwidth {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match *self {
            Self::Rate(rate) => rate.serialize(s),
            Self::Share(share) => share.serialize(s),
            Self::ReadWrite { read, write } => ReadWriteKeys { read, write }.serialize(s),
        }
    }
}

/// A part of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheWanted {
    /// Which part.
    pub form: CacheForm,
    /// The cache level (2, 3); absent: the last.
    pub level: Option<u8>,
}

/// The ways to name a part of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheForm {
    /// So much.
    Size(Bytes),
    /// Such a part.
    Share(Share),
    /// So many ways.
    Ways(u32),
    /// So many ways for instructions, and so many others for data.
    Apart {
        /// Ways for instructions.
        code: u32,
        /// Ways for everything else.
        data: u32,
    },
    /// These ways, as a bit mask.
    Mask(u64),
    /// These page colours.
    Colours(CpuSet),
    /// So much, pseudo-locked.
    Locked(Bytes),
}

/// The table form of [`CacheWanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub(crate) struct CacheKeys {
    #[serde(skip_serializing_if = "Option::is_none")]
    size: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    share: Option<Share>,
    #[serde(skip_serializing_if = "Option::is_none")]
    ways: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    code: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    data: Option<u32>,
    #[serde(skip_serializing_if = "Option::is_none")]
    mask: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    colours: Option<CpuSet>,
    #[serde(skip_serializing_if = "Option::is_none")]
    locked: Option<Bytes>,
    #[serde(skip_serializing_if = "Option::is_none")]
    level: Option<String>,
}

impl Spelled for CacheWanted {
    const WANTED: &'static str = "a size such as 3MiB, a share such as 25%, or a table with one of ways, code and data, mask, colours, locked (and level = \"L2\" or \"L3\")";
    type Table = CacheKeys;

    fn text(text: &str) -> Result<Self, String> {
        let form = if text.trim_end().ends_with('%') {
            text.parse().map(CacheForm::Share).ok()
        } else {
            text.parse().map(CacheForm::Size).ok()
        };
        form.map(|form| Self { form, level: None })
            .ok_or_else(|| wanted::<Self>(text))
    }

    fn table(keys: CacheKeys) -> Result<Self, String> {
        let mask = keys.mask.as_deref().map(read_mask).transpose()?;
        let level = keys.level.as_deref().map(read_level).transpose()?;
        let apart = match (keys.code, keys.data) {
            (Some(code), Some(data)) => Some(CacheForm::Apart { code, data }),
            (None, None) => None,
            _ => return Err("give ways for both, code and data".into()),
        };
        let mut forms = [
            apart,
            keys.size.map(CacheForm::Size),
            keys.share.map(CacheForm::Share),
            keys.ways.map(CacheForm::Ways),
            mask.map(CacheForm::Mask),
            keys.colours.map(CacheForm::Colours),
            keys.locked.map(CacheForm::Locked),
        ]
        .into_iter()
        .flatten();
        match (forms.next(), forms.next()) {
            (Some(form), None) => Ok(Self { form, level }),
            _ => Err(
                "give exactly one of size, share, ways, code and data, mask, colours, locked"
                    .into(),
            ),
        }
    }
}

fn read_mask(text: &str) -> Result<u64, String> {
    text.strip_prefix("0x")
        .and_then(|digits| u64::from_str_radix(digits, 16).ok())
        .filter(|mask| *mask != 0)
        .ok_or_else(|| format!("'{text}' is not a mask of ways such as 0xf, at least one bit set"))
}

fn read_level(text: &str) -> Result<u8, String> {
    match text {
        "L2" => Ok(2),
        "L3" => Ok(3),
        _ => Err(format!(
            "'{text}' is not a cache level: write \"L2\" or \"L3\""
        )),
    }
}

impl Serialize for CacheWanted {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        let mut keys = CacheKeys {
            level: self.level.map(|level| format!("L{level}")),
            ..CacheKeys::default()
        };
        match (&self.form, self.level) {
            (CacheForm::Size(size), None) => return size.serialize(s),
            (CacheForm::Share(share), None) => return share.serialize(s),
            (CacheForm::Size(size), _) => keys.size = Some(*size),
            (CacheForm::Share(share), _) => keys.share = Some(*share),
            (CacheForm::Ways(ways), _) => keys.ways = Some(*ways),
            (CacheForm::Apart { code, data }, _) => {
                (keys.code, keys.data) = (Some(*code), Some(*data));
            }
            (CacheForm::Mask(mask), _) => keys.mask = Some(format!("{mask:#x}")),
            (CacheForm::Colours(colours), _) => keys.colours = Some(colours.clone()),
            (CacheForm::Locked(locked), _) => keys.locked = Some(*locked),
        }
        keys.serialize(s)
    }
}

/// DRAM banks.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Banks {
    /// So many.
    Count(u32),
    /// These.
    List(CpuSet),
    /// Shared with no other group.
    Private,
}

impl Spelled for Banks {
    const WANTED: &'static str = "a number of banks, a list such as \"0-3\", or \"private\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        Some(Self::Count(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "private" => Ok(Self::Private),
            "" => Err(wanted::<Self>(text)),
            _ => text
                .parse()
                .map(Self::List)
                .map_err(|_| wanted::<Self>(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        no_table(table)
    }
}

impl Serialize for Banks {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(n) => s.serialize_u32(*n),
            Self::List(list) => list.serialize(s),
            Self::Private => s.serialize_str("private"),
        }
    }
}

/// Memory kept from reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWanted {
    /// So much.
    Size(Bytes),
    /// The measured working set.
    WorkingSet,
}

impl Spelled for MemoryWanted {
    const WANTED: &'static str = "a size such as 512MiB, or \"working-set\" (measured)";
    type Table = NoTable;
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "working-set" => Ok(Self::WorkingSet),
            _ => text
                .parse()
                .map(Self::Size)
                .map_err(|_| wanted::<Self>(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        no_table(table)
    }
}

impl Serialize for MemoryWanted {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Size(size) => size.serialize(s),
            Self::WorkingSet => s.serialize_str("working-set"),
        }
    }
}

/// The rate the machine sustains.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sustainable {
    /// Measured of the group's CPUs.
    #[default]
    Auto,
    /// Measured of all CPUs together, whoever it is a percentage for.
    Machine,
    /// Given by the user, and recorded as given.
    Rate(Rate),
}

impl Spelled for Sustainable {
    const WANTED: &'static str = "a rate such as 10GB/s, \"auto\" (measured of a group's CPUs), or \"machine\" (measured of all CPUs together)";
    type Table = NoTable;
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "auto" => Ok(Self::Auto),
            "machine" => Ok(Self::Machine),
            _ => text
                .parse()
                .map(Self::Rate)
                .map_err(|_| wanted::<Self>(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        no_table(table)
    }
}

impl Serialize for Sustainable {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Auto => s.serialize_str("auto"),
            Self::Machine => s.serialize_str("machine"),
            Self::Rate(rate) => rate.serialize(s),
        }
    }
}

impl Spelled for CpuWeight {
    const WANTED: &'static str =
        "a weight from 1 to 10000 (100 is the kernel's default), or \"idle\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        (1..=10_000).contains(&n).then_some(Self::Of(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "idle" => Ok(Self::Idle),
            _ => Err(wanted::<Self>(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        no_table(table)
    }
}

impl TableForm for Pattern {}

impl Spelled for Source {
    const WANTED: &'static str =
        "\"client\", \"none\", or a table such as { pattern = 'took ([0-9.]+) ms', unit = \"ms\" }";
    type Table = Pattern;
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "client" => Ok(Self::Client),
            "none" => Ok(Self::None),
            _ => Err(wanted::<Self>(text)),
        }
    }
    fn table(table: Pattern) -> Result<Self, String> {
        Ok(Self::Pattern(table))
    }
}
