//! The keeper of a hoard: a small process that takes free page frames, reads which it got, and
//! holds those of the reserved colours.
//!
//! - It takes frames on all of its CPUs in turn, and releases them so. Each CPU has lists of free
//!   frames of its own, from which the next program on it gets memory first.
//! - It takes free frames only, and stops before the kernel would reclaim for it.
//! - The kernel chooses it first when memory runs out. Its death frees all frames, and no program
//!   loses anything.
//! - Compaction may move locked pages, too. So it looks again where its frames lie.

use std::ops::Range;
use std::time::Duration;

use quell_control::hoard::{self, Memory, Round, Rules, Slots};
use quell_control::looks::{Looks, SHORTEST};
use quell_kernel::cached_file::CachedFile;
use quell_kernel::error::{Error, Result};
use quell_kernel::frames::Frames;
use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::psi::{self, Resource};
use quell_kernel::root::{Files, Kernel};
use quell_kernel::{affinity, memory, rt, vm};
use quell_types::cpuset::{CpuId, CpuSet};
use quell_types::units::{Bytes, Nanos, Share};
use rustix::event::{PollFd, PollFlags};
use rustix::time::ClockId;

use super::hoard::{Command, Report, What, parse_rules};
use crate::resident::{may_lock, say};

/// The span over which waiting for memory is measured.
const SPAN: Nanos = Nanos::secs(1);
/// Entries of `pagemap` that are read at once: 32 KiB.
const AT_ONCE: usize = 4096;
/// Pages that are released before the keeper goes to its next CPU.
const RELEASED_AT_ONCE: usize = 1024;
/// What page tables and the process itself need within a limit: one in so many bytes of the hoard.
const OVERHEAD: u64 = 128;
/// What the process needs besides.
const PROCESS: u64 = 8 << 20;
/// The kernel kills this process before any other one.
const FIRST_TO_GO: &str = "1000";

/// The keeper itself: the body of the hidden subcommand. `rules` are [`Rules`] as JSON. It begins
/// to take frames at once, and ends with its standard input.
///
/// # Errors
/// [`Error::Refused`] where there can be no such hoard; [`Error::File`], [`Error::Malformed`].
pub fn keep(rules: &str) -> Result<()> {
    let mut rules = parse_rules(rules)?;
    // Any process may make itself more likely to be killed.
    let _ = std::fs::write("/proc/self/oom_score_adj", FIRST_TO_GO);
    let files = Kernel::new()?;
    let files: &dyn Files = &files;
    let machine = possible(files, &rules)?;
    rules.limit = rules.limit.min(machine);
    let mut keeper = Keeper::new(files, &rules, machine)?;
    keeper.report(What::Begun)?;
    keeper.sieve()?;
    let mut tick = Nanos(0);
    loop {
        match keeper.input.next(Duration::from_nanos(tick.0))? {
            Asked::For(Command::Sieve) => keeper.sieve()?,
            Asked::For(Command::Release {
                pages,
                cpu,
                colours,
            }) => keeper.release_asked(pages, cpu, colours.as_ref())?,
            Asked::For(Command::Retake { pages, cpu }) => keeper.retake(pages, cpu)?,
            Asked::Nothing => {}
            Asked::ToEnd => return Ok(()),
        }
        tick = keeper.give_way()?;
        keeper.look_again()?;
    }
}

