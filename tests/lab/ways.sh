#!/bin/sh
# In the lab's guest: caches divided wrongly on purpose, each looked at by `quell ways`. Prints a line per scene, SCENE KINDS…, and
# leaves the records in /out. Run by crates/cli/tests/lab/ways.rs:
#     quell lab --profile icelake --with quell --with tests/lab/ways.sh=/ways.sh --out DIR -- sh /ways.sh [SCENE…]
R=/sys/fs/resctrl
pids=

# in CLASS COMMAND…: runs it in a class from its first instruction on ("." is the root's).
in_class() {
    class=$1; shift
    sh -c 'echo $$ >'"$R/$class/tasks"'; exec "$@"' sh "$@" >/dev/null 2>&1 &
    pids="$pids $!"
}
list() { in_class "$1" quell bench latency --size "$2" --cpu 0 --duration 10min; }
stream() { in_class "$1" quell bench bandwidth --size 32MiB --cpu 1 --duration 10min; }
# filled CLASS BYTES: waits until a class has so much of the cache. A busy host takes a while to emulate that.
filled() {
    tries=120
    while [ "$(cat "$R/$1/mon_data/mon_L3_00/llc_occupancy")" -lt "$2" ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); usleep 500000; done
}
# steady PID MASK: waits until one of its threads is kept to these CPUs and has run there for a second.
steady() {
    tries=240
    while [ $tries -gt 0 ]; do
        for task in /proc/"$1"/task/*; do
            read -r ran _ <"$task/schedstat"
            case $(taskset -p "${task##*/}") in
                *": $2") [ "${ran:-0}" -lt 1000000000 ] || return 0 ;;
            esac
        done 2>/dev/null
        tries=$((tries - 1)); usleep 500000
    done
}
class() { mkdir -p "$R/$1"; echo "L3:0=$2" >"$R/$1/schemata"; }
# wrmsr CPU REGISTER BYTES: eight bytes, the lowest first
wrmsr() {
    # shellcheck disable=SC2059
    printf "$3" | dd of="/dev/cpu/$1/msr" bs=8 seek="$(($2))" oflag=seek_bytes conv=notrunc 2>/dev/null
}
# watch SCENE OPTION…: one look.
watch() {
    scene=$1; shift
    quell ways --out "/out/$scene" --json "$@" >"/out/$scene.json" 2>"/out/$scene.log" || cat "/out/$scene.log"
}
# A word for each kind.
kinds() {
    # shellcheck disable=SC2046
    echo "$1" $(sed -n 's/.*"kind": "\(.*\)".*/\1/p' "/out/$1.json")
}
look() { watch "$@"; kinds "$1"; }
# stays SCENE SECONDS: a look at what does not change. A busy host takes few samples: then it looks again, for longer.
stays() {
    for longer in 1 3 9 27; do
        rm -rf "/out/$1"
        watch "$1" --for "$(($2 * longer))s"
        [ "$(sed -n 's/^quell: \([0-9]*\) samples.*/\1/p' "/out/$1.log")" -lt 15 ] || break
    done
    kinds "$1"
}
clean() {
    for pid in $pids; do kill -9 "$pid" 2>/dev/null; wait "$pid" 2>/dev/null; done
    pids=
    for class in "$R"/*/schemata; do rmdir "${class%/schemata}" 2>/dev/null; done
    echo "L3:0=$(cat $R/info/L3/cbm_mask)" >"$R/schemata"
}

# The list fills most of its part, and has gone through all of it.
fits() { list "$1" 1792KiB; stream .; filled rt 1600000; filled . 3500000; sleep 2; }
right() { class rt 000f; class . ff00; fits rt; stays right 3; }
# The class is that of a CPU, and the program is in the root's.
right_cpu() {
    class rt 000f; class . ff00; echo 0 >$R/rt/cpus_list
    fits .; stays right_cpu 3
}
# On a processor whose devices fill the two highest ways.
devices() { class rt c00; class . 3ff; list rt 512KiB; sleep 1; stays devices 3; }
unused() { look unused --for 3s -- quell bench latency --size 1MiB --duration 2s; }
# The root kept the way that was given away. Of one, since a busy host's stream goes through few.
overlap() { class rt 0001; list rt 256KiB; stream .; filled rt 200000; filled . 6000000; stays overlap 6; }
small() { class rt 0001; class . fff0; list rt 4MiB; filled rt 400000; stays small 4; }
# Moved when it has started: what it had filled until then the stream fills.
large() {
    list . 512KiB; stream .; filled . 7000000
    first=${pids# }; first=${first%% *}; steady "$first" 1
    class rt 00ff; class . ff00; echo "$first" >$R/rt/tasks
    filled rt 400000; filled . 3500000; sleep 2; stays large 6
}
# Only the first of two threads is moved.
escaped() {
    class rt 000f; class . fff0
    in_class . quell bench flush --cpu 0 --stir 1 --duration 10min
    tries=120
    while [ ! -e "$(echo /proc/"${pids# }"/task/* | cut -d' ' -f2)" ] && [ $tries -gt 0 ]; do tries=$((tries - 1)); usleep 500000; done
    sleep 2; echo "${pids# }" >$R/rt/tasks
    stays escaped 3
}
# A policy from these masks has the same ways, and plans once the class is gone that has them.
proposed() {
    class rt 000f; class . fff0; list rt 512KiB; sleep 1
    quell ways --for 200ms --pid "${pids# }" --propose >/tmp/proposed.toml 2>/dev/null
    rmdir $R/rt
    # shellcheck disable=SC2046
    echo proposed $(sed -n 's/.*mask = "\(.*\)", level.*/\1/p' /tmp/proposed.toml) \
        $(quell plan /tmp/proposed.toml | sed -n 's/.*(\(0x.*\)) of L3 to itself/\1/p')
}
empty() { class rt 000f; class spare 00f0; class . ff00; list rt 512KiB; sleep 1; stays empty 3; }
# Narrowed while its lines are in the cache.
beyond() {
    class rt 00ff; class . ff00; list rt 3584KiB; sleep 3
    (sleep 1; echo L3:0=0001 >$R/rt/schemata; kill -9 ${pids# }) &
    in_class rt sleep 600
    look beyond --for 4s
}
# Register 0xc90 is 8 * 402: the root's mask, behind the kernel's back.
registers() {
    class rt 000f; class . fff0; list rt 512KiB; sleep 1
    (sleep 1; printf '\377\377\0\0\0\0\0\0' | dd of=/dev/cpu/0/msr bs=8 seek=402 conv=notrunc 2>/dev/null) &
    look registers --for 3s
    printf '\360\377\0\0\0\0\0\0' | dd of=/dev/cpu/0/msr bs=8 seek=402 conv=notrunc 2>/dev/null
}
# A program that runs, a neighbour that comes, and somebody who divides the cache between them step by step.
sequence() {
    for name in database batch-job; do ln -s /bin/quell /tmp/$name; done
    in_class . /tmp/database bench latency --size 512KiB --cpu 0 --duration 10min; first=${pids##* }
    in_class . /tmp/batch-job bench bandwidth --size 32MiB --cpu 1 --duration 10min; second=${pids##* }
    steady "$first" 1; steady "$second" 2
    (
        sleep 2; class db 00ff
        sleep 1; for t in /proc/"$first"/task/*; do echo "${t##*/}" >$R/db/tasks; done
        sleep 1; echo L3:0=ff00 >$R/schemata
        sleep 2; class db 000f
        sleep 1; echo L3:0=fff0 >$R/schemata; echo exclusive >$R/db/mode
        sleep 2; mkdir $R/batch
        echo L3:0=ffc0 >$R/schemata; echo L3:0=0030 >$R/batch/schemata; echo "$second" >$R/batch/tasks
    ) &
    look sequence --for 12s --switches --misses
}
# A program that works on its part for a moment in each second, as the machine is idle otherwise.
briefly() { in_class "$1" quell bench periodic --size 1792KiB --step 64B --period 1s --cpu 1 --duration 90min; }
idle() { class rt 000f; class . fff0; briefly rt; filled rt 1600000; look idle --for "${IDLE:-60min}"; }
# The same where CPU 1 has its class by registers alone. A program fills its part before it is watched.
idle_registers() {
    umount $R
    wrmsr 0 0xc91 '\17\0\0\0\0\0\0\0'; wrmsr 0 0xc90 '\360\377\0\0\0\0\0\0'; wrmsr 1 0xc8f '\0\0\0\0\1\0\0\0'
    quell bench periodic --size 1792KiB --step 64B --period 1s --cpu 1 --duration 90min >/dev/null 2>&1 &
    pids="$pids $!"
    sleep 5; look idle_registers --for "${IDLE:-60min}"
    wrmsr 1 0xc8f '\0\0\0\0\0\0\0\0'; wrmsr 0 0xc90 '\377\377\0\0\0\0\0\0'; wrmsr 0 0xc91 '\377\377\0\0\0\0\0\0'
    mount -t resctrl resctrl $R
}
# CPU 1 goes offline while it is watched, and comes back.
blink() { sleep 1; echo 0 >/sys/devices/system/cpu/cpu1/online; sleep 1; echo 1 >/sys/devices/system/cpu/cpu1/online; }
offline() {
    class rt 000f; class . ff00; fits rt
    blink & look offline --for 5s; wait $!
}
offline_registers() {
    umount $R
    wrmsr 0 0xc91 '\17\0\0\0\0\0\0\0'; wrmsr 0 0xc90 '\360\377\0\0\0\0\0\0'; wrmsr 0 0xc8f '\0\0\0\0\1\0\0\0'
    quell bench latency --size 512KiB --cpu 0 --duration 10min >/dev/null 2>&1 &
    pids="$pids $!"
    blink & look offline_registers --for 5s; wait $!
    wrmsr 0 0xc8f '\0\0\0\0\0\0\0\0'; wrmsr 0 0xc90 '\377\377\0\0\0\0\0\0'; wrmsr 0 0xc91 '\377\377\0\0\0\0\0\0'
    mount -t resctrl resctrl $R
}
# Two caches: what the class has is in the first.
in_first() { class rt 000f; echo 'L3:0=fff0;1=ffff' >$R/schemata; echo 'L3:0=000f;1=ffff' >$R/rt/schemata; }
other() { in_first; in_class rt quell bench latency --size 1MiB --cpu 2 --duration 10min; sleep 1; look other --for 3s; }
# It runs there, until somebody moves it to the other cache's CPUs.
moved() {
    in_first; in_class rt quell bench latency --size 1MiB --cpu 0 --duration 10min
    (sleep 3; taskset -p 4 ${pids# } >/dev/null) &
    sleep 1; look moved --for 8s
}

# Scenes in which only masks and tasks matter, not what is in the cache.
calm() { lab-watch off; "$@"; lab-watch on; }

[ $# -gt 0 ] || set -- right right_cpu unused overlap small large escaped empty beyond registers sequence
for scene in "$@"; do
    case $scene in
    escaped | proposed | empty | registers) calm "$scene" ;;
    *) "$scene" ;;
    esac
    clean
done
