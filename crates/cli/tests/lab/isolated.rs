//! CPUs that were isolated at boot (`isolcpus`), under a real kernel: the scheduler puts all
//! threads of a group on the first of them. Two programs that compute get one each, and both they
//! and a bystander have their CPUs back afterwards. The witness would say that two share one while
//! another idles.
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
