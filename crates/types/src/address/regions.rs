//! Address maps of DRAM banks: which functions of the address choose the bank, perhaps other ones
//! in each region of memory.
//!
//! A map is a text. `#` begins a comment. Each line is a function, or a run or mask of several
//! ([`BitFunctions::line`]). Memory with unequal modules has several regions, as drama-pp writes
//! them: a line `region` begins one, and lines `selector V BITS` say which addresses it has, those
//! with parity V of these bits. `region MASK VALUE` is short for a selector of each bit of the
//! mask. Two regions have no bank in common.
//!
//! ```text
//! region
//! selector 0 6          # even lines
//! 14 19
//! 15 20
//! region
//! selector 1 6          # odd lines
//! 14 17
//! ```

use std::fmt;

use serde::{Deserialize, Serialize};

use super::colour::Colours;
use super::gf2::{Solutions, Space};
use super::written::{ADDRESS_BITS, BitFunctions, bits_of, function};

/// More functions than this are a mistake: no machine has 2^16 banks in one region.
const MOST_FUNCTIONS: usize = 16;
/// More regions than this are a mistake: each is a kind of module, or a part of one.
const MOST_REGIONS: usize = 64;
/// More selectors of one region than this are a mistake.
const MOST_SELECTORS: usize = 30;

/// The addresses of a region, and the functions that choose the bank there.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Region {
    /// The region has the addresses whose bits under each mask have this parity; true is odd.
    pub selectors: Vec<(u64, bool)>,
    /// Masks over addresses, lowest bit of the bank's number first.
    pub functions: Vec<u64>,
}

/// How addresses are spread over DRAM banks: every address lies in exactly one region.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct BankMap {
    regions: Vec<Region>,
}

impl Region {
    fn selects(&self, address: u64) -> bool {
        let odd = |mask: u64| (address & mask).count_ones() & 1 == 1;
        self.selectors
            .iter()
            .all(|(mask, value)| odd(*mask) == *value)
    }

    /// The masks of its selectors.
    fn masks(&self) -> impl Iterator<Item = u64> + '_ {
        self.selectors.iter().map(|(mask, _)| *mask)
    }

    /// Whether some address below 2^`bits` is in this region and in `others`.
    fn meets(&self, others: &[(u64, bool)], bits: u64) -> bool {
        let all = self.selectors.iter().chain(others);
        let (masks, values): (Vec<u64>, Vec<bool>) = all.copied().unzip();
        let value = (0u32..)
            .zip(values)
            .fold(0, |all, (i, odd)| all | u64::from(odd) << i);
        Solutions::of(&masks, value, bits).is_some()
    }
}

impl BankMap {
    /// A map of one region.
    ///
    /// # Errors
    /// A sentence: there is no function, there are too many, or one of them follows from others.
    pub fn new(functions: Vec<u64>) -> Result<Self, String> {
        let selectors = Vec::new();
        Self::checked(vec![Region {
            selectors,
            functions,
        }])
    }

    /// Reads a map.
    ///
    /// # Errors
    /// A sentence with the number of the line that is at fault, or what is wrong with the regions.
    pub fn parse(text: &str) -> Result<Self, String> {
        let mut regions: Vec<Region> = Vec::new();
        for (number, line) in (1u32..).zip(text.lines()) {
            let line = line.split('#').next().unwrap_or_default().trim();
            if line.is_empty() {
                continue;
            }
            let at = |why: String| format!("line {number}: {why}");
            let mut words = line.split_whitespace();
            match words.next() {
                Some("region") => {
                    if regions.len() == MOST_REGIONS {
                        return Err(at(format!("more than {MOST_REGIONS} regions")));
                    }
                    let selectors = words_of_region(words).map_err(at)?;
                    let functions = Vec::new();
                    regions.push(Region {
                        selectors,
                        functions,
                    });
                }
                Some("selector") => {
                    let Some(region) = regions.last_mut() else {
                        return Err(at("a selector comes after a line 'region'".to_owned()));
                    };
                    region.selectors.push(selector(words).map_err(at)?);
                }
                _ => {
                    let BitFunctions(functions) = BitFunctions::line(line).map_err(at)?;
                    if regions.is_empty() {
                        regions.push(Region::default());
                    }
                    let region = regions.last_mut().map(|r| &mut r.functions);
                    region.into_iter().for_each(|all| all.extend(&functions));
                }
            }
        }
        Self::checked(regions)
    }

    fn checked(regions: Vec<Region>) -> Result<Self, String> {
        let several = regions.len() > 1;
        for (number, region) in (1u32..).zip(&regions) {
            let of = match several {
                true => format!("region {number}: "),
                false => String::new(),
            };
            if region.functions.is_empty() {
                return Err(format!(
                    "{of}no function chooses a bank; write a line of address bits for each, such as '14 18'"
                ));
            }
            let counts = (region.functions.len(), region.selectors.len());
            if counts.0 > MOST_FUNCTIONS || counts.1 > MOST_SELECTORS {
                return Err(format!(
                    "{of}{} functions and {} selectors: at most {MOST_FUNCTIONS} and {MOST_SELECTORS} are possible",
                    counts.0, counts.1
                ));
            }
            let mut space = Space::spanned(region.masks());
            for mask in &region.functions {
                if mask >> ADDRESS_BITS != 0 || !space.insert(*mask) {
                    return Err(format!(
                        "{of}'{}' follows from the lines before it: it would number banks that do not exist; leave it out",
                        bits(*mask)
                    ));
                }
            }
        }
        // Regions that have no address in common and half, a quarter, … of all addresses each: they
        // are complete where that comes to one.
        let mut whole = 0u128;
        for (at, region) in regions.iter().enumerate() {
            let rank = Space::spanned(region.masks()).rank();
            if !region.meets(&[], u64::MAX) {
                return Err(format!("region {}: no address fits its selectors", at + 1));
            }
            whole += 1u128 << (u64::BITS - rank);
            let common = |other: &&Region| region.meets(&other.selectors, u64::MAX);
            if regions[..at].iter().any(|other| common(&other)) {
                return Err(format!(
                    "region {} has addresses of a region before it; give it one more selector",
                    at + 1
                ));
            }
        }
        if regions.is_empty() {
            return Err(
                "no function chooses a bank; write a line of address bits for each, such as '14 18'"
                    .to_owned(),
            );
        }
        if whole != 1u128 << u64::BITS {
            return Err(
                "the regions leave addresses out: together their selectors have to fit every address"
                    .to_owned(),
            );
        }
        Ok(Self { regions })
    }

