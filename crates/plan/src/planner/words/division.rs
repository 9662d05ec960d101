//! Sentences about parts of caches and DRAM banks.

use quell_types::cpuset::CpuSet;
use quell_types::ids::REST;
use quell_types::mechanism::Mechanism;
use quell_types::partition::Mask;
use quell_types::units::{Bytes, Rate, Share};

use super::super::allot::Want;
use super::one_or;

pub const EXEMPT_IS_NOT_CONFINED: &str =
    "an exempt group is never confined, so that no part can be its own";
pub const CACHE_IS_OFF: &str =
    "the policy switches cache partition off (mechanisms.cache = \"none\")";
pub const KERNELS_WORD: &str = "the kernel reports that it can; once it has locked, other lines are swept through the cache, \
    and the run is refused if locked lines are gone";
pub const WORK_ON_ITS_CPUS: &str =
    "kernel threads and interrupts there work for it: they leave the ways of other tasks alone";
pub const LEFT_TO_OTHERS: &str =
    "ways that it does not need are left to other groups, and come back only after it has missed";
pub const STAYS_UNTIL_REPLACED: &str =
    "lines that other tasks left there stay until they are replaced";
pub const USED_UP: &str = "a program that has used up the pages of its colours gets other pages, reported (coloured = \"fail\" refuses them)";
pub const KERNEL_USES_ALL_NODES: &str = "the kernel takes memory for itself from any node (page tables, buffers), and khugepaged may put \
    pages of a program together on another one; pages of files that were in memory before stay where they are";
pub const LOCKED_OUT_OF_ALL: &str = "reserve.cache: the ways of all other tasks leave these out, so that nothing is filled over \
    what is locked";
pub const NOBODY_MOUNTED_IT: &str = "resctrl is not mounted yet; mounted so, the kernel divides ways for code and data \
    separately, and all other tasks get the same ways for both";
pub const MOUNTED_WITHOUT: &str = "resctrl is mounted without separate ways for code and data, and mounting it again changes no option";
pub const UNMOUNT_IT: &str = "unmount it where no other tool uses it (umount /sys/fs/resctrl): Quell then mounts it so while the \
    plan holds; or mount it so yourself (-o cdp, for L2 cdpl2)";
pub const NOTHING_COUNTS_MISSES: &str =
    "ways that follow the misses need the counts of resctrl, which is not mounted";
pub const BY_REGISTERS: &str =
    "the processor's registers (/dev/cpu/N/msr): CPUs, not tasks, have classes";
pub const TAKES_RESCTRL: &str = "it needs resctrl, and ways are given through registers";
pub const SAME_FOR_CODE_AND_DATA: &str =
    "ways that follow the misses are the same for code and data";
pub const NOBODY_RESERVES_WAYS: &str = "no critical group reserves ways of a cache";

