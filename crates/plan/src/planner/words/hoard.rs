//! Sentences about hoards of page frames.

use quell_types::units::{Bytes, Nanos, Share};

use super::division::listed;
use super::one_or;

pub const EXCLUDES: &str =
    "exclusion comes first: a group with fewer colours that keeps its neighbours is worse off";
pub const NOT_PROMISED: &str = "what other programs hold already stays theirs; pages of files, shared pages, page tables and the \
    reserve have any colour";
pub const NOT_INDEPENDENT: &str = "cache sets and DRAM banks share address bits here, so that some of their colours have no page in \
    common";
pub const NO_LARGE_PAGES: &str =
    "while frames are held, hardly any program gets large pages: they need frames of all colours";

pub const UNHELD: &str = "hoard.limit is 0: no frames are held, so that any program gets frames of these colours, too; a part that \
    keeps its neighbours protects nothing, and can be slower than no part";
pub const MOVED_BACK: &str =
    "no frames are held (hoard.limit is 0), so that pages that are moved out would come back";

pub const VACATED: &str = "hoard.move: its pages in reserved colours are moved out of them, while its threads are stopped";
pub const NOTHING_TO_VACATE: &str =
    "hoard.move changes nothing: no best-effort group is without reserved colours";

sentences! {
    moved(key: &str)
        "{key}: its pages are moved into frames that are held for it, while its threads are stopped";
    moved_unheld(key: &str)
        "{key}: its pages are moved into free frames, while its threads are stopped";
    nothing_is_left(reserve: Bytes, memory: Bytes)
        "{reserve} of {memory} are to stay free for other programs: nothing is left to hold";
    too_many_colours(sets: u32, banks: u32, most: u32)
        "{sets} colours of cache sets and {banks} of DRAM banks make more combined colours than the {most} that a hoard \
         distinguishes";
    at_most(most: Bytes, own: usize, all: usize)
        "at most {most} of memory in {own} of {all} colours are held for the groups that reserve them; all other programs \
         together lose as much";
    has_combined(group: &str, parts: &str, own: usize, all: usize, most: Bytes)
        "group {group}: {parts} are {own} of {all} combined colours, at most {most}";
    unused(most: Bytes, colours: usize)
        "of what is held, at most {most} in {colours} combined colours no program can use: their sets or their banks are \
         reserved, and no group may use both";
    has_the_rest(kind: &str)
        "; of the {kind} it has those that no group reserves";
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
    drifts(group: &str)
        "group {group}: its memory is not locked. Whenever the kernel compacts memory its pages get other frames, and are \
         moved again: group.{group}.paging.locked = true keeps them in place";
    fails(group: &str)
        "group {group}: when no frames of its colours are held any more, the run ends (coloured = \"fail\")";
}

pub fn holds_too_little(
    own: usize,
    all: usize,
    most: Bytes,
    groups: &[String],
    least: Bytes,
) -> String {
    let (s, needs) = (
        one_or(groups.len(), "", "s"),
        one_or(groups.len(), "needs", "need"),
    );
    format!(
        "{own} of the {all} colours come to {most} outside of the reserve and within the limit, and group{s} {} {needs} {least}",
        listed(groups)
    )
}
