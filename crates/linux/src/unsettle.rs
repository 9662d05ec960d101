//! What a settler left is finished: pages that are still away come back, and the side area goes.

use std::time::{Duration, Instant};

use quell_kernel::pagemap::{Page, Pagemap};
use quell_kernel::relocate::{self, Process};
use quell_kernel::root::{Files, gone};
use quell_kernel::trace::{Call, Thread};
use quell_kernel::traceable;
use quell_kernel::{affinity, procfs, uffd};
use quell_types::cpuset::CpuSet;
use quell_types::pages::SideArea;

/// How long a settler may go on with its chunk.
const PATIENCE: Duration = Duration::from_secs(10);
const PAUSE: Duration = Duration::from_millis(1);
/// How often pages are put back that could not be.
const TRIES: u32 = 100;

/// Finishes what was begun with the pages of a side area. A settler that is still at it ends by
/// itself, and is waited for. Returns whether there was anything to do.
///
/// # Errors
/// Why it could not be finished, in a sentence.
pub(crate) fn finish(files: &dyn Files, side: &SideArea, alive: &dyn Fn()) -> Result<bool, String> {
    let done = bring_back(files, side, alive);
    let kept = give_cpus_back(files, side);
    done.map(|done| done || kept)
}

/// Gives threads their CPUs back that are still kept on one. Returns whether any was.
fn give_cpus_back(files: &dyn Files, side: &SideArea) -> bool {
    let Some(caller) = &side.caller else {
        return false;
    };
    let on = CpuSet::from_iter([caller.on]);
    let is_there = |tid| {
        procfs::alive(files, side.task)
            && matches!(procfs::thread_stat(files, side.task.pid, tid), Ok(Some(_)))
    };
    let mut kept = false;
    for (tid, cpus) in side.kept().filter(|(_, cpus)| **cpus != on) {
        kept |= files.affinity(tid).is_ok_and(|now| now == on)
            && is_there(tid)
            && affinity::give_back(tid, cpus).is_ok();
    }
    kept
}

fn bring_back(files: &dyn Files, side: &SideArea, alive: &dyn Fn()) -> Result<bool, String> {
    let pid = side.task.pid;
    let left = |why: &str| format!("pages of process {pid} are away from their places: {why}");
    let (of, until) = (side.task, Instant::now() + PATIENCE);
    traceable::untraced(files, Thread { of, tid: pid }, until, alive).map_err(|e| e.to_string())?;
    if !procfs::alive(files, side.task) || !relocate::is_there(side) {
        return Ok(false);
    }
    let process = match Process::open(side.task) {
        Ok(process) => process,
        Err(e) if gone(&e) => return Ok(false),
        Err(e) => return Err(left(&e.to_string())),
    };
    let numbers = descriptors(files, pid);
    let fetched = numbers.iter().map(|number| process.copy(*number));
    let fetched = fetched.filter_map(Result::ok).map(uffd::Uffd::of);
    let fetched: Vec<uffd::Uffd> = fetched.collect();
    let pagemap = Pagemap::open(files, &pid.to_string()).map_err(|e| left(&e.to_string()))?;
    let is_away = |address: u64| {
        let mut page = [Page::default()];
        let read = pagemap.read(address / side.page.max(1), &mut page);
        matches!(read, Ok(1)) && (page[0].is_present() || page[0].is_swapped())
    };
    let mut back = relocate::bring_back(side, &fetched, &is_away);
    for _ in 0..TRIES {
        if back.is_ok() {
            break;
        }
        std::thread::sleep(PAUSE);
        alive();
        back = relocate::bring_back(side, &fetched, &is_away);
    }
    back.map_err(|e| left(&e.to_string()))?;
    drop(fetched);
    // What is left costs the program an address range and a descriptor, and nothing else.
    let remains = |e: std::io::Error| format!("a side area of process {pid} stays mapped: {e}");
    match returned(files, side, alive) {
        Err(e) if !gone(&e) => return Err(remains(e)),
        _ => {}
    }
    let call = |call: &Call| match traceable::thread(files, side.task) {
        Some(thread) => files.call_within(thread, call, None, &mut || alive()),
        None => Ok(Duration::ZERO),
    };
    let unmapped = match relocate::is_there(side) {
        true => call(&Call::unmap(side.at, side.length())),
        false => Ok(Duration::ZERO),
    };
    for number in descriptors(files, pid) {
        let _ = call(&Call::close(number));
    }
    match unmapped {
        Err(e) if !gone(&e) => Err(remains(e)),
        _ => Ok(true),
    }
}

/// Waits until the thread that did the settler's calls has ended the last one. It could unmap what
/// the program has mapped meanwhile.
fn returned(files: &dyn Files, side: &SideArea, alive: &dyn Fn()) -> std::io::Result<()> {
    let Some(tid) = relocate::caller(side) else {
        return Ok(());
    };
    let (of, begun) = (side.task, Instant::now());
    loop {
        // The kernel answers EBUSY while it is on its way back.
        let done = files.call_within(Thread { of, tid }, &Call::NONE, None, &mut || alive());
        match done.map_err(|e| (e.raw_os_error(), e)) {
            Err((Some(libc::EBUSY), _)) if begun.elapsed() < PATIENCE => std::thread::sleep(PAUSE),
            done => return done.map(|_| ()).map_err(|(_, e)| e),
        }
    }
}

/// The numbers of a process's descriptors that are for missing pages.
pub(crate) fn descriptors(files: &dyn Files, pid: u32) -> Vec<u32> {
    let dir = format!("/proc/{pid}/fd");
    let is_one = |name: &String| {
        let link = files.link(&format!("{dir}/{name}"));
        link.is_ok_and(|link| link == "anon_inode:[userfaultfd]")
    };
    let names = files.list(&dir).unwrap_or_default();
    let found = names.iter().filter(|name| is_one(name));
    found.filter_map(|name| name.parse().ok()).collect()
}