sentences! {
    classes_are_of_cpus(group: &str)
        "registers give ways to CPUs, not to tasks, and group {group} has no CPUs to itself: other tasks would fill its \
         ways from there";
    part_is_too_small(group: &str, part: Bytes, needed: Bytes, profile: &str, enough: u32, kind: &str)
        "group {group}: its part of {part} is smaller than the {needed} that its program worked on alone (profile \
        {profile}); {enough} {kind} would hold that";
    nothing_tells(group: &str, part: Bytes)
        "group {group}: with a part that is too small a program is slower than with none, and nothing tells whether {part} \
        is enough; `quell profile -- PROGRAM` does";
    pages_lie_anywhere(group: &str, needed: Bytes, profile: &str, part: Bytes, share: Share, enough: u32, left: Share)
        "group {group}: its part of {part} is too small for the {needed} that its program worked on alone (profile \
        {profile}): pages lie anywhere, so that about {share} of them share a set with more lines than it has ways; \
        with {enough} ways, {left}";
    part_misses_its_goal(group: &str, count: u32, speed: Share, goal: &str, profile: &str, more: &str)
        "group {group}: with {count} ways its program had {speed} of its speed alone, and the sweep in profile {profile} \
        asked for more ({goal}){more}";
    ways_kept_it(enough: u32) "; {enough} ways were enough";
    coloured_changes_nothing(group: &str)
        "group {group}: `coloured` changes nothing, since no page colours are chosen";
    all_are_given_away(count: u32, kind: &str)
        "all {count} {kind} are given away: outside of the groups no task runs on a simulated machine";
    private_came_to(group: &str, part: &str, kind: &str)
        "group {group}: \"private\" came to {part} of the {kind}, as many as are left for all other tasks; give a number \
         to change it";
    devices_fill(common: Mask, level: u32, shareable: Mask)
        "devices fill {common} of L{level}, too, whatever masks say: name ways without {shareable}";
    exempt_uses_all(group: &str, kind: &str)
        "group {group} is exempt, so it is not kept out: it uses all {kind}";
    exempt_uses_the_nodes(group: &str)
        "group {group} is exempt, so it would use the same memory nodes: a group with fewer colours that keeps its \
         neighbours is worse off than with all colours";
    published_map(name: &str)
        "the published map {name} is believed: with other memory modules or firmware these are other banks";
    has_memory_of(who: &str, memory: Bytes, nodes: &CpuSet)
        "{who}: {memory} of memory, on nodes {nodes}; where that is full, memory of these tasks is reclaimed, and in the end \
         the kernel kills among them";
    several_caches(n: usize, level: u32, sets: &str)
        "there are {n} caches of L{level} (CPUs {sets}): the masks hold in each of them, and a task that runs on the \
         CPUs of one fills no other";
    some_caches(n: usize, level: u32, sets: &str, own: &CpuSet)
        "there are {n} caches of L{level} (CPUs {sets}): the masks hold in those of CPUs {own}, and nothing changes in the \
         others";
    leave_of_the_other(who: &str, kind: &str, part: &str, left: &str, what: &str)
        "{who}: {kind} {part} leave {left} parts of {what}, which share address bits with them";
    given_as(mechanism: Mechanism, why: &str)
        "sizes and shares of the cache are given as {mechanism}: {why}";
    in_terms_of(form: Mechanism, given: Mechanism)
        "it is written in terms of {form}, and mechanisms.cache is \"{given}\"";
    not_together(one: Mechanism, other: Mechanism, key: &str, why: &str)
        "{one} and {other} ({key}) cannot be had together on this machine: {why}";
    does_not_tell(mechanism: Mechanism)
        "this machine does not report what {mechanism} divide";
    joint_does_not_fit(banks: &str, cache: &str)
        "cache sets and DRAM banks share address bits here, so that a group has the same joint colours of both, and {banks} \
         does not fit {cache}";
    one_region(cpus: &str, group: &str)
        "the kernel locks one region in a cache, and that of CPUs {cpus} has the one of group {group}";
    locked_in_one(n: usize, level: u32, sets: &str)
        "what is locked stays in one cache, and the group's CPUs have {n} of L{level} (CPUs {sets})";
    not_apart(kind: &str)
        "the {kind} cannot be given to code and data separately here";
    not_locked_beside(key: &str)
        "nothing can be locked while code and data have separate ways ({key})";
    one_line_moves(one: &str, other: &str, level: u32)
        "groups {one} and {other} both reserve ways of L{level}, and the ways can follow the misses of one group only";
    not_side_by_side(group: &str, own: Mask, level: u32, left: Mask)
        "the ways of group {group} ({own} of L{level}) and those of other groups ({left}) are not side by side, so that \
         ways that it gives back would leave a hole";
    at_first_and_at_most(group: &str, own: Mask, level: u32, tolerated: Rate, others: &str)
        "group {group}: its {own} of L{level} are what it has at first and at most; ways without which it draws at most \
         {tolerated} more from memory are left to {others}, and come back as soon as it draws more";
    has_holes(mask: u64, kind: &str)
        "the mask {mask:#x} has holes, and the {kind} are given in one piece here";
    no_level(kind: &str, levels: &str)
        "no {kind} can be given here, those of {levels} can";
    at_least(least: u32, kind: &str)
        "a part has at least {least} {kind} here";
    another_level(what: &str, level: u32, asked: u8)
        "{what} in L{level} on this machine, not in L{asked}";
    comes_to(group: &str, asked: &str, n: u32, of: u32, kind: &str, each: Bytes)
        "group {group}: {asked} comes to {n} of the {of} {kind}, {each} each";
}

/// `group web`, or unmatched tasks.
pub fn who(group: &str) -> String {
    match group {
        REST => "unmatched tasks (group rest)".to_owned(),
        _ => format!("group {group}"),
    }
}

