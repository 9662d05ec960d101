#!/usr/bin/env bash
# All tests, one at a time: many measure the machine they run on, and two of them at once would measure each other.
#
# What a shared host does to a measurement (a CPU taken away for a while, a cache filled by a stranger) no bound can foresee. So the
# targets that measure are tried up to three times, and one that passed only then is named as FLAKY. A test that is wrong fails
# three times; everything else has one try.
set -uo pipefail
cd "$(dirname "$0")/.."
cargo=${CARGO:-cargo}
measuring='^-p quell(-linux|-workload)? '
log=$(mktemp)
trap 'rm -f "$log"' EXIT

"$cargo" test --workspace --locked --no-fail-fast -- --test-threads=1 2>&1 | tee "$log"
status=${PIPESTATUS[0]}
[ "$status" = 0 ] && exit 0

# At its end cargo lists them: `-p quell --test look`. Nothing is listed where something did not compile.
mapfile -t failed < <(sed -nE 's/^ +`(-p .*)`$/\1/p' "$log")
[ ${#failed[@]} -gt 0 ] || exit "$status"
flaky=()
for target in "${failed[@]}"; do
    [[ "$target " =~ $measuring ]] || { echo "FAILED: $target"; exit "$status"; }
    passed=
    for try in 2 3; do
        echo "--- $target failed; try $try of 3"
        # Of the whole workspace, as built before: alone, a package has other features of its dependencies, and all is built anew.
        # Words on purpose: these are cargo's arguments.
        # shellcheck disable=SC2086
        if "$cargo" test --workspace --locked ${target#-p * } -- --test-threads=1; then
            passed=$try
            break
        fi
    done
    [ -n "$passed" ] || { echo "FAILED three times: $target"; exit "$status"; }
    flaky+=("$target (try $passed)")
done
printf 'FLAKY: %s\n' "${flaky[@]}"
