//! Quantities with their units. In files a quantity is text with its unit (`1ms`, `3MiB`,
//! `600MB/s`, `20%`). In the program it is an integer in the base unit. `MB` = 10^6 bytes, `MiB` =
//! 2^20 bytes.

use std::fmt;
use std::str::FromStr;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Bytes in one cache line, the unit of memory transactions ([`Lines`]). It is the same on all
/// machines that Quell supports.
pub const LINE_BYTES: u64 = 64;

/// Why a quantity could not be read.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("'{text}' is not {wanted}")]
pub struct UnitError {
    /// The text as it was written.
    pub text: String,
    /// What was expected, with an example.
    pub wanted: &'static str,
}

fn error(text: &str, wanted: &'static str) -> UnitError {
    UnitError {
        text: text.to_owned(),
        wanted,
    }
}

/// A decimal number as written: the digits before and after its point.
struct Decimal<'t> {
    whole: &'t str,
    part: &'t str,
}

impl Decimal<'_> {
    /// The number times `scale`, rounded. Exact, however large it is. `None` beyond what any
    /// quantity may be.
    fn times(&self, scale: u64) -> Option<u64> {
        /// More digits after the point than a unit of any scale has.
        const MOST: usize = 18;
        const BEYOND: u128 = 9_200_000_000_000_000_000;
        let whole = self.whole.parse::<u128>().ok()?;
        let part = &self.part[..self.part.len().min(MOST)];
        let power = 10u128.pow(u32::try_from(part.len()).ok()?);
        let part = match part {
            "" => 0,
            digits => digits.parse::<u128>().ok()? * u128::from(scale),
        };
        let sum = whole
            .checked_mul(scale.into())?
            .checked_add((part + power / 2) / power)?;
        u64::try_from(sum).ok().filter(|_| sum < BEYOND)
    }
}

/// Splits `12.5ms` into its decimal number and its unit.
fn split(text: &str) -> Option<(Decimal<'_>, &str)> {
    let text = text.trim();
    let end = text
        .find(|c: char| !(c.is_ascii_digit() || c == '.'))
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    let (whole, part) = match number.split_once('.') {
        Some((_, "")) => return None,
        Some(parts) => parts,
        None => (number, ""),
    };
    if whole.is_empty() || part.contains('.') {
        return None;
    }
    Some((Decimal { whole, part }, unit.trim()))
}

/// `n ÷ scale` without a digit too many; `digits`: how many there are after the point at most.
fn decimal(n: u64, scale: u64, digits: usize) -> String {
    let power = 10u64.pow(u32::try_from(digits).unwrap_or(0));
    let part = n % scale / (scale / power).max(1);
    let text = format!("{}.{part:0digits$}", n / scale);
    text.trim_end_matches('0').trim_end_matches('.').to_owned()
}

/// Implements reading and writing a quantity as text. The type must have `FromStr` and `Display`.
/// The literal describes a correct spelling.
#[macro_export]
macro_rules! text_unit {
    ($name:ident, $wanted:literal) => {
        impl TryFrom<String> for $name {
            type Error = $crate::units::UnitError;
            fn try_from(text: String) -> Result<Self, $crate::units::UnitError> {
                text.parse()
            }
        }
        impl From<$name> for String {
            fn from(value: $name) -> String {
                value.to_string()
            }
        }
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                struct Text;
                impl serde::de::Visitor<'_> for Text {
                    type Value = $name;
                    fn expecting(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                        f.write_str($wanted)
                    }
                    fn visit_str<E: serde::de::Error>(self, text: &str) -> Result<$name, E> {
                        text.parse().map_err(E::custom)
                    }
                }
                deserializer.deserialize_str(Text)
            }
        }
        impl $name {
            /// A description of correct spellings, for messages.
            pub const WANTED: &'static str = $wanted;
        }
    };
}

/// A point in time or a duration in nanoseconds.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Nanos(pub u64);

text_unit!(Nanos, "a duration such as 500us, 1ms or 2s");

impl Nanos {
    /// From a number of microseconds.
    #[must_use]
    pub const fn micros(n: u64) -> Self {
        Self(n * 1_000)
    }

    /// From a number of milliseconds.
    #[must_use]
    pub const fn millis(n: u64) -> Self {
        Self(n * 1_000_000)
    }

    /// From a number of seconds.
    #[must_use]
    pub const fn secs(n: u64) -> Self {
        Self(n * 1_000_000_000)
    }

    /// The time in seconds, with fractions.
    #[must_use]
    pub fn as_secs_f64(self) -> f64 {
        self.0 as f64 / 1e9
    }

    /// `self − earlier`, zero where `earlier` is later.
    #[must_use]
    pub const fn since(self, earlier: Self) -> Self {
        Self(self.0.saturating_sub(earlier.0))
    }

