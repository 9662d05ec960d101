#!/usr/bin/env bash
# All tests: first, side by side, the targets that need no quiet machine (pure code, the simulated machine, the lab); then, one at a
# time, those that measure or change the machine they run on. Prints what each said, and at the end the ten slowest.
#
# What a shared host does to a measurement (a CPU taken away for a while, a cache filled by a stranger) no bound can foresee. So the
# targets that measure, and those in a virtual machine, are tried up to three times, the second and third time alone. One that
# passed only then is named as FLAKY. A test that is wrong fails three times; everything else has one try.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 1
cargo=${CARGO:-cargo}
jobs=${JOBS:-$(nproc)}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

# Targets (PACKAGE/NAME) that need the machine to themselves.
alone='^(quell-(linux|workload)/.*|quell/(attached|attribution|backend|combined|deep|demo|direct|hoard|hold|input|kills|limits|look|memory|native|pages|paging|profile|programs|real|scheduler|settling|speaks|stages|sweep|units|windows))$'
# Targets in a virtual machine: the longest, so that they begin first.
lab='^(quell/(coloured|divided|following|hoarded|interrupts|lab|locked|nodes|pressed|registers|stopped|throttled|timeline|turned|ways|windowed)|quell-lab-plugin/lab|vm)$'

"$cargo" test --workspace --locked --no-run --message-format=json >"$work/built" || exit 1
# PACKAGE/NAME FOLDER PROGRAM
sed -nE 's,.*"manifest_path":"([^"]*)/([^"/]*)/Cargo.toml".*"kind":\["([^"]*)"\].*"crate_types":[^}]*"name":"([^"]*)".*"profile":\{[^}]*"test":true\}.*"executable":"([^"]+)".*,\2 \4 \1/\2 \5,p' \
    "$work/built" | while read -r folder name dir program; do
    package=quell-$folder
    [ "$folder" != cli ] || package=quell
    echo "$package/$name $dir $program"
done | sort -u >"$work/targets"
echo "vm . tests/vm/run.sh" >>"$work/targets"

# one TARGET FOLDER PROGRAM: runs it; its output, status and seconds become files.
one() {
    local file=$work/${1//\//+} began=$EPOCHREALTIME
    if [ "$1" = vm ]; then
        CARGO="$cargo" "$3" >"$file.out" 2>&1
    else
        (cd "$2" && exec "$3" --test-threads=1) >"$file.out" 2>&1
    fi
    echo $? >"$file.status"
    awk -v a="$began" -v b="$EPOCHREALTIME" -v name="$1" 'BEGIN { printf "%7.1f s  %s\n", b - a, name }' >>"$work/times"
    { echo "     Running $1"; cat "$file.out"; } >"$file.told"
    # In one piece, so that outputs do not mix.
    cat "$file.told"
}
passed() { [ "$(cat "$work/${1//\//+}.status" 2>/dev/null)" = 0 ]; }

{ grep -E "$lab" <(cut -d' ' -f1 "$work/targets"); grep -vE "$lab" <(cut -d' ' -f1 "$work/targets"); } >"$work/order"
while read -r target; do
    [[ $target =~ $alone ]] && continue
    while [ "$(jobs -rp | wc -l)" -ge "$jobs" ]; do wait -n; done
    read -r _ dir program < <(grep "^$target " "$work/targets")
    one "$target" "$dir" "$program" &
done <"$work/order"
wait
while read -r target dir program; do
    [[ $target =~ $alone ]] && one "$target" "$dir" "$program"
done <"$work/targets"
"$cargo" test --workspace --locked --doc -q || exit 1

failed=0 flaky=()
while read -r target dir program; do
    passed "$target" && continue
    if ! [[ $target =~ $alone || $target =~ $lab ]]; then
        echo "FAILED: $target"
        failed=1
        continue
    fi
    for try in 2 3; do
        echo "--- $target failed; try $try of 3"
        one "$target" "$dir" "$program"
        passed "$target" && break
    done
    if passed "$target"; then flaky+=("$target (try $try)"); else echo "FAILED three times: $target"; failed=1; fi
done <"$work/targets"
echo "The slowest:"
sort -rn "$work/times" | head -10
[ ${#flaky[@]} = 0 ] || printf 'FLAKY: %s\n' "${flaky[@]}"
exit "$failed"
