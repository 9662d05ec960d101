//! The schema of the language, and the reference page that is made from it.

use std::fmt::Write as _;

use quell_types::units::{Bytes, Nanos, Rate, Share};
use schemars::Schema;
use serde_json::Value;

use super::Policy;

/// How a quantity is written in a file, by the name of its type. The schema's description says what
/// the quantity is.
const QUANTITIES: [(&str, &str); 4] = [
    ("Nanos", Nanos::WANTED),
    ("Bytes", Bytes::WANTED),
    ("Rate", Rate::WANTED),
    ("Share", Share::WANTED),
];

/// The published schema of policies (`schemas/policy.schema.json`).
#[must_use]
pub fn policy_schema() -> Schema {
    schemars::schema_for!(Policy)
}

/// The reference page (`docs/policy-reference.md`), made from the schema: each key with its type,
/// default and meaning.
#[must_use]
pub fn policy_reference() -> String {
    let schema = policy_schema().to_value();
    let mut page = Page {
        root: &schema,
        text: String::from(
            "# Policy reference\n\n\
             Every key of a policy file, generated from the types that read it. `examples/reference.toml` shows them \
             all in one file, with comments; the JSON schema is `schemas/policy.schema.json`. Quantities carry their \
             unit: `MB` = 10^6 bytes, `MiB` = 2^20.\n",
        ),
    };
    page.table("", "Top level", &schema);
    page.text
}

struct Page<'s> {
    root: &'s Value,
    text: String,
}

impl<'s> Page<'s> {
    /// The schema itself, or `T`'s schema where it is `anyOf [T, null]`.
    fn given(schema: &'s Value) -> &'s Value {
        let choices = schema.get("anyOf").and_then(Value::as_array);
        let null = |c: &Value| c.get("type").is_some_and(|t| t == "null");
        choices
            .filter(|choices| choices.iter().any(null))
            .and_then(|choices| choices.first())
            .unwrap_or(schema)
    }

    /// The schema that a `$ref` leads to, or the schema itself.
    fn follow(&self, schema: &'s Value) -> &'s Value {
        let given = Self::given(schema);
        let target = given.get("$ref").and_then(Value::as_str);
        target
            .and_then(|t| self.root.pointer(t.trim_start_matches('#')))
            .unwrap_or(given)
    }

    /// One section with a table of its keys, then the sections below it.
    fn table(&mut self, path: &str, title: &str, schema: &'s Value) {
        let Some(properties) = schema.get("properties").and_then(Value::as_object) else {
            return;
        };
        let required = schema.get("required").and_then(Value::as_array);
        let _ = write!(self.text, "\n## {title}\n\n");
        if let Some(text) = schema.get("description").and_then(Value::as_str) {
            let _ = write!(self.text, "{}\n\n", one_line(text));
        }
        self.text
            .push_str("| key | value | default | meaning |\n|---|---|---|---|\n");
        let mut below = Vec::new();
        for (key, property) in properties {
            let is_required = required.is_some_and(|r| r.iter().any(|k| k == key));
            let meaning = property
                .get("description")
                .and_then(Value::as_str)
                .unwrap_or_default();
            let inner = self.follow(property);
            let default = match property.get("default") {
                _ if is_required => "required".to_owned(),
                Some(Value::Null | Value::Object(_)) | None => String::new(),
                Some(Value::String(text)) if text.is_empty() => String::new(),
                Some(value) => format!("`{value}`"),
            };
            let full = if path.is_empty() {
                key.clone()
            } else {
                format!("{path}.{key}")
            };
            if inner.get("properties").is_some() {
                below.push((full.clone(), format!("`[{full}]`"), inner));
            } else if let Some(each) = inner.get("additionalProperties").filter(|s| s.is_object()) {
                let full = format!("{full}.NAME");
                below.push((full.clone(), format!("`[{full}]`"), self.follow(each)));
            } else if let Some(items) = inner
                .get("items")
                .map(|i| self.follow(i))
                .filter(|i| i.get("properties").is_some())
            {
                below.push((full.clone(), format!("Tables of `{full}`"), items));
            }
            let kind = cell(&self.kind(property));
            let _ = writeln!(
                self.text,
                "| `{key}` | {kind} | {} | {} |",
                cell(&default),
                cell(&one_line(meaning))
            );
        }
        for (path, title, schema) in below {
            self.table(&path, &title, schema);
        }
    }

    /// A description of the values that a schema accepts.
    fn kind(&self, schema: &'s Value) -> String {
        let given = Self::given(schema);
        let name = given
            .get("$ref")
            .and_then(Value::as_str)
            .and_then(|t| t.rsplit('/').next());
        if let Some((_, wanted)) = QUANTITIES.iter().find(|(q, _)| Some(*q) == name) {
            return (*wanted).to_owned();
        }
        let inner = self.follow(schema);
        if let Some(words) = words(inner) {
            return words;
        }
        if inner.get("properties").is_some()
            || inner
                .get("additionalProperties")
                .is_some_and(Value::is_object)
        {
            return "section".into();
        }
        if let Some(items) = inner.get("items") {
            return match self.kind(items).as_str() {
                "section" => "list of tables".into(),
                kind => format!("list of {kind}"),
            };
        }
        // The description of a type with several spellings lists them.
        let spellings = inner
            .get("description")
            .and_then(Value::as_str)
            .filter(|_| name.is_some());
        let kind = match inner.get("type") {
            Some(Value::String(kind)) => kind.as_str(),
            Some(Value::Array(kinds)) => kinds.iter().find_map(Value::as_str).unwrap_or_default(),
            _ => "",
        };
        match (spellings, kind) {
            (Some(text), _) => one_line(text),
            (None, "string") => "text".into(),
            (None, "integer") => "whole number".into(),
            (None, "number") => "number".into(),
            (None, "boolean") => "`true` or `false`".into(),
            (None, "array") => "list".into(),
            (None, other) => other.to_owned(),
        }
    }
}

/// The words of an enumeration, each quoted.
fn words(schema: &Value) -> Option<String> {
    let quoted = |v: &Value| v.as_str().map(|text| format!("`\"{text}\"`"));
    let list: Vec<String> = match (schema.get("enum"), schema.get("oneOf")) {
        (Some(Value::Array(values)), _) => values.iter().filter_map(quoted).collect(),
        (_, Some(Value::Array(choices))) => choices
            .iter()
            .flat_map(|c| match (c.get("const"), c.get("enum")) {
                (Some(value), _) => vec![value],
                (_, Some(Value::Array(values))) => values.iter().collect(),
                _ => Vec::new(),
            })
            .filter_map(quoted)
            .collect(),
        _ => Vec::new(),
    };
    (!list.is_empty()).then(|| list.join(", "))
}

fn one_line(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// Text that cannot end a table's cell early.
fn cell(text: &str) -> String {
    text.replace('|', "\\|")
}