    /// `self + span`; saturates.
    #[must_use]
    pub const fn plus(self, span: Self) -> Self {
        Self(self.0.saturating_add(span.0))
    }
}

impl FromStr for Nanos {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || error(text, Self::WANTED);
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let scale = match unit {
            "ns" => 1,
            "us" | "µs" => 1_000,
            "ms" => 1_000_000,
            "s" => 1_000_000_000,
            "min" => 60_000_000_000,
            _ => return Err(wrong()),
        };
        number.times(scale).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Nanos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        for (unit, scale) in [("s", 1_000_000_000), ("ms", 1_000_000), ("us", 1_000)] {
            if n >= scale && n.is_multiple_of(scale / 1_000) {
                return f.pad(&format!("{}{unit}", decimal(n, scale, 3)));
            }
        }
        f.pad(&format!("{n}ns"))
    }
}

/// A number of bytes.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Bytes(pub u64);

text_unit!(Bytes, "a size such as 64KiB, 3MiB or 2GB");

const SIZES: [(&str, u64); 9] = [
    ("TiB", 1 << 40),
    ("GiB", 1 << 30),
    ("MiB", 1 << 20),
    ("KiB", 1 << 10),
    ("TB", 1_000_000_000_000),
    ("GB", 1_000_000_000),
    ("MB", 1_000_000),
    ("kB", 1_000),
    ("B", 1),
];

fn size_scale(unit: &str) -> Option<u64> {
    if unit == "KB" {
        return Some(1_000);
    }
    SIZES
        .iter()
        .find(|(name, _)| *name == unit)
        .map(|(_, scale)| *scale)
}

impl FromStr for Bytes {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || error(text, Self::WANTED);
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let scale = size_scale(unit).ok_or_else(wrong)?;
        number.times(scale).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let n = self.0;
        let exact = SIZES
            .iter()
            .find(|(_, s)| n >= *s && n.is_multiple_of(*s))
            .filter(|_| n > 0);
        let text = match exact {
            Some((unit, scale)) => format!("{}{unit}", n / scale),
            None => format!("{n}B"),
        };
        f.pad(&text)
    }
}

/// A rate in bytes per second.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Rate(pub u64);

text_unit!(Rate, "a rate such as 600MB/s or 2GB/s");

impl Rate {
    /// From a measured number of bytes per second, rounded up to 10^6. Peaks are bounds, and
    /// smaller differences have no meaning.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "a measured rate: positive, far below 2^53"
    )]
    pub fn measured(bytes_per_second: f64) -> Self {
        Self((bytes_per_second / 1e6).ceil() as u64 * 1_000_000)
    }

    /// The part `share` of this rate.
    #[must_use]
    pub fn part(self, share: Share) -> Self {
        let scaled = u128::from(self.0) * u128::from(share.0) / u128::from(Share::WHOLE.0);
        Self(u64::try_from(scaled).unwrap_or(u64::MAX))
    }
}

impl FromStr for Rate {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || error(text, Self::WANTED);
        let (number, unit) = split(text).ok_or_else(wrong)?;
        let scale = unit
            .strip_suffix("/s")
            .and_then(size_scale)
            .ok_or_else(wrong)?;
        number.times(scale).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Rate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (giga, mega) = (1_000_000_000, 1_000_000);
        let text = match self.0 {
            n if n >= giga && n.is_multiple_of(mega) => format!("{}GB/s", decimal(n, giga, 3)),
            n if n >= mega && n.is_multiple_of(1_000) => format!("{}MB/s", decimal(n, mega, 3)),
            n => format!("{n}B/s"),
        };
        f.pad(&text)
    }
}

/// A part of a whole, in millionths: `20%` is 200 000. May exceed the whole (`150%`).
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, JsonSchema,
)]
#[serde(into = "String")]
#[schemars(with = "String")]
pub struct Share(pub u64);

text_unit!(Share, "a percentage such as 20%");

impl Share {
    /// The share that stands for 100 %.
    pub const WHOLE: Self = Self(1_000_000);

    /// From a number of percent.
    #[must_use]
    pub const fn percent(n: u64) -> Self {
        Self(n * 10_000)
    }

    /// As a fraction; 1 is the whole.
    #[must_use]
    pub fn as_f64(self) -> f64 {
        self.0 as f64 / Self::WHOLE.0 as f64
    }

    /// From a fraction, rounded; less than 0 is 0, and more than 1 is 1.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "between 0 and a million"
    )]
    pub fn of(fraction: f64) -> Self {
        Self((fraction.clamp(0.0, 1.0) * Self::WHOLE.0 as f64).round() as u64)
    }

    /// `part ÷ whole`, rounded down; zero where `whole` is zero.
    #[must_use]
    pub fn ratio(part: u64, whole: u64) -> Self {
        let scaled = u128::from(part) * u128::from(Self::WHOLE.0);
        Self(
            scaled
                .checked_div(u128::from(whole))
                .and_then(|v| u64::try_from(v).ok())
                .unwrap_or(0),
        )
    }
}

