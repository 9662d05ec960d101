//! Sentences about hoards of page frames.

use quell_types::units::{Bytes, Nanos, Share};

pub const EXCLUDES: &str =
    "exclusion comes first: a group with fewer colours that keeps its neighbours is worse off";
pub const NOT_PROMISED: &str = "what other programs hold already stays theirs; pages of files, shared pages, page tables and the \
    reserve have any colour";
pub const NO_LARGE_PAGES: &str =
    "while frames are held, hardly any program gets large pages: they need frames of all colours";

pub const VACATED: &str = "hoard.move: its pages in reserved colours are moved out of them, while its threads are stopped";
pub const NOTHING_TO_VACATE: &str =
    "hoard.move changes nothing: no best-effort group is without reserved colours";

sentences! {
    moved(key: &str)
        "{key}: its pages are moved into frames that are held for it, while its threads are stopped";
    nothing_is_left(reserve: Bytes, memory: Bytes)
        "{reserve} of {memory} are to stay free for other programs: nothing is left to hold";
    one_hoard(other: &str)
        "one hoard holds frames at a time, and that of {other} does already";
    holds_too_little(own: usize, all: u32, most: Bytes, least: Bytes)
        "{own} of the {all} colours come to {most} outside of the reserve and within the limit, and the group needs {least}";
    at_most(most: Bytes, own: usize, all: u32)
        "at most {most} of memory in {own} of {all} colours are held for the groups that reserve them; all other programs \
         together lose as much";
    not_sorted(reserve: Bytes)
        "{reserve} of free memory stay for all programs and are not sorted: a program that uses them gets any colour";
    limited(limit: Bytes)
        "hoard.limit: at most {limit} are held at any time; frames of these colours beyond that stay free for any program";
    vacates(group: &str, pace: Share, longest: Nanos)
        "group {group}: each of its processes is stopped for at most {pace} of the time, about {longest} each, until its pages \
         have left the reserved colours (hoard.move); it loses large pages that have both kinds of colours";
    spills(group: &str)
        "group {group}: when no frames of its colours are held any more, its pages stay in others, reported \
         (coloured = \"fail\" ends the run)";
    fails(group: &str)
        "group {group}: when no frames of its colours are held any more, the run ends (coloured = \"fail\")";
}
