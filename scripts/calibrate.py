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
        "choices": {
            "controllers": [
                # Line by line in turn; one after the other.
                {("memory", "channel"): "[6]", ("memory", "column"): '["7-13"]', ("memory", "row"): '["14-15", "20-31"]'},
                {("memory", "channel"): "[31]", ("memory", "column"): '["6-12"]', ("memory", "row"): '["13-15", "20-30"]'},
            ],
            "L3 replacement": [{("cache.L3", "replacement"): n} for n in ('"lru"', '"random"', '"bimodal"')],
            "L3 latency": [{("cache.L3", "latency"): n} for n in ("40", "55", "70", "85", "100")],
            "transit": [{("memory", "transit"): n} for n in ('"15ns"', '"30ns"', '"60ns"')],
            "misses": [{("cores", "misses"): n} for n in ("4", "5", "8")],
            "timing": [{("memory", "timing"): n} for n in ('"DDR3-1066"', '"DDR3-1333"')],
        },
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


def rows(args, text, experiments):
    """Experiment -> normalized performance of each subject, unprotected."""
    with tempfile.TemporaryDirectory() as folder:
        profile = Path(folder) / "varied.toml"
        profile.write_text(text)
        found = {}
        for name in experiments:
            command = [args.quell, "compare", name, "--on", f"sim:{profile}"]
            command += ["--only", "none", "--rounds", "1", "--json", "--out", folder]
            run = subprocess.run(command + args.more, capture_output=True, text=True)
            if run.returncode != 0:
                sys.exit(f"{' '.join(command)}:\n{run.stderr}")
            result = json.loads(run.stdout)
            none = next(c for c in result["configurations"] if c["name"] == "none")
            found[name] = [s["normalized"] for s in none["subjects"]]
        return found


def error(found, published):
    """Mean over experiments of the mean absolute error over subjects."""
    each = [
        sum(abs(a - b) for a, b in zip(found[name], row)) / len(row)
        for name, row in published.items()
    ]
    return sum(each) / len(each)


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("profile", choices=CASES)
    parser.add_argument("--quell", default=str(ROOT / "target/release/quell"))
    args, args.more = parser.parse_known_args()
    case = CASES[args.profile]
    text = (ROOT / "crates/sim/profiles" / f"{args.profile}.toml").read_text()
    best = error(rows(args, text, case["rows"]), case["rows"])
    print(f"as it stands: mean absolute error {best:.3f}", flush=True)
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
                found = error(rows(args, trial, case["rows"]), case["rows"])
                said = ", ".join(choice.values())
                print(f"  {what} {said}: {found:.3f}", flush=True)
                # A tie stays as it is.
                if found < best - 0.001:
                    text, best, changed = trial, found, True
    print(f"nearest: mean absolute error {best:.3f}")
    for place in sorted({place for c in case["choices"].values() for one in c for place in one}):
        print(f"  {'.'.join(place)} = {value(text, *place)}")
    for name, found in rows(args, text, case["rows"]).items():
        print(f"  {name}: " + " ".join(f"{x:.2f}" for x in found))


if __name__ == "__main__":
    main()
