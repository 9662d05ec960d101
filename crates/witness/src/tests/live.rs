//! This machine, with programs that the tests start.

use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use quell_kernel::affinity;
use quell_kernel::resctrl::Resctrl;

use super::*;

/// A program that ends with this value.
struct Program(Child);

impl Drop for Program {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

impl Program {
    /// A shell that works without end, or sleeps, on these CPUs.
    fn start(busy: bool, cpus: &CpuSet) -> Self {
        let script = match busy {
            true => "while :; do :; done",
            false => "read never",
        };
        let mut command = Command::new("sh");
        command.args(["-c", script]).stdin(Stdio::piped());
        let program = Self(command.stdout(Stdio::null()).spawn().unwrap());
        affinity::set(program.pid(), cpus).unwrap();
        program
    }

    fn pid(&self) -> u32 {
        self.0.id()
    }
}

/// Two CPUs that this process may use, or the reason to skip.
fn two_cpus() -> Option<(CpuSet, CpuSet)> {
    let all = affinity::of(0).unwrap();
    let (first, last) = (all.first()?, all.iter().next_back()?);
    if first == last {
        quell_testing::skip("one CPU");
        return None;
    }
    Some((CpuSet::one(first), CpuSet::one(last)))
}

/// Every process of the machine except these: what ran before the test is no stranger of it.
fn all_but(pids: &[u32]) -> BTreeSet<u32> {
    let names = fs::read_dir("/proc")
        .unwrap()
        .map(|e| e.unwrap().file_name());
    let all = names.filter_map(|name| name.to_str()?.parse().ok());
    all.filter(|pid| !pids.contains(pid)).collect()
}

/// A witness of a program's CPU, to which only the given programs are strangers.
fn witness(what: What, own: &Program, strangers: &[u32], cpus: &CpuSet) -> Witness {
    let files = Arc::new(Kernel::new().unwrap());
    let mut of = party("own", &format!("pid={}", own.pid()), &[], "");
    of.cpus = cpus.clone();
    let mut pids = strangers.to_vec();
    pids.push(own.pid());
    Witness::new(files, vec![claim("own", what)], vec![of], all_but(&pids))
}

/// Names what a look found about this program, if it found anything.
fn of(verdict: &Verdict, pid: u32) -> Option<&Fault> {
    match verdict {
        Verdict::Broken(fault @ Fault::Stranger { pid: found, .. }) => {
            Some(fault).filter(|_| *found == pid)
        }
        _ => None,
    }
}

#[test]
fn a_busy_stranger_is_seen_within_one_look() {
    let Some((rest, cpu)) = two_cpus() else {
        return;
    };
    let own = Program::start(false, &cpu);
    let hog = Program::start(true, &rest);
    let what = What::Alone { cpus: cpu.clone() };
    let mut witness = witness(what, &own, &[hog.pid()], &cpu);
    // Programs that were born meanwhile may be strangers; this one is not.
    let before = look(&mut witness, Nanos::secs(1));
    assert_eq!(of(&before, hog.pid()), None, "{before:?}");
    // Children of Quell, which this process stands for, are excused for a second.
    std::thread::sleep(Duration::from_millis(1_050));
    affinity::set(hog.pid(), &cpu).unwrap();
    std::thread::sleep(Duration::from_millis(50));
    // Another program that was born in between may be named instead.
    let mut verdicts = (2..7).map(|now| {
        witness.ignore(all_but(&[own.pid(), hog.pid()]));
        look(&mut witness, Nanos::secs(now))
    });
    let Some(verdict) = verdicts.find(|verdict| of(verdict, hog.pid()).is_some()) else {
        panic!("the stranger was not seen");
    };
    let Some(Fault::Stranger { cpu: on, ran, .. }) = of(&verdict, hog.pid()) else {
        panic!("{verdict:?}");
    };
    assert_eq!((CpuSet::one(*on), *ran), (cpu, true));
}

#[test]
fn a_program_elsewhere_is_seen() {
    let Some((rest, cpu)) = two_cpus() else {
        return;
    };
    let own = Program::start(false, &cpu);
    let what = What::Alone { cpus: cpu.clone() };
    let mut witness = witness(what, &own, &[], &cpu);
    let mut verdict = || {
        witness.ignore(all_but(&[own.pid()]));
        look(&mut witness, Nanos::secs(1))
    };
    affinity::set(own.pid(), &rest).unwrap();
    // A thread younger than a second may be on its way.
    let begun = Instant::now();
    let seen = loop {
        match verdict() {
            Verdict::Broken(Fault::Elsewhere { pid, may, .. }) => break Some((pid, may)),
            _ if begun.elapsed() > Duration::from_secs(5) => break None,
            _ => std::thread::sleep(Duration::from_millis(200)),
        }
    };
    assert_eq!(seen, Some((own.pid(), rest)));
}

#[test]
fn the_kernels_own_threads_are_no_strangers() {
    let Some((_, cpu)) = two_cpus() else {
        return;
    };
    let own = Program::start(false, &cpu);
    let what = What::Alone { cpus: cpu.clone() };
    let mut witness = witness(what, &own, &[], &cpu);
    // Only programs are left out: whatever else may run there is the kernel's.
    let programs = |pid: &u32| fs::read_link(format!("/proc/{pid}/exe")).is_ok();
    let mut ignore = all_but(&[own.pid()]);
    ignore.retain(programs);
    witness.ignore(ignore);
    if let Verdict::Broken(Fault::Stranger { pid, .. }) = look(&mut witness, Nanos::secs(1)) {
        // A program that was born since the list was made.
        let flags = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
        let stat = quell_kernel::procfs::Stat::parse(&flags);
        assert!(stat.is_none_or(|stat| !stat.kernel_thread()), "{pid}");
    }
}

#[test]
fn a_group_that_ended_is_seen() {
    let Some((_, cpu)) = two_cpus() else {
        return;
    };
    let own = Program::start(false, &cpu);
    let what = What::Alone { cpus: cpu.clone() };
    let mut witness = witness(what, &own, &[], &cpu);
    drop(own);
    let verdict = look(&mut witness, Nanos::secs(1));
    let expected = Fault::NoProcess {
        group: "own".to_owned(),
    };
    assert_eq!(verdict, Verdict::Broken(expected));
}

#[test]
fn without_resctrl_ways_are_not_seen() {
    let files = Kernel::new().unwrap();
    if Resctrl::find(&files).unwrap().is_some() {
        return quell_testing::skip("resctrl is mounted here");
    }
    let cpus = affinity::of(0).unwrap();
    let own = Program::start(false, &cpus);
    let what = What::Ways {
        level: 3,
        mask: Mask(1),
        shared_with: Vec::new(),
    };
    let verdict = look(&mut witness(what, &own, &[], &cpus), Nanos::secs(1));
    assert!(matches!(verdict, Verdict::Unseen(_)), "{verdict:?}");
}
