//! The JSON schema of the language: derived where the keys are types, put together where
//! configurations mix their own keys with those of a policy fragment.

use quell_types::spelled;
use quell_types::spelled::Spelled;
use schemars::{Schema, SchemaGenerator, json_schema};
use serde_json::{Map, Value};

use super::read::{ConfigurationKeys, Keys, SUBJECT};
use super::subject::Pin;
use crate::policy::{FRAGMENT_KEYS, Group, Policy};

/// The published schema of experiments (`schemas/experiment.schema.json`).
#[must_use]
pub fn experiment_schema() -> Schema {
    let mut schema = schemars::schema_for!(Keys);
    schema.insert("title".into(), "Experiment".into());
    schema
}

spelled!(Pin: json_schema!({
    "description": Pin::WANTED,
    "anyOf": [
        { "type": "integer", "minimum": 1 },
        { "type": "string", "pattern": "^[0-9]+(-[0-9]+)?(,[0-9]+(-[0-9]+)?)*$" },
        { "type": "string", "pattern": "^(with|sibling of) .+$" },
    ],
}));

/// The properties of `T`'s schema, with what they refer to made known to `generator`.
fn properties<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let schema = T::json_schema(generator);
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.cloned().unwrap_or_default()
}

/// A policy fragment: a policy's sections, in which groups need no role.
fn fragment(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let group = properties::<Group>(generator);
    let mut policy = properties::<Policy>(generator);
    policy.retain(|key, _| FRAGMENT_KEYS.contains(&key.as_str()));
    let group =
        json_schema!({ "type": "object", "properties": group, "additionalProperties": false });
    let groups = json_schema!({
        "description": "The subjects' groups; roles are the subjects'.",
        "type": "object",
        "additionalProperties": group,
    });
    policy.insert("group".into(), groups.into());
    policy
}

/// The schema of `[configuration]`.
pub(super) fn configurations(generator: &mut SchemaGenerator) -> Schema {
    let fragment = fragment(generator);
    let mut configuration = properties::<ConfigurationKeys>(generator);
    configuration.extend(fragment.clone());
    // Along an axis, subjects vary as they do beside it.
    let mut along = fragment;
    along.extend(
        configuration
            .get_key_value(SUBJECT)
            .map(|(key, value)| (key.clone(), value.clone())),
    );
    let fragment =
        json_schema!({ "type": "object", "properties": along, "additionalProperties": false });
    let axes = json_schema!({
        "description": "Axis → value → policy fragment. Several axes multiply.",
        "type": "object",
        "additionalProperties": { "type": "object", "additionalProperties": fragment },
    });
    configuration.insert("axis".into(), axes.into());
    json_schema!({
        "type": "object",
        "additionalProperties": {
            "type": "object",
            "properties": configuration,
            "additionalProperties": false,
        },
    })
}
