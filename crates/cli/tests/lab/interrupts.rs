//! A CPU's interrupts and kernel work, and whose ways they fill, under a real kernel in the lab.
//! CPU 1 belongs to a critical group. A neighbour on CPU 2 has the kernel of CPU 1 answer pings:
//! interrupts that copy what they carry. A list of everybody else's fills a quarter of its ways.
//!
//! Before: the plan gives the group no CPU of its own, so CPU 1 is everybody else's. After: it
//! does, so CPU 1 is of the group's class.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::net::UdpSocket;
use std::os::fd::{AsRawFd, FromRawFd};
use std::time::Duration;

use quell_policy::lab::Guest;

/// The list, the size of a ping, and how many are sent before their answers are read. The answers
/// of a batch come to 6 MB, as much as all ways of everybody else.
const SCRIPT: &str = r#"
export EXE
reads() { [ "$(mask $1)" = $2 ]; }
# on MASK ROLE…: the role on these CPUs
on() { cpus_mask=$1; shift; QUELL_LAB_ROLE="$*" exec taskset $cpus_mask "$EXE" $GUEST --exact --ignored --nocapture; }
ip link set lo up
echo 2 >/sys/class/net/lo/queues/rx-0/rps_cpus
echo 0 2147483647 >/proc/sys/net/ipv4/ping_group_range
sleep 10001 & V=$!
# The critical group has four of sixteen ways, and the neighbour the highest one.
for cpus in any 1; do
    lab-watch off
    printf 'quell = 1\n[group.victim]\nrole = "critical"\ncpus = "%s"\nmatch = [{ pid = %s }]\nreserve.cache = { ways = 4 }\n' $cpus $V >/tmp/policy.toml
    quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
    within 60 test -e $R/COS1 && within 60 reads $R/COS1 f || echo never held
    [ $cpus = any ] || within 60 grep -q 1 $R/COS1/cpus_list || echo never of the class
    echo class $cpus $(cat $R/COS1/cpus_list)
    lab-watch on
    mkdir $R/pings; echo L3:0=8000 >$R/pings/schemata
    echo alone $cpus $(on 1 list 1572864 3 0)
    echo 0 >/tmp/passes
    QUELL_LAB_ROLE='pings 60000 100' taskset 4 sh -c 'echo $$ >/sys/fs/resctrl/pings/tasks
        exec "$EXE" $GUEST --exact --ignored --nocapture' >/tmp/pings 2>&1 & P=$!
    # What the kernel of CPU 1 has: of everybody else's ways, or of the group's.
    if [ $cpus = any ]; then
        kernel=$R/mon_groups/kernel; mkdir $kernel; echo 1 >$kernel/cpus_list
    else
        kernel=$R/COS1
    fi
    echo next $cpus $(on 1 list 1572864 3 1)
    echo kernel $cpus occupancy $(cat $kernel/mon_data/mon_L3_00/llc_occupancy)
    grep NET_RX /proc/softirqs
    cat /tmp/pings; echo
    kill -9 $P; wait $P 2>/dev/null
    lab-watch off
    [ $cpus != any ] || rmdir $kernel
    rmdir $R/pings
    kill -TERM $run; wait $run; echo status $cpus $?
    said
done
"#;

#[test]
#[ignore = "no test: the program that the test below runs inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    match &*role {
        "list" => crate::guest::list(numbers[0], numbers[1], numbers[2] == 1),
        "pings" => pings(numbers[0], numbers[1]),
        other => panic!("role {other}"),
    }
}

/// Sends pings of a size to this machine, so many before it reads the answers, and again.
fn pings(size: usize, batch: usize) -> ! {
    // SAFETY: a new socket, which only this value has.
    let socket = unsafe {
        let icmp = libc::socket(libc::AF_INET, libc::SOCK_DGRAM, libc::IPPROTO_ICMP);
        assert!(icmp >= 0, "{}", std::io::Error::last_os_error());
        UdpSocket::from_raw_fd(icmp)
    };
    // All answers of a batch, with what the kernel counts besides.
    let room = libc::c_int::try_from(4 * size * batch).unwrap();
    for option in [libc::SO_RCVBUFFORCE, libc::SO_SNDBUFFORCE] {
        // SAFETY: the value is an int of this function.
        let set = unsafe {
            libc::setsockopt(
                socket.as_raw_fd(),
                libc::SOL_SOCKET,
                option,
                (&raw const room).cast(),
                size_of::<libc::c_int>() as libc::socklen_t,
            )
        };
        assert_eq!(set, 0, "{}", std::io::Error::last_os_error());
    }
    socket
        .set_read_timeout(Some(Duration::from_secs(5)))
        .unwrap();
    let mut ping = vec![0; size];
    // An echo request. The kernel fills in checksum and identifier.
    ping[0] = 8;
    let mut answer = vec![0; size];
    crate::guest::forever(|| {
        for _ in 0..batch {
            socket.send_to(&ping, ("127.0.0.1", 0)).unwrap();
        }
        let answered = (0..batch).take_while(|_| socket.recv(&mut answer).is_ok());
        assert!(answered.count() > batch / 2, "most answers were lost");
    })
}

/// Where their files have changed (`tests/changed.toml`).
mod changed {
    use super::*;

    #[test]
    #[ignore = "where its files have changed"]
    fn kernel_work_of_a_critical_cpu_leaves_the_rest_alone() {
        let machine = Guest {
            kernel: "6.12".to_owned(),
            profile: Some("icelake".to_owned()),
            cpus: 3,
            ..Guest::default()
        };
        let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(420)) else {
            return;
        };
        let output = &said.0;
        assert!(!output.contains("never "), "{output}");
        // The rest of a line that begins with both words.
        let line = |word: &str, cpus: &str| {
            let key = format!("{word} {cpus}");
            said.one(&key).to_owned()
        };
        assert_eq!(line("class", "any"), "");
        assert_eq!(line("class", "1"), "1");
        for cpus in ["any", "1"] {
            assert_eq!(line("status", cpus), "0", "{output}");
        }
        let misses = |word, cpus| crate::guest::figure(&line(word, cpus), "misses");
        let (before, after) = (misses("next", "any"), misses("next", "1"));
        let alone = misses("alone", "1");
        let kernel = |cpus| crate::guest::figure(&line("kernel", cpus), "occupancy");
        println!(
            "misses per access: alone {alone}, next to it before {before}, after {after}; the kernel of \
             CPU 1 has {} bytes of everybody else's ways before, and {} of the group's after",
            kernel("any"),
            kernel("1")
        );
        assert!(
            before > alone + 0.1,
            "the interrupts do not hurt: {alone} alone, {before} next to them"
        );
        assert!(
            after < alone + (before - alone) / 4.0,
            "{alone} alone, {before} before, {after} after"
        );
        assert!(kernel("any") > 1e6 && kernel("1") > 1e5, "{output}");
    }
}
