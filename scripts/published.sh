#!/usr/bin/env bash
# Runs the experiments of published studies and puts their reports into docs/examples/published: NAME.html, which git ignores, and
# NAME.txt, the table and every published figure next to ours. Simulated ones need no root and take minutes to an hour each. Those of memory
# pressure run in the lab. Usage: scripts/published.sh [NAME…]; QUELL=path of the program.
set -euo pipefail
cd "$(dirname "$0")/.."
quell=${QUELL:-target/release/quell}
keep=docs/examples/published
declare -A machine=(
    [webrtc]=sim:xeon-w3530
    [webrtc-period]=sim:xeon-w3530
    [p4080-4core]=sim:p4080
    [p4080-8core]=sim:p4080
    [apollolake-cat]=sim:apollolake
    [pressure-anon]=lab
    [pressure-file-once]=lab
    [pressure-file-repeat]=lab
)
[ $# -gt 0 ] || set -- "${!machine[@]}"
mkdir -p "$keep"
for name; do
    on=${machine[$name]:?"$name is no published experiment: ${!machine[*]}"}
    out=$(mktemp -d)
    echo "$name on $on"
    status=0
    # 3: a direction is wrong. The text says which.
    "$quell" compare "experiments/$name.toml" --on "$on" --check --out "$out" >"$keep/$name.txt" 2>"$out/said" || status=$?
    if [ "$status" != 0 ] && [ "$status" != 3 ]; then
        cat "$out/said" >&2
        exit "$status"
    fi
    cp "$(find "$out" -name report.html)" "$keep/$name.html"
    rm -r "$out"
done
