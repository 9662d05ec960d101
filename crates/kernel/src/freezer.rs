//! The files that freeze a whole cgroup: `cgroup.freeze` (v2), `freezer.state` (v1).

/// Whether the text of a freezer's file means frozen.
#[must_use]
pub fn is_frozen(text: &str) -> bool {
    matches!(text.trim(), "1" | "FROZEN" | "FREEZING")
}

/// The text that thaws the freezer with this path.
#[must_use]
pub fn thawing(path: &str) -> &'static str {
    if path.ends_with("freezer.state") {
        "THAWED"
    } else {
        "0"
    }
}
