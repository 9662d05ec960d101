//! Which programs have frames of some colours: a walk over the memory of all processes. Nothing is
//! changed.
//!
//! It reads eight bytes for each page that a process has in memory, and asks the kernel which pages
//! these are (`PAGEMAP_SCAN`). Before Linux 6.7 it reads eight bytes for each page of the address
//! space. A process that ends meanwhile has nothing, and one that may not be read is counted.
//! Kernel threads have no memory of their own.

use std::collections::hash_map::Entry;
use std::collections::{BTreeMap, BTreeSet, HashMap};

use quell_control::settling::RightFrames;
use quell_kernel::error::{Error, Result};
use quell_kernel::maps::{self, Backing};
use quell_kernel::pagemap::{Page, PageFlags, Pagemap, Usage};
use quell_kernel::root::Files;
use quell_kernel::stat::Stat;
use quell_kernel::{procfs, rt};
use quell_record::owners::{FrameOwners, Mapped, Owner, Uses};
use quell_types::cpuset::CpuSet;
use quell_types::ids::GroupId;
use quell_types::partition::Colouring;
use quell_types::units::{Bytes, Nanos};

use super::{census, placement};

/// How often something else is done meanwhile.
const EVERY: Nanos = Nanos::millis(20);
/// Pages after which it is asked whether that is due.
const AT_ONCE: u64 = 1 << 14;
/// In place of a program: the page of zeroes, which is nobody's.
const ZEROES: usize = usize::MAX;

/// What is asked.
#[derive(Clone, Debug)]
pub struct Asked {
    /// How frames have colours.
    pub colouring: Colouring,
    /// The colours.
    pub colours: CpuSet,
    /// The process that holds frames of them, and how much it holds.
    pub keeper: Option<(u32, Bytes)>,
    /// The groups of processes, by number.
    pub groups: BTreeMap<u32, GroupId>,
    /// The groups that reserve the colours.
    pub reserving: BTreeSet<GroupId>,
}

impl Asked {
    /// Frames of these colours, where nothing is known of keepers and groups.
    #[must_use]
    pub const fn new(colouring: Colouring, colours: CpuSet) -> Self {
        Self {
            colouring,
            colours,
            keeper: None,
            groups: BTreeMap::new(),
            reserving: BTreeSet::new(),
        }
    }
}

struct Walk<'a> {
    files: &'a dyn Files,
    right: RightFrames,
    page: u64,
    flags: Option<PageFlags>,
    /// Frames that more than one process maps, with the last program that was counted for them.
    several: HashMap<u64, usize>,
    /// Bytes in frames of files that some process maps. Each counts once.
    files_bytes: u64,
    /// The number of the program whose processes are read.
    program: usize,
    mapped: Mapped,
    /// Pages in memory, and those of them whose frame the kernel shows.
    seen: (u64, u64),
    /// What is done meanwhile, and when next.
    beat: &'a mut dyn FnMut(),
    next_beat: Nanos,
}

impl Walk<'_> {
    fn page(&mut self, page: Page) -> Result<()> {
        self.seen.0 += u64::from(page.is_present());
        if self.seen.0.is_multiple_of(AT_ONCE) {
            self.beat();
        }
        self.seen.1 += u64::from(page.is_present() && page.frame() != 0);
        if !page.is_present() || !self.right.has(page.frame()) {
            return Ok(());
        }
        let mut first = true;
        if !page.is_exclusive() {
            match self.several.entry(page.frame()) {
                Entry::Occupied(of) if [self.program, ZEROES].contains(of.get()) => return Ok(()),
                Entry::Occupied(mut of) => {
                    of.insert(self.program);
                    first = false;
                }
                Entry::Vacant(of) => {
                    let flags = self.flags.as_ref().map(|flags| flags.of(page.frame()));
                    if flags.transpose()?.is_some_and(|flags| flags.is_zero_page()) {
                        of.insert(ZEROES);
                        return Ok(());
                    }
                    of.insert(self.program);
                }
            }
        }
        let bytes = match (page.is_of_file(), page.is_exclusive()) {
            (true, _) => &mut self.mapped.files_bytes,
            (false, true) => &mut self.mapped.private_bytes,
            (false, false) => &mut self.mapped.shared_bytes,
        };
        *bytes += self.page;
        if page.is_of_file() && first {
            self.files_bytes += self.page;
        }
        Ok(())
    }

    /// Goes through the memory of a process. Whether it may be read.
    fn process(&mut self, pid: u32) -> Result<bool> {
        let gone = |files: &dyn Files| {
            procfs::stat(files, pid).is_ok_and(|stat| stat.is_none_or(|stat| stat.leaving()))
        };
        let opened = Pagemap::open(self.files, &pid.to_string());
        let (pagemap, mappings) = match (opened, maps::of(self.files, pid)) {
            (Ok(pagemap), Ok(mappings)) => (pagemap, mappings.unwrap_or_default()),
            _ => return Ok(gone(self.files)),
        };
        for mapping in mappings {
            // Such a page is no program's.
            if mapping.backing == Backing::Kernel {
                continue;
            }
            placement::pages(&pagemap, &mapping, self.page, &mut |page| self.page(page))?;
            self.beat();
        }
        Ok(true)
    }

    /// Does what is done meanwhile, if it is time.
    fn beat(&mut self) {
        if rt::now() >= self.next_beat {
            (self.beat)();
            self.next_beat = rt::now().plus(EVERY);
        }
    }
}

