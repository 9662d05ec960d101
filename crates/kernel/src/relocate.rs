//! Pages of a process that runs are moved into other frames, content and addresses intact. A thread
//! of the process moves them away, into a side area (UFFDIO_MOVE). The caller then puts their
//! content into new frames at the old addresses (UFFDIO_COPY). All threads are stopped meanwhile.
//!
//! - The kernel refuses pages that are shared after a fork, or pinned for a device (EBUSY). They
//!   stay where they are.
//! - Nothing is written but the side area, whose first page has a token and the calls' arguments,
//!   and the thread's way back ([`crate::vdso`]).
//! - If the caller is killed, the thread ends the call that it does and gets its own registers
//!   again. Threads that touch a page that is away wait until [`bring_back`] supplies it.
//! - Nothing is opened for a program that it could not open itself: whoever shares its files or may
//!   trace it could take that. What every program may open (`UFFD_USER_MODE_ONLY`) is not enough:
//!   where the kernel touches a page that is away, the program would be killed, not wait.
//! - The kernel writes a thread's area for restartable sequences whenever the thread returns to the
//!   program. So the page with that area is moved by the last call, and is back before the thread
//!   runs.

mod calls;

use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::time::{Duration, Instant};

use quell_types::cpuset::CpuSet;
use quell_types::pages::{Caller, Piece, SideArea};
use quell_types::task::TaskId;

use crate::affinity;
use crate::pidfd;
pub use crate::process_memory::read_memory;
use crate::process_memory::write_memory;
use crate::ptrace::{Call, Lent};
use crate::stopped::Stopped;
use crate::uffd::{MOVED_AT, Move, Uffd};
use crate::vdso::Vdso;

/// Where in the first page of the side area the number of the thread is that does the calls, and
/// where their arguments begin. The token is the first word.
const CALLER: u64 = 8;
const ARGUMENTS: u64 = 64;
/// Pages whose content is copied by one call.
const AT_ONCE: u64 = 16;
/// How often pages are moved back that could not be copied.
const TRIES: u32 = 100;

/// Whether the side area is there.
#[must_use]
pub fn is_there(side: &SideArea) -> bool {
    let mut token = [0; 8];
    let read = read_memory(side.task.pid, side.at, &mut token);
    read.is_ok() && u64::from_ne_bytes(token) == side.token
}

/// The thread that did the calls for a side area that is there. It may still do the last one of
/// them.
#[must_use]
pub fn caller(side: &SideArea) -> Option<u32> {
    let mut number = [0; 8];
    read_memory(side.task.pid, side.at + CALLER, &mut number).ok()?;
    u32::try_from(u64::from_ne_bytes(number)).ok()
}

/// Puts the content of pages back that are still away, by whichever of the descriptors the process
/// has. Threads that wait for them go on. `is_away` says whether the page of the side area at an
/// address is there. Returns how many pages came back. A thread that still does the calls for the
/// side area moves no more of them away.
///
/// # Errors
/// The kernel's, of the last page that could not be put back.
pub fn bring_back(
    side: &SideArea,
    descriptors: &[Uffd],
    is_away: &dyn Fn(u64) -> bool,
) -> io::Result<u64> {
    let mut content = vec![0; usize::try_from(side.page).unwrap_or(0)];
    let (mut back, mut result) = (0, Ok(()));
    for descriptor in descriptors {
        let _ = descriptor.unregister(&side.slots());
    }
    for piece in side.pieces() {
        for n in 0..piece.run.pages {
            let slot = side.slot(piece.slot + n);
            if !is_away(slot) || read_memory(side.task.pid, slot, &mut content).is_err() {
                continue;
            }
            let to = (piece.run.first + n) * side.page;
            for descriptor in descriptors {
                match descriptor.copy(to, &content) {
                    (_, Ok(())) => {
                        back += 1;
                        break;
                    }
                    // It is back, or its mapping is gone, or another descriptor is for it.
                    (_, Err(e))
                        if matches!(e.raw_os_error(), Some(libc::EEXIST | libc::ENOENT)) => {}
                    (_, Err(e)) => result = Err(e),
                }
            }
        }
    }
    if result.is_ok() {
        for descriptor in descriptors {
            let _ = descriptor.unregister(&side.area());
        }
    }
    result.map(|()| back)
}

