#!/bin/sh
# The checks of tests/vm/run.sh, as root in a virtual machine with cgroup v2 alone: the parts that are named, or all.
# One line per check, `-- N passed, N failed, N skipped` at the end; 0 where none failed. What is observed is read from the
# kernel's own files, never from Quell. Nothing here judges a time or a rate: an emulated machine has none of its own.

# Lists of process numbers and paths are words.
# shellcheck disable=SC2046
export HOME=/ RUST_BACKTRACE=1
CG=/sys/fs/cgroup
SLICE=$CG/quell.slice
# The batch group's, which has a weight.
BATCH=$CG/quell-batch.slice
passed=0 failed=0 skipped=0
# The critical group's CPU, and those of everybody else: not its sibling.
last=$(($(nproc) - 1))
case "$(cat /sys/devices/system/cpu/cpu0/topology/thread_siblings_list)" in *[-,]*) others=0-$((last - 2)) ;; *) others=0-$((last - 1)) ;; esac
echo "-- guest: Linux $(uname -r), $(nproc) CPUs, controllers: $(cat $CG/cgroup.controllers)"

# --- Words ---------------------------------------------------------------------------------------------------------

now() { cut -d. -f1 /proc/uptime; }
ok() { passed=$((passed + 1)); echo "$(now) s: ok      $1"; }
bad() { failed=$((failed + 1)); echo "$(now) s: FAILED  $1"; }
skipped() { skipped=$((skipped + 1)); echo "$(now) s: SKIPPED $1: $2"; }
# same WHAT FOUND EXPECTED
same() { if [ "$2" = "$3" ]; then ok "$1"; else bad "$1: found '$2', expected '$3'"; fi; }
# holds WHAT COMMAND…
holds() { what=$1; shift; if "$@"; then ok "$what"; else bad "$what"; fi; }
not() { ! "$@"; }
# within SECONDS COMMAND…: true as soon as the command is
within() {
    n=$(($1 * 10)); shift
    while ! "$@" 2>/dev/null; do
        n=$((n - 1)); [ $n -gt 0 ] || return 1
        usleep 100000
    done
}
gone() { [ ! -e "$1" ]; }
# The CPUs a task may use, as a list.
allowed() { sed -n 's/^Cpus_allowed_list:\t//p' "/proc/$1/status"; }
# Its cgroup.
home() { sed -n 's/^0:://p' "/proc/$1/cgroup"; }
# CPU time in ns, from the scheduler's own account of the task.
cpu_time() { cut -d' ' -f1 "/proc/$1/schedstat"; }
# runs PID: it gets CPU time now
runs() { a=$(cpu_time "$1"); within 10 eval "[ \$(cpu_time $1) -gt $a ]"; }
# shares PID…: their CPU time together, in percent of a CPU, over five seconds
all_time() { sum=0; for pid in "$@"; do sum=$((sum + $(cpu_time "$pid"))); done; echo $sum; }
hundredths() { cut -d' ' -f1 /proc/uptime | tr -d .; }
shares() { a=$(all_time "$@"); t=$(hundredths); sleep 5; echo $((($(all_time "$@") - a) / 100000 / ($(hundredths) - t))); }
stat_of() { sed -n "s/^$2 //p" "$1/cpu.stat"; }

# Everything a run may change: settings of every cgroup, who is where, interrupts, kernel work.
picture() {
    find $CG -type d | sort | while read -r dir; do
        for file in cgroup.type cgroup.subtree_control cpuset.cpus cpuset.mems cpuset.cpus.exclusive cpuset.cpus.partition \
            cpuset.cpus.effective cpu.max cpu.weight cpu.idle memory.min memory.low memory.high memory.max cgroup.freeze io.max io.weight; do
            [ -e "$dir/$file" ] && echo "$dir/$file $(cat "$dir/$file")"
        done
        # A cpuset with tasks that was not set cannot be unset again (ENOSPC); everything possible means the same.
    done | sed "s/\(cpuset.cpus\) $(cat /sys/devices/system/cpu/possible)$/\1 /; s/\(cpuset.mems\) $(cat /sys/devices/system/node/possible)$/\1 /"
    for irq in /proc/irq/[0-9]*; do echo "$irq $(cat "$irq/smp_affinity_list")"; done
    cat /sys/devices/virtual/workqueue/cpumask /proc/irq/default_smp_affinity
    for pid in 1 $subjects; do
        echo "$pid $(home "$pid") $(allowed "$pid") $(cat "/proc/$pid/oom_score_adj")"
    done
}
before() { picture >/tmp/before; }
restored() {
    picture >/tmp/after
    if cmp -s /tmp/before /tmp/after; then ok "$1"; else
        bad "$1"; diff /tmp/before /tmp/after | sed -n '/^[+-]/s/^/        /p'; tell
    fi
}

