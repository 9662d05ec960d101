//! Processes and threads as `/proc` shows them (proc_pid_stat(5), proc_pid_cgroup(5)). A task that
//! ends while it is being read is no error: the readers return `None`.

use std::collections::BTreeSet;

use quell_record::events::CpuTimes;
use quell_types::task::TaskId;

use crate::cgroup;
use crate::error::{Error, Result};
use crate::root::{Files, gone, is_exact};
pub use crate::stat::Stat;

/// Reads the `stat` of a process or thread. `None` when there is no such task (any more).
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn stat(files: &dyn Files, tid: u32) -> Result<Option<Stat>> {
    stat_at(files, &format!("/proc/{tid}/stat"))
}

/// Reads the `stat` of one thread of a process. `None` when there is no such thread (any more).
/// [`stat`] of a thread adds up the times of all threads of its process, which takes long where
/// there are thousands. Where the process is not known, `pid` may be the thread's own number: the
/// kernel shows the threads of its process there, too.
///
/// # Errors
/// As for [`stat`].
pub fn thread_stat(files: &dyn Files, pid: u32, tid: u32) -> Result<Option<Stat>> {
    stat_at(files, &thread_stat_path(pid, tid))
}

/// The path of the `stat` of one thread of a process.
#[must_use]
pub fn thread_stat_path(pid: u32, tid: u32) -> String {
    format!("/proc/{pid}/task/{tid}/stat")
}

/// The path of the `status` of one thread of a process.
#[must_use]
pub fn thread_status_path(pid: u32, tid: u32) -> String {
    format!("/proc/{pid}/task/{tid}/status")
}

fn stat_at(files: &dyn Files, path: &str) -> Result<Option<Stat>> {
    let Some(text) = files.optional(path)? else {
        return Ok(None);
    };
    Stat::parse(&text)
        .map(Some)
        .ok_or_else(|| Error::malformed(path, &text, "the stat of a process, see proc_pid_stat(5)"))
}

/// The real-time priority of a task (proc_pid_stat(5), field 40); 0 for ordinary tasks. `None`
/// where it cannot be read.
#[must_use]
pub fn rt_priority(files: &dyn Files, tid: u32) -> Option<i32> {
    let text = files.read(&format!("/proc/{tid}/stat")).ok()?;
    let (_, fields) = text.rsplit_once(')')?;
    fields.split_ascii_whitespace().nth(37)?.parse().ok()
}

/// The path of a thread's `schedstat`.
#[must_use]
pub fn schedstat_path(tid: u32) -> String {
    format!("/proc/{tid}/schedstat")
}

/// Nanoseconds that a thread ran, and that it was ready and waited for a CPU. `None` when there is
/// no such thread (any more), or the kernel does not count it.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn schedstat(files: &dyn Files, tid: u32) -> Result<Option<(u64, u64)>> {
    let path = schedstat_path(tid);
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let mut numbers = text.split_ascii_whitespace().map(str::parse::<u64>);
    match (numbers.next(), numbers.next()) {
        (Some(Ok(ran)), Some(Ok(waited))) => Ok(Some((ran, waited))),
        _ => Err(Error::malformed(
            &path,
            &text,
            "time run, time waited and slices, see sched-stats.rst",
        )),
    }
}

/// Bytes that a process has had read from disks and written to them so far. `None` where there is
/// no such process (any more), or the kernel does not count them (CONFIG_TASK_IO_ACCOUNTING).
#[must_use]
pub fn moved(files: &dyn Files, pid: u32) -> Option<u64> {
    let text = files.read(&format!("/proc/{pid}/io")).ok()?;
    let of = |key| field_of(&text, key)?.trim().parse::<u64>().ok();
    Some(of("read_bytes:")?.saturating_add(of("write_bytes:")?))
}

/// How the time of every online CPU was spent since the start, from `/proc/stat` (proc_stat(5)).
/// `ticks` is the number of the kernel's clock ticks per second (`sysconf(_SC_CLK_TCK)`). `None`
/// without the file.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn cpu_times(files: &dyn Files, ticks: u64) -> Result<Option<Vec<CpuTimes>>> {
    let path = "/proc/stat";
    let Some(text) = files.optional(path)? else {
        return Ok(None);
    };
    let lines = text
        .lines()
        .filter_map(|line| line.strip_prefix("cpu"))
        .filter(|line| !line.starts_with(' '));
    let times: Option<Vec<CpuTimes>> = lines.map(|line| parse_times(line, ticks)).collect();
    times
        .map(Some)
        .ok_or_else(|| Error::malformed(path, &text, "lines `cpuN user nice system idle …`"))
}

