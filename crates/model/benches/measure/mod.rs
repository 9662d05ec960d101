//! Work per second of CPU time. The best of some runs is what the code can do. Its distance from
//! the median shows how busy the machine is.

use std::time::Instant;

pub const RUNS: usize = 5;

/// The CPU time of this thread in seconds (Linux), which excludes other programs. Elsewhere the
/// time since `since`.
fn cpu_seconds(since: Instant) -> f64 {
    let stat = std::fs::read_to_string("/proc/thread-self/schedstat").ok();
    let nanos = stat.and_then(|text| text.split_whitespace().next()?.parse::<u64>().ok());
    nanos.map_or_else(|| since.elapsed().as_secs_f64(), |ns| ns as f64 / 1e9)
}

/// Whether the command line asks for this benchmark.
pub fn chosen(name: &str) -> bool {
    let part = std::env::args().skip(1).find(|arg| !arg.starts_with('-'));
    part.is_none_or(|part| name.contains(&part))
}

/// Runs `work`, which does `count` things. Returns millions of them per second.
pub fn rate(count: u64, work: &mut dyn FnMut()) -> f64 {
    let start = Instant::now();
    let before = cpu_seconds(start);
    work();
    count as f64 / (cpu_seconds(start) - before) / 1e6
}

/// The best and the median of the rates.
pub fn of_all(mut rates: Vec<f64>) -> (f64, f64) {
    rates.sort_by(f64::total_cmp);
    (rates[rates.len() - 1], rates[rates.len() / 2])
}
