#!/usr/bin/env bash
# Two unmodified programs beside an unmodified neighbour, protected by the file-less `quell run`: redis-server answering
# redis-benchmark, and an ffmpeg encode, beside `stress-ng --stream` on every CPU. Prints a table for docs/performance.md.
# Needs root, redis-server, redis-tools, ffmpeg, stress-ng and a quiet machine; eight minutes.
# Usage: scripts/real.sh path/to/quell [rounds]
set -euo pipefail
quell=$(realpath "$1")
rounds=${2:-5}
port=36380
work=$(mktemp -d)
started=()
end() { for pid in "${started[@]}"; do kill "$pid" 2>/dev/null || true; wait "$pid" 2>/dev/null || true; done; rm -rf "$work"; }
trap end EXIT
for program in redis-server redis-benchmark ffmpeg stress-ng python3; do
  command -v "$program" >/dev/null || { echo "SKIPPED: $program is not installed"; exit 0; }
done

redis-server --port "$port" --save "" --appendonly no >/dev/null & started+=($!)
until redis-cli -p "$port" ping >/dev/null 2>&1; do sleep 0.1; done

neighbour() { stress-ng --stream "$(nproc)" --timeout 60 >/dev/null 2>&1 & noise=$!; sleep 2; }
quiet() { kill "$noise" 2>/dev/null || true; wait "$noise" 2>/dev/null || true; }
# CPU time of the neighbour's workers so far, in clock ticks (10 ms).
ticks() {
  local pid all
  all=$(pgrep -P "$noise" || true)
  for pid in $all; do all+=" $(pgrep -P "$pid" || true)"; done
  for pid in $all; do cat "/proc/$pid/stat" 2>/dev/null || true; done | awk '{ sum += $14 + $15 } END { print sum + 0 }'
}
now() { echo "${EPOCHREALTIME/./}"; }
# beside CONFIGURATION PROGRAM COMMAND…: runs the command, and notes the per cent of a CPU the neighbour had meanwhile.
beside() {
  local ticks_before from
  ticks_before=$(ticks) from=$(now)
  "${@:3}"
  echo "$1 neighbour-$2 $((($(ticks) - ticks_before) * 1000000 / ($(now) - from)))" >>"$work/rows"
}
# One connection, so that client and server take turns on one CPU as well as on two.
# One row of raw figures: CONFIGURATION PROGRAM p50-ms p99-ms requests-per-second, or milliseconds for an encode.
redis() { redis-benchmark -p "$port" -t get -n 60000 -c 1 --csv |
  awk -F'","' -v c="$1" '$1 ~ /GET/ { gsub(/"/, ""); split($0, f, ","); print c, "redis", f[5], f[7], f[2] }' >>"$work/rows"; }
encode=(ffmpeg -nostdin -v error -f lavfi -i "testsrc2=size=640x360:rate=30" -t 6 -threads 1 -c:v libx264 -f null -)
timed() { local from; from=$(now); "${@:2}" >/dev/null 2>&1; echo "$1 ffmpeg $((($(now) - from) / 1000))" >>"$work/rows"; }
critical=(--critical exe="$(command -v redis-server)" --critical exe="$(command -v redis-benchmark)")

for ((round = 0; round < rounds; round++)); do
  redis solo
  timed solo "${encode[@]}"

  neighbour; beside none redis redis none; quiet
  neighbour; beside none ffmpeg timed none "${encode[@]}"; quiet

  for cap in 50% 20%; do
    name=quell-$cap options=(--limit "$cap")
    neighbour
    "$quell" run -q "${critical[@]}" --best-effort comm=stress-ng "${options[@]}" 2>>"$work/said" & hold=$!
    sleep 1.5; beside "$name" redis redis "$name"
    kill "$hold"; wait "$hold" || true
    quiet
    neighbour
    beside "$name" ffmpeg timed "$name" "$quell" run -q --best-effort comm=stress-ng "${options[@]}" -- "${encode[@]}"
    quiet
  done
done
cat "$work/said" >&2 || true

python3 - "$work/rows" <<'P'
import collections, statistics, sys
rows = collections.defaultdict(list)
order = []
for line in open(sys.argv[1]):
    name, program, *values = line.split()
    rows[name, program].append([float(v) for v in values])
    if name not in order: order.append(name)
def figure(name, program, column, digits):
    values = sorted(r[column] for r in rows[name, program])
    return f"{statistics.median(values):.{digits}f} ({values[0]:.{digits}f}-{values[-1]:.{digits}f})"
def kept(name, program):
    values = rows.get((name, f"neighbour-{program}"))
    return f"{statistics.median(v[0] for v in values):.0f} %" if values else "-"
print(f"{'':10} {'redis GET p50 ms':>22} {'p99 ms':>22} {'requests/s':>24} {'neighbour':>10}   {'ffmpeg ms':>20} {'neighbour':>10}")
for name in order:
    print(f"{name:10} {figure(name,'redis',0,3):>22} {figure(name,'redis',1,3):>22} {figure(name,'redis',2,0):>24} {kept(name,'redis'):>10}"
          f"   {figure(name,'ffmpeg',0,0):>20} {kept(name,'ffmpeg'):>10}")
print(f"median (least-most) of {len(rows[order[0],'redis'])} rounds; neighbour: CPU time of its workers meanwhile, of one CPU")
P
