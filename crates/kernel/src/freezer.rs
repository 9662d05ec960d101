//! The files that stop a cgroup whole: `cgroup.freeze` (v2), `freezer.state` (v1).

/// Whether the text of a freezer's file means frozen.
#[must_use]
pub fn is_frozen(text: &str) -> bool {
    matches!(text.trim(), "1" | "FROZEN" | "FREEZING")
}

/// What thaws a freezer's file.
#[must_use]
pub fn thawing(path: &str) -> &'static str {
    if path.ends_with("freezer.state") {
        "THAWED"
    } else {
        "0"
    }
}
