//! A lattice-Boltzmann stream like SPEC's lbm, with two grids of 19 distributions. A step reads a
//! line of each in one grid and lets the particles collide. They move to the other grid, where it
//! writes a line of each. After a sweep the grids change places. So there are 38 streams at
//! once, half of them written. Hardware prefetchers and DRAM rows are made for fewer.
//!
//! The method is that of Qian, d'Humières and Lallemand (Europhysics Letters 17, 1992): D3Q19, one
//! relaxation time.
//! - The eight numbers of a line belong to eight separate lattices, so that neighbours are whole
//!   lines away.
//! - A grid is a torus that is one line longer per row than it is wide (helical boundaries).
//! - Mass is conserved to rounding, which shows that every line is read and written once.
//! - SPEC's lbm keeps a cell's distributions together and has obstacles. Here each distribution has
//!   an array, and there are no obstacles.

use quell_policy::workload::Pages;
use quell_types::units::{Bytes, LINE_BYTES};

use crate::memory::{Buffer, Granted};
use crate::{Error, arch};

/// How many distributions a cell has.
const DIRECTIONS: usize = 19;
/// How many numbers a line has.
const LANES: usize = LINE_BYTES as usize / size_of::<f64>();

/// A line of a distribution: one cell of eight lattices.
type Line = [f64; LANES];
/// All distributions of a cell of eight lattices.
type Cell = [Line; DIRECTIONS];

/// Where the particles of a distribution move to, and their share of a fluid at rest.
const MOVES: [([i8; 3], f64); DIRECTIONS] = {
    const AXIS: f64 = 1.0 / 18.0;
    const DIAGONAL: f64 = 1.0 / 36.0;
    [
        ([0, 0, 0], 1.0 / 3.0),
        ([1, 0, 0], AXIS),
        ([-1, 0, 0], AXIS),
        ([0, 1, 0], AXIS),
        ([0, -1, 0], AXIS),
        ([0, 0, 1], AXIS),
        ([0, 0, -1], AXIS),
        ([1, 1, 0], DIAGONAL),
        ([-1, -1, 0], DIAGONAL),
        ([1, -1, 0], DIAGONAL),
        ([-1, 1, 0], DIAGONAL),
        ([1, 0, 1], DIAGONAL),
        ([-1, 0, -1], DIAGONAL),
        ([1, 0, -1], DIAGONAL),
        ([-1, 0, 1], DIAGONAL),
        ([0, 1, 1], DIAGONAL),
        ([0, -1, -1], DIAGONAL),
        ([0, 1, -1], DIAGONAL),
        ([0, -1, 1], DIAGONAL),
    ]
};
/// The inverse of the relaxation time: that of SPEC's lbm.
const OMEGA: f64 = 1.95;

/// Two grids, and the progress of the sweep.
#[derive(Debug)]
pub struct Lattice {
    buffer: Buffer,
    collide: fn(&mut Cell),
    /// How many lines an array has.
    lines: usize,
    /// How many lines further each distribution's particles move, below `lines`.
    shift: [usize; DIRECTIONS],
    /// The line that is read next.
    at: usize,
    /// The grid that is read: 0 or 1.
    from: usize,
}

impl Lattice {
    /// Takes both grids in `size` bytes together, rounded down to whole lines of the 38 arrays.
    /// Each array has at least one line. The fluid is at rest, and a little denser in some places.
    ///
    /// # Errors
    /// Those of [`Buffer::new`].
    pub fn new(size: Bytes, pages: Pages) -> Result<Self, Error> {
        let arrays = 2 * DIRECTIONS;
        let step = arrays as u64 * LINE_BYTES;
        let buffer = Buffer::new(Bytes(size.0.max(step)), pages)?;
        let lines = buffer.len() / LINE_BYTES as usize / arrays;
        let width = (1..lines).take_while(|w| w * w * w <= lines).last();
        let row = isize::try_from(width.unwrap_or(1)).unwrap_or(1);
        let all = isize::try_from(lines).unwrap_or(isize::MAX);
        let shift = MOVES.map(|([x, y, z], _)| {
            let by = isize::from(x) + (isize::from(y) + isize::from(z) * row) * row;
            by.rem_euclid(all).unsigned_abs()
        });
        let lattice = Self {
            buffer,
            collide: arch::widest::<Collision>(),
            lines,
            shift,
            at: 0,
            from: 0,
        };
        for line in 0..lines {
            for (direction, (_, share)) in MOVES.iter().enumerate() {
                let dense = 1.0 + 0.01 * (line % 16) as f64 / 16.0;
                // SAFETY: as in `run`.
                unsafe {
                    lattice
                        .line(0, direction, line)
                        .write([share * dense; LANES])
                };
            }
        }
        Ok(lattice)
    }

    /// A line of an array. It is inside the buffer for a grid below 2, a direction below 19 and a
    /// line below `lines`.
    fn line(&self, grid: usize, direction: usize, line: usize) -> *mut Line {
        let index = (grid * DIRECTIONS + direction) * self.lines + line;
        self.buffer.start().cast::<Line>().wrapping_add(index)
    }

