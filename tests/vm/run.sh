#!/usr/bin/env bash
# Runs parts of tests/vm/guest.sh in the lab (`quell lab`, docs/lab.md): a Debian kernel with cgroup v2 alone, in a virtual
# machine. They show what a machine with cgroup v1 cannot (cpuset partitions, cpu.max, subtree_control), and do what no test
# should do to the machine it runs on (taking a CPU away).
#
#   tests/vm/run.sh [PART...]             6.12: remote partitions; without a name, all parts
#   tests/vm/run.sh --kernels [PART...]   also 6.12 and 7.2 fully preemptible, 7.2 as Debian has it (lazily), and 6.1, where all
#                                         other cpusets are narrowed; the first of these with two threads per core
#
# Exit 0: every check passed, or the lab cannot be had here (the reason is printed). Exit 1: a check failed, the guest did not
# come up, or did not finish in time.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
export QUELL_CACHE=${QUELL_CACHE:-$top/.cache}
# Of one boot with all parts; emulated on two busy CPUs they take four to five minutes.
bound=840s

# The same programs as `cargo test` builds, so that nothing is built twice.
built=$(${CARGO:-cargo} build --locked --quiet --manifest-path "$top/Cargo.toml" --workspace --bin quell \
    --test live --test watchdog --test conformance --message-format=json |
    grep -E 'crates/linux/Cargo.toml|"kind":\["bin"\]' | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
mkdir -p "$QUELL_CACHE"
stage=$(mktemp -d "$QUELL_CACHE/vm.XXXXXX")
trap 'rm -rf "$stage"' EXIT
with=(--with "$here/guest.sh=/tests/guest.sh")
for program in $built; do
    case $(basename "$program") in
    quell) quell=$program place=/bin/quell ;;
    live-*) place=/tests/live ;;
    conformance-*) place=/tests/conformance ;;
    watchdog-*) place=/tests/watchdog ;;
    *) continue ;;
    esac
    # Debug information is of no use in there, and makes the image ten times as large.
    strip -S -o "$stage/${place##*/}" "$program"
    with+=(--with "$stage/${place##*/}=$place")
done
# util-linux's: busybox's cannot take a capability away.
if setpriv --help 2>/dev/null | grep -q bounding-set; then with+=(--with "$(command -v setpriv)=/bin/setpriv.full"); fi

# A kernel, and options of `quell lab`.
variants=("6.12 --cpus 4")
if [ "${1:-}" = --kernels ]; then
    shift
    variants+=("6.12 --cpus 6 --smt --append preempt=full" "7.2 --cpus 4" "7.2 --cpus 4 --append preempt=full" "6.1 --cpus 4")
fi
failed=0
for variant in "${variants[@]}"; do
    read -ra options <<<"$variant"
    kernel=${options[0]}
    status=0
    "$quell" lab --build --kernel "$kernel" 2>&1 || status=$?
    case $status in
    0) ;;
    # What cannot be had here, as `quell lab` says it; the reason stands above.
    125)
        echo "SKIPPED: Linux $variant: no lab here"
        [ -z "${QUELL_TEST_SKIPS:-}" ] || echo "all Linux $variant: no lab here" >>"$QUELL_TEST_SKIPS"
        continue
        ;;
    *) echo "FAILED tests/vm, Linux $variant: the lab could not be built (status $status)"; failed=1; continue ;;
    esac
    began=$SECONDS
    if "$quell" lab --kernel "${options[@]}" --memory 2GiB --disk 64MiB --timeout $bound "${with[@]}" -- sh /tests/guest.sh "$@"; then
        echo "== Linux $variant: passed in $((SECONDS - began)) s"
    else
        echo "FAILED tests/vm, Linux $variant"
        failed=1
    fi
done
exit "$failed"
