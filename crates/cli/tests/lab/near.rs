//! A machine with two L3 caches (an emulated processor, two sockets): a group's ways are taken from
//! others in its own cache only, and a group alone on its cache takes none. A control group of
//! another program that fills them is refused by `plan` and by `run` alike, and only where it is in
//! the way.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::Guest;

const SCRIPT: &str = r#"
sleep 10001 & A=$!
sleep 10002 & B=$!
R=/sys/fs/resctrl
policy() { printf 'quell = 1\n[group.a]\nrole = "critical"\ncpus = "%s"\nreserve.cache = "25%%"\nmatch = [{ pid = %s }]\n' $1 $A >/tmp/policy.toml; }
masks() { echo $(sed -n 's/^ *L3://p' $1/schemata | sed 's/=0*\([0-9a-f]\)/=\1/g'); }
policy 3
mkdir $R/theirs; echo $B >$R/theirs/tasks
echo 'L3:1=f0' >$R/theirs/schemata
quell plan /tmp/policy.toml >/tmp/there 2>&1; echo elsewhere $?
echo 'L3:1=f' >$R/theirs/schemata
quell plan /tmp/policy.toml >/tmp/plan 2>&1; echo planned $?
quell run /tmp/policy.toml >/tmp/ran 2>&1; echo ran $?
grep -o 'resctrl.s group theirs has 0xf of L3' /tmp/plan /tmp/ran
rmdir $R/theirs
hold() { quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!; within 60 grep -q holding: /tmp/log || echo never holds: $(cat /tmp/log); sleep 3; }
let() { kill -TERM $run; wait $run; echo $1 $? $(grep -c '100 %' /tmp/log); }
hold
echo own $(masks $R/COS1)
echo others $(masks $R)
let shared
policy 2-3
hold
echo classes $(ls $R | grep -c COS)
echo whole $(masks $R)
let alone
echo after $(masks $R)
"#;

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn ways_are_taken_where_the_group_runs() {
        let machine = Guest {
            kernel: "6.12".to_owned(),
            profile: Some("icelake".to_owned()),
            cpus: 4,
            sockets: 2,
            ..Guest::default()
        };
        let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(400)) else {
            return;
        };
        let output = &said.0;
        assert!(!output.contains("never "), "{output}");
        assert_eq!(said.one("elsewhere"), "0", "{output}");
        assert_eq!(said.one("planned"), "2", "{output}");
        assert_eq!(said.one("ran"), "2", "{output}");
        for file in ["/tmp/plan:", "/tmp/ran:"] {
            let line = format!("{file}resctrl's group theirs has 0xf of L3");
            assert!(output.contains(&line), "{output}");
        }
        assert_eq!(said.one("own"), "0=ffff;1=f", "{output}");
        assert_eq!(said.one("others"), "0=ffff;1=fff0", "{output}");
        assert_eq!(said.one("shared"), "0 2", "{output}");
        assert_eq!(said.one("classes"), "0", "{output}");
        assert_eq!(said.one("whole"), "0=ffff;1=ffff", "{output}");
        assert_eq!(said.one("alone"), "0 2", "{output}");
        assert_eq!(said.one("after"), "0=ffff;1=ffff", "{output}");
    }
}
