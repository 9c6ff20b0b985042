#!/usr/bin/env bash
# Tests the page of the admin port in a real browser: its charts have points after traffic, nothing
# is wrong on its console, and names that look like HTML are shown as text.
#
#   scripts/admin-page.sh [DAFS]      the binary; target/release/dafs if not given
#
# Installs chromium where it is missing.
set -euo pipefail
# Units have letters that only UTF-8 has.
export LC_ALL=C.UTF-8
cd "$(dirname "$0")/.."
scripts/setup.sh browser
dafs=$(realpath "${1:-target/release/dafs}")
browser=$(command -v chromium || command -v chromium-browser || command -v google-chrome)

work=$(mktemp -d)
pids=()
end() {
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT

fail() {
    echo "admin page: $*" >&2
    tail -n 20 "$work/console" >&2 || true
    exit 1
}

hostile='<img src=x onerror=document.title=1>'
mkdir -p "$work/plain" "$work/<b id=planted>"
head -c 2000000 /dev/urandom >"$work/plain/f"
cat >"$work/config.toml" <<TOML
listen = ["tcp://127.0.0.1:0"]
arena_bytes = 67108864
state = "$work/state"
[[export]]
name = "plain"
path = "$work/plain"
[[export]]
name = "$hostile"
path = "$work/<b id=planted>"
TOML
"$dafs" serve --config "$work/config.toml" >"$work/url" 2>"$work/serve" &
pids+=($!)
for _ in $(seq 300); do
    [ -s "$work/url" ] && break
    sleep 0.1
done
url=$(head -n 1 "$work/url")
[ -n "$url" ] || fail "the server did not start: $(cat "$work/serve")"
admin=$("$dafs" status "$url" | sed -n 's/.*admin \(http:[^ ]*\)$/\1/p')
[ -n "$admin" ] || fail "no admin address"

# Traffic as long as the browser looks; of reads from the cache few are timed. The first copy is over
# before it does.
traffic() {
    while "$dafs" cp --retry 1s "$work/plain/f" "${url}plain/g" &&
        "$dafs" cache drop "${url}plain/g" && "$dafs" cat --retry 1s "${url}plain/g"; do :; done
}
"$dafs" cp "$work/plain/f" "${url}plain/g" 2>/dev/null
traffic >/dev/null 2>&1 &
pids+=($!)

# And a session that is there at every look: its output is never read.
mkfifo "$work/unread"
"$dafs" cat --retry 1s "${url}plain/f" >"$work/unread" 2>/dev/null &
pids+=($!)
exec 9<"$work/unread"

# The browser's clock leaps from one sample to the next.
timeout -k 5 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run \
    --user-data-dir="$work/profile" --enable-logging=stderr --virtual-time-budget=200000 \
    --dump-dom "$admin" >"$work/dom" 2>"$work/console" || fail "the browser failed"

if grep -q ':CONSOLE' "$work/console"; then
    fail "the console is not empty: $(grep ':CONSOLE' "$work/console" | head -n 3)"
fi
# The points of the first line of a chart, one a line, as X,Y.
points() {
    tr '\n' ' ' <"$work/dom" | sed "s/.*id=\"chart-$1\"//; s/<\/figure>.*//" |
        sed 's/.*class="first" points="\([^"]*\)".*/\1/' | tr ' ' '\n' | grep , || true
}
for chart in requests bytes hits named-reads own-reads latency latency-writes store dirty cached sessions; do
    [ "$(points $chart | wc -l)" -ge 2 ] || fail "chart '$chart' has no line"
done
# What stands at the axes of a chart, and in its caption.
figure() { tr '\n' ' ' <"$work/dom" | sed "s/.*id=\"chart-$1\"//; s/<\/figure>.*//"; }
labelled() { # CHART UNIT
    figure "$1" | grep -q "<span class=\"top\">[0-9.]* *$2</span>" || fail "chart '$1' has no axis in $2"
    figure "$1" | grep -q '<span>5 min ago</span>.*<span>now</span>' || fail "chart '$1' has no axis of time"
}
labelled requests /s
labelled bytes '[KMG]iB/s'
labelled latency '[µm]s'
labelled latency-writes '[µm]s'
labelled cached '[KMG]iB'
labelled hits %
labelled named-reads /s
labelled own-reads /s
for part in answered refused; do
    figure named-reads | grep -q ">  *$part " || fail "chart 'named-reads' does not tell what was $part"
done
for part in found 'asked after all'; do
    figure own-reads | grep -q ">  *$part " || fail "chart 'own-reads' does not tell what was $part"
done
for part in p50 p99 p99.9; do
    figure latency | grep -q ">  *$part " || fail "chart 'latency' does not tell $part"
    grep -q "<th>$part</th>" "$work/dom" || fail "the table of latency does not tell $part"
done
for chart in requests bytes cached; do
    [ "$(points $chart | wc -l)" -ge 100 ] || fail "chart '$chart' has few points"
done
for chart in requests bytes; do
    [ "$(points $chart | cut -d, -f2 | sort -u | wc -l)" -ge 2 ] || fail "chart '$chart' is flat"
done
grep -q '<td>127.0.0.1:' "$work/dom" || fail "no session is listed"
grep -q '<td>/&lt;img src=x onerror=document.title=1&gt;</td>' "$work/dom" ||
    fail "the name of the export is not shown as text"
if grep -q '<img\|id="planted"' "$work/dom"; then fail "a name became HTML"; fi
grep -q '<title>dafs</title>' "$work/dom" || fail "a name was run as a script"
grep -q 'class="lost"' "$work/dom" && fail "the page lost the server"

# The page is light or dark as the system is set: the first pixel of a picture, as red, green and blue.
corner() { # SCHEME: 0 dark, 1 light
    timeout -k 5 120 "$browser" --headless --no-sandbox --disable-gpu --no-first-run --hide-scrollbars \
        --user-data-dir="$work/profile" --blink-settings=preferredColorScheme="$1" --window-size=400,300 \
        --screenshot="$work/picture.png" "$admin" >/dev/null 2>&1 || fail "the browser takes no picture"
    python3 - "$work/picture.png" <<'PYTHON'
import sys, zlib
data, at, packed = open(sys.argv[1], "rb").read(), 8, b""
while at < len(data):
    length = int.from_bytes(data[at:at + 4], "big")
    if data[at + 4:at + 8] == b"IDAT":
        packed += data[at + 8:at + 8 + length]
    at += 12 + length
print(*zlib.decompress(packed)[1:4])
PYTHON
}
[ "$(corner 1)" = "255 255 255" ] || fail "the page is not light where the system is: $(corner 1)"
[ "$(corner 0)" = "17 24 39" ] || fail "the page is not dark where the system is: $(corner 0)"
echo "admin page: the page is light or dark as the system is, axes have units and time"
echo "admin page: charts have points, the console is empty, names are text"
