#!/bin/sh
# Pictures of a report, to be looked at: three widths, light and dark, and print.
#   scripts/look.sh REPORT.html [DIR]     (DIR: where the pictures go, default ./look)
# Needs Chromium, and pdftoppm for the printed pages; skips aloud without.
set -eu

page=$(realpath "${1:?usage: scripts/look.sh REPORT.html [DIR]}")
dir=${2:-look}
mkdir -p "$dir"

for name in chromium chromium-browser google-chrome; do
    command -v "$name" >/dev/null && browser=$name && break
done
if [ -z "${browser:-}" ]; then
    echo "SKIPPED: no Chromium here (apt-get install chromium); nothing was drawn"
    exit 0
fi

profile=$(mktemp -d)
trap 'rm -rf "$profile"' EXIT
chrome() {
    timeout 120 "$browser" --headless --no-sandbox --disable-gpu --hide-scrollbars --user-data-dir="$profile" "$@" \
        "file://$page" >/dev/null 2>"$profile/log" || { cat "$profile/log" >&2; return 1; }
}

# A window narrower than 500 pixels is not to be had: a phone is a frame of 360 in a wider window. The frame's page sees
# the frame's width in its media queries, as it would a phone's.
frame() {
    printf '<!doctype html><body style="margin:0"><iframe src="file://%s" style="width:360px;height:%spx;border:0"></iframe>' \
        "$page" "$1" >"$profile/frame.html"
    page_was=$page
    page=$profile/frame.html
}

for scheme in light dark; do
    # 0 is dark, 1 is light (blink's PreferredColorScheme).
    set -- "--blink-settings=preferredColorScheme=$([ $scheme = dark ] && echo 0 || echo 1)"
    for width in 800 1400; do
        chrome "$@" --window-size="$width,9000" --screenshot="$dir/$scheme-$width.png"
        echo "$dir/$scheme-$width.png"
    done
    frame 14000
    chrome "$@" --allow-file-access-from-files --window-size=500,14000 --screenshot="$dir/$scheme-360.png"
    page=$page_was
    echo "$dir/$scheme-360.png"
done

chrome --no-pdf-header-footer --print-to-pdf="$dir/print.pdf"
echo "$dir/print.pdf"
if command -v pdftoppm >/dev/null; then
    pdftoppm -r 70 -png "$dir/print.pdf" "$dir/print"
else
    echo "SKIPPED: no pdftoppm here (apt-get install poppler-utils); print.pdf was not turned into pictures"
fi
