//! The modelled machine: CPUs, nodes, tasks, and the way from a path to its subsystem.

use std::collections::BTreeMap;

use quell_types::cpuset::CpuSet;
use quell_types::task::TaskId;

use super::Answer;
use super::knobs::Knobs;
use super::resctrl::Resctrl;
use super::spec::Spec;
use super::state::{Machine, Tree};
use super::task::{PF_EXITING, PF_KTHREAD, PF_NO_SETAFFINITY, Task};

/// The first process id given out: beyond those that this machine is likely to have.
const FIRST: u32 = 4_100_000;

impl Machine {
    pub(crate) fn new(spec: &Spec) -> Self {
        let cpus: CpuSet = (0..spec.cpus).collect();
        let nodes: CpuSet = (0..spec.nodes).collect();
        let mut machine = Self {
            flavour: spec.flavour,
            release: crate::topology::release_number(spec.release).unwrap_or((6, 12)),
            knobs: Knobs::new(spec, &cpus),
            resctrl: None,
            registers: spec.registers.then(|| super::msr::Registers::new(&cpus)),
            trees: Tree::all(spec.flavour, &cpus, &nodes),
            cpus,
            nodes,
            tasks: BTreeMap::new(),
            resource: spec.resource,
            stalls: BTreeMap::new(),
            recorded: BTreeMap::new(),
            leaked: CpuSet::new(),
            next: FIRST,
            born: 0,
        };
        let rdt = spec.rdt.as_ref();
        machine.resctrl = rdt.map(|rdt| Resctrl::new(rdt, &machine.cpus, machine.release));
        machine.insert(1, 0, "init", &["/sbin/init"], 0);
        machine.insert(2, 0, "kthreadd", &[], PF_KTHREAD);
        for cpu in machine.cpus.clone().iter() {
            let tid = 10 + cpu;
            let flags = PF_KTHREAD | PF_NO_SETAFFINITY;
            machine.insert(tid, 2, &format!("migration/{cpu}"), &[], flags);
            machine.task(tid).allowed = CpuSet::from_iter([cpu]);
        }
        machine.insert(9, 2, "kswapd0", &[], PF_KTHREAD);
        let own = std::process::id();
        if !machine.tasks.contains_key(&own) {
            machine.insert(own, 1, "quell", &["quell"], 0);
        }
        machine
    }

    fn insert(&mut self, tid: u32, parent: u32, comm: &str, args: &[&str], flags: u64) {
        self.born += 1;
        let task = Task {
            tgid: tid,
            parent,
            start: 100 * self.born,
            comm: comm.chars().take(15).collect(),
            args: args.iter().map(|a| (*a).to_owned()).collect(),
            user: 0,
            state: 'S',
            flags,
            realtime: false,
            asked: None,
            allowed: self.cpus.clone(),
            anonymous: 0,
            oom_score_adj: 0,
            open: Vec::new(),
            places: vec!["/".to_owned(); self.trees.len()],
        };
        self.tasks.insert(tid, task);
    }

    /// The task with this id.
    ///
    /// # Panics
    /// Where there is no such task: a test names one that it made.
    pub(crate) fn task(&mut self, tid: u32) -> &mut Task {
        self.tasks
            .get_mut(&tid)
            .expect("invariant: the test names a task it made")
    }

    fn number(&mut self) -> u32 {
        self.next += 1;
        self.next
    }

    /// Makes a process, child of init, in the root cgroups. Returns its process id.
    pub fn spawn(&mut self, comm: &str) -> u32 {
        let pid = self.number();
        self.insert(pid, 1, comm, &[comm], 0);
        pid
    }

    /// Makes a child of a process, which inherits cgroups and affinity. Returns its process id.
    pub fn fork(&mut self, parent: u32) -> u32 {
        let pid = self.number();
        self.heir(parent, pid, pid);
        self.task(pid).parent = parent;
        pid
    }

    /// Adds a thread to a process. Returns its thread id.
    pub fn thread(&mut self, process: u32) -> u32 {
        let tid = self.number();
        self.heir(process, tid, process);
        tid
    }

    fn heir(&mut self, of: u32, tid: u32, tgid: u32) {
        self.born += 1;
        let start = 100 * self.born;
        let from = self.task(of).clone();
        let heir = Task {
            tgid,
            start,
            anonymous: 0,
            ..from
        };
        self.tasks.insert(tid, heir);
        if let Some(resctrl) = &mut self.resctrl {
            resctrl.born(of, tid);
        }
    }

