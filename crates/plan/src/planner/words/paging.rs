//! Sentences about locked memory and the size of pages.

use quell_types::units::Bytes;

pub const LOCKED: &str = "mlockall for all that it maps: what was touched stays in memory";
pub const FILLED: &str =
    "mlockall for all that it maps: memory is there before a program touches it, without a fault";
pub const UNTIL_FOUND: &str = "a process that its programs fork or execute locks nothing until it is found, which takes about \
    a second";
pub const NEVER_LARGER: &str =
    "transparent huge pages are off for its programs and what these start (PR_SET_THP_DISABLE)";
pub const COLLAPSED: &str = "as soon as half of 2 MiB is in memory, the kernel is asked for one page (MADV_COLLAPSE): before a \
    measurement, and every second";
pub const WHERE_FREE: &str = "the kernel finds no large page where memory is fragmented, and new memory has small ones until it \
    is found";
pub const PREFAULT_NEEDS_LOCKED: &str =
    "the kernel fills what a program maps ahead of its first touch only where that is locked";
pub const EXEMPT: &str = "an exempt group is not changed";
pub const SMALL_FOR_LAUNCHED: &str = "a program that runs keeps the large pages that it has, so only a launched one is kept \
    from them";
pub const LAUNCH_IT: &str = "launch it (`command`), and leave `match` out";

sentences! {
    cannot_be_locked(why: &str)
        "its programs cannot be made to lock their memory: {why}";
    no_large_pages(why: &str)
        "there are no pages of 2 MiB: {why}";
    other_large_pages(size: Bytes)
        "the large pages of this kernel have {size}";
    limit_cannot_be_kept(most: Bytes)
        "locked memory cannot be reclaimed: above limit.memory ({most}) the group would sleep for good, as it may not be killed";
    too_few_colours(large: u32, small: u32, of: &str)
        "pages of 2 MiB have {large} of the {small} colours of {of}: they cannot be kept to the group's";
    fills_all_it_maps(group: &str)
        "group {group}: prefault fills whatever its programs map, used or not; a program that maps much more than it uses needs as much memory";
}
