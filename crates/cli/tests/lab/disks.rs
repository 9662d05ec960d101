//! A limit of disks that somebody sets on a critical group while it is held, under a real kernel
//! with cgroup v2: the promise is broken while the group uses all of it, and only then.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::Guest;
use quell_types::units::Bytes;

const SCRIPT: &str = r#"
cd /sys/fs/cgroup
mkdir a
dd if=/dev/zero of=/disk/f bs=1M count=40 2>/dev/null; sync
# Numbers of devices below 256.
dev=$(stat -c %d /disk/f); disk=$((dev >> 8)):$((dev & 255))
sh -c 'echo $$ >a/cgroup.procs; while :; do dd if=/disk/f of=/dev/null bs=1M iflag=direct 2>/dev/null; done' &
printf 'quell = 1\n[group.a]\nrole = "critical"\ncpus = 1\nmatch = [{ cgroup = "/a" }]\n' >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
is() { quell status >/tmp/status 2>&1; [ $? = $1 ]; }
within 60 is 0 || echo never held
echo +io >cgroup.subtree_control
# As much as nobody uses.
echo "$disk rbps=900000000000" >a/io.max
sleep 7
is 0 || echo never without
echo "$disk rbps=2000000" >a/io.max
within 30 is 3 || echo never broken
echo why $(grep -o "[^ ]*io.max reads.*" /tmp/status)
echo "$disk rbps=max" >a/io.max
within 30 is 0 || echo never again
kill -TERM $run; wait $run
said
"#;

#[test]
fn a_disk_limit_breaks_a_promise_while_it_is_used_up() {
    let machine = Guest {
        kernel: "6.12".to_owned(),
        disk: Some(Bytes(64 << 20)),
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(300)) else {
        return;
    };
    let output = &said.0;
    assert!(!output.contains("never "), "{output}");
    assert!(
        said.one("why").starts_with("/sys/fs/cgroup/a/io.max reads"),
        "{output}"
    );
}
