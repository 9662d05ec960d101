#!/usr/bin/env python3
"""Unmodified programs with their clients next to unmodified neighbours, unprotected and under Quell, in interleaved rounds.

  scripts/real.py --quell target/release/quell --out real.jsonl [--rounds 5] [--pairs REGEX] [--only REGEX]
  scripts/real.py --report real.jsonl

Every cell is a line of JSON in the file given by --out. A run that is started again with the same file measures what is
missing or failed. The report is Markdown on standard output. A program that fails makes its cell an error, not a number.

A cell: start the subject's server, apply the policy and wait until it holds, start the neighbour, let the subject's load
run for a second that is not measured, measure for 2 to 3 s, stop all. The neighbour's own count (stress-ng's bogo
operations per second) is over its whole life, in which the load runs too; it is relative to the neighbour alone in the
same round. Clients run on the neighbour's CPU in every row, alone included. Servers are pinned by Quell only.

All is started from one session: with autogroups (kernel.sched_autogroup_enabled) `nice` works only inside a session.
Needs root, a quiet machine, redis-server, redis-tools, ffmpeg, sqlite3, stress-ng; postgresql (initdb, postgres, pgbench)
if it is there. stress-ng counts streams in steps of 1/20 s of two CPUs: below some 10 % the CPU time next to the count is finer.
"""

import argparse
import contextlib
import json
import os
import random
import re
import signal
import statistics
import subprocess
import sys
import tempfile
import time

sys.dont_write_bytecode = True
from real_report import load, report
from real_subjects import (CLIENT_CPU, CPUS, MEASURE_S, SERVER_CPU, SETTLE_S, Failed, Gated, Periodic, Postgres, Redis, cpu_s,
                           in_our_cgroup, on_client_cpu, run, spun_s, stop, tool, tree, wait_for)

CAPS = (1, 5, 10, 20, 40, 70)
JOB_US = 200  # the work of the periodic program
HOLD_S = 60  # until a policy holds; the first one may have to measure the machine's rates
LOCKED_S = 300  # another Quell may be at work
# One method each: the default goes through many, whose operations cost differently, and a count over seconds means little.
NEIGHBOURS = {
    "stream": ["--stream", "2"],
    "vm": ["--vm", "2", "--vm-bytes", "256M", "--vm-method", "write64"],
    "cpu": ["--cpu", "2", "--cpu-method", "matrixprod"],
    "pinned-cpu": ["--cpu", "1", "--cpu-method", "matrixprod"],  # next to the periodic program: one busy task on its CPU
}
OWN = str(SERVER_CPU)


def row(cpus, *group, mechanisms=()):
    """A configuration under Quell: the critical group's CPUs, keys of the neighbour's group, keys of [mechanisms]."""
    return {"cpus": cpus, "group": group, "mechanisms": mechanisms}


def brake(cap):
    return row(OWN, f'limit.bandwidth = "{cap}%"', mechanisms=('bandwidth = "regulator"',))


def cpu_max(cap):
    return row(OWN, f'limit.cpu-time = "{cap}%"', mechanisms=('bandwidth = "none"',))


# None: without Quell; a list goes before the neighbour's command.
ROWS = {
    "none": None,
    "nice-19": ["nice", "-n", "19"],
    "chrt-idle": ["chrt", "-i", "0"],
    "weight10": row("any", "cpu-weight = 10"),
    "weight": row("any"),  # the default: the group is cpu.idle
    "cores": row(OWN, mechanisms=('deny = ["weight"]',)),
    "weight-cores": row(OWN),
    "cpu-max@20": cpu_max(20),
    "brake@20": brake(20),
    "chosen@20": row(OWN, 'limit.bandwidth = "20%"'),
}
# From these the default weight is chosen: next to the server on any CPU, and next to its client where the server has its own.
WEIGHTS = {f"weight-cores@{w}": row(OWN, f"cpu-weight = {w}") for w in (1, 2, 5, 10, 20)}
SWEEP = ROWS | WEIGHTS | {f"cpu-max@{c}": cpu_max(c) for c in CAPS} | {f"brake@{c}": brake(c) for c in CAPS}
# The neighbour is pinned to the periodic program's CPU in all of these, and nothing is critical.
HERE = f'cpus = "{CLIENT_CPU}"'
PERIODIC = {
    "none": None,
    "weight": row(None, HERE),
    "weight10": row(None, HERE, "cpu-weight = 10"),
    "cpu-max@20": row(None, HERE, *cpu_max(20)["group"], mechanisms=cpu_max(20)["mechanisms"]),
    "brake@20": row(None, HERE, *brake(20)["group"], mechanisms=brake(20)["mechanisms"]),
    "brake@20-weight10": row(None, HERE, "cpu-weight = 10", *brake(20)["group"], mechanisms=brake(20)["mechanisms"]),
    "brake@20-equal": row(None, HERE, "cpu-weight = 100", *brake(20)["group"], mechanisms=brake(20)["mechanisms"]),
}


