//! Real programs as the coarse machine runs them: derived figures of recorded runs, window by
//! window. `docs/design/coarse-machine.md` tells what for.

use std::sync::OnceLock;

use indexmap::IndexMap;
use quell_types::units::{Bytes, LINE_BYTES};
use serde::Deserialize;

/// The programs that come with Quell.
const BUILT_IN: &str = include_str!("../../../experiments/smt/programs.toml");
/// Programs that are no recording, made for one kind of contention.
const SYNTHETIC: &str = include_str!("../../../experiments/smt/synthetic.toml");
/// The two caches of a core for which misses are given.
const PRIVATE: [f64; 2] = [32768.0, 262_144.0];

/// Halvings of the smallest size that is given. A curve has a point at each.
const BELOW: i32 = 6;
/// Points of a curve between two that are given.
const BETWEEN: u32 = 4;
/// Misses per instruction below which a program is taken to touch nothing new.
const LEAST: f64 = 1e-9;

/// How often an access misses caches of growing sizes, per instruction, and how long a program
/// takes to touch as many bytes. One follows from the other: an LRU cache that is `bytes` large
/// grows by the line of each miss.
#[derive(Clone, Debug, PartialEq)]
pub struct Curve {
    /// Ascending, the first at size 0. On straight lines between them.
    points: Vec<Point>,
}

#[derive(Clone, Copy, Debug, PartialEq)]
struct Point {
    bytes: f64,
    /// Misses per instruction of a cache of this size.
    misses: f64,
    /// Instructions in which so many bytes are touched.
    instructions: f64,
}

impl Point {
    /// Instructions until the cache has grown by so many bytes, where misses change by `slope` per
    /// byte.
    fn until(self, bytes: f64, slope: f64) -> f64 {
        let before = self.misses.max(LEAST);
        let after = (self.misses + slope * bytes).max(LEAST);
        let lines = bytes / LINE_BYTES as f64;
        // The mean of 1 / misses.
        match (before - after) / before > 1e-6 {
            true => lines * (before / after).ln() / (before - after),
            false => lines / before,
        }
    }

    /// By how many bytes the cache has grown after so many instructions.
    fn after(self, instructions: f64, slope: f64) -> f64 {
        let before = self.misses.max(LEAST);
        let lines = LINE_BYTES as f64;
        let power = -slope * lines * instructions;
        match power > 1e-9 {
            true => before * (1.0 - (-power).exp()) / -slope,
            false => before * lines * instructions,
        }
    }
}

impl Curve {
    /// From misses per instruction at growing sizes, on a straight line over the logarithm of the
    /// size. Below the smallest size the slope of the first two goes on. A larger cache never has
    /// more misses: where figures say so, those of the smaller one count.
    pub(crate) fn new(accesses: f64, given: impl Iterator<Item = (f64, f64)>) -> Self {
        let mut least = accesses;
        let given: Vec<(f64, f64)> = given
            .map(|(bytes, misses)| {
                least = misses.clamp(0.0, least);
                (bytes, least)
            })
            .collect();
        let mut sizes = vec![(0.0, accesses)];
        if let [(small, most), (large, fewest), ..] = given.as_slice() {
            let slope = (most - fewest) / (large / small).log2();
            for halvings in (1..=BELOW).rev() {
                let misses = most + slope * f64::from(halvings);
                sizes.push((small / 2f64.powi(halvings), misses.min(accesses)));
            }
        }
        for two in given.windows(2) {
            let ((small, most), (large, fewest)) = (two[0], two[1]);
            for n in 0..BETWEEN {
                let share = f64::from(n) / f64::from(BETWEEN);
                let bytes = small * (large / small).powf(share);
                sizes.push((bytes, most + (fewest - most) * share));
            }
        }
        sizes.extend(given.last());
        let mut points: Vec<Point> = Vec::with_capacity(sizes.len());
        for (bytes, misses) in sizes {
            let instructions = points.last().map_or(0.0, |last| {
                let grown = bytes - last.bytes;
                last.instructions + last.until(grown, (misses - last.misses) / grown)
            });
            points.push(Point {
                bytes,
                misses,
                instructions,
            });
        }
        Self { points }
    }

    /// The point before the first one that is `beyond`, and by how much misses change per byte
    /// after it: not at all beyond the last one.
    fn part(&self, beyond: impl Fn(&Point) -> bool) -> (Point, f64) {
        let next = self.points.partition_point(|point| !beyond(point)).max(1);
        let low = self.points[next - 1];
        let slope = self.points.get(next).map_or(0.0, |high| {
            (high.misses - low.misses) / (high.bytes - low.bytes)
        });
        (low, slope)
    }

    /// Misses per instruction of a cache of so many bytes.
    #[must_use]
    pub fn misses(&self, bytes: f64) -> f64 {
        let (low, slope) = self.part(|point| point.bytes > bytes);
        low.misses + slope * (bytes - low.bytes)
    }

    /// Instructions in which so many bytes are touched.
    #[must_use]
    pub fn instructions(&self, bytes: f64) -> f64 {
        let (low, slope) = self.part(|point| point.bytes > bytes);
        low.instructions + low.until(bytes - low.bytes, slope)
    }

