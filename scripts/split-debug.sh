#!/bin/sh
# scripts/split-debug.sh FILE...: moves the debug information of each program to FILE.debug next to it.
# The program names that file, so backtraces and debuggers find source lines there. Function names stay in the program.
# The program is replaced, not written to: cargo links it to a file of its own, which must stay whole.
set -eu
if ! command -v objcopy >/dev/null; then
    echo "split-debug: objcopy (package binutils) is missing, so $* keeps its debug information" >&2
    exit 0
fi
for file; do
    trap 'rm -f "$file.debug.new" "$file.new"' EXIT
    objcopy --only-keep-debug --compress-debug-sections=zlib "$file" "$file.debug.new"
    mv "$file.debug.new" "$file.debug"
    objcopy --strip-debug --add-gnu-debuglink="$file.debug" "$file" "$file.new"
    mv "$file.new" "$file"
done