/// Whether there can be such a hoard here. Returns the size of the machine's memory.
fn possible(files: &dyn Files, rules: &Rules) -> Result<Bytes> {
    if let Some(why) = rules.refusal() {
        return Err(Error::refused(why));
    }
    let page = Bytes(rustix::param::page_size() as u64);
    if rules.colouring.page != page {
        return Err(Error::refused(format!(
            "the colours are those of pages of {}, and this kernel has pages of {page}",
            rules.colouring.page
        )));
    }
    may_lock().map_err(|why| Error::refused_with(why, "run as root, or raise ulimit -l"))?;
    let memory = vm::memory(files)?;
    let memory = memory.ok_or_else(|| Error::refused("/proc/meminfo is missing"))?;
    // Some of a zone's free frames are for other kinds of memory. Where these are all that is left,
    // the kernel begins to reclaim.
    let marks = vm::watermarks(files)?.unwrap_or_default();
    let least = Bytes(marks.high.0.saturating_mul(2));
    if rules.reserve < least {
        return Err(Error::refused_with(
            format!(
                "a reserve of {} is less than twice what the kernel keeps free ({}): it would reclaim memory of other programs",
                rules.reserve, marks.high
            ),
            format!("leave at least {least} to them"),
        ));
    }
    if memory.free <= rules.reserve {
        return Err(Error::refused_with(
            format!(
                "{} of memory are free, and {} are to stay for other programs: nothing is left for a hoard",
                memory.free, rules.reserve
            ),
            "end programs, drop pages of files that are not used (vm.drop_caches), or lower the reserve",
        ));
    }
    let needed = rules.pages_at_once().saturating_mul(page.0);
    let needed = needed.min(memory.total.0);
    let needed = needed
        .saturating_add(needed / OVERHEAD)
        .saturating_add(PROCESS);
    if let Some((dir, left)) = memory::left(files)?
        && left.0 < needed
    {
        return Err(Error::refused_with(
            format!(
                "the limit of {dir} leaves {left}, and a hoard of {} needs {} while it sorts frames, with its page tables",
                rules.limit,
                Bytes(needed)
            ),
            "raise that limit, or hold less",
        ));
    }
    Ok(memory.total)
}

/// What standard input asks for.
enum Asked {
    For(Command),
    Nothing,
    ToEnd,
}

/// The lines that arrive on standard input.
#[derive(Default)]
struct Input {
    buffer: Vec<u8>,
    ended: bool,
}

impl Input {
    /// Waits for a command, but not for longer than this.
    fn next(&mut self, patience: Duration) -> Result<Asked> {
        if !self.buffer.contains(&b'\n') {
            self.read(patience)?;
        }
        if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
            let line: Vec<u8> = self.buffer.drain(..=end).collect();
            let line = String::from_utf8_lossy(&line).trim().to_owned();
            return Command::parse(&line).map(Asked::For);
        }
        Ok(match self.ended {
            true => Asked::ToEnd,
            false => Asked::Nothing,
        })
    }

    /// Whether the input has ended. Does not wait.
    fn is_over(&mut self) -> Result<bool> {
        self.read(Duration::ZERO)?;
        Ok(self.ended)
    }

    fn read(&mut self, patience: Duration) -> Result<()> {
        let input = std::io::stdin();
        let mut watched = [PollFd::new(&input, PollFlags::IN)];
        let nanos = u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX);
        let timeout = rt::timespec(Nanos(nanos));
        match rustix::event::poll(&mut watched, Some(&timeout)) {
            Ok(0) | Err(rustix::io::Errno::INTR) => return Ok(()),
            Ok(_) => {}
            Err(e) => {
                let source = std::io::Error::from(e);
                return Err(Error::file("wait for", "standard input", None, source));
            }
        }
        let mut chunk = [0u8; 4096];
        // Not through the buffer of the library, of whose content poll(2) knows nothing.
        match rustix::io::read(&input, &mut chunk) {
            Ok(n) if n > 0 => self.buffer.extend_from_slice(&chunk[..n]),
            // End of file or an error: both end it.
            _ => self.ended = true,
        }
        Ok(())
    }
}

/// How long tasks have waited for memory.
#[derive(Default)]
struct Stalls {
    /// When it was read last, and the time that was waited until then.
    last: Option<(Nanos, Nanos)>,
    share: Share,
}

impl Stalls {
    /// The share of the last second in which tasks waited. 0 where the kernel does not report it.
    fn share(&mut self, files: &dyn Files) -> Result<Share> {
        let now = rt::now();
        if self.last.is_some_and(|(at, _)| now.since(at) < SPAN) {
            return Ok(self.share);
        }
        // Kernels without PSI have no file, or refuse to open it.
        let path = Resource::Memory.system();
        let Ok(text) = files.read(path) else {
            return Ok(Share(0));
        };
        let total = psi::totals(path, &text)?.some;
        if let Some((at, before)) = self.last {
            let whole = u128::from(Share::WHOLE.0);
            let waited = u128::from(total.since(before).0) * whole;
            let share = waited / u128::from(now.since(at).0.max(1));
            self.share = Share(u64::try_from(share.min(whole)).unwrap_or(0));
        }
        self.last = Some((now, total));
        Ok(self.share)
    }