/// Makes right frames the next ones that this CPU gets.
pub trait Frames {
    /// The next `pages` pages that the kernel allocates on this CPU shall have right frames.
    fn offer(&mut self, pages: u64);
}

/// What failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Step {
    /// Stopping all threads.
    Stop,
    /// Finding a thread that can do calls.
    Enter,
    /// Mapping the side area.
    Map,
    /// Locking the side area, as the pages are.
    Lock,
    /// Opening a userfaultfd.
    Open,
    /// Registering the pages.
    Register,
    /// Moving pages away. The pages that were moved before are back.
    Move,
    /// Getting new frames. The pages have their old ones again.
    Copy,
    /// Moving pages back. They are away.
    Return,
    /// Removing the side area and the descriptor.
    Remove,
}

/// How moving the pages of a side area came out.
#[derive(Debug, Default)]
pub struct Outcome {
    /// How long all threads were stopped, from the first request to the last release. Zero where
    /// they did not all stop.
    pub lasted: Duration,
    /// How long of that pages were moved and copied: what more pages make longer.
    pub moving: Duration,
    /// Pages that have new frames.
    pub moved: u64,
    /// Pages that the kernel refuses to move, by number.
    pub refused: Vec<u64>,
    /// The first step that failed, and its error.
    pub failed: Option<(Step, io::Error)>,
}

/// What a step comes to.
type Done<T = ()> = Result<T, (Step, io::Error)>;

fn at<T>(step: Step, result: io::Result<T>) -> Done<T> {
    result.map_err(|e| (step, e))
}

/// How a process is treated.
#[derive(Clone, Copy, Debug)]
pub struct Manner {
    /// Whether the pages are locked.
    pub locked: bool,
    /// How long all threads may be stopped. Pages that there is no time for stay where they are.
    pub longest: Duration,
}

/// A process whose pages are moved.
#[derive(Debug)]
pub struct Process {
    task: TaskId,
    pid: i32,
    /// Refers to the process, whatever its number is given to later.
    pidfd: OwnedFd,
}

impl Process {
    /// A process that runs.
    ///
    /// # Errors
    /// ESRCH where there is none (any more).
    pub fn open(task: TaskId) -> io::Result<Self> {
        let none = || io::Error::from_raw_os_error(libc::ESRCH);
        let number = i32::try_from(task.pid).map_err(|_| none())?;
        let pid = rustix::process::Pid::from_raw(number).ok_or_else(none)?;
        let pidfd = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
        // The pidfd first, the start time second, as for a signal.
        let stat = std::fs::read_to_string(format!("/proc/{number}/stat")).ok();
        let stat = stat.and_then(|text| crate::stat::Stat::parse(&text));
        match stat.is_some_and(|stat| stat.is_alive(task)) {
            true => Ok(Self {
                task,
                pid: number,
                pidfd,
            }),
            false => Err(none()),
        }
    }

    /// A copy of one of its descriptors, by its number there.
    ///
    /// # Errors
    /// The kernel's: EBADF where there is no such descriptor, ESRCH, EPERM.
    pub fn copy(&self, number: u32) -> io::Result<OwnedFd> {
        pidfd::copy_of(number, &self.pidfd)
    }

    fn is_there(&self) -> bool {
        // SAFETY: signal 0 is only checked for.
        unsafe {
            let nothing = std::ptr::null::<libc::siginfo_t>();
            let pidfd = self.pidfd.as_raw_fd();
            libc::syscall(libc::SYS_pidfd_send_signal, pidfd, 0, nothing, 0) == 0
        }
    }

