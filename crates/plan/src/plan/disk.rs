//! Rates of disks in a plan.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use quell_types::units::Rate;

/// What a group moves to and from each disk, per second, at most.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", default)]
pub struct DiskRates {
    /// Bytes read per second. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read: Option<Rate>,
    /// Bytes written per second. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write: Option<Rate>,
    /// Read requests per second. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub read_iops: Option<u64>,
    /// Write requests per second. Absent: no limit.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub write_iops: Option<u64>,
}

impl std::fmt::Display for DiskRates {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let rate = |rate: Option<Rate>, what| rate.map(|rate| format!("{rate} {what}"));
        let requests = |n: Option<u64>, what| n.map(|n| format!("{n} {what} a second"));
        let all = [
            rate(self.read, "read"),
            rate(self.write, "written"),
            requests(self.read_iops, "reads"),
            requests(self.write_iops, "writes"),
        ];
        let all: Vec<String> = all.into_iter().flatten().collect();
        write!(f, "{} on each disk", all.join(", "))
    }
}
