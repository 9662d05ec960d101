#!/bin/sh
# Records what the loop of memory pressure looks at, five times a second, while nobody controls anything: for 3 s a detector alone,
# for 8 s a neighbour beside it, for 14 s the neighbour at rest (frozen, with what it has). To be run in the lab, from the
# repository's folder; NAME is `file` or `anon`, and what it prints is NAME.trace:
#
#   quell lab --kernel 6.12 --memory 512MiB --disk 2GiB --disk-rate 100MB/s --lru classic --with quell \
#       --with crates/linux/tests/traces/record.sh=/record.sh -- sh /record.sh NAME
#
# Sizes are in KiB, times in us (`at` in ms), pages and events are counted from the beginning; `.` stands for what the line before
# has. `worst` is the neighbour's process that has most in memory.
set -e
CG=/sys/fs/cgroup
echo "+memory +io" >$CG/cgroup.subtree_control
mkdir $CG/detector $CG/hog
enter() { group=$1; shift; (echo 0 >$CG/$group/cgroup.procs; exec "$@" >/dev/null 2>/tmp/$group.log) & }
of() { sed -n "s/^$3 //p" $CG/$1/$2; }
case $1 in
file)
    enter hog quell bench file-hog --size 280MiB --reading mmap --duration 100s
    # Its file is made and in use.
    until [ "$(of hog memory.stat file_mapped)" -gt $((200 << 20)) ]; do usleep 100000; done
    echo 1 >$CG/hog/cgroup.freeze
    echo 280M >$CG/hog/memory.reclaim || true
    ;;
anon) ;;
*) exit 2 ;;
esac
enter detector quell bench detector --weights 224MiB --per-page 64B --images 125 --fps 10 --duration 100s
until [ "$(of detector memory.stat file_mapped)" -gt $((223 << 20)) ]; do usleep 100000; done
sleep 3
{
    sleep 3
    case $1 in
    file) echo 0 >$CG/hog/cgroup.freeze ;;
    anon) enter hog quell bench anon-hog --size 240MiB --ramp 5s --duration 100s ;;
    esac
    sleep 8
    echo 1 >$CG/hog/cgroup.freeze
} &
echo "# As crates/linux/tests/traces/record.sh recorded it: the machine, the columns, and a line per look."
awk '/^MemTotal/ { total = $2 } FNR == 1 { zone = 0 } $1 == "low" { low += $2 * 4 } $1 == "high" { high += $2 * 4 } $1 == "min" { min += $2 * 4 }
    END { print "total", total, "min", min, "low", low, "high", high }' /proc/meminfo /proc/zoneinfo
exec awk -v CG=$CG '
function load(path, into,    line, w) {
    split("", into)
    while ((getline line < path) > 0) {
        split(line, w, /[ :=\t]+/)
        if (w[1] == "some" || w[1] == "full") { into[w[1]] = w[9]; into[w[1] "10"] = w[3] }
        else into[w[1]] = w[2]
    }
    close(path)
}
function first(path,    line) { line = 0; getline line < path; close(path); return line }
function moved(path,    line, w, n, i, sum) {
    while ((getline line < path) > 0) {
        n = split(line, w, /[ =]/)
        for (i = 1; i < n; i++) if (w[i] == "rbytes" || w[i] == "wbytes") sum += w[i + 1]
    }
    close(path)
    return sum + 0
}
function put(name, value) {
    if (head) names = names " " name
    line = line " " (!head && value == last[name] ? "." : value)
    last[name] = value
}
function group(name,    dir) {
    dir = CG "/" name "/"
    put(name ".current", int(first(dir "memory.current") / 1024))
    load(dir "memory.stat", s)
    put(name ".anon", int(s["anon"] / 1024)); put(name ".file", int(s["file"] / 1024)); put(name ".mapped", int(s["file_mapped"] / 1024))
    put(name ".active", int(s["active_file"] / 1024)); put(name ".inactive", int(s["inactive_file"] / 1024))
    put(name ".refault_file", s["workingset_refault_file"]); put(name ".refault_anon", s["workingset_refault_anon"])
    load(dir "memory.pressure", s); put(name ".memory_some", s["some"]); put(name ".memory_full", s["full"])
    load(dir "io.pressure", s); put(name ".io_some", s["some"]); put(name ".io_full", s["full"])
    load(dir "memory.events", s); put(name ".max", s["max"]); put(name ".oom_kill", s["oom_kill"])
    put(name ".io", int(moved(dir "io.stat") / 1024))
}
function worst(    pid, stat, w, most, of, io) {
    most = -1; of = 0
    while ((getline pid < (CG "/hog/cgroup.procs")) > 0) {
        stat = first("/proc/" pid "/stat"); sub(/^.*\) /, "", stat); split(stat, w, " ")
        if (w[22] + 0 > most) { most = w[22] + 0; faults = w[10]; of = pid }
    }
    close(CG "/hog/cgroup.procs")
    put("worst.resident", most < 0 ? 0 : most * 4); put("worst.faults", of ? faults : 0)
    put("worst.score", of ? first("/proc/" of "/oom_score") : 0)
    if (of) load("/proc/" of "/io", io)
    put("worst.io", of ? int((io["read_bytes"] + io["write_bytes"]) / 1024) : 0)
}
function now(    line) { line = first("/proc/uptime"); sub(/ .*/, "", line); return int(line * 1000 + 0.5) }
BEGIN {
    begun = now()
    head = 1
    while (1) {
        at = now() - begun
        if (at > 25000) exit
        line = at
        load("/proc/meminfo", m); put("available", m["MemAvailable"]); put("free", m["MemFree"]); put("swap_free", m["SwapFree"])
        load("/proc/pressure/memory", p); put("avg10", p["some10"])
        group("detector"); group("hog"); worst()
        if (head) print "at" names
        head = 0
        print line
        rest = 200 - (now() - begun) % 200
        system("usleep " rest * 1000)
    }
}'
