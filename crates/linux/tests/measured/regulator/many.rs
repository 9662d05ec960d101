//! A group of many tasks, some of them in cgroups below: what they get together.

use super::*;

/// The process ids in a cgroup.
fn tasks(dir: &std::path::Path) -> Vec<u32> {
    let text = fs::read_to_string(dir.join("cgroup.procs")).unwrap();
    text.lines().map(|pid| pid.parse().unwrap()).collect()
}

/// Nanoseconds of CPU time of all these processes.
fn cpu_time(pids: &[u32]) -> u64 {
    let of = |pid: &u32| {
        let text = fs::read_to_string(format!("/proc/{pid}/schedstat")).unwrap();
        text.split_whitespace()
            .next()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    pids.iter().map(of).sum()
}

/// Fifty busy tasks, half of them in a cgroup below the group's own, get the cap together, as one
/// task does.
#[test]
fn fifty_tasks_in_nested_cgroups_get_the_cap_together() {
    let Some(mut busy) = Busy::start("many") else {
        return;
    };
    let fifty = "for i in $(seq 50); do (while :; do :; done) & done; wait";
    busy.becomes(&["/bin/sh", "-c", fifty]).unwrap();
    let work = busy.group.join("work");
    let began = rt::now();
    while tasks(&work).len() < 51 {
        assert!(rt::now().since(began) < Nanos::secs(30), "they do not come");
        sleep(Duration::from_millis(20));
    }
    let below = work.join("below");
    fs::create_dir(&below).unwrap();
    let all: Vec<u32> = tasks(&work)
        .into_iter()
        .filter(|pid| *pid != busy.child.id())
        .collect();
    for pid in &all[..25] {
        fs::write(below.join("cgroup.procs"), pid.to_string()).unwrap();
    }
    let mut wrong = Vec::new();
    for permille in [50, 200, 500] {
        let share = Share::ratio(permille, 1000);
        let period = held_by(share, Nanos::millis(1));
        let most = 1.05 + switch(share, period);
        let mut seen = Vec::new();
        for _ in 0..5 {
            let brake = busy.throttle(share, period);
            sleep(Duration::from_millis(200));
            let (from, at) = (cpu_time(&all), rt::now());
            sleep(Duration::from_secs(1));
            let got = (cpu_time(&all) - from) as f64 / rt::now().since(at).0 as f64;
            assert!(brake.lost().is_none());
            seen.push(got / share.as_f64());
            // The host may take the CPU, so too small a share proves nothing.
            if seen
                .last()
                .is_some_and(|of_cap| (0.95..=most).contains(of_cap))
            {
                break;
            }
        }
        eprintln!(
            "fifty tasks, {} % per {period}: {seen:.3?} of the cap",
            permille / 10
        );
        let lowest = seen.iter().copied().fold(f64::INFINITY, f64::min);
        let highest = seen.iter().copied().fold(0.0, f64::max);
        if lowest > most || highest < 0.3 {
            wrong.push((permille, seen));
        }
    }
    for pid in &all {
        let pid = rustix::process::Pid::from_raw(i32::try_from(*pid).unwrap()).unwrap();
        rustix::process::kill_process(pid, rustix::process::Signal::KILL).unwrap();
    }
    let began = rt::now();
    while fs::remove_dir(&below).is_err() {
        assert!(rt::now().since(began) < Nanos::secs(10), "they do not end");
        sleep(Duration::from_millis(10));
    }
    assert!(wrong.is_empty(), "{wrong:?}");
}

/// Next to another busy program the brake may come late. What the group draws until then is paid
/// back in the next periods, so that over seconds it has its cap.
#[test]
fn what_is_drawn_too_much_on_a_full_cpu_is_paid_back() {
    let Some(busy) = Busy::start("full") else {
        return;
    };
    for file in [("cpu.shares", "1024"), ("cpu.weight", "100")] {
        let path = busy.group.join(file.0);
        if path.exists() {
            fs::write(path, file.1).unwrap();
        }
    }
    let mut only = rustix::thread::CpuSet::new();
    only.set(busy.cpu as usize);
    let loops = ["-c", "while :; do :; done"];
    let mut other = Command::new("/bin/sh").args(loops).spawn().unwrap();
    let pid = rustix::process::Pid::from_child(&other);
    rustix::thread::sched_setaffinity(Some(pid), &only).unwrap();
    let mut told = Vec::new();
    for (permille, period) in [(100, 5), (200, 1), (200, 10)] {
        let (share, period) = (Share::ratio(permille, 1000), Nanos::millis(period));
        let budget = Lines::at(PEAK.part(share), period).0;
        let brake = busy.throttle(share, period);
        let (mut decisions, mut drawn, mut longest) = (Vec::new(), 0, 0);
        let (from, at) = (busy.cpu_time(), rt::now());
        while rt::now().since(at) < Nanos::secs(3) {
            sleep(Duration::from_millis(20));
            brake.stats().decisions.drain(&mut decisions);
            for decision in decisions.drain(..) {
                if decision.what.stops() && drawn > 0 {
                    longest = longest.max((decision.used.0 - drawn).saturating_sub(budget));
                }
                drawn = decision.used.0;
            }
        }
        let got = busy.cpu_time().since(from).0 as f64 / rt::now().since(at).0 as f64;
        eprintln!(
            "{} % per {period} next to a busy program: {:.3} of the cap; longest overshoot {}",
            permille / 10,
            got / share.as_f64(),
            Nanos(longest)
        );
        told.push(got / share.as_f64());
    }
    other.kill().unwrap();
    other.wait().unwrap();
    assert!(told.iter().all(|of_cap| *of_cap <= 1.06), "{told:?}");
}
