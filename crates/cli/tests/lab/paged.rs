//! A limit of locked memory that is lifted in a program, and its children. In the lab, where root
//! may lift it (CAP_SYS_RESOURCE).
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::Guest;

/// One child is found and locks, too, one is left by its parent, and one is born last.
const SCRIPT: &str = r#"
limit() { sed -n 's/^Max locked memory *\([^ ]*\).*/\1/p' /proc/$1/limits; }
locks() { ! grep -q 'VmLck:[[:space:]]*0 kB' /proc/$1/status; }
number() { for p in /proc/[0-9]*; do [ "$(tr '\0' ' ' <$p/cmdline)" = "sleep $1 " ] && echo ${p#/proc/}; done 2>/dev/null; }
lives() { [ -n "$(number $1)" ]; }
lives_and_locks() { lives $1 && locks $(number $1); }
sh -c 'ulimit -l 3000; until [ -e /tmp/go ]; do usleep 50000; done; sleep 10600 & (sleep 10601 &)
    until [ -e /tmp/last ]; do usleep 50000; done; sleep 10602 & wait' & V=$!
sleep 1
echo before $(limit $V)
printf 'quell = 1\n[group.rt]\nrole = "critical"\ncpus = "any"\nmatch = [{ pid = %s }]\npaging.locked = true\n' $V >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 locks $V || echo never locked
echo during $(limit $V)
touch /tmp/go
within 60 lives_and_locks 10600 && within 60 lives_and_locks 10601 || echo never all
touch /tmp/last
within 60 lives 10602 || echo never born
echo inherited $(limit $(number 10602))
kill -TERM $run; wait $run; echo status $?
said
echo parent $(limit $V)
for n in 10600 10601 10602; do
    child=$(number $n)
    locks $child && echo never unlocked
    echo child $n $(limit $child)
done
"#;

#[test]
fn a_child_keeps_no_limit_that_was_lifted() {
    let machine = Guest {
        kernel: "6.12".to_owned(),
        cpus: 2,
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(300)) else {
        return;
    };
    assert!(!said.0.contains("never "), "{}", said.0);
    let before = said.one("before");
    assert_eq!(before, "3072000");
    assert_eq!(
        (said.one("during"), said.one("inherited")),
        ("unlimited", "unlimited")
    );
    // 3: one of its short programs was not locked meanwhile.
    assert!(["0", "3"].contains(&said.one("status")), "{}", said.0);
    assert_eq!(said.one("parent"), before);
    for child in ["child 10600", "child 10601", "child 10602"] {
        assert_eq!(said.one(child), before, "{child}");
    }
}
