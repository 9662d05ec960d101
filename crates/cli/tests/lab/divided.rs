//! Parts of a cache under real kernels, in the lab: `quell plan` and `quell run` in a virtual
//! machine with an emulated processor. Read by the kernel's own files, by Intel's `pqos` and by
//! perf counters, never by Quell. The guest's programs are this one, in a role.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

/// Words, and the two groups' programs.
const SUBJECTS: &str = r#"
narrowed() { [ "$(mask $R)" != ffff ] && grep -q COS /proc/$N/cpu_resctrl_groups; }
reads() { [ "$(mask $1)" = $2 ]; }
# policy WHO WHAT: the part of the critical group, which is found so
policy() {
    printf 'quell = 1\n[group.victim]\nrole = "critical"\ncpus = "any"\n%s\nreserve.cache = %s\n' "$1" "$2"
    printf '[group.noise]\nrole = "best-effort"\nmatch = [{ pid = %s }]\n' $N
}

lab-watch off
sleep 10001 & V=$!
sleep 10002 & N=$!
SUBJECTS="$V $N"
before
"#;

const SCRIPT: &str = r#"
# What a policy may say, and what the plan makes of it.
for part in '"25%"' '{ ways = 3 }' '{ mask = "0xf0" }' '"2MiB"'; do
    policy "match = [{ pid = $V }]" "$part" >/tmp/policy.toml
    echo plan $(quell plan /tmp/policy.toml | grep 'to itself')
done

# What cannot be had here, and what can instead.
policy "match = [{ pid = $V }]" '{ locked = "1MiB" }' >/tmp/policy.toml
echo locked $(quell plan /tmp/policy.toml 2>&1)

# Held: the kernel and pqos say the same. What pqos changes is seen and set again.
policy "match = [{ pid = $V }]" '"25%"' >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 60 narrowed && within 60 grep -q holding: /tmp/log || echo never narrowed
echo held rest $(mask $R) victim $(mask $R/COS1) noise $(mask $R/COS2) mode $(cat $R/COS1/mode)
echo where $(cat /proc/$V/cpu_resctrl_groups) $(cat /proc/$N/cpu_resctrl_groups)
pqos -s >/tmp/pqos 2>&1
echo pqos $(sed -n 's/ *L3CA COS[012] => MASK //p' /tmp/pqos)
echo pids $(grep -E "COS1 => $V\$|COS2 => $N\$" /tmp/pqos)
echo newcomer $(mask $R/COS3)
pqos -e 'llc:0=0x7000' >/dev/null 2>&1
within 30 grep -q "L3:0=7000': set again" /tmp/log
within 5 reads $R fff0; echo repaired $(mask $R)
kill -TERM $run; wait $run; echo status $?
# What pqos has made by the way.
rmdir $R/COS3 $R/COS4 $R/COS5 $R/COS6 $R/COS7
tell restored
said

# With a CPU to itself: kernel work there fills its ways. pqos says so, too.
policy "match = [{ pid = $V }]" '"25%"' | sed 's/cpus = "any"/cpus = "1"/' >/tmp/cpus.toml
quell run /tmp/cpus.toml >/tmp/log 2>&1 & run=$!
within 60 grep -q 1 $R/COS1/cpus_list || echo never
echo cpus $(cat $R/COS1/cpus_list) $(pqos -s 2>&1 | sed -n 's/.*Core 1, .* => \(COS[0-9]*\).*/\1/p')
kill -TERM $run; wait $run
rmdir $R/COS[3-7] 2>/dev/null
tell cpus-restored

# Killed at journal boundaries.
policy '' '"25%"' >/tmp/policy.toml
for point in 9 21 33; do
    dies killed /tmp/policy.toml $point
done

# A list that fits beside a stream that does not: misses per access.
lab-watch on
kill $N; wait $N 2>/dev/null
echo 0 >/tmp/passes
echo alone $(role list 2097152 4 0)
(role sweep 33554432 >/dev/null 2>&1) & N=$!
echo none $(role list 2097152 4 1)
policy '' '"50%"' >/tmp/policy.toml
echo way $(thrice quell run /tmp/policy.toml -- env QUELL_LAB_ROLE='list 2097152 4 1' "$EXE" $GUEST --exact --ignored --nocapture 2>/tmp/log)
said
kill $N; wait $N 2>/dev/null

