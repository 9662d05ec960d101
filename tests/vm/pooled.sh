#!/bin/sh
# Pooled budgets with hardware counters, in the lab: two CPUs with a budget each, half and half, and what they draw of them by the
# emulated processor's own count (`mbm_total_bytes`), while the first one's program sleeps and while it draws, too.
#
#   quell lab --profile icelake --with quell --with tests/vm/pooled.sh=/pooled.sh -- sh /pooled.sh
#
# It wants a host with two idle CPUs, as meter.sh does. Exit 1: something was not held; without reclaim the second one had more
# than its own budget, or with reclaim not a third of the other's besides; or the first one did not get what it reserves.

M=/sys/fs/resctrl/mon_groups
failed=0
for c in 0 1; do mkdir $M/m$c && echo $((1 << c)) >$M/m$c/cpus || exit 1; done
lines() { read -r b <$M/m$1/mon_data/mon_L3_00/mbm_total_bytes; echo $((b / 128)); }
quell doctor | grep '^  meter' | grep hardware || { echo "FAILED: the meter is not the hardware's"; exit 1; }
# The rates are measured while nothing else runs.
quell run --best-effort comm=nobody --limit 50% --cpus 1 --quiet -- true
stream() { quell bench bandwidth --operation write --size 32MiB --cpu "$1" --duration 60min >/dev/null & }
stream 0; a=$!
stream 1; b=$!
sleep 3
# drawn: lines per second of each CPU, over three seconds.
drawn() {
    read -r t0 _ </proc/uptime; x=$(lines 0) y=$(lines 1)
    sleep 3
    read -r t1 _ </proc/uptime
    echo "$t0 $t1 $x $(lines 0) $y $(lines 1)" | awk '{ printf "%d %d\n", ($4 - $3) / ($2 - $1), ($6 - $5) / ($2 - $1) }'
}
free=$(drawn | awk '{ print $1 < $2 ? $1 : $2 }')
budget=$((free * 3 / 10))
echo "$free lines/s each without limits, $budget within the budget"
for mode in 'after = "wait"' 'reclaim = true' 'after = "spare"' 'after = "proportional"' 'reclaim = true
after = "proportional"'; do
    cat >/tmp/pooled.toml <<POLICY
quell = 1
require = "none"
[group.first]
role = "critical"
cpus = "0"
match = [{ pid = $a }]
reserve.bandwidth = "$((budget * 64))B/s"
[group.second]
role = "best-effort"
cpus = "1"
match = [{ pid = $b }]
reserve.bandwidth = "$((budget * 64))B/s"
[regulator]
period = "20ms"
strict = true
sustainable = "$((budget * 132))B/s"
$mode
POLICY
    echo "$mode" | tr '\n' ' '
    quell run /tmp/pooled.toml </dev/null >/tmp/run 2>&1 & quell=$!
    until grep -qsx quell/1 /proc/$quell/task/*/comm || [ ! -e /proc/$quell ]; do usleep 100000; done
    kill -STOP $a
    sleep 1
    asleep=$(drawn)
    kill -CONT $a
    sleep 1
    echo "$asleep $(drawn) $budget $mode" | awk '{
        printf "\n  first asleep: second draws %.2f of its budget\n  both: first %.2f, second %.2f\n", $2 / $5, $3 / $5, $4 / $5
        exit !($3 / $5 >= 0.85 && (/reclaim/ ? $2 / $5 >= 1.3 : /wait/ ? $2 / $5 <= 1.1 : 1))
    }' || failed=1
    [ -e /proc/$quell/task ] || { echo "FAILED: not held: $(grep '^quell' /tmp/run | tail -1)"; failed=1; }
    kill -TERM $quell 2>/dev/null
    wait $quell
done
kill $a $b
exit $failed
