//! `quell bench`, and the hidden child that serves a generator to an experiment.

use std::fmt::Display;
use std::path::Path;

use quell_policy::workload::{Banks, CALL_RATE, CALL_SEARCH, Workload};
use quell_record::attribution::ACCOUNT_ENV;
use quell_record::backend::Backend;
use quell_types::cpuset::{CpuId, CpuSet};
use quell_workload::flush::FlushOptions;
use quell_workload::overrun::OverrunOptions;
use quell_workload::{BenchOptions, ResolvedWorkload, ServeOptions};
use serde::Serialize;

use crate::exit::{Exit, Failure, Result, failed, usage};
use crate::generators::{Bench, Generator, StageArg};
use crate::machine;
use crate::options::Common;
use crate::progress::Bar;

/// Runs a generator.
pub fn run(args: &Bench) -> Result {
    match &args.generator {
        Generator::Latency {
            size,
            order,
            operation,
            buffer,
        } => {
            let workload = Workload::Latency {
                size: *size,
                order: *order,
                pages: buffer.pages(),
                operation: *operation,
            };
            generator(&workload, &buffer.common)
        }
        Generator::Bandwidth {
            operation,
            size,
            rate,
            buffer,
        } => {
            let workload = Workload::Bandwidth {
                operation: *operation,
                size: *size,
                pages: buffer.pages(),
                rate: *rate,
            };
            generator(&workload, &buffer.common)
        }
        Generator::ParallelLists {
            lists,
            size,
            operation,
            bank_mask,
            bank_map,
            banks: take,
            buffer,
        } => {
            let workload = Workload::ParallelLists {
                lists: *lists,
                size: *size,
                pages: buffer.pages(),
                operation: *operation,
                banks: banks(bank_mask.as_deref(), bank_map.as_deref(), take)?,
            };
            generator(&workload, &buffer.common)
        }
        Generator::CacheChurn {
            operations,
            size,
            order,
            rate,
            buffer,
        } => {
            let workload = Workload::CacheChurn {
                operations: operations.clone(),
                size: *size,
                order: *order,
                pages: buffer.pages(),
                rate: *rate,
            };
            generator(&workload, &buffer.common)
        }
        Generator::Stores {
            operation,
            stride,
            size,
            rate,
            buffer,
        } => {
            let workload = Workload::Stores {
                operation: *operation,
                stride: *stride,
                size: *size,
                pages: buffer.pages(),
                rate: *rate,
            };
            generator(&workload, &buffer.common)
        }
        Generator::Lattice { size, rate, buffer } => {
            let workload = Workload::Lattice {
                size: *size,
                pages: buffer.pages(),
                rate: *rate,
            };
            generator(&workload, &buffer.common)
        }
        Generator::Periodic {
            size,
            step,
            period,
            passes,
            deadline,
            priority,
            declares,
            buffer,
        } => generator(
            &Workload::Periodic {
                size: *size,
                pages: buffer.pages(),
                step: *step,
                period: *period,
                passes: *passes,
                deadline: *deadline,
                priority: *priority,
                declares: *declares,
            },
            &buffer.common,
        ),
        Generator::Frames {
            stage,
            frame,
            fps,
            ring,
            search,
            rate,
            common,
        } => {
            let given = [("--search", search.is_some()), ("--rate", rate.is_some())];
            let (frame, fps, ring) = (*frame, *fps, *ring);
            let workload = match stage {
                StageArg::Call => Workload::FramesCall {
                    frame,
                    fps,
                    ring,
                    search: search.unwrap_or(CALL_SEARCH),
                    rate: rate.unwrap_or(CALL_RATE),
                },
                StageArg::Display => {
                    if let Some((key, _)) = given.iter().find(|(_, given)| *given) {
                        let why = format!("{key} is the call stage's: leave it out");
                        return Err(usage(why));
                    }
                    Workload::FramesDisplay { frame, fps, ring }
                }
            };
            generator(&workload, common)
        }
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
        Generator::Sharing { cpus, json } => {
            let (a, b) = pair(cpus)?;
            let found = quell_workload::probe::sharing(a, b).map_err(failed)?;
            if *json {
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
        Generator::Rates { llc, json } => {
            let (mut backend, machine) = machine::linux()?;
            if llc.is_none() {
                let machine = backend
                    .inventory(quell_record::backend::Probe::Deep)
                    .map_err(failed)?;
                return rates(machine.measured.as_ref(), *json);
            }
            let llc = llc.unwrap_or_default();
            let measured =
                quell_workload::measure::rates(&machine.cpu_set(), llc, machine::unix_s())
                    .map_err(failed)?;
            rates(Some(&measured), *json)
        }
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
    let pair = pair(&cpus.cloned().unwrap_or_else(first))?;
    let mut bar = Bar::new();
    let found = quell_workload::deep::sharing(&machine, pair, rounds, &mut |_, percent| {
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

fn rates(measured: Option<&quell_plan::inventory::Measured>, json: bool) -> Result {
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

/// The banks asked for by mask or by map.
fn banks(mask: Option<&str>, map: Option<&Path>, take: &[u32]) -> Result<Option<Banks>> {
    let functions = match (mask, map) {
        (Some(mask), _) => Banks::mask(mask).map_err(|e| usage(format!("--bank-mask: {e}")))?,
        (None, Some(file)) => {
            let name = file.display();
            let text = std::fs::read_to_string(file).map_err(|e| usage(format!("{name}: {e}")))?;
            Banks::map(&text).map_err(|e| usage(format!("{name}: {e}")))?
        }
        (None, None) if take.is_empty() => return Ok(None),
        (None, None) => {
            return Err(usage(
                "--banks: banks of what? give --bank-mask or --bank-map",
            ));
        }
    };
    let banks = Banks::new(functions, take.to_vec());
    banks.map(Some).map_err(|e| usage(format!("--banks: {e}")))
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
