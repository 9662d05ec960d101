//! The JSON schema of the experiment language. It is derived where the keys are types. It is
//! composed by hand where configurations mix their own keys with those of a policy fragment.

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

/// The properties of `T`'s schema. Adds the types that they refer to to `generator`.
fn properties<T: schemars::JsonSchema>(generator: &mut SchemaGenerator) -> Map<String, Value> {
    let schema = T::json_schema(generator);
    let properties = schema.get("properties").and_then(Value::as_object);
    properties.cloned().unwrap_or_default()
}

/// The properties of a policy fragment: a policy's sections, with groups that need no role.
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
    // Along an axis, subjects may vary as they do in the configuration itself.
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
