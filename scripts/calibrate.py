#!/usr/bin/env python3
"""Derives the calibrated parameters of a simulated machine anew, from solo and unprotected rows alone.

    scripts/calibrate.py p4080 [--quell target/release/quell] [further arguments of quell compare]

What may vary, and over which values, stands below: only keys that the profile calls assumed. From the profile's values on, one key
after the other is set to the value that comes nearest to the published unprotected rows, until a whole turn changes nothing. No row of a
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

# Profile -> published unprotected rows (normalized; docs/calibration.md names the study), and the keys that may vary: section,
# key, values as TOML.
CASES = {
    "p4080": {
        "rows": {
            "p4080-4core": [0.41, 0.49, 0.50, 0.93],
            "p4080-8core": [0.37, 0.37, 0.30, 0.30, 0.30, 0.30, 0.82, 0.82],
        },
        "keys": [
            ("cache.L3", "latency", ["30", "40", "55", "70"]),
            ("memory", "transit", ['"15ns"', '"30ns"', '"60ns"', '"90ns"']),
            ("cores", "misses", ["4", "5", "8"]),
            ("memory", "timing", ['"DDR3-1066"', '"DDR3-1333"']),
        ],
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
        for where, key, values in case["keys"]:
            for new in values:
                if new == value(text, where, key):
                    continue
                trial = varied(text, where, key, new)
                found = error(rows(args, trial, case["rows"]), case["rows"])
                print(f"  {where}.{key} = {new}: {found:.3f}", flush=True)
                # A tie stays as it is.
                if found < best - 0.001:
                    text, best, changed = trial, found, True
    print(f"nearest: mean absolute error {best:.3f}")
    for where, key, _ in case["keys"]:
        print(f"  {where}.{key} = {value(text, where, key)}")
    for name, found in rows(args, text, case["rows"]).items():
        print(f"  {name}: " + " ".join(f"{x:.2f}" for x in found))


if __name__ == "__main__":
    main()
