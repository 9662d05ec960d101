#!/usr/bin/env python3
"""Profiles real programs for the coarse simulated machine: experiments/smt/programs.toml.

  scripts/programs.py [--only REGEX] [--work DIR] inputs record time derive

  inputs   makes the inputs (scripts/programs_list.py has programs and inputs)
  record   runs each program once in QEMU's user mode with the plugin quell-profile-plugin
  time     runs each program five times natively: a quiet machine is better
  derive   writes experiments/smt/programs.toml and programs-raw.json

A step that is done for a program is not repeated; delete its folder in DIR (.cache/programs).
Needs: cargo build --release -p quell-profile-plugin; qemu-user 7.2 (Debian 12); the packages that
scripts/programs_list.py names; gcc. Processors: x86-64.
"""

import argparse
import json
import math
import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

from programs_list import PROGRAMS

TOP = Path(__file__).resolve().parent.parent
KIB, MIB = 1 << 10, 1 << 20
# The sizes of the file, and one more for this machine's last level.
SIZES = [512 * KIB] + [n * MIB for n in (1, 2, 3, 4, 6, 8, 12, 16)]
THIRD = 32 * MIB
SECOND = 1 * MIB
# A sixth of 12 MiB: what a core has of the last level that it shares with five.
SHARE = 2 * MIB
WINDOW = 5_000_000
PHASES = 20
TIMES = 5
# No core of the profile's machine begins more than four instructions per cycle.
LEAST_CPI = 0.25
MOST_OVERLAP = 10.0
# Too few misses say nothing of how many are under way together.
ENOUGH = 1000
FEW_LINES = 100

# The same code runs natively and in QEMU, whose processor is a Westmere.
ENVIRONMENT = {
    "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-AVX,-ERMS,-FSRM",
    "OPENBLAS_CORETYPE": "Nehalem",
    "OPENBLAS_NUM_THREADS": "1",
    "OMP_NUM_THREADS": "1",
    "LC_ALL": "C",
    "HOME": "/nonexistent",
    "PATH": "/usr/bin:/bin:/usr/games",
}

# The clock, from a chain of additions.
CLOCK_C = r"""
#include <stdio.h>
#include <stdint.h>
#include <time.h>
static double now(void) {
    struct timespec t;
    clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}
static double hertz(void) {
    uint64_t a = 1, b = 3, turns = 0;
    double begin = now(), end;
    do {
        for (int n = 0; n < 1000000; n++)
            __asm__ volatile("add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0\n"
                             "add %1,%0\n add %1,%0\n add %1,%0\n add %1,%0\n" : "+r"(a) : "r"(b));
        turns += 8000000;
        end = now();
    } while (end - begin < 1);
    return turns / (end - begin);
}
int main(void) {
    printf("%.0f\n", hertz());
    return 0;
}
"""


def start(program, folder, before=()):
    """Runs a program's command. Returns its user CPU time in seconds."""
    path = shutil.which(program.command[0], path=ENVIRONMENT["PATH"]) or program.command[0]
    source = open(folder / program.stdin) if program.stdin else subprocess.DEVNULL
    with open(os.devnull, "w") as nowhere, open(folder / "errors", "w") as errors:
        child = subprocess.Popen(
            [*before, path, *program.command[1:]], cwd=folder, stdin=source,
            stdout=nowhere, stderr=errors, env={**ENVIRONMENT, **program.env})
        _, status, usage = os.wait4(child.pid, 0)
    code = os.waitstatus_to_exitcode(status)
    if code not in program.status:
        raise RuntimeError(f"status {code}: {(folder / 'errors').read_text()[-1000:]}")
    return usage.ru_utime


def inputs(program, folder, _):
    if (folder / "made").exists():
        return
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    begin = time.time()
    program.make(folder)
    (folder / "made").touch()
    print(f"{program.name}: inputs made in {time.time() - begin:.1f} s", flush=True)


def record(program, folder, options):
    out = folder / "windows.tsv"
    if out.exists():
        return
    half = folder / "windows.new"
    sizes = ":".join(str(size) for size in [*SIZES, THIRD])
    plugin = f"{options.plugin},out={half},window={WINDOW},sizes={sizes},share={SHARE}"
    begin = time.time()
    start(program, folder, [options.qemu, "-cpu", "Westmere", "-plugin", plugin])
    half.rename(out)
    head, windows = table(out)
    instructions = sum(window["instructions"] for window in windows)
    took = time.time() - begin
    print(f"{program.name}: {instructions / 1e9:.2f} G instructions in {took:.0f} s; {head}", flush=True)


