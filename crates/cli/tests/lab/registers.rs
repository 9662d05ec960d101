//! Ways through the processor's registers under real kernels, in the lab: `quell plan` and `quell
//! run` where resctrl is not mounted. Read by `dd` from the registers and by Intel's `pqos`, never
//! by Quell.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

/// Words, and the two groups' programs.
const SUBJECTS: &str = r#"
lab-watch off
# write_register CPU NUMBER BYTES
write_register() { printf "$3" | dd of=/dev/cpu/$1/msr bs=8 seek=$(($2)) oflag=seek_bytes conv=notrunc 2>/dev/null; }
picture() {
    grep resctrl /proc/mounts
    for number in 0xc90 0xc91 0xc92 0xc93; do echo $number $(register 0 $number); done
    for cpu in 0 1; do echo class of $cpu: $(register $cpu 0xc8f); done
    affinities
}
# policy CPUS PART
policy() {
    printf 'quell = 1\nmechanisms.registers = true\n[group.victim]\nrole = "critical"\nmatch = [{ pid = %s }]\n' $V
    printf 'cpus = "%s"\nreserve.cache = %s\n[group.noise]\nrole = "best-effort"\nmatch = [{ pid = %s }]\n' $1 "$2" $N
}
in_class_1() { [ "$(register 1 0xc8f)" = "00 00 00 00 01 00 00 00" ]; }
holds() { quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!; within 60 in_class_1 && within 60 grep -q holding: /tmp/log || echo never held; }

sleep 10001 & V=$!
sleep 10002 & N=$!
SUBJECTS="$V $N"
"#;

const SCRIPT: &str = r#"
# What is refused, and what to do.
policy 1 '"25%"' >/tmp/policy.toml
echo mounted $(quell plan /tmp/policy.toml 2>&1)
umount $R
before
policy any '"25%"' >/tmp/shared.toml
echo shared $(quell plan /tmp/shared.toml 2>&1)
echo off >/sys/module/msr/parameters/allow_writes
echo off $(quell plan /tmp/policy.toml 2>&1)
echo on >/sys/module/msr/parameters/allow_writes
write_register 0 0xc81 '\1\0\0\0\0\0\0\0'
echo separate $(quell plan /tmp/policy.toml 2>&1)
write_register 0 0xc81 '\0\0\0\0\0\0\0\0'

# Held. pqos says the same as the registers.
echo plan $(quell plan /tmp/policy.toml --steps)
holds
echo masks $(register 0 0xc90) / $(register 0 0xc91)
/lab/pqos/ld-linux-x86-64.so.2 --library-path /lab/pqos /lab/pqos/pqos --iface=msr -s >/tmp/pqos 2>&1
echo pqos $(sed -n 's/ *L3CA COS[01] => MASK //p' /tmp/pqos)
# What another program changes is set again.
write_register 1 0xc8f '\0\0\0\0\0\0\0\0'
within 30 grep -q 'set again' /tmp/log; within 5 in_class_1 && echo again yes
kill -TERM $run; wait $run; echo status $?
tell restored
said

# Killed at journal boundaries; the victim is the command.
grep -v "pid = $V }" /tmp/policy.toml >/tmp/killed.toml
if [ $FROM -gt 0 ]; then
    every /tmp/killed.toml $FROM
else
    for point in 6 9 12; do dies killed /tmp/killed.toml $point; done
fi

# The group's CPU goes offline, the run is killed, and the CPU comes back.
holds
echo 0 >/sys/devices/system/cpu/cpu1/online
kill -9 $run; wait $run 2>/dev/null
within 30 gone
echo left $(register 0 0xc91)
echo 1 >/sys/devices/system/cpu/cpu1/online
quell restore >/tmp/log 2>&1; said
for pid in $SUBJECTS; do taskset -p 3 $pid >/dev/null; done
tell offline

# Nothing undoes these: the guest has no modules to load.
mount -t securityfs securityfs /sys/kernel/security 2>/dev/null
echo integrity >/sys/kernel/security/lockdown
echo lockdown $(quell plan /tmp/policy.toml 2>&1)
echo reads $(quell ways --for 300ms 2>&1)
rmmod msr
echo module $(quell plan /tmp/policy.toml 2>&1)
echo blind $(quell ways --for 300ms 2>&1)
"#;

fn ways_are_given_by_registers(kernel: &str) {
    // In the long run it dies at every boundary.
    let from = if quell_testing::soak() {
        crate::guest::from()
    } else {
        0
    };
    let script = format!("FROM={from}\n{SUBJECTS}{SCRIPT}");
    let timeout = Duration::from_secs(if quell_testing::soak() { 2400 } else { 540 });
    let Some(said) = crate::guest::says(kernel, "icelake", &script, timeout) else {
        return;
    };
    for (word, told) in [
        ("mounted", "resctrl is mounted at /sys/fs/resctrl"),
        ("shared", "group victim has no CPUs to itself"),
        ("off", "echo on > /sys/module/msr/parameters/allow_writes"),
        ("separate", "pqos --iface=msr -R l3cdp-off"),
        ("module", "modprobe msr"),
        // A locked-down kernel lets registers be read.
        ("reads", "L3:0 of CPUs 0-1: 16 ways"),
        ("blind", "modprobe msr"),
        ("lockdown", "the kernel is locked down"),
    ] {
        assert!(said.one(word).contains(told), "{word}: {}", said.one(word));
    }
    assert!(
        said.one("plan").contains("by the registers of CPU 1"),
        "{}",
        said.one("plan")
    );
    assert_eq!(
        said.one("masks"),
        "f0 ff 00 00 00 00 00 00 / 0f 00 00 00 00 00 00 00"
    );
    assert_eq!(said.one("pqos"), "0xfff0 0xf");
    assert_eq!(said.one("again"), "yes");
    assert_eq!(said.one("restored"), "restored");
    // What is set again once a second the witness may have seen twice before.
    let seen = said.one("status") == "3" && said.0.contains("CPU 1 of the group fills");
    assert!(seen || said.one("status") == "0", "{}", said.one("status"));
    if quell_testing::soak() {
        assert!(said.every() > 12);
    } else {
        let killed = said.all("killed");
        assert_eq!(killed.len(), 3, "{killed:?}");
        for death in killed {
            assert!(death.ends_with(" 137 restored"), "{death}");
        }
    }
    // The mask was restored through the other CPU of the cache.
    assert_eq!(said.one("left"), "ff ff 00 00 00 00 00 00");
    assert_eq!(said.one("offline"), "restored");
}

#[test]
fn ways_are_given_by_registers_under_6_12() {
    ways_are_given_by_registers("6.12");
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn ways_are_given_by_registers_under_7_2() {
        ways_are_given_by_registers("7.2");
    }
}
