//! Memory locked in a cache under real kernels, in the lab: `quell run` in a virtual machine with
//! the processor on which the kernel locks. What stays is told by perf counters of the program that
//! has mapped it, beside an ordinary buffer of the same size.
//!
//! Linux 6.12 locks. Linux 7.2 says that it does and fills the memory with the default group's mask
//! (its locking thread takes a class of service that nobody has set): Quell sees that and refuses.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use crate::guest::Said;
use crate::guest::touch::{LINE, Memory, count, counter};

const SCRIPT: &str = r#"
lab-watch off
regions() { picture; echo regions $(ls /sys/class/pseudo_lock); }
restored() { regions >/tmp/after; cmp -s /tmp/before /tmp/after; }
cat >/tmp/policy.toml <<'P'
quell = 1
[group.victim]
role = "critical"
cpus = "0"
reserve.cache = { locked = "128KiB", level = "L2" }
P
echo 0 >/tmp/passes
(role sweep 4194304 >/dev/null 2>&1) & SUBJECTS=$!
regions >/tmp/before
echo doctor $(quell doctor | grep 'pseudo-lock')
sed 's/^cpus/command = ["true"]\n&/' /tmp/policy.toml >/tmp/plan.toml
echo plan $(quell plan /tmp/plan.toml | grep 'locked in')
"#;

/// For a kernel that locks.
const LOCKS: &str = r#"
lab-watch on
echo walk $(thrice quell run /tmp/policy.toml --out /tmp/record -- env QUELL_LAB_ROLE='walk 4' "$EXE" $GUEST --exact --ignored --nocapture 2>/tmp/log)
said
tell run
lab-watch off; kill -STOP $SUBJECTS
# A child of the launched program has it, too, and nobody else has.
echo handed $(thrice quell run /tmp/policy.toml -- sh -c 'sh -c "readlink /proc/self/fd/$QUELL_LOCKED_FD"; echo $QUELL_LOCKED_BYTES $QUELL_LOCKED_CPUS; sed -n "s/Cpus_allowed_list:.//p" /proc/self/status' 2>/tmp/log)
said
for point in 12 24 28 30 32; do
    dies killed /tmp/policy.toml $point
done
# Killed while its program has it open: it stays until that has ended.
begun() {
    rm -f /tmp/pid
    quell run /tmp/policy.toml -- sh -c 'echo $$ >/tmp/pid; exec sleep 1000' >/tmp/log 2>&1 & Q=$!
    within 60 test -s /tmp/pid
}
thrice begun || echo never started
kill -KILL $Q; wait $Q
within 30 gone
echo kept $(cat $R/quell-victim/mode) $(grep -c 'quell-victim stays: process' /tmp/log)
quell restore >/tmp/log 2>&1; echo early $?
kill $(cat /tmp/pid)
within 10 test ! -e /proc/$(cat /tmp/pid)
quell restore >/tmp/log 2>&1; echo late $?; said
tell held
"#;

/// For one that does not.
const DOES_NOT: &str = r#"
lab-watch on
refused() { quell run /tmp/policy.toml -- true >/tmp/log 2>&1; S=$?; grep -q 'were gone' /tmp/log; }
thrice refused; echo status $S; said
tell run
"#;

/// For a kernel that locks, killed at every boundary.
const EVERY: &str = "every /tmp/policy.toml $FROM\n";

fn says(kernel: &str, script: &str) -> Option<Said> {
    let timeout = Duration::from_secs(60 * if script == EVERY { 40 } else { 7 });
    let script = format!("FROM={}\n{SCRIPT}{script}", crate::guest::from());
    crate::guest::says(kernel, "goldmont", &script, timeout)
}

/// Before it was tried it is what the kernel says, whichever kernel that is.
fn not_promised(said: &Said) {
    for key in ["doctor", "plan"] {
        let told = said.one(key);
        assert!(told.contains("estimated"), "{told}");
        assert!(!told.contains("enforced"), "{told}");
    }
}

#[test]
fn what_6_12_locks_stays_and_is_let_go() {
    let Some(said) = says("6.12", LOCKS) else {
        return;
    };
    let one = |key: &str| said.one(key);
    not_promised(&said);
    let walk = one("walk");
    let number = |key: &str| -> f64 {
        let (_, rest) = walk.split_once(key).unwrap_or_else(|| panic!("{walk}"));
        rest.split_whitespace().next().unwrap().parse().unwrap()
    };
    let (locked, ordinary) = (number("locked "), number("ordinary "));
    // The promise is lost once one line in eight has left the cache.
    assert!(
        locked < 0.125,
        "{locked} misses per locked line beside the sweep"
    );
    assert!(
        ordinary > 0.9,
        "{ordinary} misses per ordinary line: the sweep does not hurt"
    );
    assert!(
        said.0
            .contains("locked lines stayed while others used the whole cache")
    );
    assert_eq!(one("run"), "restored");
    assert_eq!(one("handed"), "/dev/pseudo_lock/quell-victim 131072 0-1 0");
    let killed = said.all("killed");
    assert_eq!(killed.len(), 5);
    for death in killed {
        assert!(death.ends_with(" 137 restored"), "{death}");
    }
    assert_eq!(one("kept"), "pseudo-locked 1");
    assert_ne!(one("early"), "0");
    assert_eq!((one("late"), one("held")), ("0", "restored"));
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn every_death_is_undone() {
        if let Some(said) = says("6.12", EVERY) {
            assert!(said.every() > 32);
        }
    }

    #[test]
    #[ignore = "for the long run"]
    fn what_7_2_does_not_lock_is_seen_and_refused() {
        let Some(said) = says("7.2", DOES_NOT) else {
            return;
        };
        not_promised(&said);
        let lines = said.all("said").join("\n");
        assert!(
            lines.contains("lines were gone after others had used the cache"),
            "{lines}"
        );
        assert!(lines.contains("reserve ways of its own"), "{lines}");
        assert_eq!((said.one("status"), said.one("run")), ("125", "restored"));
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "sweep" => crate::guest::sweep(numbers[0]),
        "walk" => walk(numbers[0]),
        other => panic!("role {other}"),
    }
}

/// Walks so many times through what is locked and through a buffer of the same size, each after the
/// sweep has gone through four times the cache: misses per line.
fn walk(times: usize) {
    const CACHE_MISSES: u64 = 3;
    let locked = quell_client::locked().unwrap().unwrap();
    assert!(
        quell_client::locked().unwrap().is_none(),
        "a second mapping would empty it"
    );
    let lines = locked.len() / LINE;
    let ordinary = Memory::new(locked.len());
    let mut counter = counter(CACHE_MISSES, 0);
    let mut around = |act: &dyn Fn()| {
        crate::guest::swept();
        let before = count(&mut counter);
        act();
        count(&mut counter) - before
    };
    let mut fewest = [u64::MAX; 2];
    for _ in 0..times {
        let locked = around(&|| {
            for n in 0..lines {
                // SAFETY: within the mapping.
                unsafe { locked.as_ptr().add(n * LINE).read_volatile() };
            }
        });
        for (fewest, misses) in fewest.iter_mut().zip([locked, around(&|| ordinary.read())]) {
            *fewest = misses.min(*fewest);
        }
    }
    // In the best pass: kernel work on the CPU drives lines out, too, the more the slower the host.
    let [locked, ordinary] = fewest.map(|n| n as f64 / lines as f64);
    println!("locked {locked} ordinary {ordinary}");
}