subjects=
# start COMMAND…: in the background; its number is in $started, and it is part of the picture until `done_with_all`.
start() { "$@" </dev/null >/dev/null 2>&1 & started=$!; subjects="$subjects $started"; }
busy() { start sh -c 'while :; do :; done'; }
done_with_all() { for pid in $subjects; do kill -9 "$pid"; wait "$pid"; done 2>/dev/null; subjects=; }

# hold POLICY [CGROUP [BEFORE…]]: quell run in the background, started from a cgroup, until its changes are made.
hold() {
    rm -f /tmp/held
    policy=$1 from=$CG${2:-}; shift; [ $# -eq 0 ] || shift
    sh -c 'echo 0 >"$0/cgroup.procs"; exec "$@"' "$from" "$@" quell run "$policy" </dev/null >/tmp/quell.out 2>&1 & quell=$!
    within 30 [ -e /tmp/held ] || { bad "quell run $policy comes to hold"; tell; }
}
# let_go SIGNAL: ends it.
let_go() { kill "-$1" "$quell"; wait "$quell" 2>/dev/null || :; }
tell() { sed 's/^/        | /' /tmp/quell.out; }
# What a killed run's programs are: nobody's.
sweep() { for pid in $(named mark); do kill -9 "$pid"; done; within 10 eval '[ -z "$(named mark)" ]'; }
# Processes by their name; the watchdog, by its argument.
named() { grep -lx "$1" /proc/[0-9]*/comm 2>/dev/null | cut -d/ -f3; }
watchdog() { grep -al '_[_]watchdog' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3; }

# policy FILE MATCH LIMIT [MORE]: a critical group of one CPU, a limited one, and a third whose program tells that all is
# applied.
policy() {
    cat >"$1" <<POLICY
quell = 1
[group.critical]
role = "critical"
cpus = "$last"
match = [{ pid = $victim }]
[group.batch]
role = "best-effort"
match = [$2]
$3
[group.mark]
role = "best-effort"
cpus = "0"
command = ["/bin/mark"]
$4
POLICY
}
printf '#!/bin/sh\ntouch /tmp/held\nwhile :; do sleep 1; done\n' >/bin/mark
chmod +x /bin/mark

# --- What each part begins with, and leaves ----------------------------------------------------------------------

# Remote partitions came with 6.7, and with them cpuset.cpus.exclusive.
partitions=no
case "$(uname -r)" in [1-5].* | 6.[0-6].*) ;; *) partitions=yes ;; esac
QUOTA='limit.cpu-time = "40%"'

