//! CPUs of a critical group that its threads do not get by themselves, under a real kernel.
//!
//! Isolated at boot (`isolcpus`): the scheduler puts all threads of a group on the first of them.
//! Two programs that compute get one each, and both they and a bystander have their CPUs back
//! afterwards. The witness would say that two share one while another idles.
//!
//! A second cgroup of the group that appears later: with cgroup v2 the first is a partition, and of
//! two cgroups with the same CPUs none can be.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::Guest;

const SCRIPT: &str = r#"
busy() { while :; do :; done; }
busy & A=$!
busy & B=$!
sleep 10001 & C=$!
export SUBJECTS="$A $B $C"
affinities >/tmp/before
own() { set -- $(sed -n 's/^Cpus_allowed_list:\s*//p' /proc/$A/status /proc/$B/status); echo $*; }
apart() { case $(own) in '2 3'|'3 2') true;; *) false;; esac; }
printf 'quell = 1\n[group.a]\nrole = "critical"\ncpus = 2\nmatch = [{ pid = %s }, { pid = %s }]\n' $A $B >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 apart || echo never apart: $(own)
sleep 4
kill -TERM $run; wait $run; echo status $?
affinities >/tmp/after; cmp -s /tmp/before /tmp/after && echo back all || echo back $(diff /tmp/before /tmp/after)
said
"#;

#[test]
fn programs_on_isolated_cpus_get_one_each() {
    let machine = Guest {
        kernel: "6.12".to_owned(),
        cpus: 4,
        append: vec!["isolcpus=2-3".to_owned()],
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(300)) else {
        return;
    };
    let output = &said.0;
    assert!(!output.contains("never "), "{output}");
    assert_eq!(said.one("back"), "all", "{output}");
    assert_eq!(said.one("status"), "0", "{output}");
    let placed = "the scheduler does not balance CPUs 2-3, so its threads are placed";
    assert!(output.contains(placed), "{output}");
}

const LATE: &str = r#"
busy() { while :; do :; done; }
cd /sys/fs/cgroup
mkdir a
busy & A=$!
sleep 10001 & C=$!
echo $A >a/cgroup.procs
allowed() { for pid in "$@"; do sed -n 's/^Cpus_allowed_list:\s*//p' /proc/$pid/status; done | tr '\n' ' '; }
are() { [ "$(allowed $A $B $C)" = "$1 " ]; }
printf 'quell = 1\n[group.a]\nrole = "critical"\ncpus = 1\nmatch = [{ cgroup = "/a" }, { cgroup = "/b" }]\n' >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 are "3 0-2" || echo never held: $(allowed $A $C)
echo partition $(cat a/cpuset.cpus.partition)
mkdir b
busy & B=$!
echo $B >b/cgroup.procs
within 60 are "3 3 0-2" || echo never both: $(allowed $A $B $C)
within 60 eval 'quell status >/tmp/status' || { echo never holds; cat /tmp/status; }
kill -TERM $run; wait $run; echo status $?
are "0-3 0-3 0-3" && echo back all || echo back $(allowed $A $B $C)
said
"#;

#[test]
fn a_cgroup_that_comes_later_has_the_same_cpus() {
    let machine = Guest {
        kernel: "6.12".to_owned(),
        cpus: 4,
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, LATE, Duration::from_secs(300)) else {
        return;
    };
    let output = &said.0;
    assert_eq!(said.one("partition"), "root", "{output}");
    assert!(!output.contains("never "), "{output}");
    assert_eq!(said.one("back"), "all", "{output}");
    assert_eq!(said.one("status"), "0", "{output}");
}