    /// The regions, in the order of the text.
    #[must_use]
    pub fn regions(&self) -> &[Region] {
        &self.regions
    }

    /// The functions of a map with one region. `None` where there are several.
    #[must_use]
    pub fn single(&self) -> Option<&[u64]> {
        match self.regions.as_slice() {
            [one] => Some(&one.functions),
            _ => None,
        }
    }

    /// The bank of an address: the number of its region, from 0, and that of the bank within it.
    #[must_use]
    pub fn bank(&self, address: u64) -> (usize, u64) {
        let at = self.regions.iter().position(|r| r.selects(address));
        let at = at.unwrap_or_default();
        let functions = self.regions.get(at).map(|r| r.functions.iter());
        let odd = |mask: &u64| u64::from((address & mask).count_ones() & 1);
        let bank = functions.map_or(0, |all| all.rev().fold(0, |n, mask| n << 1 | odd(mask)));
        (at, bank)
    }

    /// The functions whose value is the same for all addresses of a bank: two addresses that differ
    /// in one of them lie in different banks. Only the address bits of `reach` count: those that
    /// memory has.
    #[must_use]
    pub fn space(&self, reach: u64) -> Space {
        // A function is the same throughout a bank if it is a sum of that region's selectors and
        // functions. It has to be so in every region that has memory.
        let of = |region: &Region| {
            let masks = region.masks().chain(region.functions.iter().copied());
            Space::spanned(masks.map(|mask| mask & reach))
        };
        let mut there = self.regions.iter().filter(|r| r.meets(&[], reach)).map(of);
        let first = there.next().unwrap_or_default();
        there.fold(first, |space, next| space.intersection(&next))
    }

    /// The colours of pages of 2^`page_shift` bytes: pages of different colours have no bank in
    /// common.
    #[must_use]
    pub fn colours(&self, page_shift: u32, reach: u64) -> Colours {
        Colours::new(self.space(reach).rows(), page_shift)
    }
}

/// The selectors after the word `region`: none, or a mask and a value.
fn words_of_region<'a>(
    mut words: impl Iterator<Item = &'a str>,
) -> Result<Vec<(u64, bool)>, String> {
    let Some(mask) = words.next() else {
        return Ok(Vec::new());
    };
    let number = |text: &str| match text.strip_prefix("0x") {
        Some(digits) => u64::from_str_radix(digits, 16).ok(),
        None => text.parse().ok(),
    };
    let value = words.next().and_then(number);
    let (Some(mask), Some(value), None) = (number(mask), value, words.next()) else {
        return Err(
            "a region is 'region', or 'region MASK VALUE' such as 'region 0x40 0x0'".into(),
        );
    };
    if mask == 0 || mask >> ADDRESS_BITS != 0 || value & !mask != 0 {
        return Err(format!(
            "'region {mask:#x} {value:#x}': the mask has bits below {ADDRESS_BITS}, and the value only bits of the mask"
        ));
    }
    Ok(bits_of(mask)
        .map(|bit| (1 << bit, value >> bit & 1 == 1))
        .collect())
}

/// A selector: parity and bits.
fn selector<'a>(mut words: impl Iterator<Item = &'a str>) -> Result<(u64, bool), String> {
    let odd = match words.next() {
        Some("0") => Some(false),
        Some("1") => Some(true),
        _ => None,
    };
    let bits: Option<Vec<u64>> = words.map(|word| word.parse().ok()).collect();
    let mask = bits.and_then(function);
    odd.and_then(|odd| Some((mask?, odd))).ok_or_else(|| {
        "a selector is 0 or 1 and different address bits below 52, such as 'selector 1 14 17'"
            .into()
    })
}

/// The bits of a function, as a line has them.
fn bits(mask: u64) -> String {
    let bits: Vec<String> = bits_of(mask).map(|bit| bit.to_string()).collect();
    bits.join(" ")
}

impl TryFrom<String> for BankMap {
    type Error = String;
    fn try_from(text: String) -> Result<Self, String> {
        Self::parse(&text)
    }
}

impl From<BankMap> for String {
    fn from(map: BankMap) -> Self {
        map.to_string()
    }
}

/// The text of the map. It reads the same again.
impl fmt::Display for BankMap {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let plain = self.single().is_some();
        for region in &self.regions {
            if !plain {
                writeln!(f, "region")?;
            }
            for (mask, odd) in &region.selectors {
                writeln!(f, "selector {} {}", u8::from(*odd), bits(*mask))?;
            }
            for mask in &region.functions {
                writeln!(f, "{}", bits(*mask))?;
            }
        }
        Ok(())
    }
}