# A critical program, one in a cgroup of its owner, and a busy one.
begin() {
    mkdir $CG/batch
    start sleep 1000; victim=$started
    start sleep 1000; inplace=$started
    echo "$inplace" >$CG/batch/cgroup.procs
    busy; noise=$started
}
finish() {
    done_with_all
    for dir in user.slice/x user.slice batch; do [ ! -d $CG/$dir ] || within 20 rmdir $CG/$dir; done
    for controller in cpu cpuset io; do echo "-$controller" >$CG/cgroup.subtree_control; done
}
# Controllers enabled by somebody else, and a cgroup below the root to start Quell from.
as_under_systemd() {
    echo "+cpu +cpuset" >$CG/cgroup.subtree_control
    mkdir -p $CG/user.slice/x
}
# Rates, as if they had been measured: what an emulated machine reaches is no rate of its own.
measured() {
    mkdir -p /var/lib/quell
    {
        echo '{"schema":"quell.measured/1",'
        quell doctor --json | sed -n '/^  "identity": {/,/^  }/p'
        echo "\"cpus\":\"0-$last\","'"measured":{"peak-cpu":"1GB/s","peak-operation":"read","by-operation":{"read":"1GB/s"},'
        echo '"sustainable":"2GB/s","cpus":'$((last + 1))',"at-unix-s":0}}'
    } >/var/lib/quell/measured.json
}
# What is kept, locked, limited and steered; the batch group in place, the third in a cgroup of ours.
memory_policy() {
    dd if=/dev/zero of=/tmp/weights bs=1M count=3 2>/dev/null
    cat >/tmp/m.toml <<POLICY
quell = 1
[group.critical]
role = "critical"
cpus = "any"
match = [{ pid = $victim }]
reserve.memory = "16MiB"
reserve.files = ["/tmp/weights"]
[group.batch]
role = "best-effort"
cpus = "any"
match = [{ cgroup = "/batch" }]
allow = ["limit-memory", "freeze", "reclaim", "kill"]
[group.mark]
role = "best-effort"
cpus = "any"
command = ["/bin/mark"]
limit.memory = "64MiB"
[pressure]
POLICY
}
# A group that stays in its own cgroup is braked there where the policy insists: by threaded children.
in_its_own_cgroup() {
    as_under_systemd
    policy /tmp/o.toml '{ cgroup = "/batch" }' 'cpus = "1"
limit.bandwidth = "20%"' '[mechanisms]
bandwidth = "regulator"
[regulator]
period = "20ms"'
    echo "$noise" >$CG/batch/cgroup.procs
}

# --- The parts ------------------------------------------------------------------------------------------------------

part_held() {
    quell doctor >/tmp/doctor 2>&1
    if [ $partitions = yes ]; then holds "doctor names v2 partitions" grep -q 'v2 cpuset partition' /tmp/doctor
    else holds "doctor names v2 cpusets, all other cpusets narrowed" grep -q 'v2 cpuset, all other cpusets narrowed' /tmp/doctor; fi
    before
    policy /tmp/p.toml "{ pid = $noise }" "$QUOTA"
    hold /tmp/p.toml
    if [ $partitions = yes ]; then
        same "the critical group is a valid partition" "$(cat $SLICE/critical/cpuset.cpus.partition)" root
        same "the root's effective CPUs leave its CPU out" "$(cat $CG/cpuset.cpus.effective)" "0-$((last - 1))"
    else
        same "without remote partitions, everybody else is in rest" "$(home 1)" /quell.slice/rest
    fi
    same "the critical task is in its cgroup" "$(home "$victim")" /quell.slice/critical
    same "the critical task has its CPU" "$(allowed "$victim")" "$last"
    same "everybody else does not, nor its sibling" "$(allowed 1)" "$others"
    same "cpuset.mems is set" "$(cat $SLICE/critical/cpuset.mems)" 0
    same "a best-effort group is idle" "$(cat $BATCH/cpu.idle)" 1
    same "cpu.max has the quota" "$(cat $BATCH/cpu.max)" "40000 100000"
    same "the limited task is in its cgroup" "$(home "$noise")" /quell-batch.slice
    holds "the kernel throttles it" within 20 eval "[ \$(stat_of $BATCH nr_throttled) -gt 0 ]"
    holds "and it runs" runs "$noise"
    let_go TERM
    holds "nothing is called somebody else's change" not grep -q "somebody else" /tmp/quell.out
    holds "the watchdog is not needed" not grep -q "watchdog:" /tmp/quell.out
    restored "SIGTERM: everything is as before, subtree_control included"

    hold /tmp/p.toml
    let_go KILL
    holds "SIGKILL: the watchdog leaves no cgroup" within 20 eval "gone $SLICE && gone $BATCH"
    sweep
    restored "SIGKILL: everything is as before, subtree_control included"

    hold /tmp/p.toml
    kill -STOP "$quell"
    kill -9 $(watchdog)
    let_go KILL
    holds "both killed: nobody has undone it" [ -d $SLICE ]
    quell status >/tmp/quell.out 2>&1
    same "both killed: status says so" "$?" 3
    holds "both killed: restore succeeds" quell restore >/tmp/quell.out 2>&1
    sweep
    restored "both killed: restore suffices"

    # What ends or freezes the cgroup of the main process does not reach its watchdog.
    mkdir $CG/cell
    before
    hold /tmp/p.toml /cell
    same "the main process is where it was started" "$(home "$quell")" /cell
    echo 1 >$CG/cell/cgroup.kill
    wait "$quell" 2>/dev/null
    holds "cgroup.kill: the watchdog leaves no cgroup" within 20 eval "gone $SLICE && gone $BATCH"
    sweep
    restored "cgroup.kill: everything is as before"
    rmdir $CG/cell

    before
    policy /tmp/p.toml '{ cgroup = "/batch" }' "$QUOTA"
    hold /tmp/p.toml
    same "a group selected by cgroup stays there" "$(home "$inplace")" /batch
    same "in place: cpu.max" "$(cat $CG/batch/cpu.max)" "40000 100000"
    same "in place: cpuset.cpus" "$(cat $CG/batch/cpuset.cpus)" "$others"
    let_go TERM
    same "it was never emptied" "$(home "$inplace")" /batch
    restored "in place: everything is as before"
}

