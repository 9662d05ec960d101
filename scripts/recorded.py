#!/usr/bin/env python3
"""Records which process a real kernel runs on which CPU when: 24 processes that never sleep, on six cores of two threads.
Writes a recording for the policy `linux-recorded` (crates/control/src/schedule/recorded.rs). The kernel runs in the lab, in time
that counts instructions, so how busy this machine is changes nothing.

    scripts/recorded.py [--kernel 7.2] [--for 10s] [--quell target/release/quell] >experiments/smt/linux-recorded.txt
"""

import argparse
import pathlib
import re
import subprocess
import sys
import tempfile

CPUS = 12
PROCESSES = 24
UNIT_NS = 100_000
# What the guest does. A loop of the shell's own commands makes no process and no system call.
GUEST = """
for n in $(seq {processes}); do
    sh -c 'while :; do :; done' &
    echo $! >>/out/processes
done
for cpu in /sys/devices/system/cpu/cpu[0-9]*; do
    echo "${{cpu##*cpu}} $(cat $cpu/topology/thread_siblings_list)" >>/out/cpus
done
uname -r >/out/release
mount -t tracefs tracefs /sys/kernel/tracing
cd /sys/kernel/tracing || exit 1
echo mono >trace_clock
echo 16384 >buffer_size_kb
sleep 3
echo 1 >events/sched/sched_switch/enable
sleep {span}
echo 0 >events/sched/sched_switch/enable
cat trace >/out/trace
kill $(cat /out/processes)
"""


def guest(arguments, folder):
    script = GUEST.format(processes=PROCESSES, span=arguments.span)
    command = [arguments.quell, "lab", "--accel", "counted", "--kernel", arguments.kernel, "--memory", "2GiB"]
    command += ["--cpus", str(CPUS), "--smt", "--out", str(folder), "--", "sh", "-c", script]
    subprocess.run(command, check=True, stdout=sys.stderr)


def runs(folder):
    """CPU -> [(from, until, thread)], in nanoseconds."""
    found = {cpu: [] for cpu in range(CPUS)}
    since = {}
    switch = re.compile(r"\[(\d+)\] \S+ +(\d+)\.(\d+): sched_switch: .*prev_pid=(\d+) .*next_pid=(\d+) ")
    for line in (folder / "trace").open():
        if "LOST" in line:
            sys.exit(f"switches were lost: {line}")
        seen = switch.search(line)
        if not seen:
            continue
        cpu, seconds, micros, before, after = (int(word) for word in seen.groups())
        now = (seconds * 1_000_000 + micros) * 1_000
        if cpu in since:
            found[cpu].append((since[cpu], now, before))
        since[cpu] = now
    return found


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--kernel", default="7.2")
    parser.add_argument("--for", dest="span", default="10", help="seconds")
    parser.add_argument("--quell", default="target/release/quell")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        folder = pathlib.Path(folder)
        guest(arguments, folder)
        found = runs(folder)
        processes = {int(pid): n for n, pid in enumerate((folder / "processes").read_text().split())}
        siblings = [line.split() for line in (folder / "cpus").read_text().splitlines()]
        release = (folder / "release").read_text().strip()
    # Threads of a core are neighbours.
    order = sorted(found, key=lambda cpu: next((s, int(c)) for c, s in siblings if int(c) == cpu))
    begin = max(all[0][0] for all in found.values())
    end = min(all[-1][1] for all in found.values())
    print(f"# Linux {release}, {CPUS} CPUs as {CPUS // 2} cores, {PROCESSES} processes that never sleep. A run: PROCESSxTENTHS_OF_A_MS.")
    print("# Written by scripts/recorded.py.")
    for row, cpu in enumerate(order):
        words, at = [], begin
        for start, until, thread in found[cpu]:
            start, until = max(start, at), min(until, end)
            if until <= start:
                continue
            # The end of a run is rounded, not its length, so that nothing adds up.
            for who, to in (("-", start), (processes.get(thread, "-"), until)):
                length = round((to - begin) / UNIT_NS) - round((at - begin) / UNIT_NS)
                if words and words[-1][0] == who:
                    words[-1][1] += length
                elif length > 0:
                    words.append([who, length])
                at = to
        print(f"cpu {row}:", " ".join(f"{who}x{length}" for who, length in words))


main()
