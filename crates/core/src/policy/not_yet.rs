//! What the language says and this version does not do. A key is refused when it asks for something unbuilt, not for
//! standing there with the value that is done anyway.

use super::values::Bandwidth;
use super::{Group, Policy};
use crate::plan::Refusal;

/// Every key of `policy` that asks for what is not built yet, in the order of the reference. Empty: all of it can be
/// planned.
#[must_use]
pub fn not_yet(policy: &Policy) -> Vec<Refusal> {
    let mut list = Vec::new();
    for (name, group) in &policy.groups {
        group_keys(&mut list, &format!("group.{name}"), group);
    }
    list
}

fn refuse(list: &mut Vec<Refusal>, key: &str, what: &str, remedy: Option<&str>) {
    list.push(Refusal {
        key: key.to_owned(),
        why: format!("not yet: {what} is not built"),
        remedy: Some(remedy.unwrap_or("remove the key").to_owned()),
    });
}

fn group_keys(list: &mut Vec<Refusal>, at: &str, group: &Group) {
    let mut key = |given: bool, key: &str, what: &str, remedy: Option<&str>| {
        if given {
            refuse(list, &format!("{at}.{key}"), what, remedy);
        }
    };
    let apart = |b: Option<Bandwidth>| matches!(b, Some(Bandwidth::ReadWrite { .. }));
    let reserve = &group.reserve;
    let one = Some("give one rate or percentage");
    key(
        apart(reserve.bandwidth),
        "reserve.bandwidth",
        "telling reads from writes",
        one,
    );
    key(
        apart(group.limit.bandwidth),
        "limit.bandwidth",
        "telling reads from writes",
        one,
    );
}
