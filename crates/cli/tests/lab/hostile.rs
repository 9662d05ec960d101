//! What a user without rights tries against a run, in the lab: where cgroups are of v2 and parts of
//! the tree are the user's own (docs/threats.md).
//!
//! Skipped aloud where the lab cannot be had: no `apt-get`, no mirror, another architecture.

use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;

use quell_policy::lab::Guest;

/// `session` is root's, with a process of the user; `own` was given to the user.
const SCRIPT: &str = r#"
C=/sys/fs/cgroup
echo '+memory +pids' >$C/cgroup.subtree_control
mkdir -p $C/user/session $C/user/own
echo '+memory +pids' >$C/user/cgroup.subtree_control
chown 1000 $C/user/own $C/user/own/*
chmod 777 /tmp
# as CGROUP SCRIPT: a shell of the user's, $!
as() {
    sh -c 'echo $$ >'$C'/$1/cgroup.procs; WHAT="$2" QUELL_LAB_ROLE="user 1000" exec "$EXE" $GUEST --exact --ignored --nocapture' sh "$1" "$2" &
}
home() { sed 's/^0:://' /proc/$1/cgroup; }
gathered() { home $1 | grep -q ^/quell; }
held() { [ "$(sed -n 's/^Max locked memory *\([^ ]*\).*/\1/p' /proc/$1/limits)" = unlimited ]; }
limit() { sed -n 's/^Max locked memory *\([^ ]*\).*/\1/p' /proc/$1/limits; }
begin() { quell run /tmp/policy.toml >/tmp/log 2>&1 & run=$!; }
end() { kill -TERM $run; wait $run; echo "$1 status $?"; said; ls -d $C/quell* 2>/dev/null && echo "$1 never gone"; }
limited() { printf 'quell = 1\n[group.noise]\nrole = "best-effort"\nlimit.cpu-time = "50%%"\nmatch = [%s]\n' "$*" >/tmp/policy.toml; }

as user/session 'while :; do sleep 1000; done'; user=$!
within 20 test -e /proc/$user || echo never