/// Parses `N user nice system idle iowait irq softirq steal guest guest_nice`, in ticks. Old
/// kernels have fewer fields. Time of this machine's guests is part of `user` already.
fn parse_times(line: &str, ticks: u64) -> Option<CpuTimes> {
    let mut fields = line.split_ascii_whitespace();
    let cpu = fields.next()?.parse().ok()?;
    let values: Vec<u64> = fields
        .map(|f| f.parse().ok())
        .collect::<Option<Vec<u64>>>()?;
    if values.len() < 4 {
        return None;
    }
    let tick = 1_000_000_000 / ticks.max(1);
    let ns = |field: usize| values.get(field).copied().unwrap_or(0).saturating_mul(tick);
    let sum = |fields: &[usize]| {
        fields
            .iter()
            .fold(0u64, |sum, f| sum.saturating_add(ns(*f)))
    };
    Some(CpuTimes {
        cpu,
        busy_ns: sum(&[0, 1, 2]),
        idle_ns: sum(&[3, 4]),
        irq_ns: ns(5),
        softirq_ns: ns(6),
        steal_ns: ns(7),
    })
}

/// Every process, ascending. Processes that end meanwhile are left out.
///
/// # Errors
/// [`Error::File`] when `/proc` cannot be listed, [`Error::Malformed`].
pub fn processes(files: &dyn Files) -> Result<Vec<Stat>> {
    let names = files
        .list("/proc")
        .map_err(|e| Error::file("list", "/proc", None, e))?;
    let mut found = Vec::with_capacity(names.len());
    for pid in names.iter().filter_map(|n| n.parse().ok()) {
        found.extend(stat(files, pid)?);
    }
    found.sort_unstable_by_key(|s| s.id);
    Ok(found)
}

/// The thread ids of a process. Empty when it has ended.
///
/// # Errors
/// [`Error::File`].
pub fn threads(files: &dyn Files, pid: u32) -> Result<Vec<u32>> {
    /// Links of the directory of a process with one thread: the kernel counts threads as
    /// directories (`proc_task_getattr`). The only thread has the number of the process.
    const ONE: u64 = 3;
    let path = format!("/proc/{pid}/task");
    // One system call instead of five, for most processes of a machine.
    if files.node(&path).is_ok_and(|node| node.links == ONE) {
        return Ok(vec![pid]);
    }
    let names = files.names(&path)?;
    Ok(names.iter().filter_map(|n| n.parse().ok()).collect())
}

/// The children of a process. None where the kernel does not list them (`CONFIG_PROC_CHILDREN`).
///
/// # Errors
/// [`Error::File`].
pub fn children(files: &dyn Files, pid: u32) -> Result<Vec<u32>> {
    let mut all = Vec::new();
    for tid in threads(files, pid)? {
        let list = files.optional(&format!("/proc/{pid}/task/{tid}/children"))?;
        let list = list.unwrap_or_default();
        all.extend(
            list.split_whitespace()
                .filter_map(|n| n.parse::<u32>().ok()),
        );
    }
    Ok(all)
}

/// The process that a thread belongs to. `None` when the thread has ended.
///
/// # Errors
/// [`Error::File`].
pub fn process_of(files: &dyn Files, tid: u32) -> Result<Option<u32>> {
    status_field(files, tid, "Tgid:")
}

/// The users of a process by number: real, effective, saved. `None` when it has ended.
///
/// # Errors
/// [`Error::File`].
pub fn users(files: &dyn Files, pid: u32) -> Result<Option<[u32; 3]>> {
    let path = format!("/proc/{pid}/status");
    let Some(text) = files.optional(&path)? else {
        return Ok(None);
    };
    let mut numbers = field_of(&text, "Uid:")
        .unwrap_or_default()
        .split_ascii_whitespace()
        .map_while(|n| n.parse().ok());
    let mut next = || numbers.next();
    Ok(next()
        .zip(next())
        .zip(next())
        .map(|((real, effective), saved)| [real, effective, saved]))
}

/// Whether a process has an effective capability, by its bit in `capability.h`.
///
/// # Errors
/// [`Error::File`].
pub fn is_capable(files: &dyn Files, pid: u32, capability: u32) -> Result<bool> {
    let text = files.optional(&format!("/proc/{pid}/status"))?;
    let bits = text
        .as_deref()
        .and_then(|text| field_of(text, "CapEff:"))
        .and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok());
    Ok(bits.is_some_and(|bits| bits >> capability & 1 == 1))
}

