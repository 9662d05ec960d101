#!/bin/busybox sh
# The lab's init: mounts what programs expect, sets up what was asked for (/lab/settings), runs the command (/lab/command), tells
# its status, hands over what it left in /out, powers off.

# Variables are those of /lab/settings, which is not here.
# shellcheck shell=dash disable=SC2154
export PATH=/usr/local/bin:/bin:/sbin:/usr/bin:/usr/sbin HOME=/root TMPDIR=/tmp TERM=dumb LANG=C.UTF-8
mount -t proc proc /proc
mount -t sysfs sysfs /sys
mount -t devtmpfs dev /dev
mkdir -p /dev/pts /dev/shm /run /tmp /out /root
mount -t tmpfs shm /dev/shm
mount -t devpts pts /dev/pts
mount -t cgroup2 cgroup2 /sys/fs/cgroup
mount -t tracefs tracefs /sys/kernel/tracing 2>/dev/null
mount -t debugfs debugfs /sys/kernel/debug 2>/dev/null
ip link set lo up

port() {
    for port in /sys/class/virtio-ports/*; do
        [ "$(cat "$port/name")" != "quell.$1" ] || echo "/dev/${port##*/}"
    done
}
module() {
    if [ -e "/lab/modules/$1.ko.xz" ]; then unxz -c "/lab/modules/$1.ko.xz" >"/lab/modules/$1.ko"; fi
    [ ! -e "/lab/modules/$1.ko" ] || insmod "/lab/modules/$1.ko"
}
. /lab/settings
for module in $modules; do module "$module" 2>>/tmp/modules; done
# Ports appear a moment after their driver.
until [ -n "$(port control 2>/dev/null)" ] && [ -n "$(port files)" ]; do usleep 10000; done
exec 3<>"$(port control)"
tell() { echo "$*" >&3; }
# What was asked for and cannot be had ends the lab before the command.
fail() { tell "failed $*"; poweroff -f; }

[ ! -s /tmp/modules ] || fail "modules: $(cat /tmp/modules)"
[ -z "$lru" ] || echo "$lru" >/sys/kernel/mm/lru_gen/enabled 2>/tmp/why || fail "lru: $(cat /tmp/why)"
if [ "$disk" = yes ]; then
    mke2fs -q /dev/vda >/dev/null 2>/tmp/why && mkdir -p /disk && mount -t ext4 /dev/vda /disk 2>/tmp/why ||
        fail "disk: $(cat /tmp/why)"
    # Everything else lies in memory.
    export TMPDIR=/disk
fi
case $swap in
file) device=/dev/vda; [ "$disk" = no ] || device=/dev/vdb ;;
zram) device=/dev/zram0; echo "${swap_mib}M" >/sys/block/zram0/disksize ;;
esac
if [ -n "$swap" ]; then
    mkswap $device >/dev/null 2>/tmp/why && swapon $device 2>/tmp/why || fail "swap: $(cat /tmp/why)"
fi
if [ "$memory_v1" = yes ]; then
    mkdir -p /run/memory-v1 && mount -t cgroup -o memory memory /run/memory-v1 2>/tmp/why ||
        fail "memory-v1: $(cat /tmp/why)"
fi
if [ "$resctrl" = yes ]; then
    mount -t resctrl resctrl /sys/fs/resctrl 2>/tmp/why || fail "resctrl: $(cat /tmp/why)"
fi

sed -i "s/\"accelerator\":\"[a-z]*\"/\"accelerator\":\"$QUELL_ACCELERATOR\"/" /lab/guest.json
unset QUELL_ACCELERATOR
# A session of its own, so that what it leaves running does not hold the output, and a signal reaches all of it.
cat >/lab/start <<'START'
echo $$ >/run/command
exec sh /lab/command
START
# What the host has to say: `stop SIGNAL`. Its silence for good means that it has gone.
(
    while read -r word signal <&3; do
        [ "$word" != stop ] || kill -"$signal" -"$(cat /run/command)" 2>/dev/null
    done
    poweroff -f
) &
# Until here nothing has measured anything.
[ ! -e /bin/lab-watch ] || lab-watch on 2>/tmp/why || fail "the emulated processor: $(cat /tmp/why)"
tell started
cd /root || fail "there is no /root"
setsid sh /lab/start 3<&- </dev/null >"$(port output)" 2>"$(port errors)"
status=$?
tar -c -C /out . >"$(port files)" 2>/tmp/why || fail "files: what was left in /out could not be handed over: $(cat /tmp/why)"
tell "ended $status"
sync
poweroff -f