# Children are born in Quell's cgroup. One has its parent at first, then nothing but its user.
as user/own 'while ! [ -e /tmp/go ]; do usleep 50000; done; (sleep 21000 &); sleep 21001 & wait'; boss=$!
sleep 2
limited "{ pid = $boss }"
begin
within 60 gathered $boss || echo never gathered
touch /tmp/go
number() { for p in /proc/[0-9]*; do [ "$(tr '\0' ' ' <$p/cmdline)" = "sleep $1 " ] && echo ${p#/proc/}; done 2>/dev/null; }
lives() { [ -n "$(number $1)" ]; }
within 20 lives 21000 && within 20 lives 21001 || echo never born
within 20 gathered $(number 21000) || echo never inside
end orphan
echo child home $(home $(number 21001))
echo orphan home $(home $(number 21000))
kill $(number 21000) $(number 21001) $boss
as user/own 'while ! [ -e /tmp/on ]; do usleep 50000; done; sleep 21002 & wait'; boss=$!
sleep 2
limited "{ pid = $boss }"
begin
within 60 gathered $boss || echo never gathered
touch /tmp/on
within 20 lives 21002 || echo never born
kill $boss
end user
echo user home $(home $(number 21002))
kill $(number 21002)

# The user makes the own cgroup take nobody: an inner one holds no process.
mkdir $C/user/own/p
chown -R 1000 $C/user/own
as user/own/p 'while ! [ -e /tmp/close ]; do usleep 50000; done; echo "+memory" >/sys/fs/cgroup/user/own/cgroup.subtree_control; until echo "+memory" >/sys/fs/cgroup/user/own/p/cgroup.subtree_control; do usleep 50000; done; touch /tmp/closed; while :; do sleep 1000; done'; shut=$!
as user/session 'while :; do sleep 1000; done'; other=$!
sleep 2
limited "{ pid = $shut }, { pid = $other }"
begin
within 60 gathered $shut && within 60 gathered $other || echo never gathered
touch /tmp/close
within 20 test -e /tmp/closed || echo never closed
end shut
echo shut home $(home $shut)
echo shut other $(home $other)
kill $shut $other

# A cgroup is too deep for its path to be told: of this kernel some 4095 bytes of it.
mkdir $C/user/own/leaf
chown -R 1000 $C/user/own/leaf
as user/own/leaf 'cd /sys/fs/cgroup/user/own; n=0; long=$(printf %0250d 0); while [ $n -lt 15 ]; do mkdir $long && cd $long || break; n=$((n + 1)); done; mkdir -p $long/$long/$long; echo $$ >$long/$long/$long/cgroup.procs; touch /tmp/deep; while :; do sleep 1000; done'; deep=$!
within 20 test -e /tmp/deep || echo never deep
echo deep path $(cat /proc/$deep/cgroup 2>/dev/null | wc -c)
as user/session 'exec sleep 22000'; plain=$!
mkdir $C/some.service
sh -c 'echo $$ >/sys/fs/cgroup/some.service/cgroup.procs; exec sleep 22001' & unit=$!
sleep 2
printf 'quell = 1\n[group.noise]\nrole = "best-effort"\nlimit.cpu-time = "50%%"\nmatch = [{ exe = "/bin/busybox", user = "1000" }]\n[group.unit]\nrole = "best-effort"\nmatch = [{ unit = "some.service" }]\nlimit.cpu-time = "60%%"\n' >/tmp/policy.toml
begin
within 60 gathered $plain || echo never gathered
end deep
kill $deep $plain $unit

# One process below a limit of memory of the user's own keeps nobody else outside.
mkdir $C/user/own/m
echo '+memory' >$C/user/own/cgroup.subtree_control
echo 40000000 >$C/user/own/m/memory.max
as user/own/m 'exec sleep 23000'; low=$!
as user/session 'exec sleep 23001'; high=$!
sleep 2
limited '{ arg = "^2300[01]$" }'
begin
within 60 gathered $high || echo never gathered
echo limited home $(home $low)
end limited
printf 'quell = 1\n[group.a]\nrole = "critical"\ncpus = 1\nmatch = [{ arg = "^23000$" }]\n' >/tmp/policy.toml
quell run /tmp/policy.toml >/tmp/log 2>&1; echo alone status $?
said
kill $low $high

# A child takes what it was given deep into the user's own tree.
mkdir $C/user/own/x
chown -R 1000 $C/user/own/x
as user/own/x 'ulimit -l 3000; while ! [ -e /tmp/hide ]; do usleep 50000; done; (cd /sys/fs/cgroup/user/own/x; n=0; while [ $n -lt 20 ]; do mkdir d; cd d; n=$((n + 1)); done; sleep 24000 & echo $! >cgroup.procs); while :; do sleep 1000; done'; giver=$!
sleep 2
printf 'quell = 1\n[group.rt]\nrole = "critical"\ncpus = "any"\nmatch = [{ cgroup = "/user/own/x" }]\npaging.locked = true\n' >/tmp/policy.toml
begin
within 60 held $giver || echo never locked
touch /tmp/hide
within 20 lives 24000 || echo never hid
echo hidden path $(home $(number 24000) | wc -c)
end hidden
echo hidden limit $(limit $(number 24000)) $(limit $giver)
kill $giver $(number 24000)

# A path that is told, and leaves no room for the name of a file.
as user/own/leaf 'cd /sys/fs/cgroup/user/own; long=$(printf %0249d 0); n=0; while [ $n -lt 16 ]; do mkdir $long && cd $long || break; n=$((n + 1)); done; short=$(printf %045d 0); mkdir $short && cd $short; echo $$ >cgroup.procs; touch /tmp/edge; while :; do sleep 1000; done'; edge=$!
within 20 test -e /tmp/edge || echo never edge
echo edge path $(home $edge | wc -c)
as user/session 'exec sleep 25000'; plain=$!
sleep 2
limited '{ user = "1000" }'
begin
within 60 gathered $plain || echo never gathered
echo edge home $(home $edge | wc -c)
end edge
kill $edge $plain

# A limit of the user's own keeps nobody out.
mkdir $C/user/own/m2
echo 40000000 >$C/user/own/m2/memory.max
chown -R 1000 $C/user/own/m2
as user/own/m2 'exec sleep 26000'; mine=$!
sleep 2
limited "{ pid = $mine }"
begin
within 60 gathered $mine || echo never gathered
end mine
kill $mine

# An immune program keeps the value that it had, and lowers it when the run is over.
as user/session 'until [ "$(cat /proc/$$/oom_score_adj)" = -1000 ]; do usleep 20000; done; touch /tmp/was; until [ -e /tmp/after ]; do echo 0 >/proc/$$/oom_score_adj; usleep 10000; done; echo -1000 >/proc/$$/oom_score_adj; touch /tmp/tried; while :; do sleep 1000; done'; immune=$!
as user/session 'exec sleep 27000'; hog=$!
sleep 2
printf 'quell = 1\n[group.app]\nrole = "critical"\ncpus = "any"\nmatch = [{ pid = %s }]\n[group.hog]\nrole = "best-effort"\ncpus = "any"\nmatch = [{ pid = %s }]\nallow = ["freeze"]\n[pressure]\n' $immune $hog >/tmp/policy.toml
score() { cat /proc/$1/oom_score_adj; }
begin
within 60 test -e /tmp/was || echo never immune
sleep 3
end immune
touch /tmp/after
within 20 test -e /tmp/tried || echo never tried
echo immune score $(score $immune)
kill -9 $immune $hog

# Programs that begin others without end keep no cgroup.
echo 300 >$C/user/pids.max
as user/session 'f() { f & }; f; f; f; while :; do sleep 1000; done'; storm=$!
sleep 2
limited '{ user = "1000" }'
begin
within 60 gathered $storm || echo never gathered
sleep 2
end storm
echo 1 >$C/user/session/cgroup.kill
echo 1 >$C/user/own/cgroup.kill

# What was given is lowered, and who has it is stopped.
as user/session 'ulimit -l 3000; while ! [ -e /tmp/lower ]; do usleep 50000; done; ulimit -l 400000; touch /tmp/lowered; while :; do sleep 1000; done'; lower=$!
as user/session 'ulimit -l 3000; while ! [ -e /tmp/lower ]; do usleep 50000; done; kill -STOP $$; while :; do sleep 1000; done'; still=$!
sleep 2
printf 'quell = 1\n[group.rt]\nrole = "critical"\ncpus = "any"\nmatch = [{ pid = %s }, { pid = %s }]\npaging.locked = true\n' $lower $still >/tmp/policy.toml
echo lock before $(limit $lower) $(limit $still)
begin
within 60 held $lower && within 60 held $still || echo never locked
touch /tmp/lower
within 20 test -e /tmp/lowered || echo never lowered
within 20 grep -q 'State:.T' /proc/$still/status || echo never stopped
echo lock during $(limit $lower) $(limit $still)
end lock
echo lock after $(limit $lower) $(limit $still)
kill -CONT $still
quell restore >/tmp/log 2>&1; echo again status $?
said
grep -q 'VmLck:[[:space:]]*0 kB' /proc/$still/status || echo never unlocked
"#;

#[test]
fn a_users_own_cgroups_and_limits_change_nothing() {
    let machine = Guest {
        kernel: "6.12".to_owned(),
        cpus: 2,
        ..Guest::default()
    };
    let Some(said) = crate::guest::says_on(machine, SCRIPT, Duration::from_secs(600)) else {
        return;
    };
    assert!(!said.0.contains("never"), "{}", said.0);
    let one = |key: &str| said.one(key);
    assert_eq!((one("orphan status"), one("user status")), ("0", "0"));
    let homes = ["child home", "orphan home", "user home"].map(one);
    assert_eq!(homes, ["/user/own", "/user/own", "/user/session"]);
    assert_eq!(one("shut status"), "0");
    assert_eq!(
        (one("shut home"), one("shut other")),
        ("/user/session", "/user/session")
    );
    // Its path is not told whole. It stays, and the witness sees it outside.
    assert_eq!((one("deep path"), one("deep status")), ("4099", "3"));
    // The witness sees it outside.
    assert_eq!(
        (one("limited home"), one("limited status")),
        ("/user/own/m", "3")
    );
    assert_eq!(one("alone status"), "2");
    assert!(one("edge path").parse::<u32>().unwrap() > 4000);
    assert_eq!(one("edge home"), one("edge path"), "too deep to be moved");
    assert_eq!(one("mine status"), "0");
    // The witness may see one that was not moved yet.
    assert!(["0", "3"].contains(&one("storm status")), "{}", said.0);
    assert_eq!(one("immune score"), "0");
    assert!(one("hidden path").parse::<u32>().unwrap() > 50);
    assert_eq!(one("hidden limit"), "3072000 3072000");
    assert_eq!(one("lock before"), "3072000 3072000");
    assert_eq!(one("lock during"), "409600000 unlimited");
    // Who is stopped cannot unlock. It does once it runs.
    assert_eq!(one("lock after"), "3072000 3072000");
    assert_eq!((one("lock status"), one("again status")), ("1", "0"));
}

#[test]
#[ignore = "no test: the program that the test above runs inside the virtual machine"]
fn guest() {
    let (role, numbers) = crate::guest::role();
    assert_eq!(role, "user");
    let user = u32::try_from(numbers[0]).unwrap();
    let mut shell = Command::new("/bin/sh");
    let what = std::env::var("WHAT").unwrap();
    let failed = shell.args(["-c", &what]).uid(user).gid(user).exec();
    panic!("{failed}");
}
