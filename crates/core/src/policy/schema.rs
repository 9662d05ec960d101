//! The JSON schemas of the values that have several spellings, by hand beside their readers in [`super::values`].

use crate::options::CpuWeight;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};

use super::values::{
    Bandwidth, Banks, CacheWanted, CpusWanted, MemoryWanted, Spelled, Sustainable,
};
use crate::source::{NumberPattern, Source};

/// The schema of a value whose spellings are listed: built by hand beside its reader.
macro_rules! schema {
    ($name:ident, $schema:expr) => {
        impl JsonSchema for $name {
            fn schema_name() -> std::borrow::Cow<'static, str> {
                stringify!($name).into()
            }
            fn json_schema(_: &mut SchemaGenerator) -> Schema {
                $schema
            }
        }
    };
}

schema!(
    CpusWanted,
    json_schema!({
        "description": CpusWanted::WANTED,
        "anyOf": [
            { "type": "integer", "minimum": 1 },
            { "type": "string", "enum": ["auto", "remaining", "any"] },
            { "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" },
        ],
    })
);
schema!(
    Bandwidth,
    json_schema!({
        "description": Bandwidth::WANTED,
        "anyOf": [
            { "type": "string" },
            {
                "type": "object",
                "properties": { "read": { "type": "string" }, "write": { "type": "string" } },
                "additionalProperties": false,
                "minProperties": 1,
            },
        ],
    })
);
schema!(
    CacheWanted,
    json_schema!({
        "description": CacheWanted::WANTED,
        "anyOf": [
            { "type": "string" },
            {
                "type": "object",
                "properties": {
                    "size": { "type": "string" },
                    "share": { "type": "string" },
                    "ways": { "type": "integer", "minimum": 1 },
                    "code": { "type": "integer", "minimum": 1 },
                    "data": { "type": "integer", "minimum": 1 },
                    "mask": { "type": "string", "pattern": "^0x[0-9a-fA-F]+$" },
                    "colours": { "type": "string" },
                    "locked": { "type": "string" },
                    "level": { "enum": ["L2", "L3"] },
                },
                "additionalProperties": false,
                "minProperties": 1,
            },
        ],
    })
);
schema!(
    Banks,
    json_schema!({
        "description": Banks::WANTED,
        "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }],
    })
);
schema!(
    MemoryWanted,
    json_schema!({ "description": MemoryWanted::WANTED, "type": "string" })
);
schema!(
    Sustainable,
    json_schema!({ "description": Sustainable::WANTED, "type": "string" })
);
schema!(
    CpuWeight,
    json_schema!({
        "description": CpuWeight::WANTED,
        "anyOf": [
            { "type": "integer", "minimum": 1, "maximum": 10000 },
            { "type": "string", "enum": ["idle"] },
        ],
    })
);
schema!(
    Source,
    json_schema!({
        "description": Source::WANTED,
        "anyOf": [
            { "type": "string", "enum": ["client", "none"] },
            {
                "type": "object",
                "properties": { "pattern": { "type": "string" }, "unit": { "enum": ["ns", "us", "ms", "s"] } },
                "required": ["pattern", "unit"],
                "additionalProperties": false,
            },
        ],
    })
);

schema!(
    NumberPattern,
    json_schema!({
        "description": "A regular expression with one group that captures the number.",
        "type": "string",
        "format": "regex",
    })
);