# Where nobody has mounted it, it is only while the plan holds.
lab-watch off
umount $R
sleep 10003 & N=$!
policy '' '"25%"' >/tmp/policy.toml
echo meanwhile $(thrice quell run /tmp/policy.toml -- sh -c 'cat /proc/self/cpu_resctrl_groups; cat /sys/fs/resctrl/schemata' 2>/tmp/log)
said
grep -q resctrl /proc/mounts && echo mounted still || echo mounted no

# Code and data apart: mounted so while the plan holds; what others have mounted is left as it is.
policy '' '{ code = 2, data = 4 }' >/tmp/policy.toml
echo apart $(thrice quell run /tmp/policy.toml -- sh -c 'cat /proc/self/cpu_resctrl_groups; grep -h resctrl /proc/mounts
    cd /sys/fs/resctrl; for group in . COS1 COS2; do echo $group; grep -h L3 $group/schemata; done' 2>/tmp/log)
said
grep -q resctrl /proc/mounts && echo unmounted no || echo unmounted yes
mount -t resctrl resctrl $R
policy "match = [{ pid = $V }]" '{ code = 2, data = 4 }' >/tmp/plan.toml
echo together $(quell plan /tmp/plan.toml 2>&1)
umount $R; mount -t resctrl -o cdp resctrl $R
SUBJECTS=$N
before
echo adopted $(thrice quell run /tmp/policy.toml -- grep -h L3 $R/COS1/schemata 2>/tmp/log)
said
tell apart-restored
"#;

/// Ways, a class of a CPU, and bandwidth, killed at every boundary.
const EVERY: &str = r#"
lab-watch on
umount $R; mount -t resctrl -o mba_MBps resctrl $R
policy '' '"25%"' | sed -e '1a mechanisms.bandwidth = "mba"' -e 's/"any"/"0"/' >/tmp/policy.toml
printf 'cpus = "1"\nlimit.bandwidth = "200MiB/s"\n' >>/tmp/policy.toml
before
# Measures the rates, so that all boundaries are the run's own.
echo whole $(thrice quell run /tmp/policy.toml -- cat $R/COS1/cpus_list 2>/tmp/log)
every /tmp/policy.toml $FROM
"#;

fn parts_are_held(kernel: &str) {
    let script = format!("{SUBJECTS}{SCRIPT}");
    let timeout = Duration::from_secs(420);
    let Some(said) = crate::guest::says(kernel, "icelake", &script, timeout) else {
        return;
    };
    let output = &said.0;
    let plans = said.all("plan");
    assert_eq!(plans.len(), 4);
    for (plan, mask) in plans.iter().zip(["0xf", "0x7", "0xf0", "0xf"]) {
        let told = format!(
            "enforced victim: {} ways ({mask}) of L3 to itself",
            plan_ways(mask)
        );
        assert!(plan.starts_with(&told), "{plan}");
    }
    let locked = said.one("locked");
    for words in [
        "Broadwell-X, Goldmont and Goldmont Plus only",
        "and this is family 6, model ",
        "write reserve.cache = { ways = 2, level = \"L3\" }",
    ] {
        assert!(locked.contains(words), "{locked}");
    }
    assert_eq!(
        said.one("held"),
        "rest fff0 victim f noise fff0 mode exclusive"
    );
    assert_eq!(said.one("where"), "res:COS1 mon: res:COS2 mon:");
    assert_eq!(said.one("pqos"), "0xfff0 0xf 0xfff0");
    assert_eq!(
        said.one("pids").matches("COS").count(),
        2,
        "{}",
        said.one("pids")
    );
    // Groups made meanwhile begin without what is somebody's own.
    assert_eq!(said.one("newcomer"), "fff0");
    assert!(output.contains("schemata was changed by somebody else"));
    assert!(output.contains("L3:0=7000': set again"));
    assert_eq!(said.one("repaired"), "fff0");
    assert_eq!(
        (said.one("status"), said.one("restored")),
        ("0", "restored")
    );
    assert_eq!(said.one("cpus"), "1 COS1");
    assert_eq!(said.one("cpus-restored"), "restored");
    let killed = said.all("killed");
    assert_eq!(killed.len(), 3);
    for death in killed {
        assert!(death.ends_with(" 137 restored"), "{death}");
    }
    let misses = |key: &str| crate::guest::figure(said.one(key), "misses");
    let [alone, none, way] = ["alone", "none", "way"].map(misses);
    assert!(
        none > alone + 0.5,
        "the stream does not hurt: {alone} alone, {none} beside it"
    );
    assert!(
        (way - alone).abs() < 0.05,
        "{alone} alone, {way} with ways of its own"
    );
    let occupied = crate::guest::figure(said.one("way"), "occupancy");
    // The list and what else its program touches, within eight ways of 512 KiB.
    let (list, part) = (2_097_152.0, 4_194_304.0);
    assert!(
        (0.95 * list..=1.05 * part).contains(&occupied),
        "{occupied} of a list of {list}"
    );
    let meanwhile = said.one("meanwhile");
    assert!(
        meanwhile.contains("res:COS1") && meanwhile.contains("L3:0=fff0"),
        "{meanwhile}"
    );
    assert_eq!(said.one("mounted"), "no");

    let apart: Vec<&str> = said.one("apart").split_whitespace().collect();
    assert_eq!(apart[0], "res:COS1", "{apart:?}");
    assert!(
        apart.iter().any(|word| word.split(',').any(|o| o == "cdp")),
        "{apart:?}"
    );
    let line = |name: &str, mask: u64| {
        let written = |word: &&&str| {
            let value = word.strip_prefix(name).and_then(|w| w.strip_prefix(":0="));
            value.and_then(|v| u64::from_str_radix(v, 16).ok()) == Some(mask)
        };
        apart.iter().filter(written).count()
    };
    assert_eq!(
        (line("L3CODE", 0x3), line("L3DATA", 0x3c)),
        (1, 1),
        "{apart:?}"
    );
    // The neighbour, and everybody else.
    assert_eq!(
        (line("L3CODE", 0xffc0), line("L3DATA", 0xffc0)),
        (2, 2),
        "{apart:?}"
    );
    assert_eq!(said.one("unmounted"), "yes");
    let together = said.one("together");
    assert!(
        together.contains("mounting it again changes no option"),
        "{together}"
    );
    let adopted = said.one("adopted");
    assert!(
        adopted.contains("L3CODE:0=") && adopted.contains("L3DATA:0="),
        "{adopted}"
    );
    assert_eq!(said.one("apart-restored"), "restored");
}

fn plan_ways(mask: &str) -> u32 {
    u64::from_str_radix(&mask[2..], 16).unwrap().count_ones()
}

#[test]
fn parts_are_held_under_6_12() {
    parts_are_held("6.12");
}

fn every_death_is_undone(kernel: &str) {
    let script = format!("FROM={}\n{SUBJECTS}{EVERY}", crate::guest::from());
    if let Some(said) = crate::guest::says(kernel, "icelake", &script, Duration::from_secs(2400)) {
        // The group's CPU was in its class.
        assert_eq!(said.one("whole"), "0");
        assert!(said.every() > 33);
    }
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn parts_are_held_under_7_2() {
        parts_are_held("7.2");
    }

    #[test]
    #[ignore = "for the long run"]
    fn every_death_is_undone_under_6_12() {
        every_death_is_undone("6.12");
    }

    #[test]
    #[ignore = "for the long run"]
    fn every_death_is_undone_under_7_2() {
        every_death_is_undone("7.2");
    }
}

#[test]
#[ignore = "no test: the program that the tests above run inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "list" => crate::guest::list(numbers[0], numbers[1], numbers[2] == 1),
        "sweep" => crate::guest::sweep(numbers[0]),
        other => panic!("role {other}"),
    }
}