    /// Gives a process another parent (its own ended, and that one is a subreaper).
    pub fn adopt(&mut self, child: u32, parent: u32) {
        self.task(child).parent = parent;
    }

    /// Makes a directory, as another program does.
    ///
    /// # Errors
    /// The kernel's answer, an error number.
    pub fn somebody_makes(&mut self, path: &str) -> Result<(), i32> {
        self.mkdir(path)
    }

    /// Marks a process as ending, which takes its time.
    pub fn begin_exit(&mut self, pid: u32) {
        for task in self.tasks.values_mut().filter(|t| t.tgid == pid) {
            task.flags |= PF_EXITING;
        }
    }

    /// Ends a process. Until it is reaped it is a zombie. Its children go to init.
    pub fn exit(&mut self, pid: u32) {
        self.tasks.retain(|tid, t| t.tgid != pid || *tid == pid);
        if let Some(task) = self.tasks.get_mut(&pid) {
            task.state = 'Z';
            task.anonymous = 0;
            task.args.clear();
            task.open.clear();
        }
        for child in self.tasks.values_mut().filter(|t| t.parent == pid) {
            child.parent = 1;
        }
    }

    /// Reaps a zombie, as its parent does by waiting for it.
    pub fn reap(&mut self, pid: u32) {
        if self.tasks.get(&pid).is_some_and(Task::dead) {
            self.tasks.remove(&pid);
            if let Some(resctrl) = &mut self.resctrl {
                resctrl.gone(pid);
            }
        }
    }

    /// Opens the device of a locked region in a process. ENODEV where there is no region of that
    /// name.
    ///
    /// # Errors
    /// The error number.
    pub fn opens(&mut self, pid: u32, region: &str) -> Result<(), i32> {
        let resctrl = self.resctrl.as_ref().ok_or(libc::ENODEV)?;
        if !resctrl.devices().iter().any(|name| name == region) {
            return Err(libc::ENODEV);
        }
        let path = super::resctrl::locked::device(region);
        self.task(pid).open.push(path);
        Ok(())
    }

    /// Sets the effective user of a process.
    pub fn user(&mut self, pid: u32, user: u32) {
        self.task(pid).user = user;
    }

    /// Makes a thread real-time, with the policy SCHED_FIFO.
    pub fn realtime(&mut self, tid: u32) {
        self.task(tid).realtime = true;
    }

    /// A task's id and start time. `None` where there is no such task.
    #[must_use]
    pub fn id(&self, tid: u32) -> Option<TaskId> {
        self.tasks.get(&tid).map(|t| TaskId {
            pid: tid,
            start: t.start,
        })
    }

    /// Ids of all living tasks, including kernel threads.
    #[must_use]
    pub fn alive(&self) -> Vec<u32> {
        let alive = self.tasks.iter().filter(|(_, t)| !t.dead());
        alive.map(|(tid, _)| *tid).collect()
    }

    /// Adds an interrupt with these CPUs. `fixed` is 0, or the error with which moving it is
    /// refused. That is `EIO` where the kernel manages a driver's queues, `EPERM` where the file is
    /// not even writable.
    pub fn interrupt(&mut self, number: u32, cpus: &CpuSet, fixed: i32) {
        self.knobs.interrupt(number, cpus, fixed);
    }

    /// `pidfd_send_signal(2)`: signals that stop, continue and kill. A frozen process dies, too.
    pub(crate) fn signal(&mut self, task: TaskId, signal: i32) -> Answer<()> {
        if self.id(task.pid) != Some(task) {
            return Err(libc::ESRCH);
        }
        let same: Vec<u32> = {
            let of = self.tasks[&task.pid].tgid;
            let all = self.tasks.iter().filter(|(_, t)| t.tgid == of && !t.dead());
            all.map(|(tid, _)| *tid).collect()
        };
        match signal {
            libc::SIGKILL => self.exit(task.pid),
            libc::SIGSTOP => same.iter().for_each(|t| self.task(*t).state = 'T'),
            libc::SIGCONT => same.iter().for_each(|t| self.task(*t).state = 'S'),
            1..=64 => {}
            _ => return Err(libc::EINVAL),
        }
        Ok(())
    }

    pub(crate) fn affinity(&self, tid: u32) -> Answer<CpuSet> {
        let tid = if tid == 0 { std::process::id() } else { tid };
        let task = self.tasks.get(&tid).ok_or(libc::ESRCH)?;
        Ok(task.allowed.clone())
    }