def table(path):
    """The lines of a recording, as dicts."""
    head, names, *lines = path.read_text().splitlines()
    names = names.split("\t")
    return head, [dict(zip(names, map(int, line.split("\t")))) for line in lines]


def timed(program, folder, _):
    out = folder / "seconds.json"
    if out.exists():
        return
    start(program, folder)
    seconds = [start(program, folder) for _ in range(TIMES)]
    out.write_text(json.dumps(seconds))
    print(f"{program.name}: {' '.join(f'{s:.2f}' for s in seconds)} s", flush=True)


def clock(work):
    """This machine's clock in Hz."""
    out = work / "clock.json"
    if not out.exists():
        (work / "clock.c").write_text(CLOCK_C)
        subprocess.run(["gcc", "-O2", "-o", work / "clock", work / "clock.c"], check=True)
        runs = [float(subprocess.check_output([work / "clock"])) for _ in range(TIMES)]
        # What else runs on the machine only takes from it.
        out.write_text(json.dumps(max(runs)))
    return json.loads(out.read_text())


def phases(windows):
    """The windows as so many of equal instructions. A window across two is divided in proportion."""
    total = sum(window["instructions"] for window in windows)
    length = total / PHASES
    result = [dict.fromkeys(windows[0], 0.0) for _ in range(PHASES)]
    at = 0.0
    for window in windows:
        end = at + window["instructions"]
        first, last = int(at / length), min(int(math.ceil(end / length)), PHASES)
        for n in range(first, last):
            part = (min(end, (n + 1) * length) - max(at, n * length)) / window["instructions"]
            for key, value in window.items():
                result[n][key] += part * value
        at = end
    return result


def overlap(total):
    """Misses under way together: of those beyond a core's share of the last level, if enough."""
    kind = "far" if total["far_misses"] >= ENOUGH else "near"
    return min(total[f"{kind}_misses"] / max(total[f"{kind}_epochs"], 1), MOST_OVERLAP), kind


def waits(total):
    """Per instruction: lines that this machine's second level has, and those beyond it ÷ overlap."""
    beyond = total[f"misses_{SECOND}"]
    near = max(total["l1"] - beyond, 0)
    return near / total["instructions"], beyond / total["instructions"] / overlap(total)[0]


def solved(rows, right):
    """Solves linear equations by elimination."""
    rows = [[*row, value] for row, value in zip(rows, right)]
    for n in range(len(rows)):
        pivot = max(range(n, len(rows)), key=lambda at: abs(rows[at][n]))
        rows[n], rows[pivot] = rows[pivot], rows[n]
        for other in range(len(rows)):
            if other != n:
                factor = rows[other][n] / rows[n][n]
                rows[other] = [a - factor * b for a, b in zip(rows[other], rows[n])]
    return [row[-1] / row[n] for n, row in enumerate(rows)]


def fitted(points):
    """Cycles per line of each kind, by least squares over (cycles, (near, far)), none below zero."""
    for used in ((0, 1), (1,), (0,)):
        rows = [[1.0, *(kinds[n] for n in used)] for _, kinds in points]
        columns = list(zip(*rows))
        dot = lambda a, b: sum(x * y for x, y in zip(a, b))
        cycles = [value for value, _ in points]
        found = solved([[dot(a, b) for b in columns] for a in columns], [dot(a, cycles) for a in columns])
        if min(found[1:]) >= 0:
            return [dict(zip(used, found[1:])).get(n, 0.0) for n in (0, 1)]
    return [0.0, 0.0]


def written(phase):
    for lost, back in ((f"evictions_{SHARE}", f"writebacks_{SHARE}"), ("l2_evictions", "l2_writebacks")):
        if phase[lost] >= FEW_LINES:
            return min(phase[back] / phase[lost], 1.0)
    return 0.0


def lines_of(program, total, parts, figures):
    number = f"{int(total['instructions']):_}"
    text = lambda value: json.dumps(value, ensure_ascii=False)
    yield f"\n[program.{program.name}]"
    yield f"like = {text(program.like)}"
    yield f"version = {text(version(program))}"
    yield f"command = {text(program.shown())}"
    yield f"input = {text(program.input)}"
    yield f"instructions = {number}"
    yield f"cpi = {figures['cpi']}  # assumed"
    yield f"overlap = {figures['overlap']}  # assumed"
    for phase in parts:
        per = lambda key: phase[key] * 1000 / phase["instructions"]
        show = lambda value: str(round(float(f"{value:.4g}"), 4))
        curve = ", ".join(show(per(f"misses_{size}")) for size in SIZES)
        yield f"[[program.{program.name}.phase]]"
        yield f"accesses = {show(per('loads') + per('stores'))}"
        yield f"stores = {show(per('stores'))}"
        yield f"l1 = {show(per('l1'))}"
        yield f"l2 = {show(per('l2'))}"
        yield f"l3 = [{curve}]"
        yield f"written = {written(phase):.3f}"