    /// Moves pages into frames that `frames` offers. `boundary` is called at points at which this
    /// process may be killed. The caller must be as [`Stopped`] wants it, on one CPU, and must end
    /// where the step that failed is [`Step::Stop`].
    pub fn relocate(
        &self,
        side: &SideArea,
        manner: Manner,
        frames: &mut dyn Frames,
        boundary: &dyn Fn(),
    ) -> Outcome {
        let mut outcome = Outcome::default();
        let vdso = match Vdso::of(self.task.pid) {
            Ok(vdso) => vdso,
            Err(e) => {
                outcome.failed = Some((Step::Enter, e));
                return outcome;
            }
        };
        let begun = Instant::now();
        match Stopped::all(self.pid, side, manner.longest) {
            Ok(stopped) => {
                boundary();
                let done = self
                    .enter(&stopped, &vdso, side, boundary)
                    .and_then(|thread| {
                        at(Step::Enter, calls::allowed(&thread, side, manner)).map(|()| thread)
                    })
                    .and_then(|thread| {
                        let kept = Kept::new(side, &thread);
                        boundary();
                        let mut work = Work {
                            process: self,
                            side,
                            manner,
                            sequences: thread.sequences().map(|at| at / side.page),
                            thread,
                            away: Vec::new(),
                            outcome: &mut outcome,
                        };
                        let done = work.run(begun, frames, boundary);
                        let done = done.and(at(Step::Remove, work.thread.rest()));
                        drop(kept);
                        boundary();
                        done
                    });
                outcome.failed = done.err();
                drop(stopped);
                outcome.lasted = begun.elapsed();
            }
            Err(e) => outcome.failed = Some((Step::Stop, e)),
        }
        outcome
    }

    /// One of the stopped threads, for calls. It is still a thread of this process.
    fn enter<'a>(
        &self,
        stopped: &Stopped,
        vdso: &'a Vdso,
        side: &SideArea,
        boundary: &'a dyn Fn(),
    ) -> Done<Lent<'a>> {
        let failed = |error| (Step::Enter, io::Error::from_raw_os_error(error));
        if !self.is_there() {
            return Err(failed(libc::ESRCH));
        }
        let rather = side.caller.as_ref().map(|caller| caller.tid);
        let thread = at(Step::Enter, stopped.lend(vdso, rather, boundary))?;
        thread.ok_or_else(|| failed(libc::EBUSY))
    }
}

/// Keeps the thread that does calls on one CPU, that of this process. Where they take turns on one
/// CPU, a call takes a tenth of the time: no other CPU has to be woken twice for each.
struct Kept<'a>(Option<&'a Caller>);

impl<'a> Kept<'a> {
    fn new(side: &'a SideArea, thread: &Lent<'_>) -> Self {
        let caller = side.caller.as_ref();
        let caller = caller.filter(|c| c.tid == thread.number() && c.cpus.len() > 1);
        // One that sleeps is kept there until it is let go.
        let caller = caller.filter(|c| side.sleepers().all(|(tid, _)| tid != c.tid));
        let kept = |c: &&Caller| affinity::set(c.tid, &CpuSet::from_iter([c.on])).is_ok();
        Self(caller.filter(kept))
    }
}

impl Drop for Kept<'_> {
    fn drop(&mut self) {
        if let Some(caller) = self.0 {
            let _ = affinity::give_back(caller.tid, &caller.cpus);
        }
    }
}

struct Work<'a> {
    process: &'a Process,
    side: &'a SideArea,
    manner: Manner,
    thread: Lent<'a>,
    /// The page with the thread's area for restartable sequences.
    sequences: Option<u64>,
    away: Vec<Piece>,
    outcome: &'a mut Outcome,
}

