#!/bin/sh
# The regulator with hardware counters, in the lab: a write stream held to parts of what it draws, against what the emulated
# processor counted (`mbm_total_bytes` of everything on its CPU), over windows of a second of the guest's. The parts are of what it
# draws under a limit that it does not reach: on a host whose CPUs share a core, what Quell does on the other one slows it, too.
#
#   quell lab --profile icelake --with quell --with tests/vm/meter.sh=/meter.sh -- sh /meter.sh [SHARE…]
#
# It wants a host with two idle CPUs: the guest's time is the host's, and where the guest stands still for a second the watchdog
# undoes the hold, which is told. Exit 1: a window was not within 0.9 and 1.1 of the cap, or nothing was held.

M=/sys/fs/resctrl/mon_groups/meter
failed=0
mkdir $M && echo 2 >$M/cpus || exit 1
# windows N: lines per second that came in. A stream that writes moves each line in and out again.
windows() {
    n=$1
    while [ "$n" -gt 0 ]; do
        read -r t0 _ </proc/uptime; read -r b0 <$M/mon_data/mon_L3_00/mbm_total_bytes
        sleep 1
        read -r t1 _ </proc/uptime; read -r b1 <$M/mon_data/mon_L3_00/mbm_total_bytes
        echo "$t0 $b0 $t1 $b1" | awk '{ printf "%d\n", ($4 - $2) / 128 / ($3 - $1) }'
        n=$((n - 1))
    done
}
quell doctor | grep '^  meter' | grep hardware || { echo "FAILED: the meter is not the hardware's"; exit 1; }
# The rates are measured while nothing else runs.
quell run --best-effort comm=nobody --limit 50% --cpus 1 --quiet -- true
quell bench bandwidth --operation write --size 32MiB --cpu 1 --duration 60min >/dev/null &
stream=$!
sleep 3
# hold LINES: Quell holds the stream to so many per second, for a second already; as $quell, which says what it has to /tmp/run.
hold() {
    cat >/tmp/meter.toml <<POLICY
quell = 1
[group.stream]
role = "best-effort"
cpus = "1"
match = [{ pid = $stream }]
limit.bandwidth = "$(($1 * 64))B/s"
[regulator]
period = "20ms"
POLICY
    quell run /tmp/meter.toml </dev/null >/tmp/run 2>&1 & quell=$!
    until grep -qsx quell/1 /proc/$quell/task/*/comm; do
        [ -e /proc/$quell ] || break
        usleep 100000
    done
    sleep 1
}
# release: it was held until now, or this says why not.
release() {
    [ -e /proc/$quell/task ] || { echo "FAILED: not held: $(grep '^quell' /tmp/run | tail -1)"; failed=1; }
    kill -TERM $quell 2>/dev/null
    wait $quell
    grep throttled /tmp/run
}
alone=$(windows 5 | sort -n | sed -n 3p)
[ $# -gt 0 ] || set -- 10 30 50 70 90
for share in "$@"; do
    hold $((alone * 11 / 10))
    free=$(windows 5 | sort -n | sed -n 3p)
    release
    cap=$((free * share / 100))
    hold $cap
    echo "$share % of $free lines/s ($alone alone)"
    for lines in $(windows 5); do
        echo "$lines $cap" | awk '{ r = $1 / $2; printf "  %.3f\n", r; exit !(r >= 0.9 && r <= 1.1) }' || failed=1
    done
    release
done
kill $stream
exit $failed
