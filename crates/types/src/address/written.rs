//! How functions of address bits are written. One reader serves map files, profiles, policies and
//! the command line.
//!
//! A line of a map file, or a text in a list, is one of:
//!
//! - bits (`14 18`): one function, the exclusive or of these bits
//! - a run (`6-11`): a function for each bit
//! - a mask (`0x7800`): a function for each bit that is set
//!
//! A list in a profile or a policy also has numbers (`12`) and lists (`[14, 18]`): one function
//! each.

use std::fmt;

use schemars::JsonSchema;
use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::partition::Mask;

/// Bits of a physical address (Linux on x86-64 with five-level paging).
pub const ADDRESS_BITS: u32 = 52;

/// What a line is to be, for an error.
const WANTED: &str = "different address bits below 52 such as '14 18', a run such as '6-11', or a \
                      mask such as 0x7800";

/// The mask with these bits. `None` where one occurs twice, does not exist, or there is none.
pub(super) fn function(bits: impl IntoIterator<Item = u64>) -> Option<u64> {
    let mut mask = 0;
    for bit in bits {
        if bit >= u64::from(ADDRESS_BITS) || mask >> bit & 1 == 1 {
            return None;
        }
        mask |= 1 << bit;
    }
    (mask != 0).then_some(mask)
}

/// The address bits of a function, ascending.
pub(super) fn bits_of(mask: u64) -> impl Iterator<Item = u32> {
    (0..u64::BITS).filter(move |bit| mask >> bit & 1 == 1)
}

/// The functions that a line stands for, lowest output bit first. `None` where it is something
/// else.
fn functions(line: &str) -> Option<Vec<u64>> {
    let line = line.trim();
    if line.starts_with("0x") {
        let mask = line.parse::<Mask>().ok()?.0;
        return (mask != 0 && mask >> ADDRESS_BITS == 0)
            .then(|| bits_of(mask).map(|bit| 1 << bit).collect());
    }
    if let Some((low, high)) = line.split_once('-') {
        let (low, high): (u64, u64) = (low.trim().parse().ok()?, high.trim().parse().ok()?);
        return (low <= high && high < u64::from(ADDRESS_BITS))
            .then(|| (low..=high).map(|bit| 1 << bit).collect());
    }
    let bits: Option<Vec<u64>> = line.split_whitespace().map(|w| w.parse().ok()).collect();
    Some(vec![function(bits?)?])
}

/// Masks over physical addresses, lowest output bit first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitFunctions(pub Vec<u64>);

impl BitFunctions {
    /// Reads one line: bits, a run or a mask.
    ///
    /// # Errors
    /// A sentence with the line and what it is to be.
    pub fn line(line: &str) -> Result<Self, String> {
        let wrong = || format!("'{}' is not {WANTED}", line.trim());
        functions(line).map(Self).ok_or_else(wrong)
    }
}

impl<'de> Deserialize<'de> for BitFunctions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let elements = Vec::<Element>::deserialize(deserializer)?;
        Ok(Self(elements.into_iter().flat_map(|e| e.0).collect()))
    }
}

impl Serialize for BitFunctions {
    /// Writes each function as the list of its bits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bits = |mask: &u64| -> Vec<u32> { bits_of(*mask).collect() };
        serializer.collect_seq(self.0.iter().map(bits))
    }
}

impl JsonSchema for BitFunctions {
    fn inline_schema() -> bool {
        true
    }
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "BitFunctions".into()
    }
    fn json_schema(generator: &mut schemars::SchemaGenerator) -> schemars::Schema {
        Vec::<Vec<u32>>::json_schema(generator)
    }
}

/// The functions that one element of the list stands for.
struct Element(Vec<u64>);

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        #[derive(Clone, Copy)]
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address bit such as 12, a run such as \"6-11\" or bits to be XORed such as [13, 17]")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Element, E> {
                let one = function([number]).ok_or_else(|| {
                    E::custom(format!(
                        "address bit {number}: bits 0 to {} exist",
                        ADDRESS_BITS - 1
                    ))
                })?;
                Ok(Element(vec![one]))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Element, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                functions(text)
                    .map(Element)
                    .ok_or_else(|| E::invalid_value(de::Unexpected::Str(text), &self))
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut bits: Vec<u64> = Vec::new();
                while let Some(number) = seq.next_element::<u64>()? {
                    self.visit_u64::<A::Error>(number)?;
                    if bits.contains(&number) {
                        let twice = format!("bit {number} twice in one function");
                        return Err(de::Error::custom(twice));
                    }
                    bits.push(number);
                }
                let one = function(bits);
                let one = one.ok_or_else(|| de::Error::custom("a function of no bits"))?;
                Ok(Element(vec![one]))
            }
        }
        deserializer.deserialize_any(Words)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_and_lists_are_read_alike() {
        let read = |json: &str| serde_json::from_str::<BitFunctions>(json).map(|f| f.0);
        let line = |text: &str| BitFunctions::line(text).map(|f| f.0);
        for (text, functions) in [
            ("12", vec![1 << 12]),
            (" 14\t18 ", vec![1 << 14 | 1 << 18]),
            ("6-8", vec![1 << 6, 1 << 7, 1 << 8]),
            ("0x5000", vec![1 << 12, 1 << 14]),
        ] {
            assert_eq!(line(text).unwrap(), functions, "{text}");
            let json = serde_json::json!([text.replace('\t', " ")]).to_string();
            assert_eq!(read(&json).unwrap(), functions, "{json}");
        }
        assert_eq!(
            read("[6, [13, 17], \"8-9\"]").unwrap(),
            [1 << 6, 1 << 13 | 1 << 17, 1 << 8, 1 << 9]
        );
        for wrong in [
            "",
            "52",
            "14 14",
            "9-6",
            "6-52",
            "0x0",
            "0x10000000000000",
            "a",
            "1-2-3",
        ] {
            let said = line(wrong).unwrap_err();
            assert!(said.contains("a run such as '6-11'"), "{wrong}: {said}");
            assert!(
                read(&serde_json::json!([wrong]).to_string()).is_err(),
                "{wrong}"
            );
        }
        for (wrong, why) in [
            ("[[]]", "a function of no bits"),
            ("[[14, 14]]", "bit 14 twice in one function"),
            ("[52]", "address bit 52: bits 0 to 51 exist"),
            ("[[60]]", "address bit 60: bits 0 to 51 exist"),
            ("[-1]", "-1"),
        ] {
            let said = read(wrong).unwrap_err().to_string();
            assert!(said.contains(why), "{wrong}: {said}");
        }
    }
}
