//! `quell report` and `quell export`: what a record holds, as a page, as text, or for other tools.

use std::fmt::Write as _;
use std::io::Write as _;
use std::path::Path;

use quell_record::events::Record;
use quell_record::result::{CompareResult, Figures};
use quell_types::stats::Interval;

use crate::exit::{Exit, Result, failed, usage};
use clap::ValueEnum;
use std::path::PathBuf;

/// `quell report`
#[derive(Debug, clap::Args)]
pub struct Report {
    /// The record: the folder that `quell compare` or `quell run --out` named
    pub run: PathBuf,
    /// Write the page to this file instead of the record's report.html; - is standard output
    #[arg(long, value_name = "FILE", conflicts_with = "text")]
    pub html: Option<PathBuf>,
    /// Print the tables as text
    #[arg(long)]
    pub text: bool,
}

/// `quell export`
#[derive(Debug, clap::Args)]
pub struct Export {
    /// The record: the folder that `quell compare` or `quell run --out` named
    pub run: PathBuf,
    /// The format
    #[arg(long, value_enum)]
    pub format: Format,
}

/// The formats of `quell export`.
#[derive(Clone, Copy, Debug, ValueEnum)]
pub enum Format {
    /// One row per configuration, subject and metric
    Csv,
    /// The result as `quell compare --json` prints it
    Json,
    /// The timeline, for ui.perfetto.dev or chrome://tracing: stages, throttled stretches,
    /// subjects, CPU time
    Perfetto,
}

/// Renders a record again.
pub fn run(args: &Report) -> Result {
    let record = read(&args.run)?;
    if args.text {
        match &record.result {
            Some(result) => {
                print!(
                    "{}",
                    quell_report::compare_text(result, crate::terminal::style())
                );
            }
            None => print!(
                "{}",
                quell_report::run_text(&record, crate::terminal::style())
            ),
        }
        return Ok(Exit::Done);
    }
    let page = quell_report::html(&record);
    let path = args
        .html
        .clone()
        .unwrap_or_else(|| args.run.join("report.html"));
    if path == Path::new("-") {
        std::io::stdout()
            .write_all(page.as_bytes())
            .map_err(failed)?;
        return Ok(Exit::Done);
    }
    quell_files::put(&path, &page).map_err(|e| {
        failed(format!(
            "the page could not be written to {}: {e}; name a writable file with --html, or - for standard output",
            path.display()
        ))
    })?;
    println!("{}", path.display());
    Ok(Exit::Done)
}

/// Prints a record's figures, or its timeline, for other tools.
pub fn export(args: &Export) -> Result {
    let record = read(&args.run)?;
    let result = || {
        record.result.as_ref().ok_or_else(|| {
            usage(format!(
                "{}: the record of a run holds no table of figures; its events and samples are JSON and CSV already, and \
                 --format perfetto has its timeline",
                args.run.display()
            ))
        })
    };
    let text = match args.format {
        Format::Csv => csv(result()?),
        Format::Json => serde_json::to_string_pretty(result()?).map_err(failed)? + "\n",
        Format::Perfetto => quell_report::perfetto(&record),
    };
    std::io::stdout()
        .write_all(text.as_bytes())
        .map_err(failed)?;
    Ok(Exit::Done)
}

fn read(folder: &Path) -> std::result::Result<Record, crate::exit::Failure> {
    quell_engine::read::read(folder).map_err(usage)
}

/// One row per configuration, subject and metric; empty where there is no figure.
fn csv(result: &CompareResult) -> String {
    let mut out = String::from(
        "configuration,subject,metric,rounds,samples,value,value_low,value_high,p50,p50_low,p50_high,p95,p99,p99_low,\
         p99_high,max,normalized,normalized_low,normalized_high,normalized_p50,normalized_p50_low,normalized_p50_high,\
         normalized_p99,normalized_p99_low,normalized_p99_high\n",
    );
    for configuration in &result.configurations {
        for subject in &configuration.subjects {
            let primary = std::iter::once((&subject.metric, &subject.figures));
            for (metric, figures) in primary.chain(&subject.metrics) {
                let names = [&configuration.name, &subject.name, metric].map(|n| field(n));
                let _ = write!(out, "{}", names.join(","));
                for value in row(figures) {
                    let text = value.map_or_else(String::new, |v| v.to_string());
                    let _ = write!(out, ",{text}");
                }
                out.push('\n');
            }
        }
    }
    out
}

/// The figures in the order of the columns.
fn row(f: &Figures) -> Vec<Option<f64>> {
    let with = |value: Option<f64>, interval: Option<Interval>| {
        [value, interval.map(|i| i.low), interval.map(|i| i.high)]
    };
    [
        &[f.rounds.map(f64::from), f.samples.map(|n| n as f64)][..],
        &with(f.value, f.ci95),
        &with(f.p50, f.p50_ci95),
        &[f.p95],
        &with(f.p99, f.p99_ci95),
        &[f.max],
        &with(f.normalized, f.normalized_ci95),
        &with(f.normalized_p50, f.normalized_p50_ci95),
        &with(f.normalized_p99, f.normalized_p99_ci95),
    ]
    .concat()
}

/// Quoted where a comma or a quote would break the row (RFC 4180).
fn field(text: &str) -> String {
    if text.contains([',', '"', '\n']) {
        format!("\"{}\"", text.replace('"', "\"\""))
    } else {
        text.to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_row_has_a_figure_for_every_column() {
        let mut result: CompareResult = serde_json::from_value(serde_json::json!({
            "schema": "quell.compare/1", "version": "0", "experiment": "e", "backend": "linux", "timing": "real",
            "seed": 1, "policy_hash": "", "confidence": 0.95, "rounds": 1,
            "machine": {
                "identity": {"kernel": "6.18", "architecture": "x86_64", "vendor": "v", "model": "m"},
                "cpus": [], "caches": [], "nodes": [], "mechanisms": {},
                "means": {"cpuset": "v1", "movable-irqs": 0, "fixed-irqs": 0, "workqueue-mask": false,
                    "meter": {"kind": "time"}, "time-meter": true, "brake": {"Ok": null}, "cpu-max": true, "counter-users": []}},
            "configurations": [{"name": "a,b", "axes": {}, "mechanisms": [], "promises": [], "rounds": 1,
                "totals": {"cells": 1},
                "subjects": [{"name": "v", "role": "critical", "cpus": [0], "metric": "latency_ns", "better": "lower",
                    "value": 20.5, "ci95": [18.0, 22.0], "normalized_p99": 0.5, "metrics": {"x": {"value": 1.0}}}]}],
        }))
        .unwrap();
        let text = csv(&result);
        let rows: Vec<&str> = text.lines().collect();
        assert_eq!(rows.len(), 3);
        assert_eq!(rows[0].split(',').count(), 25);
        assert_eq!(
            rows[1],
            "\"a,b\",v,latency_ns,,,20.5,18,22,,,,,,,,,,,,,,,0.5,,"
        );
        assert!(rows[2].starts_with("\"a,b\",v,x,,,1,"));
        result.configurations.clear();
        assert_eq!(csv(&result).lines().count(), 1);
    }
}
