#!/usr/bin/env bash
# `periodic` beside cyclictest, its witness: the same CPU, priority and interval, one after the other, round by round, the
# first of a round changing. Prints each round's median wake-up latencies and their ratio, for docs/generators.md.
# Needs root and cyclictest (rt-tests); skips aloud without. With the defaults a minute.
# Usage: scripts/wakeup.sh path/to/quell [rounds] [seconds] [CPU]
set -euo pipefail
quell=$(realpath "${1:?usage: scripts/wakeup.sh path/to/quell [rounds] [seconds] [CPU]}")
rounds=${2:-10} seconds=${3:-3} cpu=${4:-$(($(nproc --all) - 1))}
priority=50
[ "$(id -u)" = 0 ] || { echo "SKIPPED: SCHED_FIFO needs root"; exit 0; }
for program in cyclictest python3; do
  command -v "$program" >/dev/null || { echo "SKIPPED: $program is not installed (cyclictest: apt-get install rt-tests)"; exit 0; }
done
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Nothing of the machine is tuned (--default-system), as for ours; every latency is printed, in nanoseconds.
witness() {
  cyclictest --default-system -m -v -N -t 1 -d 0 -a "$cpu" -p "$priority" -i 1000 -l $((seconds * 1000)) \
    >"$work/witness-$1" 2>"$work/said" || { cat "$work/said" >&2; exit 1; }
}
# A buffer of one page: the job is next to nothing, as cyclictest's.
ours() {
  "$quell" bench periodic --cpu "$cpu" --priority "$priority" --period 1ms --size 4KiB --duration "${seconds}s" --json \
    >"$work/ours-$1"
}
for round in $(seq "$rounds"); do
  if ((round % 2)); then ours "$round"; witness "$round"; else witness "$round"; ours "$round"; fi
done

python3 - "$work" "$rounds" <<'P'
import json, statistics, sys
work, rounds = sys.argv[1], int(sys.argv[2])
print(f"{'round':>5} {'periodic µs':>12} {'cyclictest µs':>14} {'ratio':>6}")
ratios = []
for n in range(1, rounds + 1):
    ours = json.load(open(f"{work}/ours-{n}"))["metrics"]["wakeup_us"]["p50"]
    # Lines are thread:number:latency; the first samples of both are warm-up.
    rows = [line.split(":") for line in open(f"{work}/witness-{n}")]
    values = [int(row[2]) / 1e3 for row in rows if len(row) == 3 and row[2].strip().isdigit() and int(row[1]) >= 200]
    witness = statistics.median(values)
    ratios.append(ours / witness)
    print(f"{n:5} {ours:12.2f} {witness:14.2f} {ours / witness:6.2f}")
print(f"ratio of medians, median over rounds: {statistics.median(ratios):.2f} (from {min(ratios):.2f} to {max(ratios):.2f})")
P
