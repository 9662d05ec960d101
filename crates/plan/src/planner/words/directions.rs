//! Sentences about budgets for each direction of traffic.

use crate::plan::Direction;

pub const HARDWARE_KNOWS_NONE: &str =
    "the hardware delays requests to memory whatever their direction";
pub const NOT_POOLED: &str = "budgets of reads and writes are not pooled: a CPU that is stopped for one direction would \
    hold back what it has left of the other";
pub const NOT_MOVED: &str =
    "the loop around a target moves one budget of a CPU, not one for each direction";
pub const TIME_HAS_NONE: &str =
    "CPU time does not show the direction of traffic (regulator.meter = \"time\")";
pub const NONE_COUNTS: &str =
    "only hardware counters count reads and writes separately, and none counts on this machine";
pub const MAY_GO_UNCOUNTED: &str = "what is stored past the caches may be counted by neither event";

sentences! {
    only_the_regulator(why: &str)
        "only the regulator limits reads and writes separately: {why}";
    uncounted(on: &str)
        "only hardware counters count reads and writes separately, and on {on} lines that are written back are not counted";
    leaves_open(direction: Direction)
        "nothing limits what is {direction}";
}
