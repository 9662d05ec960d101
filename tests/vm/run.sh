#!/usr/bin/env bash
# Boots a Debian kernel in a virtual machine with cgroup v2 alone, and runs tests/vm/guest.sh in it: what a machine with
# cgroup v1 cannot show (cpuset partitions, cpu.max, subtree_control), and what no test should do to the machine it
# runs on (taking a CPU away).
#
#   tests/vm/run.sh            the newest kernel: remote partitions
#   tests/vm/run.sh all        also the release's own (6.1 in bookworm): everybody else is narrowed
#
# Exit 0: every check passed, or no virtual machine can be had or booted here (the reason is printed; with `all`, one that
# does not boot is a failure). Exit 1: a check failed, or the guest did not finish in time. Kernels and QEMU are unpacked into .cache/vm, never installed; delete it to fetch
# newer ones.
#
# QUELL_VM_ACCEL=kvm or =tcg decides how to run; otherwise KVM is used on bare metal and emulation in a virtual machine,
# where nested KVM may fail or bring the machine to a stand.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../.." && pwd)
cache=${QUELL_VM_CACHE:-$top/.cache/vm}
# Of one boot with all checks, seconds; emulated on two busy CPUs it takes two to three minutes. Counted in naps, not by
# the clock: a paused machine's clock leaps.
bound=420
# Until the guest's first word: ten seconds where nothing is wrong.
spoken=120

skip() {
    echo "SKIPPED tests/vm: $1"
    exit 0
}

# --- What it takes -------------------------------------------------------------------------------------------------

