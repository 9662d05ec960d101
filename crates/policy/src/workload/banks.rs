//! The choice of DRAM banks by physical address.
//!
//! A memory controller spreads addresses over banks by functions of address bits. Each bit of the
//! bank's number is the exclusive or of some bits of the address (P. Pessl et al., "DRAMA", USENIX
//! Security 2016). A plain bit field, such as PALLOC's mask, is the case of one bit each. The
//! functions differ from machine to machine. The user has to state them, as a mask of address bits
//! or as a map.

use quell_types::address::{ADDRESS_BITS, BitFunctions};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// More functions than this are a mistake: no machine has 2^16 banks in one address space.
const MOST_FUNCTIONS: usize = 16;

/// Which lines are wanted: those whose bank is one of some.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(try_from = "Written", into = "Written")]
#[schemars(with = "Written", rename = "BankChoice")]
pub struct Banks {
    /// Per bit of the bank's number, lowest first: the address bits whose parity it is.
    functions: Vec<u64>,
    /// The banks wanted, ascending.
    take: Vec<u32>,
}

/// The banks as a file has them, with either `mask` or `map`.
#[derive(Clone, Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Written {
    /// The address bits that form the bank's number, as a mask such as `"0x7800"`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    mask: Option<String>,
    /// Instead: per bit of the bank's number, lowest first, the address bits whose exclusive or it
    /// is: `[[14, 18], [15, 19]]`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    map: Option<BitFunctions>,
    /// Numbers of the banks wanted, from 0.
    take: Vec<u32>,
}

impl Banks {
    /// From functions of address bits, lowest bit of the bank's number first, and the wanted banks.
    ///
    /// # Errors
    /// A sentence: there is no function, a function has no bits or bits that no address has, or a
    /// bank does not exist.
    pub fn new(functions: Vec<u64>, mut take: Vec<u32>) -> Result<Self, String> {
        if functions.is_empty() || functions.len() > MOST_FUNCTIONS {
            return Err(format!(
                "a bank's number has between 1 and {MOST_FUNCTIONS} bits, not {}",
                functions.len()
            ));
        }
        if let Some(f) = functions
            .iter()
            .find(|f| **f == 0 || **f >> ADDRESS_BITS != 0)
        {
            return Err(format!(
                "{f:#x} names no bits of a physical address, which has {ADDRESS_BITS}"
            ));
        }
        let banks = 1_u32 << functions.len();
        take.sort_unstable();
        take.dedup();
        if let Some(bank) = take.iter().find(|bank| **bank >= banks) {
            return Err(format!(
                "there is no bank {bank}: {} bits number the banks 0 to {}",
                functions.len(),
                banks - 1
            ));
        }
        if take.is_empty() {
            return Err("no bank is taken; write take = [0]".to_owned());
        }
        Ok(Self { functions, take })
    }

    /// The number of the bank in which a physical address lies.
    #[must_use]
    pub fn of(&self, address: u64) -> u32 {
        let parities = self
            .functions
            .iter()
            .map(|f| (f & address).count_ones() & 1);
        parities.rev().fold(0, |bank, bit| bank << 1 | bit)
    }

    /// Whether a physical address lies in a wanted bank.
    #[must_use]
    pub fn wants(&self, address: u64) -> bool {
        self.take.binary_search(&self.of(address)).is_ok()
    }

    /// How many banks are wanted, and how many there are.
    #[must_use]
    pub fn share(&self) -> (u64, u64) {
        (self.take.len() as u64, 1 << self.functions.len())
    }

    /// The numbers of the wanted banks, ascending.
    #[must_use]
    pub fn take(&self) -> &[u32] {
        &self.take
    }
}

impl TryFrom<Written> for Banks {
    type Error = String;
    fn try_from(written: Written) -> Result<Self, String> {
        let functions = match (written.mask, written.map) {
            (Some(mask), None) => BitFunctions::line(&mask)?.0,
            (None, Some(map)) => map.0,
            _ => {
                return Err(
                    "banks are told apart by either `mask` or `map`; write mask = \"0x7800\""
                        .to_owned(),
                );
            }
        };
        Self::new(functions, written.take)
    }
}

