//! Which colours the resident pages of a process have, by kind of mapping. Nothing is changed.

use std::collections::BTreeMap;

use quell_kernel::error::{Error, Result};
use quell_kernel::maps::{self, Backing, Mapping};
use quell_kernel::pagemap::{Page, PageFlags, Pagemap};
use quell_kernel::root::Files;
use quell_kernel::{procfs, vm};
use quell_types::address::Functions;
use quell_types::cpuset::CpuSet;
use quell_types::partition::Colouring;
use quell_types::units::Bytes;
use serde::Serialize;

/// Entries of `pagemap` that are read at once: 32 KiB.
const AT_ONCE: usize = 4096;
/// The most colour bits that are counted.
const MOST_BITS: usize = 16;

/// What a page is to the process.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Private memory without a file: what programs allocate, and stacks of threads.
    Anonymous,
    /// The heap that `brk` extends.
    Heap,
    /// The stack of the first thread.
    Stack,
    /// Copies that the process has written of a file's pages, such as `.data`.
    Written,
    /// Code of files.
    Text,
    /// Other pages of files.
    File,
    /// Memory that is shared with other processes, of a file or not.
    Shared,
    /// The shared page of zeroes, which stands for memory that was read and never written.
    Zeroes,
    /// Pages of the kernel's, such as `[vdso]`.
    Kernel,
}

impl Kind {
    /// All kinds, in the order of reports.
    pub const ALL: [Self; 9] = [
        Self::Anonymous,
        Self::Heap,
        Self::Stack,
        Self::Written,
        Self::Text,
        Self::File,
        Self::Shared,
        Self::Zeroes,
        Self::Kernel,
    ];

    /// The kind in words.
    #[must_use]
    pub const fn words(self) -> &'static str {
        match self {
            Self::Anonymous => "private anonymous",
            Self::Heap => "heap",
            Self::Stack => "stack",
            Self::Written => "written copies of files",
            Self::Text => "code of files",
            Self::File => "other pages of files",
            Self::Shared => "shared",
            Self::Zeroes => "page of zeroes",
            Self::Kernel => "pages of the kernel",
        }
    }

    /// Whether pages of this kind can be given a colour one by one: they are the process's own, and
    /// belong to no file.
    #[must_use]
    pub const fn is_own(self) -> bool {
        matches!(self, Self::Anonymous | Self::Heap | Self::Stack)
    }
}

/// The pages of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Pages {
    /// Pages in memory.
    pub resident: u64,
    /// Of them, those of each colour, colour 0 first.
    pub by_colour: Vec<u64>,
    /// Of them, those in huge pages, which have fewer colours. 0 where the kernel does not show it.
    pub huge: u64,
    /// Of them, those that another process maps, too, for example after a fork.
    pub shared: u64,
    /// Pages in swap space, which have no colour.
    pub swapped: u64,
}

/// Where the pages of a process lie.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub struct Placement {
    /// Number of the process.
    pub pid: u32,
    /// Its name.
    pub comm: String,
    /// Size of a page.
    pub page: Bytes,
    /// How many colours there are.
    pub colours: u32,
    /// The pages of each kind that the process has.
    pub kinds: BTreeMap<Kind, Pages>,
    /// Size of its page tables, whose place the kernel does not show. Absent where it is not known.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub page_tables: Option<Bytes>,
    /// Whether the kernel shows which pages are huge, and which is the page of zeroes.
    pub flags_known: bool,
}

impl Placement {
    /// Pages of kinds that can be given a colour one by one, and how many of them have one of these
    /// colours.
    #[must_use]
    pub fn right(&self, colours: &CpuSet) -> (u64, u64) {
        let own = self.kinds.iter().filter(|(kind, _)| kind.is_own());
        let sum = own.map(|(_, pages)| (pages.right(colours), pages.resident));
        sum.fold((0, 0), |all, one| (all.0 + one.0, all.1 + one.1))
    }

    /// Memory of kinds that cannot be given a colour one by one. The page of zeroes and pages of
    /// the kernel are not the process's.
    #[must_use]
    pub fn fixed(&self) -> Bytes {
        let fixed = self
            .kinds
            .iter()
            .filter(|(kind, _)| !kind.is_own() && !matches!(kind, Kind::Zeroes | Kind::Kernel));
        let pages: u64 = fixed.map(|(_, pages)| pages.resident).sum();
        Bytes(pages.saturating_mul(self.page.0))
    }
}

impl Pages {
    /// Pages with one of these colours.
    #[must_use]
    pub fn right(&self, colours: &CpuSet) -> u64 {
        let of = |colour: u32| self.by_colour.get(colour as usize).copied();
        colours.iter().filter_map(of).sum()
    }
}

/// What a page of a mapping is to the process.
fn kind_of(mapping: &Mapping, page: Page) -> Kind {
    match mapping.backing {
        _ if mapping.shared => Kind::Shared,
        Backing::Kernel => Kind::Kernel,
        Backing::Heap => Kind::Heap,
        Backing::Stack => Kind::Stack,
        Backing::Nothing => Kind::Anonymous,
        Backing::File if page.is_present() && !page.is_of_file() => Kind::Written,
        Backing::File if mapping.executable => Kind::Text,
        Backing::File => Kind::File,
    }
}

