#!/usr/bin/env bash
# Measures speed and prints it as Markdown, for a page under docs/results/. Needs root and a quiet machine; a quarter of an
# hour. docs/performance.md has the conclusions.
# Usage: scripts/performance.sh path/to/quell > docs/results/YYYY-MM-DD-subject.md
set -euo pipefail
quell=$(realpath "$1")
PATH=$(dirname "$quell"):$PATH
cd "$(dirname "$0")/.."
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
last=$(($(nproc --all) - 1))
say() { printf '\n%s\n' "$@"; }
block() { echo '```'; cat; echo '```'; }

printf '# Speed, measured on %s\n' "$(date +%F)"
say "## The machine" "\`quell doctor --deep\`"
"$quell" doctor --deep 2>/dev/null | sed "/^Mechanisms/,\$d" | block
"$quell" bench rates | block

say "## The frontier" "\`quell compare neighbour\`"
"$quell" compare neighbour --out "$work" 2>/dev/null | block

say "## Achieved ÷ cap" "\`quell compare experiments/caps.toml\`: \`of cap\` is from the bytes the generator counted."
"$quell" compare experiments/caps.toml --json --out "$work" 2>/dev/null >"$work/caps.json"
python3 - "$work/caps.json" <<'P' | block
import json, sys
result = json.load(open(sys.argv[1]))
solo = None
print(f"{'configuration':22} {'MB/s':>8} {'± 95 %':>14}  kept of solo  of cap (measured peak)  of cap (solo in the same rounds)")
for c in result["configurations"]:
    s = c["subjects"][0]
    if c["name"] == "solo":
        solo = s["value"]
    cap = int(c["axes"]["cap"].rstrip("%")) / 100 if c.get("axes") else None
    of = s.get("metrics", {}).get("achieved_of_cap", {}).get("value")
    low, high = s["ci95"]
    print(f"{c['name']:22} {s['value']:8.0f} {low:6.0f}–{high:<7.0f}  {s['value']/solo:12.3f}"
          + (f"  {of:22.3f}" if of else " " * 24) + (f"  {s['value']/solo/cap:10.3f}" if cap else ""))
P

# One group on the last CPU, limited; the rest of the machine as it is.
policy() { cat >"$work/policy.toml" <<P
quell = 1
require = "none"
[group.load]
role = "best-effort"
cpus = "$last"
limit.bandwidth = "$1"
[regulator]
period = "$2"
[mechanisms]
bandwidth = "regulator"
P
}
reaction() { python3 - "$work/$1" <<'P'
import csv, glob, sys
late = {}
for f in glob.glob(sys.argv[1] + "/*/samples/decisions-cpu*.csv"):
    for row in csv.DictReader(open(f)):
        if row["decision"] == "throttle" and row["reaction_ns"]:
            late.setdefault(row["interrupted"], []).append(int(row["reaction_ns"]) / 1000)
for mode, values in sorted(late.items()):
    values.sort()
    at = lambda p: values[min(len(values) - 1, int(p * len(values)))]
    print(f"overflow to throttled, {mode} interrupted: {len(values)} stops, p50 {at(.5):.0f} us, p99 {at(.99):.0f} us, max {values[-1]:.0f} us")
P
}
say "## Overflow to throttled" "A loop in user mode, and one inside system calls (1 MiB reads of /dev/zero), throttled to 30 %; the running spans are the loop's own."
for mode in "" --kernel; do
  policy 30% 1ms
  rm -rf "$work/run"
  { echo "mode: ${mode:---user}"
    "$quell" run -q --out "$work/run" "$work/policy.toml" -- "$quell" bench overrun --cpu "$last" --duration 3s $mode 2>/dev/null
    reaction run; } | block
done

say "## Calls on an unregulated CPU that wait for a throttled one" \
  "\`quell bench flush --cpu 0 --stir $last\` beside a stream on CPU $last: free, then throttled to 10 %."
flush() { "$quell" bench flush --cpu 0 --stir "$last" --duration 4s; }
stream=("$quell" bench bandwidth --cpu "$last" --duration 5s)
{ echo "free:"; "${stream[@]}" >/dev/null & sleep 0.8; flush; wait; } | block
for period in 1ms 10ms 100ms; do
  policy 10% "$period"
  { echo "period: $period"
    "$quell" run -q "$work/policy.toml" -- "${stream[@]}" >/dev/null 2>&1 & sleep 0.8; flush; wait; } | block
done

say "## Overhead below the budget" "\`quell compare experiments/overhead.toml\`: CPU time of the same work, paced below its budget."
"$quell" compare experiments/overhead.toml --out "$work" 2>/dev/null | block

say "## Real programs" "\`scripts/real.py\`: redis and an ffmpeg encode next to \`stress-ng --stream\`; without arguments it has more of both."
scripts/real.py --quell "$quell" --out "$work/real.jsonl" --rounds 3 --pairs '^(redis|ffmpeg) x stream' \
  --only '^(none|weight|cores|cpu-max@20|chosen@20)$' 2>/dev/null

say "## Start and memory"
{ for _ in 1 2 3 4 5; do /usr/bin/env time -f "quell doctor: %e s" "$quell" doctor 2>&1 >/dev/null; done
  policy 30% 1ms
  "$quell" run -q "$work/policy.toml" -- sleep 2 & pid=$!
  sleep 1; grep -E 'VmHWM|VmRSS|VmLck' "/proc/$pid/status"; wait; } | block
