//! The published schemas and the reference page are generated from the types, and are up to date.
//! `QUELL_BLESS=1 cargo test -p quell-record --test schemas` rewrites them after an intended
//! change.
#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::path::Path;

use quell_plan::inventory::Inventory;
use quell_policy::experiment::{Experiment, experiment_schema};
use quell_policy::{policy_reference, policy_schema};
use quell_record::demand::Profile;
use quell_record::demo::DemoResult;
use quell_record::preview::Preview;
use schemars::{Schema, schema_for};
use serde_json::Value;

fn published(path: &str, text: &str) {
    let file = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../..")
        .join(path);
    if std::env::var_os("QUELL_BLESS").is_some() {
        std::fs::create_dir_all(file.parent().unwrap()).unwrap();
        std::fs::write(&file, text).unwrap();
    }
    let found = std::fs::read_to_string(&file).unwrap_or_default();
    assert!(
        found == text,
        "{path} is out of date; if the change is meant: QUELL_BLESS=1 cargo test -p quell-record --test schemas"
    );
}

fn schema(name: &str, schema: &Schema) {
    let text = serde_json::to_string_pretty(schema).unwrap() + "\n";
    published(&format!("schemas/{name}.schema.json"), &text);
}

#[test]
fn the_policy_schema_is_published() {
    schema("policy", &policy_schema());
}

#[test]
fn the_experiment_schema_is_published() {
    schema("experiment", &experiment_schema());
}

#[test]
fn the_plan_schema_is_published() {
    schema("plan", &schema_for!(Preview));
}

#[test]
fn the_inventory_schema_is_published() {
    schema("inventory", &schema_for!(Inventory));
}

#[test]
fn the_profile_schema_is_published() {
    schema("profile", &schema_for!(Profile));
}

#[test]
fn the_demo_schema_is_published() {
    schema("demo", &schema_for!(DemoResult));
}

#[test]
fn the_reference_page_is_published() {
    published("docs/policy-reference.md", &policy_reference());
}

/// Whether `value` uses only keys that `schema` knows. This is the part of a validator that catches
/// drift between the reader and the schema.
fn known(root: &Value, schema: &Value, value: &Value, at: &str) {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return known(
            root,
            root.pointer(target.trim_start_matches('#')).unwrap(),
            value,
            at,
        );
    }
    for choices in ["anyOf", "oneOf"] {
        if let Some(choices) = schema.get(choices).and_then(Value::as_array) {
            // A tagged choice is recognized by its tag, any other by whether it is a table.
            let tagged = |s: &Value| {
                s.pointer("/properties/kind/const")
                    .is_none_or(|tag| value.get("kind") == Some(tag))
            };
            let fits = |s: &&Value| {
                let kind = s
                    .get("type")
                    .is_none_or(|t| value.is_object() == (t == "object"));
                s.get("$ref").is_some() || (kind && tagged(s))
            };
            let choice = choices
                .iter()
                .find(fits)
                .unwrap_or_else(|| panic!("{at}: no choice in {schema}"));
            return known(root, choice, value, at);
        }
    }
    match value {
        // A table with another key's contents, of which any part is valid here.
        Value::Object(_) if schema.get("additionalProperties") == Some(&Value::Bool(true)) => {}
        Value::Object(map) => {
            let properties = schema.get("properties");
            for (key, value) in map {
                let at = format!("{at}.{key}");
                let sub = properties
                    .and_then(|p| p.get(key))
                    .or_else(|| schema.get("additionalProperties").filter(|s| s.is_object()));
                known(
                    root,
                    sub.unwrap_or_else(|| panic!("{at} is not in the schema")),
                    value,
                    &at,
                );
            }
        }
        Value::Array(list) => {
            for value in list {
                if let Some(items) = schema.get("items") {
                    known(root, items, value, at);
                }
            }
        }
        _ => {}
    }
}

#[test]
fn the_schemas_know_every_key_that_is_read() {
    let policy: toml::Table = include_str!("../../../examples/reference.toml")
        .parse()
        .unwrap();
    let schema = serde_json::to_value(policy_schema()).unwrap();
    known(
        &schema,
        &schema,
        &serde_json::to_value(policy).unwrap(),
        "policy",
    );
    let schema = serde_json::to_value(experiment_schema()).unwrap();
    for name in Experiment::builtins() {
        let text = Experiment::builtin(name).unwrap();
        let experiment: toml::Table = text.parse().unwrap();
        let experiment = serde_json::to_value(experiment).unwrap();
        known(&schema, &schema, &experiment, name);
    }
}

#[test]
fn a_configuration_may_hold_every_section_of_a_policy() {
    let keys = |schema: Schema, pointer: &str| -> Vec<String> {
        let found = serde_json::to_value(schema).unwrap();
        found
            .pointer(pointer)
            .unwrap()
            .as_object()
            .unwrap()
            .keys()
            .cloned()
            .collect()
    };
    let policy = keys(policy_schema(), "/properties");
    let configuration = keys(
        experiment_schema(),
        "/properties/configuration/additionalProperties/properties",
    );
    for key in policy
        .iter()
        .filter(|k| !["quell", "name"].contains(&k.as_str()))
    {
        assert!(configuration.contains(key), "{key}");
    }
}
