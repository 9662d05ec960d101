//! Brakes that are moved, lose their CPU, are killed, or lose their counter.

use super::*;

#[test]
fn a_brake_that_is_moved_goes_back() {
    let Some(busy) = Busy::start("moved") else {
        return;
    };
    let Some(other) = busy.other_cpu() else {
        return quell_testing::skip("only one CPU");
    };
    let brake = busy.throttle(Share::percent(10), Nanos::millis(5));
    sleep(Duration::from_millis(50));
    let mut set = rustix::thread::CpuSet::new();
    set.set(other);
    let pid = rustix::process::Pid::from_raw(busy.brake_pid());
    rustix::thread::sched_setaffinity(pid, &set).unwrap();
    sleep(Duration::from_millis(300));
    let held = busy.share_over(Duration::from_millis(500));
    assert_eq!(brake.lost(), None);
    assert!(held < 0.15, "{held}");
}

#[test]
fn a_brake_whose_cpu_is_taken_away_ends() {
    let Some(busy) = Busy::start("exiled") else {
        return;
    };
    let Some(other) = busy.other_cpu() else {
        return quell_testing::skip("only one CPU");
    };
    let brake = busy.throttle(Share::percent(10), Nanos::millis(1));
    sleep(Duration::from_millis(50));
    let _exile = busy.exile_brake(other);
    eventually_lost(&brake);
    assert_eq!(brake.lost(), Some(Lost::WrongCpu));
}

#[test]
fn a_brake_that_is_killed_is_reported_and_holds_nothing() {
    let Some(busy) = Busy::start("killed") else {
        return;
    };
    let brake = busy.throttle(Share::percent(10), Nanos::millis(1));
    let held = busy.share_over(Duration::from_millis(300));
    let pid = rustix::process::Pid::from_raw(busy.brake_pid()).unwrap();
    rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    eventually_lost(&brake);
    assert_eq!(brake.lost(), Some(Lost::Killed));
    let free = busy.share_above(2.0 * held, Duration::from_millis(300));
    assert!(free > 2.0 * held, "held {held}, free {free}");
}

fn eventually_lost(brake: &Brake) {
    for _ in 0..100 {
        if brake.lost().is_some() {
            return;
        }
        sleep(Duration::from_millis(50));
    }
}

/// A meter that counts nothing. Its counter is taken away at some moment, which does not wake the
/// brake.
struct Taken(Arc<AtomicBool>);

impl Meter for Taken {
    fn arm(&mut self, _: LineCounts) -> std::io::Result<()> {
        Ok(())
    }

    fn rest(&mut self) -> std::io::Result<()> {
        Ok(())
    }

    fn woken(&mut self) -> std::io::Result<Option<Overflow>> {
        Ok(None)
    }

    fn read(&mut self) -> std::io::Result<(LineCounts, bool)> {
        Ok((Lines(0).into(), !self.0.load(Ordering::Acquire)))
    }

    fn descriptors(&self) -> [Option<BorrowedFd<'_>>; MOST_EVENTS] {
        [None; MOST_EVENTS]
    }
}

#[test]
fn a_throttler_whose_counter_is_taken_away_ends() {
    let Some(busy) = Busy::start("taken") else {
        return;
    };
    let taken = Arc::new(AtomicBool::new(false));
    let regulation = busy.regulation(Share::percent(10), Nanos::millis(1));
    let meter = Box::new(Taken(Arc::clone(&taken)));
    let brake = busy.brake(&regulation, meter, Arc::new(|_| true), &pool());
    sleep(Duration::from_millis(600));
    assert_eq!(brake.lost(), None);
    taken.store(true, Ordering::Release);
    for _ in 0..100 {
        if brake.lost().is_some() {
            break;
        }
        sleep(Duration::from_millis(50));
    }
    assert_eq!(brake.lost(), Some(Lost::Meter));
}

/// A cpuset without the brake's CPU, removed on drop.
pub(super) struct Exile(Option<PathBuf>);

impl Drop for Exile {
    fn drop(&mut self) {
        for _ in 0..100 {
            if self
                .0
                .as_ref()
                .is_none_or(|dir| fs::remove_dir(dir).is_ok())
            {
                return;
            }
            sleep(Duration::from_millis(5));
        }
    }
}

impl Busy {
    /// A CPU other than the regulated one.
    fn other_cpu(&self) -> Option<usize> {
        let all = rustix::thread::sched_getaffinity(None).unwrap();
        (0..1024).find(|c| all.is_set(*c) && *c != self.cpu as usize)
    }

    fn brake_pid(&self) -> i32 {
        let stop = self.group.join("stop/cgroup.procs");
        fs::read_to_string(stop).unwrap().trim().parse().unwrap()
    }

    /// Takes the brake's CPU away from it, as a shrunk cpuset or a CPU going offline would.
    pub(super) fn exile_brake(&self, other: usize) -> Exile {
        let kernel = Kernel::new().unwrap();
        let cgroups = Cgroups::discover(&kernel).unwrap();
        let mount = PathBuf::from(&cgroups.of(Controller::Cpuset).unwrap().mount);
        if mount.join("cgroup.subtree_control").exists() {
            for dir in [&mount, &self.group] {
                fs::write(dir.join("cgroup.subtree_control"), "+cpuset").unwrap();
            }
            fs::write(self.group.join("stop/cpuset.cpus"), other.to_string()).unwrap();
            return Exile(None);
        }
        let dir = mount.join(format!("quell-test-exile-{}", self.brake_pid()));
        fs::create_dir(&dir).unwrap();
        fs::write(dir.join("cpuset.cpus"), other.to_string()).unwrap();
        fs::write(dir.join("cpuset.mems"), "0").unwrap();
        fs::write(dir.join("cgroup.procs"), self.brake_pid().to_string()).unwrap();
        Exile(Some(dir))
    }
}