def version(program):
    said = subprocess.run(["dpkg-query", "-W", "-f", "${Package} ${Version}", program.package],
                          capture_output=True, text=True, check=True)
    return said.stdout


HEAD = """\
# What real programs demand, window by window: written by scripts/programs.py, do not edit.
# Method, machine and hazards: docs/results/2026-11-25-smt-programs.md.
quell-programs = 1
# Sizes of the LRU caches that the lists l3 are for. They see what misses the second level.
sizes = [SIZES]
# cpi: cycles per instruction where every access hits the first level, from times on another machine
# than the simulated one: assumed. overlap: misses under way together, from the run: assumed.
"""


def derive(programs, work):
    hertz = clock(work)
    names = ", ".join(f'"{s // MIB}MiB"' if s >= MIB else f'"{s // KIB}KiB"' for s in SIZES)
    toml, raw = [HEAD.replace("SIZES", names).rstrip()], {"hertz": hertz, "programs": {}}
    table_lines = []
    runs = []
    for program in programs:
        folder = work / program.name
        if not ((folder / "windows.tsv").exists() and (folder / "seconds.json").exists()):
            print(f"{program.name}: not recorded or not timed, left out", file=sys.stderr)
            continue
        _, windows = table(folder / "windows.tsv")
        total = {key: sum(window[key] for window in windows) for key in windows[0]}
        seconds = json.loads((folder / "seconds.json").read_text())
        # What else runs on the machine only adds to the time.
        measured = min(seconds) * hertz / total["instructions"]
        runs.append((program, windows, total, seconds, measured))
    cycles = fitted([(measured, waits(total)) for _, _, total, _, measured in runs])
    raw["cycles_per_line"] = {"second_level": round(cycles[0], 2), "beyond_it": round(cycles[1], 2)}
    for program, windows, total, seconds, measured in runs:
        waited = sum(a * b for a, b in zip(cycles, waits(total)))
        together, kind = overlap(total)
        figures = {"measured_cpi": round(measured, 4), "waited": round(waited, 4),
                   "cpi": round(max(measured - waited, LEAST_CPI), 3), "least": measured - waited < LEAST_CPI,
                   "overlap": round(together, 2), "overlap_of": kind}
        toml.extend(lines_of(program, total, phases(windows), figures))
        raw["programs"][program.name] = {"seconds": seconds, **figures, "totals": total}
        per = lambda key: total[key] * 1000 / total["instructions"]
        table_lines.append(
            f"| `{program.name}` | {program.like} | {total['instructions'] / 1e9:.2f} "
            f"| {per('loads') + per('stores'):.0f} | {per('l1'):.1f} | {per('l2'):.1f} "
            f"| {per(f'misses_{SHARE}'):.2f} | {per(f'misses_{12 * MIB}'):.2f} | {measured:.2f} "
            f"| {figures['cpi']:.2f}{' *' if figures['least'] else ''} | {together:.1f} |")
    place = TOP / "experiments" / "smt"
    place.mkdir(parents=True, exist_ok=True)
    (place / "programs.toml").write_text("\n".join(toml) + "\n")
    (place / "programs-raw.json").write_text(json.dumps(raw, indent=1) + "\n")
    print("\n".join(table_lines))
    print(raw["cycles_per_line"])


def main():
    parse = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parse.add_argument("--only", default="")
    parse.add_argument("--work", type=Path, default=TOP / ".cache" / "programs")
    parse.add_argument("--plugin", default=TOP / "target/release/libquell_profile_plugin.so")
    parse.add_argument("--qemu", default="qemu-x86_64")
    parse.add_argument("steps", nargs="+", choices=["inputs", "record", "time", "derive"])
    options = parse.parse_args()
    options.work = options.work.absolute()
    options.work.mkdir(parents=True, exist_ok=True)
    chosen = [program for program in PROGRAMS if re.search(options.only, program.name)]
    each = {"inputs": inputs, "record": record, "time": timed}
    for step in options.steps:
        if step == "derive":
            derive(chosen, options.work)
            continue
        for program in chosen:
            try:
                each[step](program, options.work / program.name, options)
            except (RuntimeError, OSError, subprocess.CalledProcessError) as error:
                print(f"{program.name}: {error}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
