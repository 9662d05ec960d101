//! Colours that memory nodes have, under a real kernel in the lab: a machine with two nodes, and a
//! declared map by which each has a bank of its own. The kernel's `numa_maps` is the witness: it
//! knows nothing of frames and colours.
//!
//! QEMU cannot say that two nodes are equally near, as parts of one memory are. So files that say
//! it are mounted over those of the guest's kernel.
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::time::Duration;

use quell_policy::lab::Guest;
use quell_types::units::Bytes;

const SCRIPT: &str = r#"
# hold NAME: 24 MiB or more of memory of its own
cat >/tmp/hold.sh <<'END'
exec awk -v name=$1 'BEGIN { s = "x"; while (length(s) < 25165824) s = s s
    print length(s) >("/tmp/ready." name); close("/tmp/ready." name); while (1) system("sleep 1") }'
END
# nodes PID: pages of its own on node 0 and on node 1
nodes() {
    awk '/anon=/ && !/file=/ { for (i = 1; i <= NF; i++) {
        if ($i ~ /^N0=/) a += substr($i, 4); if ($i ~ /^N1=/) b += substr($i, 4) } } END { print a + 0, b + 0 }' /proc/$1/numa_maps
}
picture() { for file in $(find /sys/fs/cgroup -name cpuset.mems); do echo $file $(cat $file); done; for pid in $SUBJECTS; do cat /proc/$pid/cgroup; done; }
policy() { cat <<END
quell = 1
[group.victim]
role = "critical"
command = ["sh", "/tmp/hold.sh", "victim"]
cpus = "any"
reserve.banks = "1"
[group.noise]
role = "best-effort"
match = [{ pid = $N }]
END
}

# khugepaged of Linux 7.2 puts pages of a program together on any node, whatever its cpuset.
echo madvise >/sys/kernel/mm/transparent_hugepage/enabled
echo online $(cat /sys/devices/system/node/online)
cat >/tmp/refused.toml <<END
quell = 1
[group.a]
role = "critical"
command = ["true"]
reserve.banks = 1
END
echo refused $(quell plan /tmp/refused.toml --all 2>&1)
echo 30 >/tmp/map.txt
quell colours map /tmp/map.txt >/tmp/log 2>&1; said
echo far $(quell doctor --json | sed -n 's/.*"why": "\(memory nodes.*\)",*/\1/p')
echo "10 10" >/tmp/near
for node in 0 1; do mount -o bind /tmp/near /sys/devices/system/node/node$node/distance; done
quell colours map >/tmp/log 2>&1; said

# A neighbour in a group, and a program in none. Their memory is on the first node.
sh /tmp/hold.sh noise & N=$!
sh /tmp/hold.sh rest & R=$!
within 60 test -s /tmp/ready.noise; within 60 test -s /tmp/ready.rest
SUBJECTS="$N $R"
echo before $(nodes $N) / $(nodes $R)
policy >/tmp/policy.toml
sed -i 's/banks = "1"/banks = "0"/' /tmp/policy.toml
before
echo plan $(quell plan /tmp/policy.toml --steps 2>&1)
quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!
within 120 test -s /tmp/ready.victim || { said; echo never ready; }
V=$(sort -n /sys/fs/cgroup/quell.slice/victim/cgroup.procs | head -n 1)
echo victim $(nodes $V)
# The kernel moves pages in a thread of its own. What is pinned by a system call stays.
moved() { set -- $(nodes $1); [ $1 -le 16 ]; }
within 20 moved $N; within 20 moved $R
echo noise $(nodes $N)
echo rest $(nodes $R)
echo check $(quell colours check $V --map /tmp/map.txt --colours 0 | grep '^right')
echo others $(quell colours check $N $R --map /tmp/map.txt --colours 1 | grep '^right')
echo mems $(for group in quell.slice/victim quell-noise.slice quell.slice/rest; do cat /sys/fs/cgroup/$group/cpuset.mems; done)
kill -TERM $run; wait $run; echo status $?
tell restored
said