part_memory() {
    # A busy program would take a CPU of the host.
    kill -STOP "$noise"
    memory_policy
    before
    keeper() { grep -al '_[_]keep' /proc/[0-9]*/cmdline 2>/dev/null | cut -d/ -f3; }
    hold /tmp/m.toml
    same "memory: kept of the group" "$(cat $SLICE/critical/memory.min)" $((16 << 20))
    same "memory: and of all above" "$(cat $SLICE/memory.min)" $((16 << 20))
    same "memory: the critical task is immune" "$(cat "/proc/$victim/oom_score_adj")" -1000
    same "memory: who may not be killed is slowed down" "$(cat $CG/quell-mark.slice/memory.high)" $((64 << 20))
    same "memory: a file is locked" "$(sed -n 's/^VmLck:[[:space:]]*//p' "/proc/$(keeper)/status")" "3072 kB"
    same "memory: by a process of the group" "$(home "$(keeper)")" /quell.slice/critical
    holds "memory: the group in place has the controller's files" [ -e $CG/batch/memory.high ]
    let_go TERM
    holds "memory: nothing is called somebody else's change" not grep -q "somebody else" /tmp/quell.out
    restored "memory, SIGTERM: everything is as before"
    hold /tmp/m.toml
    let_go KILL
    holds "memory, SIGKILL: the watchdog leaves no cgroup" within 20 eval "gone $SLICE && gone $BATCH"
    holds "memory, SIGKILL: nobody keeps the file any more" within 10 eval '[ -z "$(keeper)" ]'
    sweep
    restored "memory, SIGKILL: everything is as before"
}

part_nested() {
    # As under systemd: controllers enabled by somebody else, Quell started from a cgroup below the root.
    as_under_systemd
    before
    policy /tmp/p.toml "{ pid = $noise }" "$QUOTA"
    hold /tmp/p.toml /user.slice/x
    same "from below the root: the critical task has its CPU" "$(allowed "$victim")" "$last"
    let_go TERM
    restored "from below the root: everything is as before"
}

part_regulated() {
    as_under_systemd
    measured
    # A regulated CPU is taken away. The rest is kept off the group's CPUs, and with it the session that Quell was started
    # from: its brakes have to get there all the same.
    policy /tmp/r.toml "{ pid = $noise }" 'cpus = "1-2"
    limit.bandwidth = "30%"' '[rest]
    cpus = "0"
    [mechanisms]
    bandwidth = "regulator"
    [regulator]
    period = "20ms"'
    before
    hold /tmp/r.toml /user.slice/x
    quell status >/tmp/status 2>&1
    status=$?
    same "regulated: status says it holds" "$status" 0
    [ "$status" = 0 ] || tell
    holds "regulated: the limited task is throttled" \
        within 20 eval 'quell status | grep -q "CPU 2 .*throttled [1-9]\|CPU 1 .*throttled [1-9]"'
    same "regulated: everybody else is kept off" "$(allowed 1)" 0
    same "regulated: its tasks run only while no brake does" \
        "$(home "$noise") $(cat $BATCH/work/cpu.idle) $(cat $BATCH/stop/cpu.weight)" "/quell-batch.slice/work 1 10000"
    same "regulated: a brake for each CPU" "$(wc -l <$BATCH/stop/cgroup.procs)" 2
    # Emulated: only that it is held back, and that what else runs there is not, can be told.
    sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & beside=$!
    taskset -p 6 "$beside" >/dev/null 2>&1
    holds "regulated: another program on its CPUs runs on" runs "$beside"
    kill -9 "$beside"; wait "$beside" 2>/dev/null
    echo 0 >/sys/devices/system/cpu/cpu2/online
    holds "a regulated CPU goes away: it is said, with level none" \
        within 20 grep -q "at level none: CPU 2 is no longer regulated" /tmp/quell.out
    quell status >/tmp/status 2>&1
    same "a regulated CPU goes away: status says it does not hold" "$?" 3
    same "its brake has ended, the other CPU's has not" "$(cat $(sed 's,.*,/proc/&/comm,' $BATCH/stop/cgroup.procs))" quell/1
    holds "nothing is left stopped" runs "$noise"
    echo 1 >/sys/devices/system/cpu/cpu2/online
    holds "the CPU is back: it is regulated again" within 20 grep -q "CPU 2 is regulated again" /tmp/quell.out
    let_go TERM
    restored "after the CPU is back: everything is as before"
}

