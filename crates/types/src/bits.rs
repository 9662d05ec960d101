//! How profiles write functions of address bits: a list, lowest output bit first. An element is one
//! of:
//!
//! - a bit (`12`)
//! - a run of bits that are a function each (`"6-11"`)
//! - several bits, the exclusive or of which is one function (`[13, 17]`)

use std::fmt;

use serde::de::{self, SeqAccess, Visitor};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Bits of a physical address (Linux on x86-64 with five-level paging).
const ADDRESS_BITS: u32 = 52;

/// Masks over physical addresses, lowest output bit first.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BitFunctions(pub Vec<u64>);

impl<'de> Deserialize<'de> for BitFunctions {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let elements = Vec::<Element>::deserialize(deserializer)?;
        Ok(Self(elements.into_iter().flat_map(|e| e.0).collect()))
    }
}

impl Serialize for BitFunctions {
    /// Writes each function as the list of its bits.
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let bits = |mask: &u64| -> Vec<u32> { (0..64).filter(|n| mask >> n & 1 == 1).collect() };
        serializer.collect_seq(self.0.iter().map(bits))
    }
}

/// The functions that one element of the list stands for.
struct Element(Vec<u64>);

fn bit<E: de::Error>(number: u64) -> Result<u64, E> {
    if number < u64::from(ADDRESS_BITS) {
        Ok(1 << number)
    } else {
        Err(E::custom(format!(
            "address bit {number}: bits 0 to {} exist",
            ADDRESS_BITS - 1
        )))
    }
}

impl<'de> Deserialize<'de> for Element {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Words;
        impl<'de> Visitor<'de> for Words {
            type Value = Element;
            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("an address bit such as 12, a run such as \"6-11\" or bits to be XORed such as [13, 17]")
            }
            fn visit_u64<E: de::Error>(self, number: u64) -> Result<Element, E> {
                Ok(Element(vec![bit(number)?]))
            }
            fn visit_i64<E: de::Error>(self, number: i64) -> Result<Element, E> {
                match u64::try_from(number) {
                    Ok(number) => self.visit_u64(number),
                    Err(_) => Err(E::invalid_value(de::Unexpected::Signed(number), &self)),
                }
            }
            fn visit_str<E: de::Error>(self, text: &str) -> Result<Element, E> {
                let run = text
                    .split_once('-')
                    .and_then(|(low, high)| Some((low.parse().ok()?, high.parse().ok()?)));
                match run {
                    Some((low, high)) if low <= high => {
                        Ok(Element((low..=high).map(bit).collect::<Result<_, E>>()?))
                    }
                    _ => Err(E::invalid_value(de::Unexpected::Str(text), &self)),
                }
            }
            fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Element, A::Error> {
                let mut mask = 0;
                while let Some(number) = seq.next_element::<u64>()? {
                    let bit = bit::<A::Error>(number)?;
                    if mask & bit != 0 {
                        return Err(de::Error::custom(format!(
                            "bit {number} twice in one function"
                        )));
                    }
                    mask |= bit;
                }
                if mask == 0 {
                    return Err(de::Error::custom("a function of no bits"));
                }
                Ok(Element(vec![mask]))
            }
        }
        deserializer.deserialize_any(Words)
    }
}
