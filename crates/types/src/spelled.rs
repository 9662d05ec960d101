//! Values with several spellings: `cpus = 2` or `cpus = "0,2-3"`. Each is read by hand. A mistake
//! then gets an answer that says what would be right, instead of "no variant matched".

use std::fmt;
use std::marker::PhantomData;

use serde::Deserialize;
use serde::de::value::MapAccessDeserializer;
use serde::de::{self, DeserializeOwned, MapAccess, Unexpected, Visitor};

/// A value with several spellings.
pub trait Spelled: Sized {
    /// The correct spellings, as they are to appear in messages.
    const WANTED: &'static str;
    /// The keys of its table form.
    type Table: TableForm;
    /// Reads a number, where that is a spelling.
    #[must_use]
    fn integer(_: u32) -> Option<Self> {
        None
    }
    /// Reads text, as written in a file or on the command line.
    ///
    /// # Errors
    /// A message with the correct spellings.
    fn text(text: &str) -> Result<Self, String>;
    /// Reads the table form. It is never called where there is none.
    ///
    /// # Errors
    /// What is wrong with the table.
    fn table(table: Self::Table) -> Result<Self, String>;
    /// The answer to a text that is no spelling.
    #[must_use]
    fn mistaken(text: &str) -> String {
        format!("'{text}' is not {}", Self::WANTED)
    }
}

/// The keys of a value's table form.
pub trait TableForm: DeserializeOwned {
    /// Whether the value has a table form.
    const EXISTS: bool = true;
}

/// For values without a table form.
#[derive(Deserialize)]
pub enum NoTable {}

impl TableForm for NoTable {
    const EXISTS: bool = false;
}

/// Reads a value of any spelling.
#[derive(Debug)]
pub struct Spelling<T>(pub PhantomData<T>);

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

/// Implements reading and the schema for a type with [`Spelled`] spellings: `spelled!(Source:
/// json_schema!({ .. }));`. The schema's description is [`Spelled::WANTED`].
#[macro_export]
macro_rules! spelled {
    ($name:ident: $schema:expr) => {
        impl<'de> serde::Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
                deserializer.deserialize_any($crate::spelled::Spelling(std::marker::PhantomData))
            }
        }
        impl schemars::JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
                $schema
            }
        }
    };
}