fn status_field(files: &dyn Files, tid: u32, name: &str) -> Result<Option<u32>> {
    let text = files.optional(&format!("/proc/{tid}/status"))?;
    Ok(text
        .as_deref()
        .and_then(|t| field_of(t, name))
        .and_then(|f| f.trim().parse().ok()))
}

fn field_of<'a>(text: &'a str, name: &str) -> Option<&'a str> {
    text.lines().find_map(|line| line.strip_prefix(name))
}

/// The path of the program that a process runs. `None` for kernel threads, ended processes, and
/// where it may not be read.
#[must_use]
pub fn executable(files: &dyn Files, pid: u32) -> Option<String> {
    let path = files.link(&format!("/proc/{pid}/exe")).ok()?;
    Some(
        path.strip_suffix(" (deleted)")
            .map_or_else(|| path.clone(), str::to_owned),
    )
}

/// The cgroup of a task in one hierarchy: a line of `/proc/PID/cgroup`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Membership {
    /// Number of the hierarchy; 0 is the v2 hierarchy.
    pub hierarchy: u32,
    /// The controllers (v1), or `name=…`. Empty for v2.
    pub controllers: Vec<String>,
    /// The cgroup's path from the root of the hierarchy.
    pub path: String,
}

/// The end of a path that cannot be told. Alone it stands for one that is longer than the kernel
/// tells (ENAMETOOLONG, 4096 bytes), or than leaves room for the mount and the name of a file. It
/// follows the path of the last cgroup above a name that is not UTF-8, or that reads like one.
/// Users can make such cgroups in those that are delegated to them. Every cgroup has a file of this
/// name, so that there is never a cgroup with this path.
pub const UNTOLD: &str = "/cgroup.procs/…";
/// The longest path of a cgroup with that room.
const LONGEST: usize = 3500;

/// The cgroups of a task in every hierarchy. Empty when it has ended. One of them may end in
/// [`UNTOLD`].
///
/// Behind the path of a v2 cgroup that was removed, where only tasks are that ended, the kernel
/// writes ` (deleted)`. That is taken for a part of the name where there is a cgroup with it, and
/// left out where there is none or its mount is not seen.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn memberships(files: &dyn Files, tid: &str) -> Result<Vec<Membership>> {
    let path = format!("/proc/{tid}/cgroup");
    // A name may begin and end in white space.
    let text = match files.read(&path) {
        Ok(text) => text,
        Err(e) if e.raw_os_error() == Some(libc::ENAMETOOLONG) => {
            return Ok(vec![Membership {
                hierarchy: 0,
                controllers: Vec::new(),
                path: UNTOLD.to_owned(),
            }]);
        }
        Err(e) if gone(&e) => return Ok(Vec::new()),
        Err(e) => return Err(Error::file("read", &path, None, e)),
    };
    let mut found = Vec::new();
    // The kernel lets no name of a cgroup have a newline.
    for line in text.split('\n').filter(|line| !line.is_empty()) {
        let mut parts = line.splitn(3, ':');
        let (Some(number), Some(controllers), Some(cgroup)) =
            (parts.next(), parts.next(), parts.next())
        else {
            return Err(Error::malformed(
                &path,
                line,
                "a line such as 0::/user.slice",
            ));
        };
        let hierarchy = number
            .parse()
            .map_err(|_| Error::malformed(&path, line, "a line such as 0::/user.slice"))?;
        found.push(Membership {
            hierarchy,
            controllers: controllers
                .split(',')
                .filter(|c| !c.is_empty())
                .map(str::to_owned)
                .collect(),
            path: match cgroup.strip_suffix(" (deleted)") {
                Some(removed) if hierarchy == 0 && !cgroup::exists(files, cgroup) => told(removed),
                _ => told(cgroup),
            },
        });
    }
    Ok(found)
}

/// Whether a path leads to the cgroup that it was read of, and leaves room for the name of a file.
pub(crate) fn is_told(path: &str) -> bool {
    path.len() <= LONGEST && is_exact(path)
}

/// As much of a cgroup's path as can be told.
fn told(path: &str) -> String {
    if path.len() > LONGEST {
        return UNTOLD.to_owned();
    }
    match path.find(char::REPLACEMENT_CHARACTER) {
        Some(at) => {
            let above = path[..at].rfind('/').unwrap_or_default();
            format!("{}{UNTOLD}", &path[..above])
        }
        None => path.to_owned(),
    }
}

/// The boot id, which changes with every boot.
///
/// # Errors
/// [`Error::File`].
pub fn boot_id(files: &dyn Files) -> Result<String> {
    files.text("/proc/sys/kernel/random/boot_id")
}

