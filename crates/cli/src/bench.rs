//! `quell bench`, and the hidden child that serves a generator to an experiment.

use std::fmt::Display;

use quell_policy::workload::Workload;
use quell_record::attribution::ACCOUNT_ENV;
use quell_record::backend::{Backend, Probe};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::Bytes;
use quell_workload::flush::FlushOptions;
use quell_workload::overrun::OverrunOptions;
use quell_workload::{BenchOptions, ResolvedWorkload, ServeOptions};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result, failed, usage};
use crate::generators::{Bench, Generator};
use crate::machine;
use crate::options::Common;
use crate::progress::Bar;

/// Runs a generator.
pub fn run(args: &Bench) -> Result {
    match &args.generator {
        Generator::Buffered(one) => generator(&one.workload()?, one.common()),
        Generator::Frames(stage) => generator(&stage.workload()?, &stage.common),
        Generator::Pressure(one) => {
            let (workload, common) = one.workload();
            generator(&workload, common)
        }
        Generator::Ladder(args) => crate::ladder::run(args),
        Generator::OpenLoop(args) => {
            let report = quell_workload::open_loop::open_loop(&args.options());
            show(&report.map_err(failed)?, args.json)
        }
        Generator::Flush { cpu, stir, watch } => {
            let cpu = match cpu {
                Some(cpu) => *cpu,
                None => first_cpu()?,
            };
            let options = FlushOptions {
                cpu,
                duration: watch.duration,
                folder: std::env::temp_dir(),
                stir: *stir,
            };
            show(
                &quell_workload::flush::flush(&options).map_err(failed)?,
                watch.json,
            )
        }
        Generator::Overrun { cpu, kernel, watch } => {
            let options = OverrunOptions {
                cpu: *cpu,
                duration: watch.duration,
                kernel: *kernel,
            };
            show(
                &quell_workload::overrun::overrun(&options).map_err(failed)?,
                watch.json,
            )
        }
        Generator::Canary { cpus, rounds, json } => canary(cpus.as_ref(), *rounds, *json),
        Generator::Sharing { cpus, json } => sharing(cpus, *json),
        Generator::Rates { llc, json } => rates(*llc, *json),
    }
}

fn pair(cpus: &CpuSet) -> std::result::Result<(CpuId, CpuId), Failure> {
    let mut two = cpus.iter();
    match (two.next(), two.next(), two.next()) {
        (Some(a), Some(b), None) => Ok((a, b)),
        _ => Err(usage(format!(
            "two CPUs are compared, not {}: write 0,1",
            cpus.len()
        ))),
    }
}

fn canary(cpus: Option<&CpuSet>, rounds: u32, json: bool) -> Result {
    let (mut backend, machine) = machine::linux()?;
    let first = || machine.cpu_set().iter().take(2).collect();
    let (a, b) = pair(&cpus.cloned().unwrap_or_else(first))?;
    let mut bar = Bar::new();
    let found = quell_workload::deep::sharing(&machine, a, b, rounds, &mut |_, percent| {
        machine::go_on(&mut backend, &mut bar, "canary", percent)
    })
    .map_err(failed)?;
    drop(bar);
    if json {
        return show_json(&found);
    }
    print!(
        "{}",
        quell_report::canary_text(&found, crate::terminal::style())
    );
    Ok(Exit::Done)
}

fn sharing(cpus: &CpuSet, json: bool) -> Result {
    let (a, b) = pair(cpus)?;
    let found = quell_workload::probe::sharing(a, b).map_err(failed)?;
    if json {
        return show_json(&found);
    }
    match found {
        Some(s) => println!(
            "CPUs {a} and {b}: score {:.2} (1 = share a cache now, 0 = do not); own line {:.0} ns, the other's {:.0} ns, \
             memory {:.0} ns",
            s.score, s.near_ns, s.other_ns, s.far_ns
        ),
        None => println!("CPUs {a} and {b}: it cannot be told here"),
    }
    Ok(Exit::Done)
}

/// Measures anew what is known, or only the rates where the cache's size is given.
fn rates(llc: Option<Bytes>, json: bool) -> Result {
    let (mut backend, machine) = machine::linux()?;
    let Some(llc) = llc else {
        let machine = backend.inventory(Probe::Deep).map_err(failed)?;
        return show_rates(machine.measured.as_ref(), json);
    };
    let cpus = machine.cpu_set();
    let measured = quell_workload::measure::rates(&cpus, llc, machine::unix_s());
    show_rates(Some(&measured.map_err(failed)?), json)
}

fn show_rates(measured: Option<&quell_plan::inventory::Measured>, json: bool) -> Result {
    if json {
        return show_json(&measured);
    }
    if let Some(m) = measured {
        for (name, rate) in &m.by_operation {
            println!("{name:<14} one CPU  {rate}");
        }
        println!(
            "{:<14} {} CPUs   {}",
            m.peak_operation, m.cpus, m.sustainable
        );
    }
    Ok(Exit::Done)
}

fn generator(workload: &Workload, common: &Common) -> Result {
    if let Some(fault) = workload.fault() {
        return Err(usage(format!("--{fault}")));
    }
    let machine = machine::confined()?;
    let cpu = common.cpu.map_or_else(first_cpu, Ok)?;
    let options = BenchOptions {
        cpu: common.cpu,
        warmup: common.warmup,
        duration: common.duration,
        window: common.window,
        ..BenchOptions::new(workload.resolve(&machine.data_caches(cpu)))
    };
    show(
        &quell_workload::bench(&options).map_err(failed)?,
        common.json,
    )
}

fn first_cpu() -> Result<CpuId> {
    let allowed = quell_workload::affinity::allowed().map_err(failed)?;
    allowed
        .first()
        .ok_or_else(|| failed("no CPU is left to run on"))
}

fn show<T: Serialize + Display>(report: &T, json: bool) -> Result {
    if json {
        return show_json(report);
    }
    print!("{report}");
    Ok(Exit::Done)
}

fn show_json<T: Serialize>(value: &T) -> Result {
    println!("{}", serde_json::to_string_pretty(value).map_err(failed)?);
    Ok(Exit::Done)
}

/// The hidden child: serves a generator on its standard input and output.
pub fn serve(workload: &str) -> Result {
    let workload: ResolvedWorkload =
        serde_json::from_str(workload).map_err(|e| usage(format!("not a generator: {e}")))?;
    quell_workload::serve(
        &workload,
        &ServeOptions {
            account: std::env::var_os(ACCOUNT_ENV).is_some(),
            ..ServeOptions::default()
        },
        std::io::stdin(),
        std::io::stdout(),
    )
    .map_err(failed)?;
    Ok(Exit::Done)
}