/// Counts them. `beat` is called about every 20 ms meanwhile.
///
/// # Errors
/// [`Error::Refused`] where there are no such colours, and where the kernel hides page frames;
/// [`Error::File`], [`Error::Malformed`].
pub fn of(files: &dyn Files, asked: &Asked, beat: &mut dyn FnMut()) -> Result<FrameOwners> {
    let none = || Error::refused("there are no such colours");
    let right = RightFrames::new(&asked.colouring, &asked.colours).ok_or_else(none)?;
    let (keeper, held) = asked.keeper.unwrap_or_default();
    let mut programs: BTreeMap<(Option<&GroupId>, String), Vec<Stat>> = BTreeMap::new();
    for stat in procfs::processes(files)? {
        if stat.id.pid != keeper && !stat.kernel_thread() && !stat.leaving() {
            let group = asked.groups.get(&stat.id.pid);
            let key = (group, stat.comm.clone());
            programs.entry(key).or_default().push(stat);
        }
    }
    let mut walk = Walk {
        files,
        right,
        page: asked.colouring.page.0,
        flags: PageFlags::open(files).unwrap_or(None),
        several: HashMap::new(),
        files_bytes: 0,
        program: 0,
        mapped: Mapped::default(),
        seen: (0, 0),
        beat,
        next_beat: rt::now(),
    };
    let mut found = FrameOwners {
        colours: asked.colours.clone(),
        held_bytes: held.0,
        ..FrameOwners::default()
    };
    for (number, ((group, program), processes)) in programs.into_iter().enumerate() {
        (walk.program, walk.mapped) = (number, Mapped::default());
        let mut with = 0;
        for stat in processes {
            let before = walk.mapped;
            found.unread += u32::from(!walk.process(stat.id.pid)?);
            with += u32::from(walk.mapped != before);
        }
        if group.is_some_and(|group| asked.reserving.contains(group)) {
            found.reserving_bytes += walk.mapped.bytes();
        } else if with > 0 {
            found.programs.push(Owner {
                program,
                group: group.cloned(),
                processes: with,
                mapped: walk.mapped,
            });
        }
    }
    found
        .programs
        .sort_by_key(|owner| std::cmp::Reverse(owner.mapped.bytes()));
    if walk.seen.0 > 0 && walk.seen.1 == 0 {
        return Err(Error::refused_with(
            "the kernel hides where pages lie: all seem to be in frame 0",
            "run as root, or with CAP_SYS_ADMIN in the first user namespace",
        ));
    }
    let files_bytes = walk.files_bytes;
    let census = census::of(files, &asked.colouring, &asked.colours, walk.beat)?;
    found.uses = census.map(|census| Uses {
        all_bytes: census.total().0,
        free_bytes: census.bytes(Usage::Free).0,
        cached_bytes: census.bytes(Usage::Files).0.saturating_sub(files_bytes),
        kernel_bytes: census.bytes(Usage::Kernel).0,
    });
    Ok(found)
}

#[cfg(test)]
#[path = "owners_tests.rs"]
mod tests;
