"""The report of scripts/real.py: tables and verdicts from its file of results."""

import collections
import contextlib
import json
import math
import os
import statistics

# Rows as they are printed; each @ stands for every cap, in ascending order.
ORDER = ("alone", "none", "nice-19", "chrt-idle", "weight", "weight10", "cores", "weight-cores", "cpu-max@", "brake@", "chosen@")
COLUMNS = (("p50 ms", "p50_ms", 3), ("p99 ms", "p99_ms", 3), ("longest ms", "longest_ms", 1), ("per second", "throughput", 0),
           ("run s", "run_s", 2))
# Student's t, two-sided 95 %, for 1, 2, … degrees of freedom.
T = (12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131)
WORSE, WORSE_RATE = 1.05, 0.95  # chosen ÷ none: an interval beyond these is worse than doing nothing
REDIS = (("p99_ms", 1.5, False), ("throughput", 0.9, True))  # chosen@20 against so many times alone; at least?
ROUNDS = 5  # with fewer, an interval decides nothing
PERIODIC = 1.5  # p99 of brake@20 against weight's


def load(path):
    """The setup, and the newest line of each cell, by (round, subject, neighbour, row)."""
    setup, cells = {}, {}
    if os.path.exists(path):
        with open(path) as f:
            for line in f:
                # A line that a crash cut off: its cell is measured again.
                with contextlib.suppress(json.JSONDecodeError):
                    one = json.loads(line)
                    if "setup" in one:
                        setup |= one["setup"]
                    else:
                        cells[one["round"], one["subject"], one["neighbour"], one["row"]] = one
    return setup, cells


def place(name):
    """Where a row is printed."""
    kind, _, rest = name.partition("@")
    cap, _, more = rest.partition("-")
    at = kind + "@" if rest else kind
    return (ORDER.index(at) if at in ORDER else len(ORDER), int(cap or 0), more)


def interval(ratios):
    """The geometric mean of ratios and its 95 % interval: Student's t of their logarithms."""
    logs = [math.log(r) for r in ratios]
    mean = statistics.mean(logs)
    if len(logs) < 2:
        return math.exp(mean), None, None
    t = T[len(logs) - 2] if len(logs) - 2 < len(T) else 2.12
    half = t * statistics.stdev(logs) / math.sqrt(len(logs))
    return math.exp(mean), math.exp(mean - half), math.exp(mean + half)


def figure(values, digits, scale=1.0, unit=""):
    """Median (least–most)."""
    values = [v * scale for v in values]
    if not values:
        return "–"
    spread = f" ({min(values):.{digits}f}–{max(values):.{digits}f})" if len(values) > 1 else ""
    return f"{statistics.median(values):.{digits}f}{spread}{unit}"


def verdict(what, value, bound, least=False):
    """A line about a figure and its bound."""
    if value is None or bound is None:
        return f"- OPEN: {what}: no figures"
    met = value >= bound if least else value <= bound
    sign = ("≥" if met else "<") if least else ("≤" if met else ">")
    return f"- {'MET' if met else 'NOT MET'}: {what}: {value:.4g} {sign} {bound:.4g}"


class Report:
    """Tables of the cells of a file."""

    def __init__(self, cells):
        self.cells = cells
        self.rounds = sorted({key[0] for key in cells})

    def values(self, subject, neighbour, name, key):
        """By round; errors and absent figures are left out."""
        beside = None if name == "alone" else neighbour
        found = ((r, self.cells.get((r, subject, beside, name), {})) for r in self.rounds)
        return {r: c[key] for r, c in found if "error" not in c and c.get(key) is not None}

    def median(self, *which):
        values = self.values(*which).values()
        return statistics.median(values) if values else None

    def table(self, subject, neighbour, names):
        columns = [c for c in COLUMNS if any(self.values(subject, neighbour, n, c[1]) for n in names)]
        heads = ["", *(c[0] for c in columns), "neighbour kept", "its CPU time", "spun", "rounds"]
        print(f"\n## {subject} x {neighbour}\n\n| {' | '.join(heads)} |\n|{'---|' * len(heads)}")
        own = {r: self.cells.get((r, None, neighbour, "alone"), {}).get("neighbour_ops_per_s") for r in self.rounds}
        for name in names:
            line = [name]
            line += [figure(self.values(subject, neighbour, name, key).values(), digits) for _, key, digits in columns]
            ops = self.values(subject, neighbour, name, "neighbour_ops_per_s")
            line.append(figure([ops[r] / own[r] for r in ops if own.get(r)], 1, 100, " %"))
            for key in ("neighbour_cpu", "spun"):
                line.append(figure(self.values(subject, neighbour, name, key).values(), 1, 100, " %"))
            line.append(str(len(self.values(subject, neighbour, name, "measured_s"))))
            print(f"| {' | '.join(line)} |")
        print()

    def not_worse(self, subject, neighbour):
        """Chosen against none, round by round."""
        for label, key, _ in COLUMNS:
            if key == "longest_ms":
                continue
            chosen, none = (self.values(subject, neighbour, n, key) for n in ("chosen@20", "none"))
            ratios = [chosen[r] / none[r] for r in chosen if chosen[r] and none.get(r)]
            if not ratios:
                continue
            mean, low, high = interval(ratios)
            text = f"{label}, chosen@20 ÷ none: {mean:.3f}"
            if low is None:
                print(f"- OPEN: {text}, one round")
                continue
            worse = high < WORSE_RATE if key == "throughput" else low > WORSE
            word = "OPEN" if len(ratios) < ROUNDS else "NOT MET" if worse else "MET"
            print(f"- {word}: {text}, 95 % {low:.3f}–{high:.3f} over {len(ratios)} rounds")

    def bars(self, subject, neighbour):
        if (subject, neighbour) == ("redis", "stream"):
            for key, bar, least in REDIS:
                alone, chosen = (self.median(subject, neighbour, n, key) for n in ("alone", "chosen@20"))
                what = f"{key} of chosen@20 against {bar} x alone, medians"
                print(verdict(what, chosen, alone and bar * alone, least))
        if subject == "periodic":
            brake, weight, none = (self.median(subject, neighbour, n, "p99_ms") for n in ("brake@20", "weight", "none"))
            print(verdict(f"p99 of brake@20 against {PERIODIC} x weight", brake, weight and PERIODIC * weight))
            print(verdict("p99 of brake@20 against none", brake, none))


def report(path):
    """Prints all of it."""
    setup, cells = load(path)
    print(f"# Real programs next to neighbours\n\n`{json.dumps(setup, sort_keys=True)}`\n")
    print("Median (least–most) over rounds. Neighbour kept: its own count ÷ its count alone in the same round. "
          "Its CPU time and the CPU time that the brake spun: 100 % = one CPU.")
    shown = {}
    for _, subject, neighbour, name in cells:
        if subject and neighbour:
            shown.setdefault((subject, neighbour), {"alone"}).add(name)
    whole = Report(cells)
    for (subject, neighbour), names in sorted(shown.items()):
        whole.table(subject, neighbour, sorted(names, key=place))
        if subject != "periodic":
            whole.not_worse(subject, neighbour)
        whole.bars(subject, neighbour)
    errors = collections.Counter(
        (f"{k[1] or '–'} x {k[2] or '–'}, {k[3]}", " ".join(c["error"].split())) for k, c in cells.items() if "error" in c)
    if errors:
        print("\n## Errors\n")
        for (cell, text), times in sorted(errors.items()):
            print(f"- {cell}, {times} times: {text}")
