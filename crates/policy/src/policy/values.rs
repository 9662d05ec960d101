//! Values of the policy language that have several spellings.

use std::str::FromStr;

use quell_types::cpuset::CpuSet;
use quell_types::partition::Mask;
use quell_types::spelled::{NoTable, Spelled, TableForm};
use quell_types::units::{Bytes, Rate, Share};
use serde::{Deserialize, Serialize, Serializer};

impl TableForm for ReadWriteKeys {}
impl TableForm for CacheKeys {}

/// The CPUs that a group wants.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CpusWanted {
    /// This many; the planner chooses which.
    Count(u32),
    /// The CPUs in this list.
    List(CpuSet),
    /// As many as the planner chooses.
    Auto,
    /// What other groups leave.
    Remaining,
    /// All CPUs that the kernel chooses: no core partition is made for the group.
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
                .map_err(|e: quell_types::cpuset::CpuSetError| e.to_string()),
            _ => Err(Self::mistaken(text)),
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
        match table {}
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

/// An amount of memory bandwidth that a policy states.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bandwidth {
    /// A rate, reads and writes together.
    Rate(Rate),
    /// A part of what the group's CPUs can draw together (the inventory's `sustainable`).
    Share(Share),
    /// Separate rates for reads and writes. Reads are lines that come in, including those that a
    /// store fetches. Writes are lines that are written back.
    ReadWrite {
        /// The rate of reads; absent: unlimited or unreserved.
        read: Option<Rate>,
        /// The rate of writes; absent: unlimited or unreserved.
        write: Option<Rate>,
    },
}

impl FromStr for Bandwidth {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        if text.trim_end().ends_with('%') {
            text.parse()
                .map(Self::Share)
                .map_err(|_| Self::mistaken(text))
        } else {
            let bytes_are = "; an amount of memory is reserve.memory or limit.memory";
            let hint = text.parse::<Bytes>().map_or("", |_| bytes_are);
            text.parse()
                .map(Self::Rate)
                .map_err(|_| Self::mistaken(text) + hint)
        }
    }
}

/// The table form of [`Bandwidth`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ReadWriteKeys {
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

/// A part of a cache that a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CacheWanted {
    /// How the part is named.
    pub form: CacheForm,
    /// The cache level (2, 3); absent: the last.
    pub level: Option<u8>,
}

/// The forms in which a policy names a part of a cache.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheForm {
    /// At least this many bytes.
    Size(Bytes),
    /// This share of the whole cache.
    Share(Share),
    /// This many ways; the planner chooses which.
    Ways(u32),
    /// Separate ways for instructions and for data.
    Apart {
        /// Number of ways for instructions.
        code: u32,
        /// Number of ways for all else.
        data: u32,
    },
    /// The ways of this bit mask.
    Mask(u64),
    /// The page colours with these numbers.
    Colours(CpuSet),
    /// This many bytes, pseudo-locked.
    Locked(Bytes),
}

/// The table form of [`CacheWanted`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct CacheKeys {
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
            .ok_or_else(|| Self::mistaken(text))
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
    let mask = text.parse::<Mask>().ok().filter(|mask| !mask.is_empty());
    mask.map(|mask| mask.0)
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

/// The ways that a group fills in a window.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum WindowWays {
    /// This many; the planner chooses which.
    Count(u32),
    /// The ways of this bit mask.
    Mask(u64),
}

impl Spelled for WindowWays {
    const WANTED: &'static str = "a number of ways, or a mask of them such as \"0xf0\"";
    type Table = NoTable;
    fn integer(n: u32) -> Option<Self> {
        Some(Self::Count(n))
    }
    fn text(text: &str) -> Result<Self, String> {
        if !text.starts_with("0x") {
            return Err(Self::mistaken(text));
        }
        read_mask(text).map(Self::Mask)
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
    }
}

impl Serialize for WindowWays {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Count(n) => s.serialize_u32(*n),
            Self::Mask(mask) => s.serialize_str(&format!("{mask:#x}")),
        }
    }
}

/// The DRAM banks that a policy asks for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Banks {
    /// This many; the planner chooses which.
    Count(u32),
    /// The banks with these numbers.
    List(CpuSet),
    /// Banks that no other group shares.
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
            "" => Err(Self::mistaken(text)),
            _ => text
                .parse()
                .map(Self::List)
                .map_err(|_| Self::mistaken(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
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

/// Memory that is to be kept from reclaim.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MemoryWanted {
    /// This many bytes are kept.
    Size(Bytes),
    /// The working set, as measured.
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
                .map_err(|_| Self::mistaken(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
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

/// The rate that the machine sustains, on which shares are based.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sustainable {
    /// As measured, for the group's CPUs.
    #[default]
    Auto,
    /// As measured, for all CPUs together, whichever group the share is for.
    Machine,
    /// As the user states it, and recorded like that.
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
                .map_err(|_| Self::mistaken(text)),
        }
    }
    fn table(table: NoTable) -> Result<Self, String> {
        match table {}
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
