//! Which thread ran on which core from when to when, by context switches: lanes below those of the
//! ways. A lane is as high as the part of the time that ran.

use quell_record::ways::{Cache, Timeline};

use crate::ways::thread_name;

use super::chart::{Anchor, Area, Scale, Svg};
use super::ways::colour;

/// The most cores that are drawn, and the most lanes of threads.
const MOST_CORES: usize = 8;
const MOST_THREADS: usize = 14;
/// Height of a lane.
pub(super) const LANE: f64 = 18.0;
/// The columns of time in each unit of width.
const FINE: f64 = 1.0;
/// Steps in which a part of the time is drawn.
const STEPS: f64 = 8.0;
/// How far the name of a thread is moved in.
const INDENT: f64 = 12.0;

/// A core, or one of the threads that ran on it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Lane {
    cpu: u32,
    tid: Option<u32>,
    name: String,
}

/// The lanes of the cores of a cache, each followed by those of its threads that ran longest.
pub(super) fn lanes(timeline: &Timeline, cache: &Cache) -> Vec<Lane> {
    let mut cores = timeline.ran_on(cache);
    cores.retain(|core| !core.threads.is_empty());
    cores.truncate(MOST_CORES);
    let mut longest: Vec<u64> = cores
        .iter()
        .flat_map(|core| core.threads.iter().map(|thread| thread.ns))
        .collect();
    longest.sort_unstable_by(|a, b| b.cmp(a));
    let least = longest.get(MOST_THREADS - 1).copied().unwrap_or(0);
    let mut all = Vec::new();
    for core in &cores {
        all.push(Lane {
            cpu: core.cpu,
            tid: None,
            name: format!("core {}", core.cpu),
        });
        for thread in core.threads.iter().filter(|thread| thread.ns >= least) {
            all.push(Lane {
                cpu: core.cpu,
                tid: Some(thread.tid),
                name: thread_name(timeline, thread.tid),
            });
        }
    }
    // Where several ran equally long.
    all.truncate(MOST_CORES + MOST_THREADS);
    all
}

/// Draws lanes below each other, in the colours of the classes that the threads were in.
pub(super) fn draw(svg: &mut Svg, timeline: &Timeline, lanes: &[Lane], area: &Area) {
    let what = "what ran on each core, and for how much of the time, in the colour of its class";
    svg.text(area.left, area.top - 8.0, Anchor::Start, "small", what);
    // A width in units is a small positive number.
    let columns = (1..=4_000u16).rfind(|n| f64::from(*n) <= (area.right - area.left) * FINE);
    let columns = columns.unwrap_or(1);
    let x = Scale::linear(0.0..f64::from(columns), area.across());
    for (n, lane) in lanes.iter().enumerate() {
        let top = area.top + LANE * n as f64;
        let (bottom, tall) = (top + LANE - 2.0, LANE - 2.0);
        svg.rect("lane", area.left, top, area.right - area.left, tall);
        let shares = timeline.shares(lane.cpu, lane.tid, usize::from(columns));
        let mut below = vec![0.0; shares.len()];
        for (number, class) in timeline.classes.iter().enumerate() {
            let here: Vec<f64> = shares
                .iter()
                .map(|column| column.get(&number).copied().unwrap_or(0.0))
                .map(|share| (share * STEPS).ceil() / STEPS)
                .collect();
            let style = format!("pale {}", colour(timeline, class));
            for (from, until) in stretches(&here, &below) {
                let tall = |share: f64| share.min(1.0) * tall;
                let (low, high) = (tall(below[from]), tall(below[from] + here[from]));
                let (left, right) = (x.at(from as f64), x.at(until as f64));
                svg.rect(&style, left, bottom - high, right - left, high - low);
            }
            for (below, here) in below.iter_mut().zip(here) {
                *below += here;
            }
        }
        let indent = if lane.tid.is_some() { INDENT } else { 0.0 };
        let (left, middle) = (area.left + 3.0 + indent, top + LANE / 2.0 + 3.0);
        svg.text(left, middle, Anchor::Start, "value halo", &lane.name);
    }
}

/// Neighbouring columns with the same values, where the first is not 0: from which to which.
fn stretches(here: &[f64], below: &[f64]) -> Vec<(usize, usize)> {
    let mut all: Vec<(usize, usize)> = Vec::new();
    for (n, pair) in here.iter().zip(below).enumerate() {
        let same = |from: usize| here.get(from).zip(below.get(from)) == Some(pair);
        match all.last_mut() {
            Some((from, until)) if *until == n && same(*from) => *until = n + 1,
            _ if *pair.0 > 0.0 => all.push((n, n + 1)),
            _ => {}
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn columns_alike_are_one_surface() {
        let here = [0.0, 0.5, 0.5, 0.5, 0.0, 1.0];
        let below = [0.0, 0.0, 0.0, 0.5, 0.0, 0.0];
        assert_eq!(stretches(&here, &below), [(1, 3), (3, 4), (5, 6)]);
    }

    #[test]
    fn each_core_is_followed_by_its_threads() {
        let record = crate::ways::tests::record();
        let stage = &crate::ways::stages(&record)[0];
        let lanes = lanes(&stage.timeline, &stage.timeline.caches[0]);
        let names: Vec<&str> = lanes.iter().map(|lane| lane.name.as_str()).collect();
        assert_eq!(names, ["core 1", "thread 7 redis", "thread 8 cron"]);
    }
}