def policy(name, configuration, match):
    """The text of a policy file; `match` says which processes are critical, if any."""
    lines = ["quell = 1", f'name = "{name}"', 'require = "none"']
    if match:
        lines += ["[group.server]", 'role = "critical"', f"match = [{{ {match} }}]"]
        cpus = configuration["cpus"]
        lines.append(f'cpus = "{cpus}"')
    lines += ["[group.neighbour]", 'role = "best-effort"', 'match = [{ comm = "stress-ng" }]', *configuration["group"]]
    if configuration["mechanisms"]:
        lines += ["[mechanisms]", *configuration["mechanisms"]]
    return "\n".join(lines) + "\n"


class Bench:
    """The subjects, the parameters, and how a cell is measured."""

    def __init__(self, args, work):
        self.quell, self.work, self.setup = os.path.realpath(args.quell), work, {}
        self.subjects = {
            "redis": Redis(self), "redis-50": Redis(self, 0.5), "redis-80": Redis(self, 0.8),
            "ffmpeg": Gated(self, "ffmpeg"), "sqlite3": Gated(self, "sqlite3"), "periodic": Periodic(self),
        }
        with contextlib.suppress(Failed):
            for name in ("initdb", "postgres", "pgbench"):
                tool(name)
            self.subjects["pgbench"] = Postgres(self)

    def cells(self, pairs, only):
        """(subject, neighbour, row) of a round; without a neighbour or a subject for what runs alone."""
        chosen = []
        for subject in self.subjects:
            for neighbour in NEIGHBOURS:
                if (subject == "periodic") != (neighbour == "pinned-cpu") or not re.search(pairs, f"{subject} x {neighbour}"):
                    continue
                sweep = (subject, neighbour) == ("redis", "stream")
                rows = PERIODIC if subject == "periodic" else SWEEP if sweep else ROWS
                chosen += [(subject, neighbour, name) for name in rows if re.search(only, name)]
        subjects, neighbours = ({cell[i]: None for cell in chosen} for i in (0, 1))
        return [(s, None, "alone") for s in subjects] + [(None, n, "alone") for n in neighbours] + chosen

    def calibrate(self, cells):
        """Parameters, fixed before any protected run: the closed-loop peak, the periodic program's passes."""
        found = {}
        if "peak_per_s" not in self.setup and any(c[0] in ("redis-50", "redis-80") for c in cells):
            rates = [self.cell("redis", None, "alone")["throughput"] for _ in range(3)]
            found["peak_per_s"] = statistics.median(rates)
        if "passes" not in self.setup and any(c[0] == "periodic" for c in cells):
            m = self.subjects["periodic"].once(50, 1)
            job_us = m["response_us"]["p50"] - m["wakeup_us"]["p50"]
            found["passes"] = max(1, round(50 * JOB_US / job_us))
        self.setup |= found
        return found

    def neighbour(self, stack, name, prefix, pinned):
        """Started; returns its process and what gives its own count once it has ended."""
        report = os.path.join(stack.enter_context(tempfile.TemporaryDirectory(dir=self.work)), "yaml")
        command = [*prefix, tool("stress-ng"), *NEIGHBOURS[name], "--timeout", "300", "--metrics-brief", "--yaml", report]
        if pinned:
            command = on_client_cpu(command)
        null = subprocess.DEVNULL
        process = subprocess.Popen(command, cwd=self.work, stdout=null, stderr=null, stdin=null)
        stack.callback(stop, process, signal.SIGINT)
        workers = 1 + int(NEIGHBOURS[name][1])
        wait_for("stress-ng", lambda: len(tree(process.pid)) >= workers, process=process)

        def count():
            status = stop(process, signal.SIGINT)
            with contextlib.suppress(OSError), open(report) as f:
                rate = re.search(r"bogo-ops-per-second-real-time: *([\d.]+)", f.read())
                if status == 0 and rate:
                    return float(rate[1])
            raise Failed(f"stress-ng: exit {status}, no count")

        return process, count

    def protect(self, stack, name, text):
        """Applies a policy and waits until it holds; returns what ends it."""
        path = os.path.join(self.work, "policy.toml")
        with open(path, "w") as f:
            f.write(text)
        said = stack.enter_context(open(os.path.join(self.work, "said"), "a+"))

        def why():
            said.seek(0)
            return said.read().strip()[-800:]

        def holds():
            runs = json.loads(subprocess.run([self.quell, "status", "--json"], capture_output=True, text=True).stdout or "[]")
            return any(r["holds"] and r.get("plan", {}).get("policy") == name for r in runs)

        begun = time.monotonic()
        while True:
            said.truncate(0)
            held = subprocess.Popen([self.quell, "run", "-q", path], stdin=subprocess.DEVNULL, stdout=said, stderr=said)
            stack.callback(stop, held)
            try:
                wait_for("quell run", holds, HOLD_S, held)
                break
            except Failed as e:
                if "another Quell" not in why() or time.monotonic() > begun + LOCKED_S:
                    raise Failed(f"{e}: {why()}") from None
            time.sleep(2)

        def end():
            status = stop(held)
            if status != 0:
                raise Failed(f"quell run: exit {status}: {why()}")

        return end

    def cell(self, subject, neighbour, name):
        """One measurement."""
        periodic = subject == "periodic"
        configuration = (PERIODIC if periodic else SWEEP).get(name) if neighbour and subject else None
        with contextlib.ExitStack() as stack:
            one = self.subjects[subject] if subject else None
            if one:
                one.start(stack)
            end = count = None
            pids = []
            if isinstance(configuration, dict):
                end = self.protect(stack, f"real-{name}", policy(f"real-{name}", configuration, one.match))
            if neighbour:
                prefix = configuration if isinstance(configuration, list) else []
                process, count = self.neighbour(stack, neighbour, prefix, neighbour == "pinned-cpu")
                if end:
                    wait_for("the neighbour in its group", lambda: all(map(in_our_cgroup, tree(process.pid))), process=process)
            if one:
                one.warm(SETTLE_S)
            else:
                time.sleep(SETTLE_S)
            if neighbour:
                pids = tree(process.pid)
            before, begin = (cpu_s(pids), spun_s()), time.monotonic()
            figures = one.measure() if one else time.sleep(MEASURE_S) or {}
            took = time.monotonic() - begin
            figures["measured_s"] = took
            if neighbour:
                figures["neighbour_cpu"] = (cpu_s(pids) - before[0]) / took
                figures["spun"] = max(0.0, (spun_s() - before[1]) / took)
                figures["neighbour_ops_per_s"] = count()
            if end:
                end()
            return figures


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quell", default="target/release/quell")
    parser.add_argument("--out", help="file of results, one JSON object a line; what it has is not measured again")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--seed", type=int, default=18)
    parser.add_argument("--only", default="", help="rows whose name matches; what runs alone always comes along")
    parser.add_argument("--pairs", default="", help="pairs, as in 'redis x stream', that match")
    parser.add_argument("--report", metavar="FILE", help="print the tables of a file of results, and measure nothing")
    args = parser.parse_args()
    if args.report:
        return report(args.report)
    if not args.out:
        parser.error("--out is needed")
    if os.geteuid() != 0 or len(CPUS) < 2:
        sys.exit("real.py: root and two CPUs are needed")
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    with tempfile.TemporaryDirectory(prefix="real-") as work, open(args.out, "a") as out:
        os.chmod(work, 0o755)

        def note(line):
            out.write(json.dumps(line) + "\n")
            out.flush()

        bench = Bench(args, work)
        bench.setup, done = load(args.out)
        cells = bench.cells(args.pairs, args.only)
        autogroup = 0
        with contextlib.suppress(OSError), open("/proc/sys/kernel/sched_autogroup_enabled") as f:
            autogroup = int(f.read())
        about = {"seed": args.seed, "rounds": args.rounds, "kernel": os.uname().release, "cpus": CPUS, "client_cpu": CLIENT_CPU,
                 "server_cpu": SERVER_CPU, "quell": run([bench.quell, "--version"]).strip(), "autogroup": autogroup}
        bench.setup |= about
        note({"setup": about | bench.calibrate(cells)})
        begun, failed = time.monotonic(), 0
        todo = []
        for r in range(args.rounds):
            order = random.Random(f"{args.seed} {r}").sample(cells, len(cells))
            todo += [(r, *cell) for cell in order if "error" in done.get((r, *cell), {"error": ""})]
        for i, (r, subject, neighbour, name) in enumerate(todo):
            line = {"round": r, "subject": subject, "neighbour": neighbour, "row": name}
            try:
                line |= bench.cell(subject, neighbour, name)
            except (Failed, OSError, ValueError, KeyError) as e:
                line["error"] = f"{type(e).__name__}: {e}"
                failed += 1
            note(line)
            print(f"[{i + 1}/{len(todo)}, {time.monotonic() - begun:.0f} s] {json.dumps(line)}", file=sys.stderr)
    report(args.out)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