part_disks() {
    as_under_systemd
    # Limits of a disk: in a cgroup of ours, and in one whose owner has limited something else, and something further.
    disk=$(cat /sys/block/vda/dev)
    echo +io >$CG/cgroup.subtree_control
    echo "$disk rbps=3000000 riops=7" >$CG/batch/io.max
    before
    for where in "{ pid = $noise }" '{ cgroup = "/batch" }'; do
        policy /tmp/d.toml "$where" 'limit.disk-write = "1MB/s"
    limit.disk-read-iops = 50'
        hold /tmp/d.toml
        case $where in
        *pid*) title="disk, own" found=$BATCH expected="$disk rbps=max wbps=1000000 riops=50 wiops=max" ;;
        *) title="disk, in place" found=$CG/batch expected="$disk rbps=3000000 wbps=1000000 riops=7 wiops=max" ;;
        esac
        same "$title: io.max" "$(cat $found/io.max)" "$expected"
        quell status >/tmp/status 2>&1
        same "$title: status says it holds" "$?" 0
        let_go TERM
        restored "$title: everything is as before"
    done
    # Weights: where nothing shares the disk by them they are refused, and nothing is changed.
    policy /tmp/w.toml "{ pid = $noise }"
    sed -i "/^cpus = \"$last\"/a reserve.disk-weight = 700" /tmp/w.toml
    quell run /tmp/w.toml >/tmp/quell.out 2>&1
    same "weight of a disk: refused where nothing shares it so" "$? $(grep -c 'nothing shares the disk vda by weights' /tmp/quell.out)" "2 1"
    echo "$disk enable=1" >$CG/io.cost.qos
    before
    hold /tmp/w.toml
    same "weight of a disk: the group has it, and its slice" "$(cat $SLICE/io.weight $SLICE/critical/io.weight | tr '\n' ' ')" "default 700 default 700 "
    let_go KILL
    holds "weight of a disk, SIGKILL: the watchdog leaves no cgroup" within 20 eval "gone $SLICE && gone $BATCH"
    sweep
    restored "weight of a disk, SIGKILL: everything is as before"
    echo "$disk enable=0" >$CG/io.cost.qos
}

part_own() {
    in_its_own_cgroup
    before
    hold /tmp/o.toml /user.slice/x
    same "own cgroup: it has threaded children" \
        "$(cat $CG/batch/cgroup.type), $(cat $CG/batch/work/cgroup.type), $(cat $CG/batch/stop/cgroup.type)" "domain threaded, threaded, threaded"
    same "own cgroup: its tasks run only while no brake does" \
        "$(home "$noise") $(home "$inplace") $(cat $CG/batch/work/cpu.idle) $(cat $CG/batch/stop/cpu.weight)" "/batch/work /batch/work 1 10000"
    same "own cgroup: a brake is next to them" "$(wc -l <$CG/batch/stop/cgroup.threads)" 1
    holds "own cgroup: status says it holds" within 20 eval 'quell status >/tmp/status 2>&1'
    found=$(shares "$noise")
    holds "own cgroup: a busy task is held to 20 % of its CPU (found $found)" [ "$found" -ge 5 -a "$found" -le 40 ]
    sh -c 'while :; do :; done' </dev/null >/dev/null 2>&1 & second=$!
    echo "$second" >$CG/batch/cgroup.procs
    holds "own cgroup: a program that enters it follows" within 10 eval '[ "$(home "$second")" = /batch/work ]'
    found=$(shares "$noise" "$second")
    holds "own cgroup: and is stopped along with it (found $found)" [ "$found" -ge 5 -a "$found" -le 40 ]
    holds "own cgroup: status says it holds still" within 20 eval 'quell status >/tmp/status 2>&1'
    let_go TERM
    same "own cgroup: what entered it stays in it" "$(home "$second")" /batch
    kill -9 "$second"; wait "$second" 2>/dev/null
    holds "own cgroup: nothing is called another program's change" not grep -q "somebody" /tmp/quell.out
    same "own cgroup: its children are gone" "$(find $CG/batch -mindepth 1 -type d)" ""
    same "own cgroup: it is a domain again" "$(cat $CG/batch/cgroup.type)" domain
    restored "own cgroup: everything is as before, subtree_control included"
}