    /// Begins anew: what was waited meanwhile does not count.
    fn forget(&mut self) {
        *self = Self::default();
    }
}

struct Keeper<'a> {
    files: &'a dyn Files,
    /// `/proc/meminfo`.
    meminfo: CachedFile,
    slots: Slots,
    frames: Frames,
    pagemap: Pagemap,
    input: Input,
    stalls: Stalls,
    /// The CPUs that it may run on, and which of them is next.
    cpus: Vec<CpuId>,
    next_cpu: usize,
    /// When it looks next where its frames lie.
    next_look: Nanos,
    looks: Looks,
}

impl<'a> Keeper<'a> {
    fn new(files: &'a dyn Files, rules: &Rules, machine: Bytes) -> Result<Self> {
        // More than there is cannot be held.
        let pages = rules
            .pages_at_once()
            .min(machine.0 / rules.colouring.page.0);
        let pages = usize::try_from(pages).unwrap_or(usize::MAX);
        let cpus = affinity::of(0).map_err(|e| Error::refused(format!("its CPUs: {e}")))?;
        let meminfo = CachedFile::open(files, vm::MEMINFO)?;
        Ok(Self {
            files,
            meminfo: meminfo.ok_or_else(|| Error::refused("/proc/meminfo is missing"))?,
            slots: Slots::new(rules).map_err(Error::refused)?,
            frames: Frames::reserve(pages)?,
            pagemap: Pagemap::open(files, "self")?,
            input: Input::default(),
            stalls: Stalls::default(),
            cpus: cpus.iter().collect(),
            next_cpu: 0,
            next_look: rt::now().plus(SHORTEST),
            looks: Looks::default(),
        })
    }

    fn report(&self, what: What) -> Result<()> {
        let kept = self.slots.kept_bytes();
        let line = serde_json::to_string(&Report { what, kept });
        say(&line.map_err(|e| Error::refused(e.to_string()))?)
    }

    fn memory(&mut self) -> Result<Memory> {
        let text = self.meminfo.text(self.files)?;
        let memory = vm::meminfo(text.unwrap_or_default())?;
        Ok(Memory {
            free: memory.free,
            available: memory.available,
        })
    }

    /// Goes on to the next CPU. One that went offline, or that a cpuset does not have any more, is
    /// passed over.
    fn move_on(&mut self) {
        if let Some(cpu) = self.cpus.get(self.next_cpu % self.cpus.len().max(1)) {
            let _ = rt::pin(*cpu);
        }
        self.next_cpu = self.next_cpu.wrapping_add(1);
    }

    /// Runs on any of its CPUs again.
    fn run_anywhere(&self) {
        let cpus: CpuSet = self.cpus.iter().copied().collect();
        let _ = affinity::set(0, &cpus);
    }

    /// Rounds until one gains too little, memory is scarce, or the input has ended.
    fn sieve(&mut self) -> Result<()> {
        let (begun, spent) = (rt::now(), rt::clock(ClockId::ProcessCPUTime));
        let mut rounds = 0;
        loop {
            let at = rt::now();
            let Some(round) = self.round()? else {
                return Ok(());
            };
            rounds += 1;
            let took = rt::now().since(at);
            self.report(What::Round { round, took })?;
            let memory = self.memory()?;
            if !round.again() || self.slots.pressed(memory, Share(0)) > 0 {
                break;
            }
        }
        self.run_anywhere();
        self.stalls.forget();
        self.report(What::Sieved {
            rounds,
            took: rt::now().since(begun),
            cpu: rt::clock(ClockId::ProcessCPUTime).since(spent),
        })
    }

    /// One round. `None`: the input has ended meanwhile.
    fn round(&mut self) -> Result<Option<Round>> {
        loop {
            if self.input.is_over()? {
                return Ok(None);
            }
            let memory = self.memory()?;
            let runs = self.slots.take(memory, hoard::AT_ONCE);
            if runs.is_empty() {
                break;
            }
            self.move_on();
            for run in runs {
                self.frames.touch(run);
            }
        }
        let moved = self.look(0..self.slots.count())?;
        let runs = self.slots.release();
        self.free(runs)?;
        let round = self.slots.end_round();
        self.report_moved(moved)?;
        Ok(Some(round))
    }