    /// Bytes that are touched in so many instructions, and misses per instruction of a cache that
    /// is so large.
    #[must_use]
    pub fn touched(&self, instructions: f64) -> (f64, f64) {
        let (low, slope) = self.part(|point| point.instructions > instructions);
        let grown = low.after(instructions - low.instructions, slope);
        (low.bytes + grown, low.misses + slope * grown)
    }
}

/// A window of a program's run. All rates are per instruction.
#[derive(Clone, Debug, PartialEq)]
pub struct Phase {
    /// Accesses to lines of 64 bytes.
    pub accesses: f64,
    /// Those of them that store.
    pub stores: f64,
    /// Misses by size of the cache.
    pub curve: Curve,
    /// Which part of the lines that leave the last cache were written.
    pub written: f64,
}

/// A program, recorded once from beginning to end. All its phases have equally many instructions.
#[derive(Clone, Debug, PartialEq)]
pub struct Program {
    /// Instructions of the whole run.
    pub instructions: f64,
    /// Cycles per instruction where every access hits the first level.
    pub cpi: f64,
    /// Misses of the last level that are under way together, on average.
    pub overlap: f64,
    /// In order. Never empty.
    pub phases: Vec<Phase>,
}

impl Program {
    /// The same with so many times its cycles per instruction without misses, and its misses under
    /// way together.
    #[must_use]
    pub fn scaled(&self, cpi: f64, overlap: f64) -> Self {
        Self {
            cpi: self.cpi * cpi,
            overlap: (self.overlap * overlap).max(1.0),
            ..self.clone()
        }
    }
}

/// Programs by name, in the order of their file.
pub type Programs = IndexMap<String, Program>;

#[derive(Deserialize)]
#[serde(rename_all = "kebab-case")]
struct File {
    quell_programs: u32,
    sizes: Vec<Bytes>,
    program: IndexMap<String, Written>,
}

/// A program as it is written: per 1,000 instructions.
#[derive(Deserialize)]
struct Written {
    instructions: f64,
    cpi: f64,
    overlap: f64,
    phase: Vec<WrittenPhase>,
}

#[derive(Deserialize)]
struct WrittenPhase {
    accesses: f64,
    stores: f64,
    l1: f64,
    l2: f64,
    l3: Vec<f64>,
    written: f64,
}

/// The programs that come with Quell.
#[must_use]
pub fn built_in() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| parse(BUILT_IN).expect("invariant: the programs come with Quell"))
}

/// Programs that come with Quell and are no recording.
#[must_use]
pub fn synthetic() -> &'static Programs {
    static PROGRAMS: OnceLock<Programs> = OnceLock::new();
    PROGRAMS.get_or_init(|| parse(SYNTHETIC).expect("invariant: they come with Quell"))
}

/// Reads a file of programs.
///
/// # Errors
/// What in it is wrong.
pub fn parse(text: &str) -> Result<Programs, String> {
    let file: File = toml::from_str(text).map_err(|e| e.to_string())?;
    if file.quell_programs != 1 {
        return Err(format!(
            "quell-programs = {}: this version reads 1",
            file.quell_programs
        ));
    }
    let sizes: Vec<f64> = file.sizes.iter().map(|size| size.0 as f64).collect();
    let ascending = PRIVATE.iter().chain(&sizes).is_sorted_by(|a, b| a < b);
    if !ascending {
        return Err("sizes: they must ascend from above 256KiB".to_owned());
    }
    let programs = file.program.into_iter().map(|(name, written)| {
        let program = program(&sizes, written).map_err(|why| format!("program.{name}: {why}"))?;
        Ok((name, program))
    });
    programs.collect()
}

fn program(sizes: &[f64], written: Written) -> Result<Program, String> {
    let positive = |name: &str, value: f64| {
        let fits = value.is_finite() && value > 0.0;
        fits.then_some(())
            .ok_or_else(|| format!("{name} = {value}: it must be above 0"))
    };
    positive("instructions", written.instructions)?;
    positive("cpi", written.cpi)?;
    positive("overlap", written.overlap)?;
    if written.phase.is_empty() {
        return Err("it needs a phase".to_owned());
    }
    let mut phases = Vec::new();
    for phase in written.phase {
        positive("accesses", phase.accesses)?;
        if phase.l3.len() != sizes.len() {
            return Err(format!(
                "l3 has {} figures for {} sizes",
                phase.l3.len(),
                sizes.len()
            ));
        }
        let private = PRIVATE.into_iter().zip([phase.l1, phase.l2]);
        let points = private.chain(sizes.iter().copied().zip(phase.l3));
        let points = points.map(|(bytes, misses)| (bytes, misses / 1e3));
        phases.push(Phase {
            accesses: phase.accesses / 1e3,
            stores: phase.stores / 1e3,
            curve: Curve::new(phase.accesses / 1e3, points),
            written: phase.written.clamp(0.0, 1.0),
        });
    }
    Ok(Program {
        instructions: written.instructions,
        cpi: written.cpi,
        overlap: written.overlap.max(1.0),
        phases,
    })
}