    pub(crate) fn scheduler(&self, tid: u32) -> Answer<i32> {
        let tid = if tid == 0 { std::process::id() } else { tid };
        let task = self.tasks.get(&tid).ok_or(libc::ESRCH)?;
        Ok(match task.realtime {
            true => libc::SCHED_FIFO,
            false => libc::SCHED_OTHER,
        })
    }

    pub(crate) fn set_affinity(&mut self, tid: u32, cpus: &CpuSet) -> Answer<()> {
        let tid = if tid == 0 { std::process::id() } else { tid };
        let task = self.tasks.get(&tid).ok_or(libc::ESRCH)?;
        if task.flags & PF_NO_SETAFFINITY != 0 {
            return Err(libc::EINVAL);
        }
        let new = cpus.intersection(&self.cpuset_of(tid));
        if new.is_empty() {
            return Err(libc::EINVAL);
        }
        let asked = cpus.clone();
        let task = self.task(tid);
        task.allowed = new;
        task.asked = Some(asked);
        Ok(())
    }

    /// Adapts a task's affinity to the cpuset that it is in, or enters.
    pub(crate) fn refit(&mut self, tid: u32) {
        let usual = self.cpuset_of(tid);
        let remembers = self.release >= (6, 2);
        let task = self.task(tid);
        if task.flags & PF_NO_SETAFFINITY != 0 {
            return;
        }
        if !remembers {
            task.asked = None;
        }
        let common = task
            .asked
            .as_ref()
            .map(|asked| asked.intersection(&usual))
            .filter(|c| !c.is_empty());
        task.allowed = common.unwrap_or(usual);
    }

    /// Resolves `/proc/self` to this process. No other path is a link to a directory here.
    pub(crate) fn resolve(&self, path: &str) -> String {
        let path = path.trim_end_matches('/');
        match path.strip_prefix("/proc/self") {
            Some(rest) if rest.is_empty() || rest.starts_with('/') => {
                format!("/proc/{}{rest}", std::process::id())
            }
            _ => path.to_owned(),
        }
    }