impl Work<'_> {
    fn run(&mut self, begun: Instant, frames: &mut dyn Frames, boundary: &dyn Fn()) -> Done {
        let (side, pid) = (self.side, self.process.task.pid);
        self.map()?;
        let opened = self.open();
        let (number, uffd) = match opened {
            Ok(opened) => opened,
            Err(failed) => {
                let _ = self.thread.call(&Call::unmap(side.at, side.length()));
                return Err(failed);
            }
        };
        let registered = at(Step::Register, uffd.register(&side.slots()))
            .and_then(|()| at(Step::Register, uffd.register(&side.area())));
        let moving = Instant::now();
        let moved = registered.and_then(|()| self.take_away(number, begun));
        // From here on the thread can go on by itself, once the pages are back.
        at(Step::Enter, self.thread.rest())?;
        boundary();
        let mut left = Vec::new();
        // The page that the thread needs to run was moved last.
        for piece in std::mem::take(&mut self.away).into_iter().rev() {
            self.copy_back(&uffd, piece, frames, &mut left);
            boundary();
        }
        self.outcome.moving = moving.elapsed();
        let returned = self.give_back(number, &left);
        if returned.is_err() && read_memory(pid, side.at, &mut [0]).is_ok() {
            // Everything stays, so that another process can bring them back.
            return returned;
        }
        let _ = uffd.unregister(&side.area());
        let _ = uffd.unregister(&side.slots());
        drop(uffd);
        boundary();
        let closed = self.thread.call(&Call::close(number));
        // The side area goes last: as long as it is there, it says which thread does the calls.
        let unmapped = self.thread.call(&Call::unmap(side.at, side.length()));
        moved?;
        if !left.is_empty() {
            return Err((Step::Copy, io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        at(Step::Remove, unmapped.and(closed).map(|_| ()))
    }

    /// Maps the side area, as the pages are mapped.
    fn map(&mut self) -> Done {
        let (side, pid, length) = (self.side, self.process.task.pid, self.side.length());
        at(Step::Map, self.thread.call(&calls::map(side)))?;
        let marks = [side.token, u64::from(self.thread.number())].map(u64::to_ne_bytes);
        let marked = at(Step::Map, write_memory(pid, side.at, marks.as_flattened()));
        let locked = marked.and_then(|()| match self.manner.locked {
            true => self.lock(),
            false => Ok(()),
        });
        if locked.is_err() {
            let _ = self.thread.call(&Call::unmap(side.at, length));
        }
        locked
    }

    /// Locks the side area, and removes the pages that it has by that already.
    fn lock(&mut self) -> Done {
        let (side, slots) = (self.side, self.side.slots());
        let length = slots.end - slots.start;
        let lock = calls::lock(side);
        let discard = calls::discard(slots.start, length);
        let locked = self.thread.call(&lock);
        let discarded = locked.and_then(|_| self.thread.call(&discard));
        at(Step::Lock, discarded.map(|_| ()))
    }

    /// Opens a descriptor in the process. Returns its number there, and a copy.
    fn open(&mut self) -> Done<(u32, Uffd)> {
        let number = at(Step::Open, self.thread.call(&calls::OPEN))?;
        let number = u32::try_from(number).unwrap_or(u32::MAX);
        let fetched = self.process.copy(number).map(Uffd::of);
        let agreed = fetched.and_then(|uffd| uffd.agree().map(|()| uffd));
        if agreed.is_err() {
            let _ = self.thread.call(&Call::close(number));
        }
        at(Step::Open, agreed.map(|uffd| (number, uffd)))
    }

    /// One call of the thread that moves pages.
    fn move_pages(&mut self, number: u32, what: &Move) -> io::Result<()> {
        let place = self.side.at + ARGUMENTS;
        write_memory(self.process.task.pid, place, &what.bytes())?;
        self.thread.call(&calls::move_by(number, place)).map(|_| ())
    }

    /// Pages that the last call has moved before it failed.
    fn moved_before(&self) -> u64 {
        let mut moved = [0; 8];
        let place = self.side.at + ARGUMENTS + MOVED_AT;
        let read = read_memory(self.process.task.pid, place, &mut moved);
        let moved = read.ok().map_or(0, |()| i64::from_ne_bytes(moved));
        u64::try_from(moved).unwrap_or(0) / self.side.page
    }

    /// Moves the pages to the side area, as far as the kernel allows and the time reaches.
    fn take_away(&mut self, number: u32, begun: Instant) -> Done {
        // Copying takes longer than moving. A stop that was late moves some pages, too.
        let longest = self.manner.longest;
        let until = (begun + longest * 2 / 5).max(Instant::now() + longest / 10);
        let mut pieces = self.side.pieces();
        pieces.sort_by_key(|piece| self.needed(piece));
        for piece in &pieces {
            self.take_piece(number, *piece)?;
            if Instant::now() > until {
                break;
            }
        }
        Ok(())
    }

    /// Whether the thread cannot run without these pages.
    fn needed(&self, piece: &Piece) -> bool {
        let pages = piece.run.first..piece.run.end();
        self.sequences.is_some_and(|page| pages.contains(&page))
    }

    /// Moves one run, to the first page that is refused where the thread needs it to run.
    fn take_piece(&mut self, number: u32, piece: Piece) -> Done {
        let (page, needed) = (self.side.page, self.needed(&piece));
        let mut rest = piece;
        while rest.run.pages > 0 {
            let what = Move {
                to: self.side.slot(rest.slot),
                from: rest.run.first * page,
                length: rest.run.pages * page,
                ..Move::default()
            };
            let done = self.move_pages(number, &what);
            let moved = match done {
                Ok(()) => rest.run.pages,
                Err(_) => self.moved_before(),
            };
            if moved > 0 {
                self.away.push(rest.first(moved));
                rest = rest.after(moved);
                if needed {
                    break;
                }
                continue;
            }
            match done.as_ref().err().and_then(io::Error::raw_os_error) {
                // It is shared or used, or was released meanwhile.
                Some(libc::EBUSY | libc::EAGAIN | libc::ENOENT) => {
                    self.outcome.refused.push(rest.run.first);
                    rest = rest.after(1);
                }
                _ => return at(Step::Move, done),
            }
        }
        Ok(())
    }

    /// Puts the content of moved pages into new frames. Adds those to `left` for which there was no
    /// frame.
    fn copy_back(
        &mut self,
        uffd: &Uffd,
        piece: Piece,
        frames: &mut dyn Frames,
        left: &mut Vec<Piece>,
    ) {
        let (side, pid) = (self.side, self.process.task.pid);
        let size = |pages: u64| usize::try_from(pages * side.page).unwrap_or(0);
        let mut content = vec![0; size(AT_ONCE.min(piece.run.pages))];
        let mut rest = piece;
        while rest.run.pages > 0 {
            let pages = AT_ONCE.min(rest.run.pages);
            let content = &mut content[..size(pages)];
            let (copied, result) = match read_memory(pid, side.slot(rest.slot), content) {
                Ok(()) => {
                    frames.offer(pages);
                    uffd.copy(rest.run.first * side.page, content)
                }
                Err(e) => (0, Err(e)),
            };
            self.outcome.moved += copied / side.page;
            rest = rest.after(copied / side.page);
            if result.is_err() {
                left.push(rest);
                return;
            }
        }
    }

    /// Moves pages back, with the frames that they had.
    fn give_back(&mut self, number: u32, left: &[Piece]) -> Done {
        if left.iter().any(|piece| self.needed(piece)) {
            return Err((Step::Return, io::Error::from_raw_os_error(libc::ENOMEM)));
        }
        for piece in left {
            let (mut rest, mut tries) = (*piece, 0);
            while rest.run.pages > 0 {
                let back = Move {
                    to: rest.run.first * self.side.page,
                    from: self.side.slot(rest.slot),
                    length: rest.run.pages * self.side.page,
                    ..Move::default()
                };
                let done = self.move_pages(number, &back);
                let moved = match done {
                    Ok(()) => rest.run.pages,
                    Err(_) => self.moved_before(),
                };
                rest = rest.after(moved);
                if moved == 0 {
                    tries += 1;
                    std::thread::sleep(Duration::from_millis(1));
                }
                if tries > TRIES {
                    return at(Step::Return, done);
                }
            }
        }
        at(Step::Return, self.thread.rest())
    }
}
