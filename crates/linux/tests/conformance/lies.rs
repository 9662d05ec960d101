//! Enforcers that do not do what they say, and machines that change behind their back: the witness
//! says no, and names what it saw. On the model, in both versions of cgroups.

use std::collections::BTreeSet;
use std::io;
use std::sync::Arc;

use quell_kernel::cgroup::{Cgroups, Controller};
use quell_kernel::fake::{Fake, Flavour, Rdt, Spec, divided_by_registers};
use quell_kernel::memory::Memory;
use quell_kernel::msr;
use quell_kernel::resctrl::{Resctrl, Schemata};
use quell_kernel::root::Files;
use quell_linux::change::JournaledWriter;
use quell_linux::enforce::affinity::Keep;
use quell_linux::enforce::cores::{confine, confine_rest};
use quell_linux::enforce::{self, cache, io as disks, registers};
use quell_linux::group_cgroups::GroupCgroups;
use quell_types::cpuset::CpuSet;
use quell_types::ids::PromiseId;
use quell_types::partition::Mask;
use quell_types::task::{TaskId, TaskMatch};
use quell_types::units::{Bytes, Nanos};
use quell_types::witness::Verdict;
use quell_witness::{Claim, Disks, Party, What, Witness};

mod caches;
mod cpus;
mod memory;

use crate::arms::{Held, furnished};
use crate::bodies::{ALL, GROUP, family};

/// What becomes of a write.
enum Lie {
    /// It is done.
    None,
    /// It is not done, and nobody is told.
    Swallowed,
    /// Something else is written.
    Instead(&'static str),
}

/// Decides by path and text, on a machine with a process of the group (`own`) and another one.
type Lies = fn(&str, &str, &Machine) -> Lie;

/// The model as a lying enforcer writes to it.
struct Liar<'a> {
    machine: &'a Machine,
    lies: Lies,
}

impl Files for Liar<'_> {
    fn read(&self, path: &str) -> io::Result<String> {
        self.machine.fake.read(path)
    }
    fn write(&self, path: &str, text: &str) -> io::Result<()> {
        match (self.lies)(path, text, self.machine) {
            Lie::None => self.machine.fake.write(path, text),
            Lie::Swallowed => Ok(()),
            Lie::Instead(other) => self.machine.fake.write(path, other),
        }
    }
    fn list(&self, path: &str) -> io::Result<Vec<String>> {
        self.machine.fake.list(path)
    }
    fn mkdir(&self, path: &str) -> io::Result<()> {
        self.machine.fake.mkdir(path)
    }
    fn rmdir(&self, path: &str) -> io::Result<()> {
        self.machine.fake.rmdir(path)
    }
    fn exists(&self, path: &str) -> bool {
        self.machine.fake.exists(path)
    }
    fn mode(&self, path: &str) -> io::Result<u32> {
        self.machine.fake.mode(path)
    }
    fn link(&self, path: &str) -> io::Result<String> {
        self.machine.fake.link(path)
    }
    fn affinity(&self, tid: u32) -> io::Result<CpuSet> {
        self.machine.fake.affinity(tid)
    }
    fn set_affinity(&self, tid: u32, cpus: &CpuSet) -> io::Result<()> {
        self.machine.fake.set_affinity(tid, cpus)
    }
    fn scheduler(&self, tid: u32) -> io::Result<i32> {
        self.machine.fake.scheduler(tid)
    }
    fn signal(&self, task: TaskId, signal: i32) -> io::Result<()> {
        self.machine.fake.signal(task, signal)
    }
}

/// Four CPUs, a process with a child that is to have CPU 3, and a bystander.
struct Machine {
    fake: Arc<Fake>,
    flavour: Flavour,
    own: u32,
    child: u32,
    other: u32,
}

impl Machine {
    fn new(flavour: Flavour) -> Self {
        let spec = Spec {
            rdt: Some(Rdt::icelake()),
            registers: true,
            ..Spec::new(flavour)
        };
        let fake = furnished(&spec);
        let (own, child, other) = fake.with(|m| {
            let own = m.spawn("own");
            (own, m.fork(own), m.spawn("other"))
        });
        Self {
            fake: Arc::new(fake),
            flavour,
            own,
            child,
            other,
        }
    }