/// Whether this very task (number and start time) is alive. A zombie is not.
#[must_use]
pub fn alive(files: &dyn Files, task: TaskId) -> bool {
    stat(files, task.pid)
        .ok()
        .flatten()
        .is_some_and(|s| s.is_alive(task))
}

/// A thread of this very process (number and start time) that has not ended: the first one, else
/// another. `None`: the process has ended. Its first thread may end long before the others.
///
/// # Errors
/// [`Error::File`], [`Error::Malformed`].
pub fn living(files: &dyn Files, task: TaskId) -> Result<Option<u32>> {
    let first = thread_stat(files, task.pid, task.pid)?;
    match first.filter(|stat| stat.id == task) {
        None => return Ok(None),
        Some(stat) if !stat.leaving() => return Ok(Some(task.pid)),
        Some(_) => {}
    }
    for tid in threads(files, task.pid)? {
        let stat = thread_stat(files, task.pid, tid)?;
        if stat.is_some_and(|stat| !stat.leaving()) {
            return Ok(Some(tid));
        }
    }
    Ok(None)
}

/// The `stat` of the calling process.
///
/// # Errors
/// [`Error::File`], [`Error::Refused`] where `/proc` does not show it.
pub fn ourselves(files: &dyn Files) -> Result<Stat> {
    stat(files, std::process::id())?.ok_or_else(|| {
        Error::refused("/proc does not show this process: it is the /proc of another PID namespace")
    })
}

/// The most ancestors that are read. A hostile program can make the chain of a process that asks
/// for something as long as it likes.
const GENERATIONS: usize = 64;

