#!/usr/bin/env python3
"""Writes the experiments on recorded programs (experiments/smt/programs.toml).

  scripts/mixes.py

- experiments/smt-mixes.toml: ten mixes of 24 programs, drawn with replacement by a seed, each under
  every policy. The mixes are drawn before any policy runs, and stay as they are.
- experiments/smt-assumptions.toml: two of the mixes with what is assumed of programs off by 30 %, with
  policies that know figures off by 20 and 40 %, and with other quanta.
- experiments/contention-memory.toml: each program beside five memory hogs.
- experiments/contention-l1.toml: each program on one core with the one that has the highest
  first-level rate.
"""

import collections
import random
import tomllib

SEED = 2014
MIXES = 10
SIZE = 24
POLICIES = ["linux", "linux-recorded", "random", "worst", "bandwidth-aware", "progress", "fair"]
RUN = 'run  = {{ kind = "recorded", program = "{}" }}'

HEAD = """\
{about}
# Written by scripts/mixes.py.
quell    = 1
name     = "{name}"
title    = "{title}"
backends = ["coarse:xeon-e5645"]
seed     = 1

[measure]
rounds   = {rounds}
until    = "all-once"
baseline = "solo"
"""


def subject(name, program, only, *more):
    only = ", ".join(f'"{each}"' for each in only)
    return "\n".join([f"[subject.{name}]", 'role = "best-effort"', RUN.format(program), f"only = [{only}]", *more, ""])


def write(name, title, rounds, about, parts):
    head = HEAD.format(name=name, title=title, rounds=rounds, about=about)
    with open(f"experiments/{name}.toml", "w", encoding="utf8") as file:
        file.write("\n".join([head, *parts, "[configuration.solo]\nalone = true\n"]))


def mixes(programs):
    drawn = random.Random(SEED)
    part = collections.defaultdict(list)
    for n in range(1, MIXES + 1):
        counts = collections.Counter(drawn.choices(programs, k=SIZE))
        for program in programs:
            for copy in range(1, counts[program] + 1):
                part[program, copy].append(f"mix{n:02}")
    parts = []
    for (program, copy), only in sorted(part.items(), key=lambda item: (programs.index(item[0][0]), item[0][1])):
        parts.append(subject(program if copy == 1 else f"{program}-{copy}", program, ["solo", *only]))
    for n in range(1, MIXES + 1):
        lines = [f'[configuration.mix{n:02}]\nname = "mix{n:02}/{{policy}}"', f"[configuration.mix{n:02}.axis.policy]"]
        lines += [f'{policy} = {{ scheduler.policy = "{policy}" }}' for policy in POLICIES]
        parts.append("\n".join(lines) + "\n")
    about = """\
# Ten mixes of 24 programs on six cores of two threads, after the scheduling study of Feliu, Sahuquillo, Petit and Duato. The
# mixes are drawn with replacement from the recorded programs (experiments/smt/programs.toml) by a seed. All run until each
# has ended once. Early ones start again. A round has its own queue order and phase offsets, the same for every policy."""
    write("smt-mixes", "Ten mixes of 24 programs under every scheduling policy", 10, about, parts)
    return part


ASSUMPTIONS = {
    "cpi-70": "cpi = 0.7",
    "cpi-130": "cpi = 1.3",
    "overlap-70": "overlap = 0.7",
    "overlap-130": "overlap = 1.3",
    "off-20": "off = 0.2",
    "off-40": "off = 0.4",
}
QUANTA = ["50ms", "200ms", "1s"]


def assumptions(programs, part):
    mixes = ["mix01", "mix02"]
    kinds = [*ASSUMPTIONS, *(f"quantum-{quantum}" for quantum in QUANTA)]
    parts, names = [], {mix: [] for mix in mixes}
    for program, copy in part:
        only = [mix for mix in mixes if mix in part[program, copy]]
        if only:
            name = program if copy == 1 else f"{program}-{copy}"
            all_of = [f"{mix}-{kind}" for mix in only for kind in kinds]
            parts.append(subject(name, program, ["solo", *all_of]))
            for mix in only:
                names[mix].append(name)
    for mix in mixes:
        for kind in kinds:
            lines = [f"[configuration.{mix}-{kind}]", f'name = "{mix}-{kind}/{{policy}}"']
            if kind in ASSUMPTIONS:
                lines += [f"subject.{name}.run.{ASSUMPTIONS[kind]}" for name in names[mix]]
            else:
                lines.append(f'scheduler.quantum = "{kind.removeprefix("quantum-")}"')
            lines.append(f"[configuration.{mix}-{kind}.axis.policy]")
            for policy in ["linux", "random", "bandwidth-aware", "fair"]:
                lines.append(f'{policy} = {{ scheduler.policy = "{policy}" }}')
            parts.append("\n".join(lines) + "\n")
    about = """\
# Two mixes of smt-mixes with other assumptions. `cpi` and `overlap`: what no trace tells of a program, and is assumed, by 30 %
# more and less. `off`: each figure that policies know of a program is off by up to so much. `quantum`: for how long a
# decision holds."""
    write("smt-assumptions", "Two mixes of 24 programs under other assumptions", 5, about, parts)


def memory(programs):
    parts = [subject(program, program, ["solo", program]) for program in programs]
    hog = subject("hog", "memory-hog", programs, "copies = 5")
    parts += [hog] + [f"[configuration.{program}]\n" for program in programs]
    about = """\
# Each recorded program beside five copies of a memory hog, each on a core of its own: the share of programs that lose over
# 30 % of their IPC is what the scheduling study of Feliu, Sahuquillo, Petit and Duato published of this."""
    write("contention-memory", "Programs beside five memory hogs", 1, about, parts)


def first_level(programs, rates):
    loud = max(programs, key=rates.get)
    parts = [subject(program, program, ["solo", program], 'cpus = "0"') for program in programs]
    parts.append(subject("partner", loud, programs, 'cpus = "6"'))
    parts += [f"[configuration.{program}]\n" for program in programs]
    about = f"""\
# Each recorded program on one core with {loud}, which has the highest first-level rate of all: how its IPC follows the
# partner's rate over time. The scheduling study of Feliu, Sahuquillo, Petit and Duato saw drops by up to about 40 %."""
    write("contention-l1", "Programs on one core with the one that uses the first level most", 1, about, parts)


def main():
    with open("experiments/smt/programs.toml", "rb") as file:
        known = tomllib.load(file)["program"]
    programs = list(known)
    # First-level accesses per cycle where nothing is missed.
    rates = {
        name: sum(phase["accesses"] for phase in program["phase"]) / len(program["phase"]) / program["cpi"]
        for name, program in known.items()
    }
    assumptions(programs, mixes(programs))
    memory(programs)
    first_level(programs, rates)


main()