/// `a, b and c`.
pub fn listed(names: &[String]) -> String {
    match names {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

pub fn too_little_left(
    taken: usize,
    of: u32,
    kind: &str,
    nothing: bool,
    others: &[String],
) -> String {
    let left = if nothing {
        "nothing is"
    } else {
        "too little is"
    };
    let others: Vec<String> = others.iter().map(|g| who(g)).collect();
    let others = listed(&others);
    format!("the reserves take {taken} of the {of} {kind}, and {left} left for {others}")
}

pub fn stay_unused(ways: &CpuSet, level: u32) -> String {
    let (s, stay) = if ways.len() == 1 {
        ("", "stays")
    } else {
        ("s", "stay")
    };
    let ways = ways.brief();
    format!("way{s} {ways} of L{level} {stay} unused: a mask has no holes here")
}

/// How much too large a claim is, what is left, and which groups have the rest.
pub fn takes_too_much(takes: &str, left: usize, in_pieces: bool, others: &[String]) -> String {
    let left = match left {
        0 => "none is".to_owned(),
        n => format!("{n} {}", one_or(n, "is", "are")),
    };
    let row = if in_pieces { ", not in one piece" } else { "" };
    let others = match others {
        [] => String::new(),
        _ => format!(" (others: {})", others.join(", ")),
    };
    format!("it takes {takes}, and {left} left{row}{others}")
}

pub fn has_of(group: &str, want: &Want) -> String {
    match want {
        Want::Named(named) => format!("{group} {}", named.brief()),
        Want::Count(n) | Want::Top(n) => format!("{group} {n}"),
        Want::Even => format!("{group} private ones"),
    }
}

/// A claim as the policy writes it.
pub fn as_written(want: &Want) -> String {
    match want {
        Want::Named(list) => format!("\"{list}\""),
        Want::Count(n) | Want::Top(n) => n.to_string(),
        Want::Even => "\"private\"".to_owned(),
    }
}

/// Why a group that reserves nothing is kept to what the `owners` leave.
pub fn keeps_to_the_rest(group: &str, owners: &[String], kind: &str) -> String {
    let keeps = match group {
        REST => "tasks of no group, your shell included, keep to ",
        _ => "it reserves none: ",
    };
    let left = match owners {
        [] => "is not locked".to_owned(),
        _ => format!(
            "group {} leave{}",
            listed(owners),
            one_or(owners.len(), "s", "")
        ),
    };
    format!("{keeps}what {left} of the {kind}")
}

/// Why a group has its part.
pub fn kept_to_others(key: &str, shared: &[String], kind: &str) -> String {
    let too = match shared {
        [] => String::new(),
        _ => format!(
            ", of which the policy gives some to {}, too",
            listed(shared)
        ),
    };
    format!("{key}{too}: all other tasks are kept to other {kind}")
}

/// Why colours that other groups have, too, protect nothing.
pub fn keeps_neighbours(groups: &[String], kind: &str) -> String {
    format!(
        "group{} {} may use these {kind} and more of them: a part that keeps its neighbours can be slower than no part",
        one_or(groups.len(), "", "s"),
        listed(groups)
    )
}

pub fn large_pages(groups: &[String], large: u32, all: u32, kind: &str) -> String {
    let names: Vec<String> = groups.iter().map(|g| who(g)).collect();
    let (names, s) = (listed(&names), one_or(names.len(), "s", ""));
    format!("{names} use{s} pages of 4 KiB: large pages have {large} of the {all} {kind}")
}

pub fn too_many_classes(used: usize, locks: bool, most: u32) -> String {
    let locks = if locks { " and one to lock with" } else { "" };
    format!(
        "the plan takes {used} classes of service, that of unmatched tasks (group rest) included{locks}, and the hardware has \
         {most}"
    )
}

pub fn joint(bits: usize, joint: u32, banks: u32, sets: u32) -> String {
    let s = one_or(bits, "", "s");
    format!(
        "cache sets and DRAM banks share {bits} address bit{s}: divided together they come to {joint} joint colours, instead \
         of {banks} colours of banks and {sets} of sets"
    )
}

pub fn not_here(missing: &CpuSet, count: u32, kind: &str) -> String {
    let (are, missing) = (one_or(missing.len(), "is", "are"), missing.brief());
    format!("{missing} {are} not here: there are {count} {kind}")
}
