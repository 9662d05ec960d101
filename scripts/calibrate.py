#!/usr/bin/env python3
"""Derives the calibrated parameters of a simulated machine anew, from solo and unprotected rows alone.

    scripts/calibrate.py p4080 [--quell target/release/quell] [further arguments of quell compare]

What may vary, and over which values, stands below: only keys that the profile calls assumed. From the profile's values on, one
choice after the other is set to what comes nearest to the published unprotected rows, until a whole turn changes nothing. No row of a
protected configuration is run or read. The result is printed, not written: whoever takes it over edits the profile and
docs/calibration.md.
"""

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent

# Profile -> published unprotected rows (normalized; docs/calibration.md names the study), and what may vary: section, key,
# value as TOML; a choice may set several keys at once.
CASES = {
    "p4080": {
        "rows": {
            "p4080-4core": [0.41, 0.49, 0.50, 0.93],
            "p4080-8core": [0.37, 0.37, 0.30, 0.30, 0.30, 0.30, 0.82, 0.82],
        },
        # By experiment, for each subject: the subject of the first experiment that runs the same program.
        "like": {"p4080-4core": [0, 1, 2, 3], "p4080-8core": [0, 0, 1, 1, 1, 1, 3, 3]},
        "choices": {
            # The policies that the hardware has (docs/calibration.md); 65536: without aging.
            "L3 replacement": [{("cache.L3", "replacement"): n} for n in ('"tree-plru"', '"bimodal"')],
            # Ascending, so that a best value at an end can be told from one inside.
            "aging": [{("cache.L3", "aging"): n} for n in ("2", "3", "4", "5", "6", "7", "8", "16", "32", "65536")],
            "misses": [{("cores", "misses"): n} for n in ("1", "2", "3", "4", "5", "6", "8", "10", "12", "16")],
            "transit": [{("memory", "transit"): n} for n in ('"0ns"', '"5ns"', '"15ns"', '"30ns"', '"60ns"', '"90ns"', '"120ns"')],
            "L3 latency": [{("cache.L3", "latency"): n} for n in ("25", "40", "55", "70", "85", "100", "120", "140")],
            "timing": [{("memory", "timing"): n} for n in ('"DDR3-1066"', '"DDR3-1333"')],
        },
        # Choices whose values ascend and go on beyond the list.
        "ordered": ["aging", "misses", "transit", "L3 latency"],
        # Bars on rows that may be seen, stated before the grid was run.
        "bars": {"p4080-4core": 0.08, "p4080-8core": 0.10},
    },
}


def section(text, name):
    """Begin and end of a section of a profile; `cache.L2` is the cache of that name."""
    wanted = name.split(".")
    starts = [m for m in re.finditer(r"^\[+([a-z.-]+)\]+$", text, re.M)]
    for n, start in enumerate(starts):
        end = starts[n + 1].start() if n + 1 < len(starts) else len(text)
        body = text[start.start() : end]
        if start.group(1) != wanted[0]:
            continue
        if len(wanted) == 1 or re.search(rf'^name = "{wanted[1]}"$', body, re.M):
            return start.start(), end
    sys.exit(f"there is no section {name}")


def value(text, where, key):
    begin, end = section(text, where)
    found = re.search(rf"^{key} = (.*)$", text[begin:end], re.M)
    return found.group(1) if found else sys.exit(f"{where} has no {key}")


def varied(text, where, key, new):
    begin, end = section(text, where)
    body = re.sub(rf"^{key} = .*$", f"{key} = {new}", text[begin:end], count=1, flags=re.M)
    return text[:begin] + body + text[end:]


def shortened(name):
    """The experiment with shorter windows and without a baseline. A round of the lists takes 1 ms."""
    text = (ROOT / "experiments" / f"{name}.toml").read_text()
    for key, new in (("rounds", "1"), ("warmup", '"3ms"'), ("duration", '"6ms"')):
        text = re.sub(rf"^{key}( *)= .*$", rf"{key}\1= {new}", text, count=1, flags=re.M)
    text = re.sub(r"^baseline *= .*\n", "", text, count=1, flags=re.M)
    # Published rows are judged here, and some of them are of configurations that do not run.
    return text.split("[[published]]")[0]