    /// Reads where the frames of these slots lie. Returns how many that were kept have another
    /// colour now.
    fn look(&mut self, slots: Range<usize>) -> Result<u64> {
        let mut moved = 0;
        let most = AT_ONCE.min(slots.len());
        let mut room = vec![Page::default(); most];
        let mut frames = Vec::with_capacity(most);
        for first in slots.clone().step_by(AT_ONCE) {
            let page = self.frames.first_page().saturating_add(first as u64);
            let pages = most.min(slots.end - first);
            let read = self.pagemap.read(page, &mut room[..pages])?;
            frames.clear();
            for page in &room[..read] {
                if page.is_present() && page.frame() == 0 {
                    return Err(Error::refused_with(
                        "the kernel hides which frames pages have: all seem to be in frame 0",
                        "run as root, or with CAP_SYS_ADMIN in the first user namespace",
                    ));
                }
                frames.push(page.is_present().then(|| page.frame()));
            }
            moved += self.slots.sort(first, &frames);
        }
        Ok(moved)
    }

    /// Releases the frames of slots, on all CPUs in turn.
    fn free(&mut self, runs: Vec<Range<usize>>) -> Result<()> {
        let mut pages = RELEASED_AT_ONCE;
        for run in runs {
            if pages >= RELEASED_AT_ONCE {
                self.move_on();
                pages = 0;
            }
            pages += run.len();
            self.release(run)?;
        }
        self.run_anywhere();
        Ok(())
    }

    fn release(&self, run: Range<usize>) -> Result<()> {
        let failed = |e| Error::refused(format!("page frames cannot be released: {e}"));
        self.frames.release(run).map_err(failed)
    }

    /// Releases frames of reserved colours for a program that runs on this CPU.
    fn release_asked(
        &mut self,
        pages: u64,
        cpu: Option<CpuId>,
        colours: Option<&CpuSet>,
    ) -> Result<()> {
        if let Some(cpu) = cpu {
            // Elsewhere they are free, too, and the kernel hands out others first.
            let _ = rt::pin(cpu);
        }
        let runs = self.slots.give_up(pages, colours);
        let pages = runs.iter().map(|run| run.len() as u64).sum();
        for run in runs {
            self.release(run)?;
        }
        self.run_anywhere();
        self.report(What::Released { pages })
    }

    /// Takes and sorts some frames of this CPU: those that were released there last.
    fn retake(&mut self, pages: u64, cpu: Option<CpuId>) -> Result<()> {
        let begun = rt::now();
        if let Some(cpu) = cpu {
            let _ = rt::pin(cpu);
        }
        let memory = self.memory()?;
        for run in self.slots.take(memory, pages) {
            self.frames.touch(run.clone());
            self.look(run)?;
        }
        for run in self.slots.release() {
            self.release(run)?;
        }
        self.run_anywhere();
        let round = self.slots.end_round();
        self.report(What::Round {
            round,
            took: rt::now().since(begun),
        })
    }

    /// Gives frames up when other programs need memory. Returns when to look at it again.
    fn give_way(&mut self) -> Result<Nanos> {
        let memory = self.memory()?;
        let stalled = self.stalls.share(self.files)?;
        let pages = self.slots.pressed(memory, stalled);
        if pages == 0 {
            return Ok(self.slots.next_look(memory));
        }
        let runs = self.slots.give_up(pages, None);
        self.free(runs)?;
        self.stalls.forget();
        self.report(What::GaveUp {
            pages,
            available: memory.available,
            stalled,
        })?;
        Ok(Nanos(0))
    }

    /// Looks from time to time whether the kernel has moved frames.
    fn look_again(&mut self) -> Result<()> {
        let begun = rt::now();
        if begun < self.next_look {
            return Ok(());
        }
        let moved = self.look(0..self.slots.count())?;
        let runs = self.slots.release();
        self.free(runs)?;
        let took = rt::now().since(begun);
        self.next_look = begun.plus(self.looks.after(took, moved > 0));
        self.report_moved(moved)
    }

    fn report_moved(&self, pages: u64) -> Result<()> {
        match pages {
            0 => Ok(()),
            pages => self.report(What::Moved { pages }),
        }
    }
}