impl From<Banks> for Written {
    fn from(banks: Banks) -> Self {
        Self {
            mask: None,
            map: Some(BitFunctions(banks.functions)),
            take: banks.take,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    /// Bit by bit, as on paper.
    fn naive(map: &[Vec<u32>], address: u64) -> u32 {
        let mut bank = 0;
        for (place, bits) in map.iter().enumerate() {
            let mut ones = 0;
            for bit in bits {
                if address / 2u64.pow(*bit) % 2 == 1 {
                    ones += 1;
                }
            }
            if ones % 2 == 1 {
                bank += 2u32.pow(u32::try_from(place).unwrap());
            }
        }
        bank
    }

    fn map() -> impl Strategy<Value = Vec<Vec<u32>>> {
        let bits = prop::collection::btree_set(0u32..52, 1..8);
        prop::collection::vec(bits.prop_map(|b| b.into_iter().collect()), 1..8)
    }

    proptest! {
        #[test]
        fn a_bank_is_what_counting_bits_on_paper_says(map in map(), address in 0u64..1 << 52) {
            let lines = map.iter().map(|bits| {
                let bits: Vec<String> = bits.iter().map(u32::to_string).collect();
                BitFunctions::line(&bits.join(" ")).unwrap().0[0]
            });
            let bank = naive(&map, address);
            let banks = Banks::new(lines.collect(), vec![bank]).unwrap();
            prop_assert_eq!(banks.of(address), bank);
            prop_assert!(banks.wants(address));
            // One bit of one function flips exactly the bits of the functions it belongs to.
            let bit = map[0][0];
            prop_assert_eq!(banks.of(address ^ 1 << bit), naive(&map, address ^ 1 << bit));
            prop_assert!(!banks.wants(address ^ 1 << bit));
            let json = serde_json::to_string(&banks).unwrap();
            prop_assert_eq!(serde_json::from_str::<Banks>(&json).unwrap(), banks);
        }

        #[test]
        fn a_mask_takes_its_bits_out_of_the_address(mask in 1u64..1 << 16, address in 0u64..1 << 52) {
            let shifted = mask << 12;
            let functions = BitFunctions::line(&format!("{shifted:#x}")).unwrap().0;
            let banks = Banks::new(functions, vec![0]).unwrap();
            let mut bank = 0;
            let bits = (0..u64::BITS).filter(|bit| shifted >> bit & 1 == 1);
            for (place, bit) in bits.enumerate() {
                bank |= u32::try_from(address >> bit & 1).unwrap() << place;
            }
            prop_assert_eq!(banks.of(address), bank);
            prop_assert_eq!(banks.wants(address), address & shifted == 0);
        }
    }

    #[test]
    fn what_is_no_choice_of_banks_is_refused_with_the_reason() {
        let read = |json: &str| serde_json::from_str::<Banks>(json).unwrap_err().to_string();
        for (json, why) in [
            (r#"{"take":[0]}"#, "either `mask` or `map`"),
            (r#"{"mask":"7800","take":[0]}"#, "'7800' is not different"),
            (r#"{"mask":"0x7800","take":[16]}"#, "there is no bank 16"),
            (r#"{"mask":"0x7800","take":[]}"#, "no bank is taken"),
            (r#"{"map":[[14,14]],"take":[0]}"#, "bit 14 twice"),
            (r#"{"map":[[]],"take":[0]}"#, "a function of no bits"),
            (r#"{"map":[],"take":[0]}"#, "between 1 and 16"),
            (r#"{"map":[[1]],"bank":[0]}"#, "unknown field `bank`"),
        ] {
            let said = read(json);
            assert!(said.contains(why), "{json}: {said}");
        }
    }
}