[ "$(uname -m)" = x86_64 ] || skip "the image recipe is for x86-64, this is $(uname -m)"
missing=()
command -v qemu-system-x86_64 >/dev/null || missing+=(qemu-system-x86 seabios)
command -v cpio >/dev/null || missing+=(cpio)
# The static one: it is the guest's shell, and needs nothing.
busybox=/bin/busybox
{ [ -x "$busybox" ] && ! ldd "$busybox" >/dev/null 2>&1; } || missing+=(busybox-static)
if [ ${#missing[@]} -gt 0 ]; then
    command -v apt-get >/dev/null || skip "${missing[*]} not installed, and there is no apt-get to get them with"
    [ "$(id -u)" = 0 ] || skip "${missing[*]} not installed: as root, apt-get install ${missing[*]}"
    { apt-get update -qq && DEBIAN_FRONTEND=noninteractive \
        apt-get install -y -qq --no-install-recommends "${missing[@]}"; } >/dev/null 2>&1 ||
        skip "apt-get install ${missing[*]} failed"
fi
mkdir -p "$cache"

# A source list of our own for backports, at the mirror that is configured: nothing of the system's is changed.
backports_options() {
    local apt="$cache/apt" site suite
    site=$(apt-get indextargets --format '$(SITE)' "Origin: Debian" "Label: Debian" 2>/dev/null | head -1)
    suite=$(. /etc/os-release && echo "${VERSION_CODENAME:-}")
    [ -n "$site" ] && [ -n "$suite" ] || return 1
    mkdir -p "$apt/lists/partial" "$apt/cache/archives/partial"
    cat >"$apt/backports.sources" <<SOURCES
Types: deb
URIs: $site
Suites: $suite-backports
Components: main
Signed-By: /usr/share/keyrings/debian-archive-keyring.gpg
SOURCES
    printf '%s\n' -o "Dir::Etc::sourcelist=$apt/backports.sources" -o Dir::Etc::sourceparts=/dev/null \
        -o "Dir::State::lists=$apt/lists" -o "Dir::Cache=$apt/cache"
}

# fetch DIRECTORY PACKAGE… with apt's options in $options: unpacked into DIRECTORY/root.
options=()
fetch() {
    local into=$1 deb
    shift
    rm -rf "$into"
    mkdir -p "$into/root"
    (cd "$into" && apt-get "${options[@]}" download "$@" >/dev/null 2>&1) || return 1
    for deb in "$into"/*.deb; do dpkg -x "$deb" "$into/root" || return 1; done
    rm -f "$into"/*.deb
}

# kernel NAME: the image of linux-image-cloud-amd64, all that the checks need is built into it.
kernel() {
    local package
    package=$(apt-cache "${options[@]}" depends linux-image-cloud-amd64 2>/dev/null |
        sed -n 's/^ *Depends: \(linux-image-[0-9][^ ]*\).*/\1/p' | head -1)
    [ -n "$package" ] && fetch "$cache/$1.new" "$package" || return 1
    cp "$cache/$1.new"/root/boot/vmlinuz-* "$cache/$1.new/vmlinuz" || return 1
    echo "${package#linux-image-}" >"$cache/$1.new/release"
    rm -rf "$cache/$1.new/root" "${cache:?}/$1"
    mv "$cache/$1.new" "$cache/$1"
}

# The installed QEMU if it is 8 or newer: 7.2 crashes newer kernels while they boot. Otherwise that of the backports.
qemu=(qemu-system-x86_64)
version=$(qemu-system-x86_64 --version | sed -n 's/.*version \([0-9]*\)\..*/\1/p')
recent=yes
[ "${version:-0}" -ge 8 ] || recent=no
if [ ! -e "$cache/backports/vmlinuz" ] || { [ $recent = no ] && [ ! -d "$cache/qemu" ]; }; then
    if mapfile -t options < <(backports_options) && [ ${#options[@]} -gt 0 ] &&
        apt-get "${options[@]}" update -qq >/dev/null 2>&1; then
        [ -e "$cache/backports/vmlinuz" ] || kernel backports || true
        if [ $recent = no ] && [ ! -d "$cache/qemu" ] &&
            fetch "$cache/qemu.new" qemu-system-x86 qemu-system-data seabios; then
            mv "$cache/qemu.new" "$cache/qemu"
        fi
    fi
    options=()
fi
if [ $recent = no ] && [ -d "$cache/qemu" ]; then
    share=$cache/qemu/root/usr/share
    newer=("$cache/qemu/root/usr/bin/qemu-system-x86_64" -L "$share/qemu" -L "$share/seabios")
    # It runs with the libraries of the installed one, as long as they suffice.
    if "${newer[@]}" --version >/dev/null 2>&1; then
        qemu=("${newer[@]}")
        recent=yes
    fi
fi
kernels=()
if [ ! -e "$cache/backports/vmlinuz" ]; then
    echo "SKIPPED tests/vm, remote partitions: no newer kernel in the backports of the configured mirror"
elif [ $recent = no ]; then
    echo "SKIPPED tests/vm, remote partitions: QEMU is older than 8, and no newer one runs here"
else
    kernels+=(backports)
fi
if [ "${1:-}" = all ] || [ ${#kernels[@]} -eq 0 ]; then
    [ -e "$cache/release/vmlinuz" ] || kernel release || { apt-get update -qq >/dev/null 2>&1 && kernel release; } ||
        echo "SKIPPED tests/vm, narrowing: the kernel of this release cannot be had with apt-get"
    [ ! -e "$cache/release/vmlinuz" ] || kernels+=(release)
fi
[ ${#kernels[@]} -gt 0 ] || skip "no kernel image can be had with apt-get"

# --- The image -----------------------------------------------------------------------------------------------------
# The same programs as `cargo test` builds, so that nothing is built twice, with the libraries they name.

built=$(${CARGO:-cargo} build --locked --quiet --manifest-path "$top/Cargo.toml" --workspace --bin quell \
    --test live --test watchdog --test conformance --message-format=json | sed -n 's/.*"executable":"\([^"]*\)".*/\1/p')
image="$cache/image"
rm -rf "$image"
mkdir -p "$image"/{bin,proc,sys,dev,tmp,run,etc,tests,var/lib}
cp "$busybox" "$image/bin/busybox"
for applet in $("$busybox" --list); do
    [ "$applet" = busybox ] || ln -s busybox "$image/bin/$applet"
done
for program in $built; do
    case $(basename "$program") in
    quell) cp "$program" "$image/bin/quell" ;;
    live-*) cp "$program" "$image/tests/live" ;;
    conformance-*) cp "$program" "$image/tests/conformance" ;;
    watchdog-*) cp "$program" "$image/tests/watchdog" ;;
    esac
done
# Debug information is of no use in there, and makes the image ten times as large.
strip -S "$image/bin/quell" "$image"/tests/*
# util-linux's: busybox's cannot take a capability away.
if setpriv --help 2>/dev/null | grep -q bounding-set; then cp "$(command -v setpriv)" "$image/bin/setpriv.full"; fi
for library in $(ldd "$image/bin/quell" "$image"/bin/setpriv.full "$image"/tests/* 2>/dev/null |
    sed -n 's|^[^/]*\(/[^ ]*\.so[^ ]*\) (.*|\1|p' | sort -u); do
    mkdir -p "$image$(dirname "$library")"
    cp -L "$library" "$image$library"
done
cp "$here/guest.sh" "$image/init"
chmod +x "$image/init"
echo 'root:x:0:0::/:/bin/sh' >"$image/etc/passwd"
(cd "$image" && find . | cpio -o -H newc --quiet | gzip -1) >"$cache/initramfs.gz"

# --- The machine ---------------------------------------------------------------------------------------------------

machine=
trap '[ -z "$machine" ] || kill -9 "$machine" 2>/dev/null || true' EXIT

# What the guest said: the serial line ends its lines in CR LF, and the firmware speaks first.
said() { tr -d '\r' <"$cache/$1/console.log" | sed -n 's/^.*-- guest/-- guest/;/^-- guest/,/^-- [0-9]* passed/p'; }

# boot NAME ACCELERATOR: all it says goes to its console.log. Whether it ended by itself in time.
boot() {
    local name=$1 accelerator=$2 log="$cache/$1/console.log" naps=0 ended=yes
    "${qemu[@]}" -accel "$accelerator" -cpu max -smp 4 -m 2048 -nographic -no-reboot -nic none \
        -kernel "$cache/$name/vmlinuz" -initrd "$cache/initramfs.gz" \
        -append "panic=-1 console=ttyS0 psi=1 loglevel=4" </dev/null >"$log" 2>&1 &
    machine=$!
    while kill -0 "$machine" 2>/dev/null; do
        if [ $naps -ge $((bound * 2)) ] || { [ $naps -ge $((spoken * 2)) ] && [ -z "$(said "$name")" ]; } ||
            grep -q 'KVM internal error' "$log"; then
            kill -9 "$machine"
            ended=no
            break
        fi
        sleep 0.5
        naps=$((naps + 1))
    done
    wait "$machine" 2>/dev/null || true
    machine=
    [ $ended = yes ]
}

accelerators=(tcg,thread=multi tcg,thread=single)
case ${QUELL_VM_ACCEL:-} in
kvm) accelerators=(kvm) ;;
tcg) ;;
*) if dd if=/dev/kvm count=0 2>/dev/null && ! grep -qw hypervisor /proc/cpuinfo; then
    accelerators=(kvm "${accelerators[@]}")
fi ;;
esac
failed=0
for name in "${kernels[@]}"; do
    began=$SECONDS
    # A guest that has said something is judged; one that has not is booted another way.
    for accelerator in "${accelerators[@]}"; do
        echo "== Linux $(cat "$cache/$name/release"), $accelerator"
        ended=yes
        boot "$name" "$accelerator" || ended=no
        if [ -n "$(said "$name")" ]; then break; fi
        echo "   it does not boot this way; the console's last lines:"
        tr -d '\r' <"$cache/$name/console.log" | tail -n 15 | cut -c1-160 | sed 's/^/   | /'
    done
    said "$name"
    if [ -z "$(said "$name")" ]; then
        [ "${1:-}" = all ] || skip "no virtual machine boots here"
        failed=1
    elif [ $ended = no ]; then
        echo "FAILED: the guest did not finish within $bound s; all it said is in $cache/$name/console.log"
        failed=1
    elif ! said "$name" | grep -q '^-- [1-9][0-9]* passed, 0 failed, [0-9]* skipped$'; then
        echo "FAILED: all the guest said is in $cache/$name/console.log"
        failed=1
    else
        echo "== passed in $((SECONDS - began)) s"
    fi
done
exit "$failed"
