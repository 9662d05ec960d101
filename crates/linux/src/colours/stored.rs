//! The file in which the declared address map of a machine is kept, next to what was measured.

use quell_plan::inventory::Inventory;
use quell_types::units::Bytes;
use serde::{Deserialize, Serialize};

use super::Declared;

/// Name and version of the format.
const SCHEMA: &str = "quell.address-map/1";

/// What a map is declared for. Another one of these values is another machine, or this one with
/// other memory modules.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
struct Machine {
    model: String,
    memory: Bytes,
}

/// A declared map, and the machine that it was declared on.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", deny_unknown_fields)]
pub struct Stored {
    schema: String,
    machine: Machine,
    address_map: Declared,
}

impl Machine {
    fn of(inventory: &Inventory) -> Self {
        let memory = inventory.nodes.iter().map(|node| node.memory.0);
        Self {
            model: inventory.identity.model.clone(),
            memory: Bytes(memory.fold(0, u64::saturating_add)),
        }
    }
}

impl Stored {
    /// A map that is declared for this machine.
    #[must_use]
    pub fn new(inventory: &Inventory, address_map: Declared) -> Self {
        Self {
            schema: SCHEMA.to_owned(),
            machine: Machine::of(inventory),
            address_map,
        }
    }

    /// Reads the text of the file.
    ///
    /// # Errors
    /// What is wrong with it.
    pub fn parse(text: &str) -> Result<Self, String> {
        let stored: Self = serde_json::from_str(text).map_err(|e| e.to_string())?;
        match stored.schema == SCHEMA {
            true => Ok(stored),
            false => Err(format!(
                "its schema is '{}', and this program reads '{SCHEMA}'",
                stored.schema
            )),
        }
    }

    /// The text of the file.
    ///
    /// # Errors
    /// None for a map that was read.
    pub fn text(&self) -> Result<String, String> {
        serde_json::to_string_pretty(self).map_err(|e| e.to_string())
    }

    /// The map, on the machine that it was declared on. The error says what is different now.
    ///
    /// # Errors
    /// A sentence.
    pub fn on(self, inventory: &Inventory) -> Result<Declared, String> {
        /// The kernel keeps a part of memory for itself, another one with each version.
        const SAME: u64 = 5;
        let now = Machine::of(inventory);
        let then = self.machine;
        if then.model != now.model {
            return Err(format!(
                "it was declared on {}, and this is {}",
                then.model, now.model
            ));
        }
        let difference = then.memory.0.abs_diff(now.memory.0);
        if difference > now.memory.0 / 100 * SAME {
            return Err(format!(
                "it was declared for {} of memory, and there are {}: other modules have another map",
                then.memory, now.memory
            ));
        }
        Ok(self.address_map)
    }
}