    /// Does what a mechanism does, through the liar, and returns the claim and the cgroups.
    fn held(&self, how: Mechanism, lies: Lies) -> (What, GroupCgroups) {
        let liar = Liar {
            machine: self,
            lies,
        };
        let files: &dyn Files = &liar;
        let cgroups = Cgroups::discover(files).unwrap();
        let mut held = Held::new(files);
        let mut writer = JournaledWriter::new(files, &mut held.journal);
        let done = how(&mut writer, &cgroups, self);
        // Nothing is undone: the lie is what stays.
        drop(held.let_go());
        done
    }

    fn write(&self, path: &str, text: &str) {
        self.fake.write(path, text).unwrap();
    }

    /// A file of the group's cgroup in the hierarchy of a controller.
    fn of_group(&self, homes: &GroupCgroups, controller: Controller, file: &str) -> String {
        let cgroups = Cgroups::discover(&*self.fake).unwrap();
        let place = homes.dirs(&cgroups, controller).next().unwrap();
        format!("{}/{file}", place.dir)
    }

    /// What two looks say at last. A fault counts at the second one.
    fn seen(&self, what: What, homes: &GroupCgroups, then: impl FnOnce()) -> Verdict {
        let party = Party {
            name: GROUP.to_owned(),
            matching: vec![TaskMatch {
                pid: Some(self.own),
                ..TaskMatch::default()
            }],
            homes: homes.tasks_dirs(),
            cpus: CpuSet::one(3),
        };
        let claim = Claim {
            id: PromiseId(1),
            group: GROUP.to_owned(),
            what,
        };
        let files: Arc<dyn Files> = self.fake.clone();
        let mut witness = Witness::new(files, vec![claim], vec![party], BTreeSet::new());
        let mut look = |n: u64| witness.look(Nanos::millis(700 * n)).remove(0).1;
        look(0);
        then();
        look(1);
        look(2)
    }
}

/// What an enforcer does. Returns what is claimed of it.
type Mechanism = fn(&mut JournaledWriter<'_>, &Cgroups, &Machine) -> (What, GroupCgroups);

/// Gathers the process and its child. One that the liar does not move is given up on.
fn gather(
    writer: &mut JournaledWriter<'_>,
    cgroups: &Cgroups,
    of: &Machine,
    controllers: &[Controller],
) -> GroupCgroups {
    let group = GroupCgroups::create(writer, cgroups, GROUP, controllers).unwrap();
    let _ = group.gather(writer, &mut |files| family(files, of.own));
    group
}

const HONEST: Lies = |_, _, _| Lie::None;
fn is_of_group(path: &str, file: &str) -> bool {
    path.contains(GROUP) && path.ends_with(file)
}

/// A lie while the mechanism is applied, and what the witness says.
struct Told {
    name: &'static str,
    how: Mechanism,
    flavours: &'static [Flavour],
    lies: Lies,
    /// What happens afterwards.
    then: fn(&Machine, &GroupCgroups),
    says: &'static str,
}

const BOTH: &[Flavour] = &[Flavour::V1, Flavour::V2];
const V1: &[Flavour] = &[Flavour::V1];
const V2: &[Flavour] = &[Flavour::V2];
const STAYS: fn(&Machine, &GroupCgroups) = |_, _| {};

const fn lie(
    name: &'static str,
    how: Mechanism,
    flavours: &'static [Flavour],
    lies: Lies,
    says: &'static str,
) -> Told {
    Told {
        name,
        how,
        flavours,
        lies,
        then: STAYS,
        says,
    }
}

/// What changes behind the back of an honest enforcer.
const fn change(
    name: &'static str,
    how: Mechanism,
    flavours: &'static [Flavour],
    then: fn(&Machine, &GroupCgroups),
    says: &'static str,
) -> Told {
    Told {
        name,
        how,
        flavours,
        lies: HONEST,
        then,
        says,
    }
}

/// Each lie is told, and the truth is not.
fn told(all: &[Told]) {
    for lie in all {
        for flavour in lie.flavours {
            let name = format!("{} ({flavour:?})", lie.name);
            let honest = Machine::new(*flavour);
            let (what, homes) = honest.held(lie.how, HONEST);
            let verdict = honest.seen(what, &homes, || {});
            assert_eq!(verdict, Verdict::Holds, "without: {name}");
            let machine = Machine::new(*flavour);
            let (what, homes) = machine.held(lie.how, lie.lies);
            let verdict = machine.seen(what, &homes, || (lie.then)(&machine, &homes));
            let Verdict::Broken(fault) = verdict else {
                panic!("{name}: {verdict:?}");
            };
            let said = fault.to_string();
            assert!(said.contains(lie.says), "{name}: {said}");
        }
    }
}