struct Look {
    flags: Option<PageFlags>,
    colour: Functions,
    shift: u32,
    colours: usize,
    kinds: BTreeMap<Kind, Pages>,
    /// Pages with a frame that the kernel shows.
    shown: u64,
}

impl Look {
    fn page(&mut self, mapping: &Mapping, page: Page) -> Result<()> {
        if page.is_swapped() {
            let pages = self.kinds.entry(kind_of(mapping, page)).or_default();
            pages.swapped += 1;
        }
        if !page.is_present() {
            return Ok(());
        }
        let frame = page.frame();
        self.shown += u64::from(frame != 0);
        let flags = match &self.flags {
            Some(flags) => flags.of(frame)?,
            None => quell_kernel::pagemap::Flags::default(),
        };
        let kind = match flags.is_zero_page() {
            true => Kind::Zeroes,
            false => kind_of(mapping, page),
        };
        let pages = self.kinds.entry(kind).or_default();
        pages.by_colour.resize(self.colours, 0);
        pages.resident += 1;
        pages.huge += u64::from(flags.is_huge());
        pages.shared += u64::from(!page.is_exclusive());
        let colour = self.colour.of(frame.checked_shl(self.shift).unwrap_or(0));
        let colour = usize::try_from(colour).ok();
        if let Some(count) = colour.and_then(|c| pages.by_colour.get_mut(c)) {
            *count += 1;
        }
        Ok(())
    }
}

/// Calls `each` with the pages of a mapping that are in memory or in swap space. `page` is their
/// size in bytes.
pub(super) fn pages(
    pagemap: &Pagemap,
    mapping: &Mapping,
    page: u64,
    each: &mut dyn FnMut(Page) -> Result<()>,
) -> Result<()> {
    // The address of some pages of the kernel is beyond what `pagemap` has.
    if mapping.range.start >> 63 != 0 {
        return Ok(());
    }
    let mut room = vec![Page::default(); AT_ONCE];
    for run in pagemap.populated(mapping.range.clone())? {
        let (mut at, end) = (run.start / page, run.end / page);
        while at < end {
            let wanted = usize::try_from(end - at).unwrap_or(AT_ONCE);
            let room = &mut room[..wanted.min(AT_ONCE)];
            let read = pagemap.read(at, room)?;
            for page in &room[..read] {
                each(*page)?;
            }
            if read == 0 {
                break;
            }
            at += read as u64;
        }
    }
    Ok(())
}

/// Reads where the pages of a process lie.
///
/// # Errors
/// [`Error::Refused`] for a process that is gone or a zombie, and where the kernel hides page
/// frames; [`Error::File`], [`Error::Malformed`].
pub fn of(files: &dyn Files, pid: u32, colouring: &Colouring) -> Result<Placement> {
    let gone = || Error::refused(format!("there is no process {pid} (any more)"));
    let stat = procfs::stat(files, pid)?.ok_or_else(gone)?;
    if stat.dead() {
        return Err(Error::refused(format!(
            "process {pid} ({}) has ended and waits for its parent to notice (a zombie): it has no memory any more",
            stat.comm
        )));
    }
    if stat.kernel_thread() {
        return Err(Error::refused(format!(
            "{pid} ({}) is a thread of the kernel: it has no memory of its own",
            stat.comm
        )));
    }
    if let Some(process) = procfs::process_of(files, pid)?.filter(|process| *process != pid) {
        return Err(Error::refused_with(
            format!("{pid} is a thread of process {process}"),
            format!("give {process}: a process is taken whole"),
        ));
    }
    if colouring.functions.len() > MOST_BITS {
        return Err(Error::refused(format!(
            "2^{} colours: at most 2^{MOST_BITS} can be counted",
            colouring.functions.len()
        )));
    }
    let pagemap = Pagemap::open(files, &pid.to_string())?;
    let page = colouring.page.0;
    let masks = colouring.functions.iter().map(|mask| mask.0).collect();
    let mut look = Look {
        flags: PageFlags::open(files).unwrap_or(None),
        colour: Functions::new(masks),
        shift: page.trailing_zeros(),
        colours: colouring.count() as usize,
        kinds: BTreeMap::new(),
        shown: 0,
    };
    for mapping in maps::of(files, pid)?.ok_or_else(gone)? {
        pages(&pagemap, &mapping, page, &mut |one| {
            look.page(&mapping, one)
        })?;
    }
    let resident: u64 = look.kinds.values().map(|pages| pages.resident).sum();
    if resident > 0 && look.shown == 0 {
        return Err(Error::refused_with(
            format!(
                "the kernel hides where the pages of process {pid} lie: all seem to be in frame 0"
            ),
            "run as root, or with CAP_SYS_ADMIN in the first user namespace",
        ));
    }
    let status = files.optional(&format!("/proc/{pid}/status"))?;
    Ok(Placement {
        pid,
        comm: stat.comm,
        page: colouring.page,
        colours: colouring.count(),
        kinds: look.kinds,
        page_tables: status.and_then(|text| vm::amount(&text, "VmPTE:")),
        flags_known: look.flags.is_some(),
    })
}

#[cfg(test)]
#[path = "placement_tests.rs"]
mod tests;