def measured(args, folder, name, only):
    """Configuration -> what each subject runs, and its time per line."""
    experiment = Path(folder) / f"{name}.toml"
    experiment.write_text(shortened(name))
    command = [args.quell, "compare", str(experiment), "--on", f"sim:{folder}/varied.toml"]
    command += ["--only", only, "--jobs", "1", "--json", "--out", folder]
    run = subprocess.run(command + args.more, capture_output=True, text=True)
    if run.returncode != 0:
        sys.exit(f"{' '.join(command)}:\n{run.stderr}")
    found = json.loads(run.stdout)["configurations"]
    return {c["name"]: [s["value"] for s in c["subjects"]] for c in found if c["subjects"]}


def rows(args, text, case):
    """Experiment -> normalized performance of each subject, unprotected. Equal programs are run alone once."""
    with tempfile.TemporaryDirectory() as folder:
        (Path(folder) / "varied.toml").write_text(text)
        found, alone = {}, []
        for name, like in case["like"].items():
            got = measured(args, folder, name, "none" if alone else "solo,none")
            alone = alone or got["solo"]
            found[name] = [alone[n] / time for n, time in zip(like, got["none"])]
        return found


def each_error(found, published):
    """Mean absolute error over subjects, by experiment."""
    return {
        name: sum(abs(a - b) for a, b in zip(found[name], row)) / len(row)
        for name, row in published.items()
    }


def error(found, published):
    """Mean over experiments."""
    each = each_error(found, published)
    return sum(each.values()) / len(each)


def edges(case, text):
    """Ordered choices whose chosen value is the first or last of its list."""
    for what in case["ordered"]:
        values = case["choices"][what]
        chosen = [all(value(text, *place) == new for place, new in choice.items()) for choice in values]
        if chosen[0] or chosen[-1]:
            yield what


def shown(found, published):
    each = each_error(found, published)
    return "; ".join(
        f"{name} {each[name]:.3f}: " + " ".join(f"{x:.2f}" for x in found[name]) for name in published
    )


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", choices=CASES)
    parser.add_argument("--quell", default=str(ROOT / "target/release/quell"))
    args, args.more = parser.parse_known_args()
    case = CASES[args.profile]
    text = (ROOT / "crates/sim/profiles" / f"{args.profile}.toml").read_text()
    published = case["rows"]
    found = rows(args, text, case)
    best = error(found, published)
    print(f"as it stands: {best:.3f} ({shown(found, published)})", flush=True)
    changed = True
    while changed:
        changed = False
        for what, choices in case["choices"].items():
            for choice in choices:
                if all(value(text, *place) == new for place, new in choice.items()):
                    continue
                trial = text
                for place, new in choice.items():
                    trial = varied(trial, *place, new)
                found = rows(args, trial, case)
                now = error(found, published)
                said = ", ".join(choice.values())
                print(f"  {what} {said}: {now:.3f} ({shown(found, published)})", flush=True)
                # A tie stays as it is.
                if now < best - 0.001:
                    text, best, changed = trial, now, True
    print(f"nearest: mean absolute error {best:.3f}")
    for place in sorted({place for c in case["choices"].values() for one in c for place in one}):
        print(f"  {'.'.join(place)} = {value(text, *place)}")
    for what in edges(case, text):
        print(f"  {what}: at an end of its list; extend it")
    found = rows(args, text, case)
    for name, now in each_error(found, published).items():
        bar = case["bars"][name]
        print(f"  {name}: {now:.3f}, bar {bar:.2f}, {'held' if now <= bar else 'MISSED'}: " + " ".join(f"{x:.2f}" for x in found[name]))


if __name__ == "__main__":
    main()
