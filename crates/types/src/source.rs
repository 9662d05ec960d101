//! Where the times of a target come from, and how numbers are found in a program's output.

use std::str::FromStr;

use regex::Regex;
use schemars::{JsonSchema, json_schema};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::spelled;
use crate::spelled::{Spelled, TableForm};
use crate::units::Nanos;

/// Where the times of a target come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Source {
    /// The application reports them.
    Client,
    /// None: no times are observed, and the target is only a wish.
    None,
    /// They are read from the program's output.
    Pattern(Pattern),
}

/// A regular expression that finds numbers in a program's output. It is compiled when it is read,
/// and has exactly one group, which captures the number.
#[derive(Clone, Debug)]
pub struct NumberPattern(Regex);

impl NumberPattern {
    /// The number in `line`, if the pattern is found there and captures one.
    #[must_use]
    pub fn find(&self, line: &str) -> Option<f64> {
        let number = self.0.captures(line)?.get(1)?.as_str().parse().ok()?;
        f64::is_finite(number).then_some(number)
    }

    /// The expression as written.
    #[must_use]
    pub fn as_str(&self) -> &str {
        self.0.as_str()
    }
}

impl FromStr for NumberPattern {
    type Err = String;
    fn from_str(text: &str) -> Result<Self, String> {
        let regex = compile(text)?;
        match regex.captures_len() - 1 {
            1 => Ok(Self(regex)),
            n => Err(format!(
                "'{text}' has {n} groups, but exactly one is needed, around the number: 'took ([0-9.]+) ms'"
            )),
        }
    }
}

/// Compiles a regular expression. The error says on one line where it is wrong.
///
/// # Errors
/// The place and the reason.
pub fn compile(text: &str) -> Result<Regex, String> {
    Regex::new(text).map_err(|e| {
        let reason = e.to_string();
        let reason = reason.lines().last().unwrap_or_default().trim();
        format!(
            "'{text}' is not a regular expression: {}",
            reason.trim_start_matches("error: ")
        )
    })
}

impl PartialEq for NumberPattern {
    fn eq(&self, other: &Self) -> bool {
        self.as_str() == other.as_str()
    }
}

impl Eq for NumberPattern {}

impl Serialize for NumberPattern {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.as_str())
    }
}

impl<'de> Deserialize<'de> for NumberPattern {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?
            .parse()
            .map_err(de::Error::custom)
    }
}

/// Times in a program's output.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Pattern {
    /// A regular expression with one group that captures the number.
    pub pattern: NumberPattern,
    /// The number's unit: ns, us, ms or s.
    pub unit: String,
}

impl Pattern {
    /// The time in a line of output, if the pattern is found there. A negative one, or one above an
    /// hour, does not count.
    #[must_use]
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "neither negative nor longer than an hour"
    )]
    pub fn time(&self, line: &str) -> Option<Nanos> {
        let factor = match self.unit.as_str() {
            "s" => 1e9,
            "ms" => 1e6,
            "us" => 1e3,
            _ => 1.0,
        };
        let time = self.pattern.find(line)? * factor;
        let fits = (0.0..=Nanos::secs(3600).0 as f64).contains(&time);
        fits.then(|| Nanos(time.round() as u64))
    }
}

impl Serialize for Source {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        match self {
            Self::Client => s.serialize_str("client"),
            Self::None => s.serialize_str("none"),
            Self::Pattern(pattern) => pattern.serialize(s),
        }
    }
}

impl TableForm for Pattern {}

impl Spelled for Source {
    const WANTED: &'static str =
        "\"client\", \"none\", or a table such as { pattern = 'took ([0-9.]+) ms', unit = \"ms\" }";
    type Table = Pattern;
    fn text(text: &str) -> Result<Self, String> {
        match text {
            "client" => Ok(Self::Client),
            "none" => Ok(Self::None),
            _ => Err(Self::mistaken(text)),
        }
    }
    fn table(table: Pattern) -> Result<Self, String> {
        Ok(Self::Pattern(table))
    }
}

spelled!(Source: json_schema!({
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
}));

impl JsonSchema for NumberPattern {
    fn schema_name() -> std::borrow::Cow<'static, str> {
        "NumberPattern".into()
    }
    fn json_schema(_: &mut schemars::SchemaGenerator) -> schemars::Schema {
        json_schema!({
            "description": "A regular expression with one group that captures the number.",
            "type": "string",
            "format": "regex",
        })
    }
}
