//! What cannot be had, why, and what to do about it.

use schemars::JsonSchema;
use serde::{Deserialize, Deserializer, Serialize};

/// What stands behind a refusal.
#[derive(
    Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, JsonSchema,
)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// Quell may not change this machine: whatever is asked for is refused until it may.
    Rights,
    /// The policy asks for what does not go together, or for more than there is.
    #[default]
    Policy,
    /// This machine lacks the mechanism.
    Machine,
    /// The policy language has the key, and this version does not act on it.
    NotBuilt,
    /// The promise would be worth less than the policy requires.
    Level,
}

impl Cause {
    #[expect(clippy::trivially_copy_pass_by_ref, reason = "serde passes references")]
    fn is_policy(&self) -> bool {
        *self == Self::Policy
    }
}

/// One way out of a refusal.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", tag = "kind")]
pub enum Remedy {
    /// Write a key of the policy.
    Set {
        /// The key, dotted from the top of the policy: `group.batch.cpus`.
        key: String,
        /// Its value, as TOML: `"any"`, with the quotes.
        value: String,
    },
    /// Leave keys of the policy out.
    LeaveOut {
        /// The keys, each dotted from the top of the policy.
        keys: Vec<String>,
    },
    /// Run a command in a shell.
    Command {
        /// As a shell takes it.
        command: String,
    },
    /// Call Quell as root, outside of a container.
    Rights,
    /// What neither a line nor a command does.
    Advice {
        /// A sentence without its full stop.
        text: String,
    },
}

impl Remedy {
    /// A line of a policy: `key = value`, with the value as TOML.
    pub fn set(key: impl Into<String>, value: impl std::fmt::Display) -> Self {
        Self::Set {
            key: key.into(),
            value: value.to_string(),
        }
    }

    /// A line of a policy with a string as its value; adds the quotes.
    pub fn set_text(key: impl Into<String>, value: impl std::fmt::Display) -> Self {
        Self::set(key, format!("\"{value}\""))
    }

    /// A key of the policy to leave out.
    pub fn leave_out(key: impl Into<String>) -> Self {
        Self::LeaveOut {
            keys: vec![key.into()],
        }
    }

    /// A command to run.
    pub fn command(command: impl Into<String>) -> Self {
        Self::Command {
            command: command.into(),
        }
    }

    /// Whether it is a line of a policy or a command, not advice.
    #[must_use]
    pub const fn is_exact(&self) -> bool {
        !matches!(self, Self::Advice { .. })
    }
}

impl From<String> for Remedy {
    fn from(text: String) -> Self {
        Self::Advice { text }
    }
}

impl From<&str> for Remedy {
    fn from(text: &str) -> Self {
        Self::from(text.to_owned())
    }
}

/// A dotted key as its table and the rest. For example `group.batch.limit.memory` is `limit.memory`
/// in `[group.batch]`.
fn in_table(key: &str) -> (Option<String>, &str) {
    let tables = if key.starts_with("group.") { 2 } else { 1 };
    let mut at = key.match_indices('.').map(|(at, _)| at);
    match at.nth(tables - 1) {
        Some(at) => (key.get(..at).map(str::to_owned), &key[at + 1..]),
        None => (None, key),
    }
}

impl std::fmt::Display for Remedy {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Set { key, value } => match in_table(key) {
                (Some(table), key) => write!(f, "write {key} = {value} in [{table}]"),
                (None, key) => write!(f, "write {key} = {value} at the top"),
            },
            Self::LeaveOut { keys } => {
                let each: Vec<String> = keys
                    .iter()
                    .map(|key| match in_table(key) {
                        (Some(table), key) => format!("{key} of [{table}]"),
                        (None, key) => key.to_owned(),
                    })
                    .collect();
                write!(f, "leave out {}", each.join(" and "))
            }
            Self::Command { command } => write!(f, "run `{command}`"),
            Self::Rights => f.write_str("run as root, outside of a container"),
            Self::Advice { text } => f.write_str(text),
        }
    }
}

/// A promise or key that cannot be had, with the reason and what to do.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub struct Refusal {
    /// The key in the policy, for example `group.batch.limit.bandwidth`.
    pub key: String,
    /// Why it cannot be had.
    pub why: String,
    /// What stands behind it.
    #[serde(default, skip_serializing_if = "Cause::is_policy")]
    pub cause: Cause,
    /// What to do about it: any one of these, the least intrusive first. Records of earlier
    /// versions have one sentence.
    #[serde(
        default,
        alias = "remedy",
        deserialize_with = "one_or_more",
        skip_serializing_if = "Vec::is_empty"
    )]
    pub remedies: Vec<Remedy>,
}

impl Refusal {
    /// The remedy to show first: a line or a command, if there is one.
    #[must_use]
    pub fn first_remedy(&self) -> Option<&Remedy> {
        let exact = self.remedies.iter().find(|r| r.is_exact());
        exact.or(self.remedies.first())
    }
}

fn one_or_more<'de, D: Deserializer<'de>>(from: D) -> Result<Vec<Remedy>, D::Error> {
    #[derive(Deserialize)]
    #[serde(untagged)]
    enum Either {
        Sentence(Option<String>),
        List(Vec<Remedy>),
    }
    Ok(match Either::deserialize(from)? {
        Either::Sentence(text) => text.into_iter().map(Remedy::from).collect(),
        Either::List(list) => list,
    })
}

impl std::fmt::Display for Refusal {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.key, self.why)?;
        for (n, remedy) in self.remedies.iter().enumerate() {
            write!(f, "{}{remedy}", if n == 0 { "; " } else { ", or " })?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn remedies_name_the_table_of_a_key() {
        let said = |remedy: Remedy| remedy.to_string();
        assert_eq!(
            said(Remedy::set_text("group.web.cpus", "any")),
            "write cpus = \"any\" in [group.web]"
        );
        assert_eq!(
            said(Remedy::set_text("regulator.adapt", "off")),
            "write adapt = \"off\" in [regulator]"
        );
        assert_eq!(
            said(Remedy::set_text("require", "none")),
            "write require = \"none\" at the top"
        );
        assert_eq!(
            said(Remedy::leave_out("group.web.reserve.cache")),
            "leave out reserve.cache of [group.web]"
        );
    }

    #[test]
    fn a_line_or_a_command_comes_before_advice() {
        let refusal = Refusal {
            key: "group.web.cpus".to_owned(),
            why: "there are none".to_owned(),
            remedies: vec![Remedy::from("buy some"), Remedy::set("group.web.cpus", 1)],
            ..Refusal::default()
        };
        assert_eq!(
            refusal.first_remedy(),
            Some(&Remedy::set("group.web.cpus", 1))
        );
        assert_eq!(
            refusal.to_string(),
            "group.web.cpus: there are none; buy some, or write cpus = 1 in [group.web]"
        );
    }

    #[test]
    fn a_sentence_of_an_earlier_record_is_read_as_advice() {
        let old = r#"{"key": "a.b", "why": "not here", "remedy": "ask for less"}"#;
        let refusal: Refusal = serde_json::from_str(old).unwrap();
        assert_eq!(refusal.remedies, [Remedy::from("ask for less")]);
        let json = serde_json::to_string(&refusal).unwrap();
        assert_eq!(serde_json::from_str::<Refusal>(&json).unwrap(), refusal);
        let none = r#"{"key": "a.b", "why": "not here"}"#;
        let none: Refusal = serde_json::from_str(none).unwrap();
        assert_eq!((none.remedies, none.cause), (Vec::new(), Cause::Policy));
    }
}