    pub(crate) fn read(&self, path: &str) -> Answer<String> {
        if let Some(text) = self.recorded.get(path) {
            return Ok(text.clone());
        }
        if let Some(answer) = self.registers.as_ref().and_then(|r| r.read(path)) {
            return answer;
        }
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_read(tree, &rest);
        }
        if let (Some(rest), Some(resctrl)) = (super::resctrl::below(path), &self.resctrl) {
            return resctrl.read(&rest, &self.tasks);
        }
        if let Some(resctrl) = &self.resctrl {
            if path == "/proc/filesystems" {
                return Ok("nodev\tproc\nnodev\tresctrl\n".to_owned());
            }
            if path == "/proc/devices" {
                let lock = resctrl.mounted().map_or("", |_| "243 pseudo_lock\n");
                return Ok(format!("Character devices:\n  1 mem\n{lock}"));
            }
            let device = |name: &String| super::resctrl::locked::device(name) == path;
            if resctrl.devices().iter().any(device) {
                // A device can be mapped, and nothing else.
                return Err(libc::EINVAL);
            }
            if let Some(tid) = super::proc::divided(path) {
                let alive = self.tasks.contains_key(&tid);
                return alive.then(|| resctrl.membership(tid)).ok_or(libc::ENOENT);
            }
        }
        if path.starts_with("/proc/pressure/") {
            return self.knobs.read(path).map(|_| self.pressure(path));
        }
        match self.proc_read(path) {
            Err(libc::ENOENT) => self.knobs.read(path),
            other => other,
        }
    }

    pub(crate) fn write(&mut self, path: &str, text: &str) -> Answer<()> {
        if let Some(answer) = self.registers.as_mut().and_then(|r| r.write(path, text)) {
            return answer;
        }
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_write(tree, &rest, text);
        }
        if let (Some(rest), Some(resctrl)) = (super::resctrl::below(path), &mut self.resctrl) {
            return resctrl.write(&rest, text, &self.tasks);
        }
        if let Some(tid) = super::proc::adjusted(path) {
            return self.adjust_score(tid, text);
        }
        if self.proc_read(path).is_ok() {
            return Err(libc::EACCES);
        }
        if path.starts_with("/proc/pressure/") {
            self.knobs.read(path)?;
            return super::knobs::trigger(text, self.release, self.resource);
        }
        let cpus = self.cpus.clone();
        self.knobs.write(path, text, &cpus)
    }

    pub(crate) fn list(&self, path: &str) -> Answer<Vec<String>> {
        let path = path.trim_end_matches('/');
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_list(tree, &rest);
        }
        if let (Some(rest), Some(resctrl)) = (super::resctrl::below(path), &self.resctrl) {
            return resctrl.list(&rest);
        }
        let mut names = self.proc_list(path);
        names.extend(self.knobs.list(path));
        if let Some(resctrl) = &self.resctrl
            && path == "/dev/pseudo_lock"
        {
            names.extend(resctrl.devices());
        }
        let point = |p: &String| {
            let rest = p.strip_prefix(path)?.strip_prefix('/')?;
            rest.split('/').next().map(str::to_owned)
        };
        names.extend(self.trees.iter().map(|t| &t.mount).filter_map(point));
        if self.resctrl.is_some() {
            names.extend(point(&super::resctrl::MOUNT.to_owned()));
        }
        names.sort_unstable();
        names.dedup();
        match names.is_empty() {
            false => Ok(names),
            true if self.proc_read(path).is_ok() || self.knobs.read(path).is_ok() => {
                Err(libc::ENOTDIR)
            }
            true => Err(libc::ENOENT),
        }
    }

    pub(crate) fn mkdir(&mut self, path: &str) -> Answer<()> {
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_mkdir(tree, &rest);
        }
        if let (Some(rest), Some(resctrl)) = (super::resctrl::below(path), &mut self.resctrl) {
            return resctrl.mkdir(&rest);
        }
        Err(libc::EPERM)
    }

    pub(crate) fn rmdir(&mut self, path: &str) -> Answer<()> {
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_rmdir(tree, &rest);
        }
        if let (Some(rest), Some(resctrl)) = (super::resctrl::below(path), &mut self.resctrl) {
            return resctrl.rmdir(&rest, &self.tasks);
        }
        Err(libc::EPERM)
    }

    pub(crate) fn mount(&mut self, kind: &str, path: &str, options: &str) -> Answer<()> {
        match &mut self.resctrl {
            Some(resctrl) if kind == "resctrl" && path == super::resctrl::MOUNT => {
                resctrl.mount(options)
            }
            _ => Err(libc::ENODEV),
        }
    }

    pub(crate) fn unmount(&mut self, path: &str) -> Answer<()> {
        match &mut self.resctrl {
            Some(resctrl) if path == super::resctrl::MOUNT => resctrl.unmount(&self.tasks),
            _ => Err(libc::EINVAL),
        }
    }

    /// Mounts resctrl as another program does, or unmounts it (`None`).
    pub fn resctrl_mounted(&mut self, options: Option<&str>) {
        if let Some(resctrl) = &mut self.resctrl {
            let _ = match options {
                Some(options) => resctrl.mount(options),
                None => resctrl.unmount(&self.tasks),
            };
        }
    }

    /// Takes the CPUs of a cache, or of a memory controller, offline, or brings them back.
    pub fn resctrl_domain(&mut self, resource: &str, domain: u32, online: bool) {
        if let Some(resctrl) = &mut self.resctrl {
            resctrl.set_domain(resource, domain, online);
        }
    }

    /// Takes the device of a CPU's registers away with the CPU, or brings both back.
    pub fn registers_online(&mut self, cpu: u32, online: bool) {
        if let Some(registers) = &mut self.registers {
            registers.set_online(cpu, online);
        }
    }

    /// Lets every write of a register succeed and change nothing.
    pub fn register_stuck(&mut self, number: u32) {
        if let Some(registers) = &mut self.registers {
            registers.stick(number);
        }
    }

    /// Makes this many monitoring ids wait until their lines have left the cache.
    pub fn limbo(&mut self, ids: u32) {
        if let Some(resctrl) = &mut self.resctrl {
            resctrl.set_limbo(ids);
        }
    }

    pub(crate) fn mode(&self, path: &str) -> Answer<u32> {
        const DIR: u32 = 0o40_755;
        if self.recorded.contains_key(path) {
            return Ok(0o100_444);
        }
        if let Some((tree, rest)) = self.in_tree(path) {
            return self.cgroup_mode(tree, &rest);
        }
        if self.list(path).is_ok() {
            return Ok(DIR);
        }
        if super::proc::adjusted(path).is_some() {
            return self.read(path).map(|_| 0o100_644);
        }
        match self.knobs.mode(path) {
            Some(mode) => Ok(0o100_000 | mode),
            None => match self.read(path) {
                // It exists, and all reading is refused.
                Err(libc::EACCES) => Ok(0o100_000),
                Err(libc::EINVAL) => Ok(0o20_600),
                other => other.map(|_| 0o100_444),
            },
        }
    }

    pub(crate) fn link(&self, path: &str) -> Answer<String> {
        self.proc_link(path)
    }
}