/// A process and its ancestors, itself first. Of a chain longer than programs make, the beginning.
///
/// # Errors
/// [`Error::File`].
pub fn ancestry(files: &dyn Files, pid: u32) -> Result<Vec<u32>> {
    let mut chain = Vec::new();
    let mut seen = BTreeSet::new();
    let mut at = pid;
    while at != 0 && chain.len() < GENERATIONS && seen.insert(at) {
        chain.push(at);
        match stat(files, at)? {
            Some(stat) => at = stat.parent,
            None => break,
        }
    }
    Ok(chain)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::root::Kernel;

    const STAT: &str = "1234 (a) b (c)) S 1 1234 1234 0 -1 4194560 100 0 0 0 5 6 0 0 20 0 3 0 98765 1000 10 \
                        18446744073709551615 1 1 0 0 0 0 0 0 0 0 0 0 17 1 0 0 0 0 0";

    #[test]
    fn a_command_name_with_parentheses_is_read() {
        let stat = Stat::parse(STAT).unwrap();
        assert_eq!(stat.comm, "a) b (c)");
        assert_eq!(
            stat.id,
            TaskId {
                pid: 1234,
                start: 98765
            }
        );
        assert_eq!((stat.parent, stat.threads, stat.last_cpu), (1, 3, 1));
        assert!(!stat.kernel_thread() && !stat.bound() && !stat.dead());
        assert!(Stat::parse("1234 nothing").is_none());
    }

    #[test]
    fn a_command_name_cannot_write_to_a_terminal() {
        let stat = Stat::parse(&STAT.replace("a) b (c)", "\u{1b}[2J\nok")).unwrap();
        assert_eq!(stat.comm, "?[2J?ok");
    }

    #[test]
    fn the_time_of_every_cpu_is_read_in_the_kernels_ticks() {
        let dir = tempfile::tempdir().unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(cpu_times(&kernel, 100).unwrap(), None);
        std::fs::create_dir(dir.path().join("proc")).unwrap();
        let write = |text: &str| std::fs::write(dir.path().join("proc/stat"), text).unwrap();
        write(
            "cpu  9 9 9 9 9 9 9 9 0 0\ncpu0 3 1 2 40 5 6 7 8 2 0\ncpu7 1 0 0 2\nintr 12 1 2\nctxt 5\n",
        );
        let ms = |n: u64| n * 1_000_000;
        let times = cpu_times(&kernel, 100).unwrap().unwrap();
        let first = CpuTimes {
            cpu: 0,
            busy_ns: ms(60),
            idle_ns: ms(450),
            irq_ns: ms(60),
            softirq_ns: ms(70),
            steal_ns: ms(80),
        };
        let (busy_ns, idle_ns) = (ms(10), ms(20));
        let old = CpuTimes {
            cpu: 7,
            busy_ns,
            idle_ns,
            ..CpuTimes::default()
        };
        assert_eq!(times, [first, old]);
        write("cpu0 3 1 two 40\n");
        let error = cpu_times(&kernel, 100).unwrap_err().to_string();
        assert!(error.contains("/proc/stat"), "{error}");
    }

    #[test]
    fn a_machine_in_a_folder() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/1234");
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::write(proc.join("stat"), STAT).unwrap();
        std::fs::write(proc.join("cmdline"), b"python3\0detect.py\0\0").unwrap();
        std::fs::write(
            proc.join("cgroup"),
            "3:cpuset:/a/b\n1:cpu,cpuacct:/\n0::/x (deleted)\n",
        )
        .unwrap();
        std::fs::write(
            proc.join("status"),
            "Name:\tx\nTgid:\t1234\nUid:\t1000\t1001\t1000\t1000\n",
        )
        .unwrap();
        let kernel = Kernel::at(dir.path());
        assert_eq!(processes(&kernel).unwrap().len(), 1);
        assert_eq!(
            crate::reading::arguments(&kernel, 1234).unwrap().words(),
            ["python3", "detect.py", ""]
        );
        assert_eq!(users(&kernel, 1234).unwrap().unwrap()[1], 1001);
        assert_eq!(process_of(&kernel, 1234).unwrap(), Some(1234));
        let places = memberships(&kernel, "1234").unwrap();
        assert_eq!(places[1].controllers, ["cpu", "cpuacct"]);
        assert_eq!((places[2].hierarchy, places[2].path.as_str()), (0, "/x"));
        assert!(alive(
            &kernel,
            TaskId {
                pid: 1234,
                start: 98765
            }
        ));
        assert!(
            !alive(
                &kernel,
                TaskId {
                    pid: 1234,
                    start: 98766
                }
            ),
            "a later task of the same number"
        );
        assert_eq!(stat(&kernel, 99).unwrap(), None);
    }

    #[test]
    fn names_of_cgroups_are_taken_as_they_are() {
        let dir = tempfile::tempdir().unwrap();
        let proc = dir.path().join("proc/7");
        std::fs::create_dir_all(&proc).unwrap();
        std::fs::create_dir_all(dir.path().join("proc/self")).unwrap();
        std::fs::create_dir_all(dir.path().join("cg/is (deleted)")).unwrap();
        let mounts = "30 23 0:26 / /cg rw - cgroup2 cgroup2 rw\n";
        std::fs::write(dir.path().join("proc/self/mountinfo"), mounts).unwrap();
        let kernel = Kernel::at(dir.path());
        let read = |line: &[u8]| {
            std::fs::write(proc.join("cgroup"), [line, b"\n"].concat()).unwrap();
            memberships(&kernel, "7").unwrap().remove(0).path
        };
        assert_eq!(read(b"0::/a/cr\r"), "/a/cr\r");
        assert_eq!(read(b"0::/sp "), "/sp ");
        assert_eq!(read(b"0::/a:b"), "/a:b");
        // There is one of that name, and none of the others.
        assert_eq!(read(b"0::/is (deleted)"), "/is (deleted)");
        assert_eq!(read(b"0::/was (deleted)"), "/was");
        assert_eq!(read(b"0::/is (deleted) (deleted)"), "/is (deleted)");
        // The kernel adds that to no line of v1.
        assert_eq!(read(b"3:cpu:/x (deleted)"), "/x (deleted)");
        let untold = |above: &str| format!("{above}{UNTOLD}");
        assert_eq!(read(b"0::/own/b\xff"), untold("/own"));
        assert_eq!(read(b"0::/own/b\xff/c\xfe/d"), untold("/own"));
        assert_eq!(read(b"0::/\xff"), UNTOLD);
        assert_eq!(read("0::/own/b\u{fffd}".as_bytes()), untold("/own"));
        assert_eq!(read("0::/größe".as_bytes()), "/größe");
        std::fs::write(dir.path().join("cg/cgroup.procs"), "").unwrap();
        assert!(!kernel.exists(&untold("/cg")));
    }

    #[test]
    fn we_find_ourselves() {
        let Ok(kernel) = Kernel::new() else {
            return quell_testing::skip("no /proc or /sys here");
        };
        let we = ourselves(&kernel).unwrap();
        assert_eq!(we.id.pid, std::process::id());
        assert!(threads(&kernel, we.id.pid).unwrap().contains(&we.id.pid));
        assert!(matches!(threads(&kernel, 1).as_deref(), Ok([1, ..])));
        assert_eq!(ancestry(&kernel, we.id.pid).unwrap()[1], we.parent);
    }
}
