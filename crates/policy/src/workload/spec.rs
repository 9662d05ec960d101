//! A generator on one line, as the command line accepts it: `KIND[:PART,…]`. A part is `KEY=VALUE`
//! as in an experiment's `run = { … }`, or a word that only one key can mean
//! (`bandwidth:write,size=64MiB,rate=2GB/s`).

use std::str::FromStr;

use quell_types::text::{Origin, Problem, Reader};
use toml::de::DeTable;

use super::{Order, Pages, Word, Workload};

/// Why a generator could not be read: what is wrong and what was probably meant, one line per
/// mistake.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct SpecError(String);

impl FromStr for Workload {
    type Err = SpecError;

    /// A size that is left out is the one that `quell bench` uses.
    fn from_str(text: &str) -> Result<Self, SpecError> {
        let (kind, parts) = text.split_once(':').unwrap_or((text, ""));
        let (kind, mut table) = (kind.trim(), toml::Table::new());
        table.insert("kind".into(), kind.into());
        if let Some(size) = Self::usual_size(kind) {
            table.insert("size".into(), size.to_string().into());
        }
        for part in parts.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some((key, value)) => {
                    let (key, value) = (key.trim(), value.trim());
                    let value = value
                        .parse()
                        .map_or_else(|_| value.into(), toml::Value::Integer);
                    table.insert(key.into(), value);
                }
                None if Order::named(part).is_some() => {
                    table.insert("order".into(), part.into());
                }
                None if Pages::named(part).is_some() => {
                    table.insert("pages".into(), part.into());
                }
                None if kind == "cache-churn" => {
                    let all = table
                        .entry("operations")
                        .or_insert_with(|| toml::Value::Array(Vec::new()));
                    if let toml::Value::Array(all) = all {
                        all.push(part.into());
                    }
                }
                None => {
                    table.insert("operation".into(), part.into());
                }
            }
        }
        let written = table.to_string();
        let problem = |why: &str| SpecError(format!("{text}: {why}"));
        let root = DeTable::parse(&written).map_err(|e| problem(e.message()))?;
        let mut reader = Reader::new(Origin {
            file: text,
            text: None,
        });
        let read = reader.read::<Self>(&root);
        if !reader.problems.is_empty() {
            let all: Vec<String> = reader.problems.iter().map(|p| told(text, p)).collect();
            return Err(SpecError(all.join("\n")));
        }
        let workload = read.ok_or_else(|| problem("it is no generator"))?;
        match workload.fault() {
            None => Ok(workload),
            Some(fault) => Err(problem(&fault.to_string())),
        }
    }
}

/// A problem as text for the command line: there is no file, and the table around the keys was
/// added here.
fn told(text: &str, problem: &Problem) -> String {
    let why = problem.why.trim_start_matches(": ");
    let why = why.strip_suffix(" at the top").unwrap_or(why);
    match &problem.remedy {
        Some(remedy) => format!("{text}: {why}; {remedy}"),
        None => format!("{text}: {why}"),
    }
}

#[cfg(test)]
mod tests {
    use quell_types::units::{Bytes, Rate};

    use super::super::{Access, Operation, STREAM_SIZE, Size, Touch};
    use super::*;

    fn read(text: &str) -> Workload {
        text.parse().unwrap()
    }

    #[test]
    fn a_line_reads_as_the_table_it_stands_for() {
        let stream = Workload::Bandwidth {
            operation: Operation::Write,
            size: STREAM_SIZE,
            pages: Pages::Base,
            rate: Some(Rate(2_000_000_000)),
        };
        assert_eq!(read("bandwidth:write,rate=2GB/s"), stream);
        let list = Workload::Latency {
            size: Size::Llc(0.5),
            order: Order::Sequential,
            pages: Pages::Huge,
            operation: Access::ReadWrite,
        };
        assert_eq!(
            read("latency: size=0.5LLC, sequential, 2MiB, read-write"),
            list
        );
        let Workload::ParallelLists { lists, size, .. } = read("parallel-lists:lists=8,size=1MiB")
        else {
            panic!("it is a list");
        };
        assert_eq!((lists, size), (8, Size::Bytes(Bytes(1 << 20))));
        let Workload::CacheChurn { operations, .. } = read("cache-churn:read,flush") else {
            panic!("it churns");
        };
        assert_eq!(operations, [Touch::Read, Touch::Flush]);
    }

    #[test]
    fn mistakes_are_told_with_what_was_probably_meant() {
        for (text, why) in [
            ("latencie", "did you mean 'latency'?"),
            ("latency:siz=1MiB", "did you mean 'size'?"),
            ("bandwidth:wirte", "did you mean 'write'?"),
            ("bandwidth", "operation is missing"),
            ("bandwidth:read,rate=0MB/s", "600MB/s"),
            ("parallel-lists:lists=65", "1 to 64"),
            ("stores:stride=24B", "stride"),
            ("latency:size=2", "a size such as"),
        ] {
            let said = text.parse::<Workload>().unwrap_err().to_string();
            assert!(said.contains(why), "{text}: {said}");
        }
    }
}