impl FromStr for Share {
    type Err = UnitError;
    fn from_str(text: &str) -> Result<Self, UnitError> {
        let wrong = || error(text, Self::WANTED);
        let (number, unit) = split(text).ok_or_else(wrong)?;
        if unit != "%" {
            return Err(wrong());
        }
        number.times(10_000).map(Self).ok_or_else(wrong)
    }
}

impl fmt::Display for Share {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.pad(&format!("{}%", decimal(self.0, 10_000, 4)))
    }
}

/// A number of memory transactions of one cache line each: what budgets and counters count.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    PartialOrd,
    Ord,
    Hash,
    Serialize,
    Deserialize,
    JsonSchema,
)]
pub struct Lines(pub u64);

impl Lines {
    /// Whether there are no lines.
    #[must_use]
    pub const fn is_zero(&self) -> bool {
        self.0 == 0
    }

    /// The lines a rate moves in a span, rounded down.
    #[must_use]
    pub fn at(rate: Rate, span: Nanos) -> Self {
        let bytes = u128::from(rate.0) * u128::from(span.0) / 1_000_000_000;
        Self(u64::try_from(bytes / u128::from(LINE_BYTES)).unwrap_or(u64::MAX))
    }

    /// The shortest time in which `rate` moves this many lines, rounded up. The largest time where
    /// the rate is zero.
    #[must_use]
    pub fn time_at(self, rate: Rate) -> Nanos {
        if rate.0 == 0 {
            return Nanos(u64::MAX);
        }
        let scaled = u128::from(self.0) * u128::from(LINE_BYTES) * 1_000_000_000;
        Nanos(u64::try_from(scaled.div_ceil(u128::from(rate.0))).unwrap_or(u64::MAX))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn reads_units_as_written_in_policies() {
        assert_eq!("1ms".parse(), Ok(Nanos::millis(1)));
        assert_eq!("0.5 ms".parse(), Ok(Nanos::micros(500)));
        assert_eq!("3MiB".parse(), Ok(Bytes(3 << 20)));
        assert_eq!("600MB/s".parse(), Ok(Rate(600_000_000)));
        assert_eq!("2GiB/s".parse(), Ok(Rate(2 << 30)));
        assert_eq!("12.5%".parse(), Ok(Share(125_000)));
    }

    #[test]
    fn a_wrong_unit_says_what_would_be_right() {
        let text = "600MB".parse::<Rate>().unwrap_err().to_string();
        assert_eq!(text, "'600MB' is not a rate such as 600MB/s or 2GB/s");
        assert!("1".parse::<Nanos>().is_err());
        assert!("-1ms".parse::<Nanos>().is_err());
        assert!("1e9s".parse::<Nanos>().is_err());
        assert!("20".parse::<Share>().is_err());
        assert!("99999999999999999999GB".parse::<Bytes>().is_err());
    }

    #[test]
    fn lines_and_rates_convert() {
        // MemGuard's arithmetic: 500 MiB/s at 1 ms is 8192 lines.
        assert_eq!(Lines::at(Rate(500 << 20), Nanos::millis(1)), Lines(8192));
        assert_eq!(Lines(8192).time_at(Rate(500 << 20)), Nanos::millis(1));
        assert_eq!(Lines(1).time_at(Rate(0)), Nanos(u64::MAX));
    }

    /// Usual amounts, and all that there are.
    fn any_of(usual: u64) -> impl Strategy<Value = u64> {
        prop_oneof![0..usual, 0..9_200_000_000_000_000_000u64]
    }

    proptest! {
        #[test]
        fn durations_round_trip(n in any_of(4_000_000_000_000)) {
            prop_assert_eq!(Nanos(n).to_string().parse::<Nanos>().unwrap(), Nanos(n));
        }
        #[test]
        fn sizes_round_trip(n in any_of(1 << 50)) {
            prop_assert_eq!(Bytes(n).to_string().parse::<Bytes>().unwrap(), Bytes(n));
        }
        #[test]
        fn rates_round_trip(n in any_of(1 << 44)) {
            prop_assert_eq!(Rate(n).to_string().parse::<Rate>().unwrap(), Rate(n));
        }
        #[test]
        fn shares_round_trip(n in any_of(5_000_000)) {
            prop_assert_eq!(Share(n).to_string().parse::<Share>().unwrap(), Share(n));
        }
        #[test]
        fn a_budget_is_never_granted_faster_than_its_rate(rate in 1_000_000u64..1 << 40, lines in 1u64..1 << 30) {
            let span = Lines(lines).time_at(Rate(rate));
            prop_assert!(Lines::at(Rate(rate), span).0 <= lines + 1 + rate / 64 / 1_000_000_000);
        }
    }
}
