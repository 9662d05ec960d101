//! SIGKILL while a victim of memory pressure is stopped by a signal (SIGSTOP), as the described
//! controllers do it: in the lab, where the disk is so slow that the machine's pressure rises over
//! their threshold. What `quell` itself freezes and limits is killed natively (`memory.rs`).
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::{Guest, Lru};
use quell_types::units::{Bytes, Rate};

const SCRIPT: &str = r#"
CG=/sys/fs/cgroup
echo "+memory +io" >$CG/cgroup.subtree_control
mkdir $CG/app $CG/hog
enter() { group=$1; shift; (echo 0 >$CG/$group/cgroup.procs; exec "$@" >/dev/null 2>/tmp/$group.log) & }
grown() { [ "$(cat $CG/hog/memory.current)" -gt $(((takes - 4) << 20)) ]; }
mapped() { [ "$(sed -n 's/^file_mapped //p' $CG/$1/memory.stat)" -gt $(($2 << 20)) ]; }
at() { echo at $1 $(cut -d' ' -f1 /proc/uptime); }

# A detector, and somebody who takes so much memory that two thirds of what it reads again and again are left. Stopped, he gives nothing back.
enter app quell bench detector --weights 80MiB --per-page 64B --images 60 --fps 10 --duration 1000s; A=$!
within 100 mapped app 79 || { echo never begun $(cat /tmp/app.log); exit; }
at detector
takes=$((($(sed -n 's/^MemAvailable: *\([0-9]*\) kB/\1/p' /proc/meminfo) - $(cat $CG/app/memory.current) / 1536) / 1024))
enter hog dd if=/dev/zero of=/dev/null bs=${takes}M count=1000000000
within 100 grown || { echo never grown to ${takes} MiB $(cat /tmp/hog.log $CG/hog/memory.current); exit; }
at hog

# policy CONTROLLER ALLOW
policy() {
    printf 'quell = 1\n[group.app]\nrole = "critical"\ncpus = "any"\nmatch = [{ cgroup = "/app" }]\n'
    printf '[group.hog]\nrole = "best-effort"\ncpus = "any"\nmatch = [{ cgroup = "/hog" }]\nallow = [%s]\n' "$2"
    printf '[pressure]\ncontroller = "%s"\nsysctls = true\n' $1
}
policy latd '"freeze", "kill"' >/tmp/latd.toml
policy cgroup '"limit-memory", "freeze", "kill"' >/tmp/cgroup.toml
state() {
    for file in $CG/cgroup.subtree_control $CG/hog/memory.high $CG/hog/memory.max $CG/hog/cgroup.freeze $CG/app/memory.min \
        $CG/app/memory.low /proc/$A/oom_score_adj /proc/$A/cgroup $CG/hog/cgroup.events \
        /proc/sys/vm/swappiness /proc/sys/vm/dirty_ratio /proc/sys/vm/dirty_background_ratio /proc/sys/vm/overcommit_memory; do
        echo $file $(cat $file)
    done
    ls $CG
}
stopped() { for pid in $(cat $CG/hog/cgroup.procs); do grep -q '^State:.T' /proc/$pid/status && return; done; false; }
# The watchdog, too, has gone: until then nobody else may begin.
as_before() { ! grep -q '__watch[d]og' /proc/[0-9]*/cmdline && state >/tmp/after && cmp -s /tmp/before /tmp/after && ! stopped; }
state >/tmp/before
round=0
while [ $round -lt $KILLS ]; do
    round=$((round + 1))
    controller=latd; [ $((round % 2)) = 0 ] && controller=cgroup
    quell run /tmp/$controller.toml >/tmp/log 2>&1 & run=$!
    within 240 stopped || { echo never $controller stopped it, $(head -1 /proc/pressure/memory); said; break; }
    state >/tmp/during
    kill -KILL $run; wait $run
    echo during $controller $(diff /tmp/before /tmp/during | sed -n 's,^+/,/,p')
    within 60 as_before && echo killed $controller || echo left $controller $(stopped && echo it is stopped) $(diff /tmp/before /tmp/after)
done
at end
"#;

/// So many, each some seconds.
#[test]
fn killed_while_a_victim_is_stopped_lets_it_go_on() {
    let kills = quell_testing::kills().div_ceil(10).max(4);
    let guest = Guest {
        kernel: "6.12".to_owned(),
        memory: Bytes(320 << 20),
        disk: Some(Bytes(512 << 20)),
        disk_rate: Some(Rate(100_000_000)),
        lru: Some(Lru::Classic),
        ..Guest::default()
    };
    let script = format!("KILLS={kills}\n{SCRIPT}");
    let longest = Duration::from_secs(200 + 30 * kills as u64);
    let Some(said) = crate::guest::boot(guest, &script, longest) else {
        return;
    };
    let none: [&str; 0] = [];
    assert_eq!(
        (said.all("never"), said.all("left")),
        (none.to_vec(), none.to_vec())
    );
    let killed = said.all("killed");
    assert_eq!(killed.len(), kills);
    assert!(killed.contains(&"latd") && killed.contains(&"cgroup"));
    // What is said to be taken back had been done.
    for during in said.all("during") {
        let mut done = vec!["swappiness", "oom_score_adj -1000"];
        if during.starts_with("cgroup") {
            done.push("hog/memory.high");
        }
        for what in done {
            assert!(during.contains(what), "{what}: {during}");
        }
    }
}
