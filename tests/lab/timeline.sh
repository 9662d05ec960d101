#!/bin/sh
# In the lab's guest: cache allocation is set step by step, each scene through another interface, while `quell ways` looks. The guest's time
# of each step goes to /out/SCENE.marks, what `quell ways` says to /out/SCENE.txt, its record to /out/SCENE. Run by
# crates/cli/tests/lab/timeline.rs:
#     quell lab --profile icelake --with quell --with tests/lab/timeline.sh=/timeline.sh --out DIR -- sh /timeline.sh [SCENE…]
R=/sys/fs/resctrl

mark() { read -r now _ </proc/uptime; printf '%s ' "$now" >>"/out/$scene.marks"; }
# step COMMAND…: notes the time before the command and after it, and waits.
step() {
    mark
    "$@" >>"/out/$scene.steps" 2>&1 || echo "failed $scene $*"
    mark
    sleep 1
}
# wrmsr CPU REGISTER BYTES: eight bytes, the lowest first
wrmsr() {
    # shellcheck disable=SC2059
    printf "$3" | dd of="/dev/cpu/$1/msr" bs=8 seek="$(($2))" oflag=seek_bytes conv=notrunc
}
class_of() { wrmsr "$1" 0xc8f "\\0\\0\\0\\0\\$2\\0\\0\\0"; }
# The guest's `pqos` is told to use resctrl. This one writes registers.
by_msr() { /lab/pqos/ld-linux-x86-64.so.2 --library-path /lab/pqos /lab/pqos/pqos --iface=msr "$@"; }
schemata() { echo "L3:0=$2" >"$R/$1/schemata"; }
tasks() { for task in /proc/"$rt"/task/*; do echo "${task##*/}" >"$R/$1/tasks"; done; }

# begin SCENE: a program that runs on CPU 1, and `quell ways`, which is to see it without being told of it.
begin() {
    scene=$1
    /tmp/rt bench latency --size 256KiB --cpu 1 --duration 10min >/dev/null 2>&1 &
    rt=$!
    quell ways --for 60s --out "/out/$scene" >"/out/$scene.txt" 2>"/out/$scene.log" &
    looks=$!
    # Once it has a record, its first sample is near.
    until find "/out/$scene" -name events.jsonl 2>/dev/null | grep -q .; do sleep 1; done
    sleep 3
}
# The looking ends two samples and more after the last step.
end() {
    sleep 1
    kill -TERM "$looks"
    wait "$looks" || cat "/out/$scene.log"
    kill -9 "$rt"
    wait "$rt" 2>/dev/null
    echo "$scene $rt $(cat "/out/$scene.marks")"
}

registers() {
    umount "$R"
    begin registers
    step class_of 1 3
    step wrmsr 0 0xc93 '\17\0\0\0\0\0\0\0'
    step wrmsr 0 0xc90 '\360\377\0\0\0\0\0\0'
    end
    class_of 1 0; wrmsr 0 0xc93 '\377\377\0\0\0\0\0\0'; wrmsr 0 0xc90 '\377\377\0\0\0\0\0\0'
    mount -t resctrl resctrl "$R"
}
# The same through Intel's own tool, which writes registers, too.
pqos_msr() {
    umount "$R"
    begin pqos_msr
    step by_msr -a 'core:3=1'
    step by_msr -e 'llc:3=0x000f'
    step by_msr -e 'llc:0=0xfff0'
    end
    by_msr -R >/dev/null 2>&1
    mount -t resctrl resctrl "$R"
}
resctrl() {
    begin resctrl
    step mkdir "$R/db"
    step tasks db
    step schemata db 000f
    step schemata . fff0
    end
    rmdir "$R/db"; schemata . ffff
}
pqos_os() {
    begin pqos_os
    step pqos -a 'core:1=1'
    step pqos -e 'llc:1=0x000f'
    step pqos -e 'llc:0=0xfff0'
    end
    pqos -R >/dev/null 2>&1
    for class in "$R"/*/schemata; do rmdir "${class%/schemata}" 2>/dev/null; done
    schemata . ffff
}
# Another process writes the register of a class, while resctrl is mounted and says something else.
behind() {
    mkdir "$R/db"; schemata db 000f; schemata . fff0
    begin behind
    step tasks db
    step wrmsr 0 0xc91 '\377\0\0\0\0\0\0\0'
    step wrmsr 0 0xc91 '\17\0\0\0\0\0\0\0'
    end
    rmdir "$R/db"; schemata . ffff
}

# Masks and classes are looked at, not what is in the cache.
lab-watch off
ln -s /bin/quell /tmp/rt
[ $# -gt 0 ] || set -- registers pqos_msr resctrl pqos_os behind
for scene in "$@"; do "$scene"; done