part_short() {
    kill -STOP "$noise"
    # Memory that is short, below a limit of somebody else's: whoever takes it multiplies, goes and comes again, and Quell lacks rights.
    echo "+memory +pids" >$CG/cgroup.subtree_control
    mkdir $CG/nest
    echo "+memory +pids" >$CG/nest/cgroup.subtree_control
    mkdir $CG/nest/app $CG/nest/hog
    echo $((64 << 20)) >$CG/nest/memory.high
    echo 100 >$CG/nest/hog/pids.max
    before
    cat >/tmp/e.toml <<POLICY
quell = 1
[group.app]
role = "critical"
cpus = "any"
match = [{ cgroup = "/nest/app" }]
[group.hog]
role = "best-effort"
cpus = "any"
match = [{ cgroup = "/nest/hog" }]
allow = ["limit-memory", "freeze", "reclaim", "kill"]
[group.mark]
role = "best-effort"
cpus = "any"
allow = ["throttle"]
command = ["/bin/mark"]
[pressure]
POLICY
    # within_nest NAME SCRIPT: in the background, in one of the two cgroups, and no part of the picture.
    within_nest() { sh -c 'echo 0 >"$0/cgroup.procs"; eval "$1"' $CG/nest/$1 "$2" </dev/null >/dev/null 2>&1 & started=$!; }
    # It takes 24 MiB for a moment, again and again; the other one takes 48 MiB and keeps them. Both are more than there is.
    app='while :; do dd if=/dev/zero of=/dev/null bs=24M count=1 2>/dev/null; done'
    taker='dd if=/dev/zero of=/dev/null bs=48M count=100000 2>/dev/null; echo $? >/tmp/ended; while :; do sleep 1; done'
    # Its program, not the shell around it.
    killed() { grep -qx 137 /tmp/ended; }
    take() { rm -f /tmp/ended; within_nest hog "$1"; }
    empty() { ! grep -q . "$1/cgroup.procs"; }
    # By the kernel: a bomb is born faster than its processes can be killed one by one.
    end_of() { echo 1 >$CG/nest/$1/cgroup.kill; within 20 empty $CG/nest/$1; }
    within_nest app "$app"
    take "$taker"
    hold /tmp/e.toml
    holds "short: whoever takes it is killed before the machine comes to it" within 60 killed
    holds "short: the run goes on" kill -0 "$quell"
    end_of hog
    holds "short: its cgroup can be removed while it is watched" within 20 rmdir $CG/nest/hog
    sleep 2
    holds "short: and the run goes on" kill -0 "$quell"
    mkdir $CG/nest/hog
    echo 100 >$CG/nest/hog/pids.max
    take "$taker"
    holds "short: made again, it is watched again" within 60 killed
    end_of hog
    # Processes that come and go faster than anybody looks at them, and one that takes memory.
    take "for n in 1 2 3 4 5 6 7 8; do (while :; do /bin/true; done) & done; $taker"
    holds "short: among processes that come and go, too" within 90 killed
    holds "short: the run goes on" kill -0 "$quell"
    let_go TERM
    end_of hog
    holds "short: nobody is left frozen" [ "$(cat $CG/nest/hog/cgroup.freeze)" = 0 ]
    restored "short: everything is as before"
    # Who multiplies faster than he can be moved is not moved at all: his own limit (pids.max) ends it.
    sed 's/cgroup = "\/nest\/hog"/comm = "bomb"/' /tmp/e.toml >/tmp/b.toml
    cp /bin/busybox /tmp/bomb
    within_nest hog 'while :; do ( while :; do /tmp/bomb sleep 2 & done ); sleep 1; done'
    rm -f /tmp/held
    sh -c 'exec quell run /tmp/b.toml' </dev/null >/tmp/quell.out 2>&1 & quell=$!
    within 30 eval '[ -e /tmp/held ] || ! kill -0 $quell'
    let_go TERM
    end_of hog
    restored "a fork bomb: everything is as before"
    if [ -x /bin/setpriv.full ]; then
        # Of another user's processes none can be killed without the capability: it is said, and the run goes on.
        take "exec setpriv.full --reuid=1000 --clear-groups sh -c '$taker'"
        hold /tmp/e.toml "" setpriv.full --bounding-set=-kill
        holds "without CAP_KILL: it is said that nobody can be killed" within 60 grep -q "process .*Operation not permitted" /tmp/quell.out
        holds "without CAP_KILL: the run goes on" kill -0 "$quell"
        let_go TERM
        end_of hog
        restored "without CAP_KILL: everything is as before"
        memory_policy
        sh -c 'ulimit -l 64; exec setpriv.full --bounding-set=-ipc_lock quell plan /tmp/m.toml --all' 2>&1 | tr "\n" " " >/tmp/quell.out
        holds "without CAP_IPC_LOCK: files are refused" grep -q "reserve.files.*CAP_IPC_LOCK" /tmp/quell.out
        setpriv.full --bounding-set=-sys_resource quell plan /tmp/m.toml --all 2>&1 | tr "\n" " " >/tmp/quell.out
        holds "without CAP_SYS_RESOURCE: nothing is kept" grep -q "immunity.*CAP_SYS_RESOURCE" /tmp/quell.out
        take "$taker"
        hold /tmp/e.toml "" setpriv.full --bounding-set=-sys_resource
        holds "without CAP_SYS_RESOURCE: looking takes the place of triggers" within 60 killed
        let_go TERM
        end_of hog
        restored "without CAP_SYS_RESOURCE: everything is as before"
    else
        skipped "without capabilities" "util-linux's setpriv was not at hand"
    fi
    end_of app
    within 20 rmdir $CG/nest/hog $CG/nest/app $CG/nest
    echo "-memory -pids" >$CG/cgroup.subtree_control
}

