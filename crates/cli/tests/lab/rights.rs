//! What a run needs its capabilities for: each is taken away, and what fails then is said aloud,
//! never left half done.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::collections::BTreeSet;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use quell_kernel::privileges;
use rustix::thread::{self, CapabilitySet};

/// `V` and `N` are of user 1000.
const SCRIPT: &str = r#"
lab-watch off
C=/sys/fs/cgroup
chmod 777 /tmp
as_user() { (role user 1000) & }
as_user; V=$!
as_user; N=$!
SUBJECTS="$V $N"
limit() { sed -n 's/^Max locked memory *\([^ ]*\).*/\1/p' /proc/$1/limits; }
sleep 3
picture() {
    grep resctrl /proc/mounts
    # The kernel leaves the masks of classes that it does not use any more.
    echo $(register 0 0xc90)
    for cpu in 0 1; do echo class of $cpu: $(register $cpu 0xc8f); done
    for group in $R $R/*/; do [ -e $group/tasks ] && echo $group $(mask $group) $(cat $group/cpus_list); done
    affinities; find $C -type d; cat $C/cgroup.subtree_control
    for pid in $SUBJECTS; do cat /proc/$pid/cgroup; limit $pid; grep VmLck /proc/$pid/status; cat /proc/$pid/oom_score_adj; done
}
file() { cat >/tmp/$1.toml; }
critical() { printf 'quell = 1\n%s\n[group.a]\nrole = "critical"\nmatch = [{ pid = %s }]\n' "$1" $V; }
noise() { printf '[group.b]\nrole = "best-effort"\nmatch = [{ pid = %s }]\n' $N; }
{ critical; echo 'cpus = 1'; noise; } | file cores
{ critical; echo 'cpus = 1'; noise; echo 'limit.bandwidth = "100MB/s"'; } | file bandwidth
{ critical; noise; echo 'limit.memory = "64MiB"'; } | file memory
{ critical; echo 'cpus = "any"'; echo 'paging.locked = true'; } | file paging
{ critical; echo 'cpus = 1'; echo 'reserve.cache = "25%"'; noise; } | file ways
{ critical 'mechanisms.registers = true'; echo 'cpus = 1'; echo 'reserve.cache = "25%"'; noise; } | file registers
{ critical; echo 'cpus = "any"'; noise; echo 'allow = ["freeze"]'; echo '[pressure]'; } | file pressure
begun() { grep -q holding /tmp/log || grep -q '^State:.Z' /proc/$run/status || ! [ -e /proc/$run ]; }
# try WITHOUT POLICY
try() {
    (role without $1 /tmp/$2.toml) >/tmp/log 2>&1 & run=$!
    within 40 begun; usleep 2500000
    kill -TERM $run 2>/dev/null; wait $run; status=$?
    within 60 gone || echo never gone
    echo try $1 $2 $status $(restored && echo restored || diff /tmp/before /tmp/after)
    grep -q holding /tmp/log && echo held $1 $2
    grep quell: /tmp/log | tail -3 | sed "s/^/why $1 $2 /"
}
all() { for policy in $*; do for without in 64 0 1 2 3 4 5 12 14 17 19 21 23 24 8 38 39; do try $without $policy; done; done; }
before; all cores bandwidth memory paging ways pressure
umount $R; before; all registers
"#;

/// A trial: the number of a capability that the run does not have, what it was to hold, its exit
/// status, and what was not as before.
type Trial<'a> = (u64, &'a str, &'a str, &'a str);

fn trial(line: &str) -> Trial<'_> {
    let mut words = line.splitn(4, ' ');
    let mut next = || words.next().unwrap_or_default();
    (next().parse().unwrap(), next(), next(), next())
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn what_fails_without_a_capability_is_said_and_undone() {
        let timeout = Duration::from_secs(3000);
        let Some(said) = crate::guest::says("6.12", "icelake", SCRIPT, timeout) else {
            return;
        };
        assert!(!said.0.contains("never"), "{}", said.0);
        let trials: Vec<Trial<'_>> = said.all("try").into_iter().map(trial).collect();
        let mut needed = BTreeSet::new();
        for (without, policy, status, left) in &trials {
            assert_eq!(*left, "restored", "{policy} without {without}");
            let others = 1u64.checked_shl(u32::try_from(*without).unwrap());
            let kept = privileges::HOLDING.bits() & others.unwrap_or(0) != 0;
            let pair = format!("{without} {policy}");
            let why = said.all("why");
            match *status {
                "0" => assert!(said.all("held").contains(&&*pair), "{pair} never held"),
                _ if !why.iter().any(|line| line.starts_with(&pair)) => {
                    panic!("{pair} ends with {status}, and says nothing")
                }
                _ if kept => drop(needed.insert((*without, *policy))),
                _ => panic!("{policy} fails without {without}, which no run keeps: {status}"),
            }
        }
        println!("needed: {needed:?}");
    }
}

#[test]
#[ignore = "no test: the program that the test above runs inside the virtual machine"]
fn guest() {
    let role = std::env::var("QUELL_LAB_ROLE").unwrap();
    let words: Vec<&str> = role.split(' ').collect();
    let failed = match words[..] {
        ["user", user] => {
            let user = user.parse().unwrap();
            let mut shell = Command::new("/bin/sleep");
            shell.arg("100000").uid(user).gid(user).exec()
        }
        ["without", number, policy] => {
            // 64: none is taken away.
            if let Some(bit) = 1u64.checked_shl(number.parse().unwrap()) {
                let one = CapabilitySet::from_bits_retain(bit);
                thread::remove_capability_from_bounding_set(one).unwrap();
            }
            Command::new("/bin/quell").args(["run", policy]).exec()
        }
        _ => panic!("role {role}"),
    };
    panic!("{failed}");
}
