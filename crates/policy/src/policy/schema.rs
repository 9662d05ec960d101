//! The JSON schemas of values with several spellings. They are written by hand, next to the readers
//! in [`super::values`].

use quell_types::spelled;
use quell_types::spelled::Spelled;
use schemars::json_schema;

use super::values::{
    Bandwidth, Banks, CacheWanted, CpusWanted, MemoryWanted, Sustainable, WindowWays,
};

spelled!(CpusWanted: json_schema!({
    "description": CpusWanted::WANTED,
    "anyOf": [
        { "type": "integer", "minimum": 1 },
        { "type": "string", "enum": ["auto", "remaining", "any"] },
        { "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" },
    ],
}));
spelled!(Bandwidth: json_schema!({
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
}));
spelled!(CacheWanted: json_schema!({
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
}));
spelled!(WindowWays: json_schema!({
    "description": WindowWays::WANTED,
    "anyOf": [
        { "type": "integer", "minimum": 1 },
        { "type": "string", "pattern": "^0x[0-9a-fA-F]+$" },
    ],
}));
spelled!(Banks: json_schema!({
    "description": Banks::WANTED,
    "anyOf": [{ "type": "integer", "minimum": 1 }, { "type": "string" }],
}));
spelled!(MemoryWanted: json_schema!({ "description": MemoryWanted::WANTED, "type": "string" }));
spelled!(Sustainable: json_schema!({ "description": Sustainable::WANTED, "type": "string" }));