part_reserved() {
    as_under_systemd
    measured
    # A critical group whose reserve is its cap, or is given away while it sleeps, on CPUs that are a partition: no cgroup outside
    # it has them, and its brake gets there all the same.
    busy; victim=$started
    for modes in 'strict = true' 'strict = true
    reclaim = true' 'reclaim = true'; do
        policy /tmp/s.toml "{ pid = $noise }" 'cpus = "1"' "[rest]
    cpus = \"0-1\"
    [regulator]
    sustainable = \"1GB/s\"
    period = \"20ms\"
    $modes"
        sed -i -e '1a require = "none"' -e "/^cpus = \"$last\"/a reserve.bandwidth = \"300MB/s\"" /tmp/s.toml
        before
        hold /tmp/s.toml /user.slice/x
        title="reserved, $(echo $modes)"
        quell status >/tmp/status 2>&1
        same "$title: status says it holds" "$?" 0
        case $modes in
        strict*)
            same "$title: its brake is in its cgroup" "$(cat $(sed 's,.*,/proc/&/comm,' $SLICE/critical/stop/cgroup.procs))" "quell/$last"
            holds "$title: its tasks are throttled" within 20 eval "quell status | grep -q 'CPU $last .*throttled [1-9]'" ;;
        *) same "$title: its brake is among its tasks" "$(cat $(sed 's,.*,/proc/&/comm,' $SLICE/critical/cgroup.procs) | grep -c "quell/$last")" 1 ;;
        esac
        [ $partitions = no ] || same "$title: its CPUs are a partition" "$(cat $SLICE/critical/cpuset.cpus.partition)" root
        let_go TERM
        restored "$title: everything is as before"
    done
}