    /// Does exactly `steps` steps, each of a line of every array.
    pub fn run(&mut self, steps: u64) {
        for _ in 0..steps {
            let mut cell = [[0.0; LANES]; DIRECTIONS];
            for (direction, line) in cell.iter_mut().enumerate() {
                // SAFETY: a line of ours (see `line`), aligned to 64 bytes since the buffer is, and
                // touched.
                *line = unsafe { self.line(self.from, direction, self.at).read() };
            }
            (self.collide)(&mut cell);
            for (direction, line) in cell.iter().enumerate() {
                let to = self.at + self.shift[direction];
                let to = if to < self.lines { to } else { to - self.lines };
                // SAFETY: as above; both terms of `to` are below `lines`.
                unsafe { self.line(1 - self.from, direction, to).write(*line) };
            }
            self.at += 1;
            if self.at == self.lines {
                self.at = 0;
                self.from = 1 - self.from;
            }
        }
    }

    /// Program bytes of one step: 19 lines read and 19 written.
    #[must_use]
    pub fn step_bytes(&self) -> u64 {
        2 * DIRECTIONS as u64 * LINE_BYTES
    }

    /// The pages that the grids lie in.
    #[must_use]
    pub fn granted(&self) -> Granted {
        self.buffer.granted()
    }
}

/// The collision, as a loop that gains from wide registers.
struct Collision;

impl arch::Wide for Collision {
    type On = Cell;

    #[inline(always)]
    fn run(on: &mut Cell) {
        collide(on);
    }
}

/// Relaxes a cell's distributions towards those of a fluid of the same density and velocity.
#[inline(always)]
fn collide(cell: &mut Cell) {
    let mut density = [0.0; LANES];
    let mut flow = [[0.0; LANES]; 3];
    for (line, (to, _)) in cell.iter().zip(MOVES) {
        for lane in 0..LANES {
            density[lane] += line[lane];
            for (flow, to) in flow.iter_mut().zip(to) {
                flow[lane] += f64::from(to) * line[lane];
            }
        }
    }
    let mut energy = [0.0; LANES];
    for lane in 0..LANES {
        for flow in &mut flow {
            flow[lane] /= density[lane];
            energy[lane] += 1.5 * flow[lane] * flow[lane];
        }
    }
    for (line, (to, share)) in cell.iter_mut().zip(MOVES) {
        for lane in 0..LANES {
            let along = 3.0
                * (f64::from(to[0]) * flow[0][lane]
                    + f64::from(to[1]) * flow[1][lane]
                    + f64::from(to[2]) * flow[2][lane]);
            let rest = share * density[lane] * (1.0 + along * (1.0 + 0.5 * along) - energy[lane]);
            line[lane] += OMEGA * (rest - line[lane]);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The sum of all numbers of a grid.
    fn mass(lattice: &Lattice, grid: usize) -> f64 {
        let mut sum = 0.0;
        for direction in 0..DIRECTIONS {
            for line in 0..lattice.lines {
                // SAFETY: a line of the buffer.
                sum += unsafe { lattice.line(grid, direction, line).read() }
                    .iter()
                    .sum::<f64>();
            }
        }
        sum
    }

    #[test]
    fn directions_are_opposite_pairs_and_all_shares_are_a_whole() {
        for axis in 0..3 {
            assert_eq!(
                MOVES.iter().map(|(to, _)| i32::from(to[axis])).sum::<i32>(),
                0
            );
        }
        let whole: f64 = MOVES.iter().map(|(_, share)| share).sum();
        assert!((whole - 1.0).abs() < 1e-12, "{whole}");
    }

    #[test]
    fn nothing_of_the_fluid_is_lost_or_made_however_long_it_runs() {
        let mut lattice = Lattice::new(Bytes(1 << 18), Pages::Base).unwrap();
        let before = mass(&lattice, 0);
        let sweeps = 51;
        lattice.run(sweeps * lattice.lines as u64);
        assert_eq!((lattice.at, lattice.from), (0, 1));
        let after = mass(&lattice, 1);
        assert!((after / before - 1.0).abs() < 1e-9, "{before} and {after}");
        // It moved: what was denser at first is no longer where it was.
        // SAFETY: lines of the buffer.
        let [first, dense] = [0, 15].map(|at| unsafe { lattice.line(1, 1, at).read() }[0]);
        assert!((dense / first - 1.0).abs() < 0.009, "{first} and {dense}");
    }

    #[test]
    fn a_step_writes_one_line_of_every_array_of_the_other_grid() {
        let mut lattice = Lattice::new(Bytes(1 << 18), Pages::Base).unwrap();
        let other = |lattice: &Lattice| -> Vec<usize> {
            (0..DIRECTIONS)
                .map(|direction| {
                    let written = |line: &usize| {
                        // SAFETY: a line of the buffer. Untouched lines are zero except for a byte
                        // a page.
                        let line = unsafe { lattice.line(1, direction, *line).read() };
                        line[1] > 0.01
                    };
                    (0..lattice.lines).filter(written).count()
                })
                .collect()
        };
        lattice.run(1);
        assert_eq!(other(&lattice), [1; DIRECTIONS]);
        lattice.run(6);
        assert_eq!(other(&lattice), [7; DIRECTIONS]);
        assert_eq!(7 * lattice.step_bytes(), 7 * 38 * 64);
    }

    #[test]
    fn the_smallest_is_a_cell_of_its_own() {
        let mut lattice = Lattice::new(Bytes(64), Pages::Base).unwrap();
        assert_eq!(lattice.lines, 1);
        let before = mass(&lattice, 0);
        lattice.run(10);
        assert!((mass(&lattice, 0) / before - 1.0).abs() < 1e-12);
    }
}