# Killed at journal boundaries. Before there is a watchdog, `quell restore` alone reverts.
gone() { ! pidof quell >/dev/null && quell restore >/dev/null; }
grep -v '^command' /tmp/policy.toml >/tmp/killed.toml
for point in $POINTS; do dies killed /tmp/killed.toml $point; done
kill $N $R
"#;

fn numbers(text: &str) -> Vec<u64> {
    let words = text.split_whitespace();
    words.filter_map(|word| word.parse().ok()).collect()
}

/// `right: A of B pages …`
fn right(text: &str) -> Vec<(u64, u64)> {
    let each = text.split("right:").skip(1);
    each.map(|one| {
        let numbers = numbers(one);
        (numbers[0], numbers[1])
    })
    .collect()
}

fn memory_comes_from_the_nodes_of_a_group(kernel: &str) {
    let points = if quell_testing::soak() {
        "$(seq 1 60)"
    } else {
        "4 14 30 45"
    };
    let machine = Guest {
        kernel: kernel.to_owned(),
        memory: Bytes(2 << 30),
        nodes: 2,
        ..Guest::default()
    };
    let script = format!("POINTS=\"{points}\"\n{SCRIPT}");
    let timeout = Duration::from_secs(if quell_testing::soak() { 2400 } else { 540 });
    let Some(said) = crate::guest::boot(machine, &script, timeout) else {
        return;
    };
    assert_eq!(said.one("online"), "0-1");
    let refused = said.one("refused");
    assert!(
        refused.contains("no address map of this machine is known"),
        "{refused}"
    );
    assert!(refused.contains("quell colours map FILE"), "{refused}");
    assert!(
        said.one("far").contains("further from node 0"),
        "{}",
        said.one("far")
    );
    let told = said.all("said").join("\n");
    assert!(
        told.contains("2 colours of memory nodes (0 | 1), by address bit 30"),
        "{told}"
    );
    let plan = said.one("plan");
    assert!(plan.contains("take its memory from node 0 only"), "{plan}");
    // 24 MiB are 6144 pages of 4 KiB, and strings grow by doubling.
    let least = 6144;
    let before = numbers(said.one("before"));
    assert!(before[0] >= least && before[2] >= least, "{before:?}");
    let pages = |word: &str| {
        let both = numbers(said.one(word));
        (both[0], both[1])
    };
    let (own, other) = pages("victim");
    assert!(own >= least && other == 0, "victim: {own} {other}");
    for word in ["noise", "rest"] {
        let (old, new) = pages(word);
        assert!(new >= least && old <= 16, "{word}: {old} {new}");
    }
    let check = right(said.one("check"));
    assert!(check[0].0 == check[0].1 && check[0].0 >= least, "{check:?}");
    let others = right(said.one("others"));
    assert_eq!(others.len(), 2);
    for (right, of) in others {
        assert!(right + 16 >= of && of >= least, "{right} of {of}");
    }
    assert_eq!(said.one("mems"), "0 1 1");
    // The witness has looked at the frames of its pages.
    let held = "victim: colour 0 of the 2 of DRAM banks to itself; level enforced";
    assert!(told.contains(held), "{told}");
    assert_eq!(said.one("restored"), "restored", "{told}");
    let killed = said.all("killed");
    assert!(
        killed.iter().any(|death| death.contains(" 137 ")),
        "{killed:?}"
    );
    for death in killed {
        assert!(death.ends_with(" restored"), "{death}");
    }
}

#[test]
fn memory_comes_from_the_nodes_of_a_group_under_6_12() {
    memory_comes_from_the_nodes_of_a_group("6.12");
}

/// For `make soak`.
mod long {
    use super::*;

    #[test]
    #[ignore = "for the long run"]
    fn memory_comes_from_the_nodes_of_a_group_under_7_2() {
        memory_comes_from_the_nodes_of_a_group("7.2");
    }
}