part_rights() {
    as_under_systemd
    measured
    before
    # A brake needs no right to real-time scheduling.
    if [ -x /bin/setpriv.full ]; then
        # Programs it starts have no more rights than it; to move others it would need the capability.
        cat >/tmp/n.toml <<POLICY
quell = 1
[group.batch]
role = "best-effort"
cpus = "any"
limit.bandwidth = "30%"
command = ["/bin/mark"]
[mechanisms]
bandwidth = "regulator"
POLICY
        hold /tmp/n.toml /user.slice/x setpriv.full --bounding-set=-sys_nice
        same "without CAP_SYS_NICE: brakes all the same" "$(wc -l <$BATCH/stop/cgroup.procs)" "$((last + 1))"
        let_go TERM
        restored "without CAP_SYS_NICE: everything is as before"
    else
        skipped "without CAP_SYS_NICE" "util-linux's setpriv was not at hand"
    fi
}

part_hazards() {
    in_its_own_cgroup
    before
    hold /tmp/o.toml /user.slice/x
    let_go KILL
    holds "own cgroup, SIGKILL: the watchdog removes its children" within 20 eval "gone $CG/batch/work && gone $CG/batch/stop"
    sweep
    within 20 gone $CG/quell-mark.slice
    restored "own cgroup, SIGKILL: everything is as before"
    hold /tmp/o.toml /user.slice/x
    kill -STOP "$quell"
    kill -9 $(watchdog)
    let_go KILL
    holds "own cgroup, both killed: its tasks are next to nobody" [ "$(home "$noise")" = /batch/work ]
    holds "own cgroup, both killed: restore succeeds" quell restore >/tmp/quell.out 2>&1
    sweep
    restored "own cgroup, both killed: restore suffices"

    # What its owner does to it meanwhile, and is not set again: a look that had begun might do so before it is seen.
    sed -i '1a on-drift = "report"' /tmp/o.toml
    hold /tmp/o.toml /user.slice/x
    echo "-cpu" >$CG/batch/cgroup.subtree_control
    holds "own cgroup: the cpu controller is taken from it: it is said, with level none" \
        within 20 grep -q "at level none: .*cpu.idle" /tmp/quell.out
    holds "own cgroup: status says it does not hold" within 10 eval 'quell status >/tmp/status 2>&1; [ $? = 3 ]'
    let_go TERM
    restored "own cgroup: everything is as before all the same"
    mkdir $CG/batch/child
    before
    rm -f /tmp/held
    quell run /tmp/o.toml </dev/null >/tmp/quell.out 2>&1
    holds "own cgroup: with a child cgroup it is refused" [ "$?" != 0 -a ! -e /tmp/held ]
    holds "own cgroup: with the reason" grep -q "$CG/batch has child cgroups (child)" /tmp/quell.out
    restored "own cgroup: refused, everything is as before"
    rmdir $CG/batch/child
    hold /tmp/o.toml /user.slice/x
    kill -9 "$noise" "$inplace"; wait "$noise" "$inplace" 2>/dev/null
    holds "own cgroup: once its programs have ended its owner can remove it" \
        within 20 eval "rmdir $CG/batch/work; rmdir $CG/batch/stop; rmdir $CG/batch; gone $CG/batch"
    sleep 2
    holds "own cgroup: the run goes on" kill -0 "$quell"
    let_go TERM
    holds "own cgroup: and ends as usual" gone $SLICE
}

part_programs() {
    kill -STOP "$noise"
    # tests/measured/regulator is not among them: the shares it judges need real time, which this machine may not have.
    for test in live watchdog conformance; do
        # Of the bodies on every arm, those on this kernel: the model is the same everywhere.
        only=
        [ $test != conformance ] || only=on_this_kernel
        if timeout 150 /tests/$test --test-threads=1 $only >/tmp/$test.out 2>&1; then
            ok "tests/$test.rs: $(grep -c '^test .* ok$' /tmp/$test.out) tests"
            grep -a '^SKIPPED' /tmp/$test.out
        else
            bad "tests/$test.rs"; grep -aE '^test .*FAILED|panicked|^    ' -A2 /tmp/$test.out | head -40 | sed 's/^/        | /'
        fi
    done
}

[ $# -gt 0 ] || set -- $(sed -n 's/^part_\([a-z]*\)() {$/\1/p' "$0")
for part in "$@"; do
    echo "-- $part"
    begin
    "part_$part"
    finish
done
echo "-- $passed passed, $failed failed, $skipped skipped"
[ "$failed" = 0 ]
