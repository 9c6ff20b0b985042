#!/usr/bin/env bash
# Clients and servers of two builds work together: compatibility.sh [OLD]. OLD is a commit or a file, a build of
# dafs; without it the commit in scripts/wire-baseline. A client of the one works with a server of the other and
# the other way round: names, data, attributes, locks, a mount, a key, a server that is killed and comes back.
# Last line: a summary.
set -euo pipefail
cd "$(dirname "$0")/.."
[ $# -le 1 ] || { echo "usage: compatibility.sh [OLD]" >&2; exit 2; }
old=${1:-$(grep -v '^#' scripts/wire-baseline)}
old=$(realpath "$(scripts/build-commit.sh "$old")")
new=$(realpath "${DAFS_BIN:-target/release/dafs}")
[ -x "$new" ] || { echo "compatibility.sh: no $new: make build first" >&2; exit 1; }
work=$(mktemp -d)
server='' mounted='' checks=0 proof=()

end() {
    [ -z "$mounted" ] || umount -l "$work/mount" || true
    [ -z "$server" ] || { kill -9 "$server" && wait "$server"; } 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

fail() {
    echo "compatibility.sh: $pair: $1" >&2
    sed 's/^/  server: /' "$work/told" >&2 || true
    exit 1
}

# A command that must succeed; what it prints is kept in $work/out.
ok() {
    checks=$((checks + 1))
    timeout 60 "$@" >"$work/out" 2>"$work/err" || { cat "$work/err" >&2; fail "$*"; }
}

# A check of what was done.
holds() {
    checks=$((checks + 1))
    "$@" || fail "does not hold: $*"
}

# Starts $serve at a port (0: any) with options.
start() { # PORT OPTIONS…
    local at=$1
    shift
    "$serve" serve --listen "tcp://127.0.0.1:$at" --local-socket none --state "$work/state" "$@" "$work/served" \
        >"$work/told" 2>&1 9>&- &
    server=$!
    port=
    until [ -n "$port" ]; do
        kill -0 "$server" 2>/dev/null || fail "the server does not start"
        sleep 0.05
        port=$(sed -n 's/.*dafs:\/\/[^ ]*:\([0-9][0-9]*\)\/.*/\1/p' "$work/told" | head -n 1)
    done
    url=dafs://127.0.0.1:$port
}

stop() { # SIGNAL
    kill "-$1" "$server"
    wait "$server" 2>/dev/null || true
    server=
}

# A command of the client, with what proves who it is.
client() { # COMMAND…
    local command=$1
    shift
    ok "$use" "$command" "${proof[@]}" "$@"
}

# Names, data, attributes, by the command line.
by_commands() { # QUERY
    local at=$url/there query=$1
    client mkdir "$at$query"
    client cp -r "$work/tree" "$at/$query"
    holds diff -r "$work/tree" "$work/served/there/tree"
    client cp -r "$at/tree$query" "$work/back"
    holds diff -r "$work/tree" "$work/back"
    client ls -l "$at/tree$query"
    client cat "$at/tree/large$query"
    holds cmp "$work/tree/large" "$work/out"
    client ln "$at/tree/small$query" "$at/tree/linked$query"
    client mv "$at/tree/linked$query" "$at/tree/moved$query"
    holds test "$(stat -c %h "$work/served/there/tree/moved")" = 2
    client chmod 640 "$at/tree/moved$query"
    holds test "$(stat -c %a "$work/served/there/tree/moved")" = 640
    client find "$at$query"
    holds test "$(wc -l <"$work/out")" = "$(find "$work/served/there" | wc -l)"
    client du "$at$query"
    client df "$at$query"
    ok "$use" status "$url/"
    client sync "$at$query"
    client rm -r "$at$query"
    holds test ! -e "$work/served/there"
    rm -rf "$work/back"
}

# A mount, with locks; the server is killed and comes back meanwhile.
by_mount() {
    mkdir -p "$work/mount"
    ok "$use" mount "$url/" "$work/mount"
    mounted=1
    ok cp -r "$work/tree" "$work/mount/tree"
    ok flock "$work/mount/tree/small" cat "$work/mount/tree/small"
    exec 9<>"$work/mount/tree/small"
    holds flock -n 9
    ( for number in $(seq 200); do echo "$number" >>"$work/mount/appended" || exit 1; done ) &
    local writer=$!
    sleep 0.2
    stop 9
    sleep 0.3
    start "$port"
    checks=$((checks + 1))
    wait "$writer" || fail "writing while the server was killed"
    # Held through the end of the server: nobody else gets it.
    holds test "$(flock -n "$work/mount/tree/small" echo got || true)" = ""
    exec 9>&-
    holds diff -r "$work/tree" "$work/mount/tree"
    holds cmp <(seq 200) "$work/mount/appended"
    ok "$use" umount "$work/mount"
    mounted=
    holds cmp <(seq 200) "$work/served/appended"
    rm -rf "$work/served/tree" "$work/served/appended"
}

mkdir -p "$work/tree/below" "$work/served"
head -c 5000000 /dev/urandom >"$work/tree/large"
head -c 3000 /dev/urandom >"$work/tree/small"
: >"$work/tree/below/empty"
ln -s ../small "$work/tree/below/symlink"
head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$work/key"
chmod 600 "$work/key"

for pair in "old client, new server" "new client, old server"; do
    case $pair in
        old*) use=$old serve=$new ;;
        *) use=$new serve=$old ;;
    esac
    proof=()
    start 0
    ok "$use" ping -c 1 "$url/"
    for query in "" "?tags=off" "?tags=off&rdma_read=off" "?connections=1"; do
        by_commands "$query"
    done
    [ ! -c /dev/fuse ] || [ "$(id -u)" != 0 ] || by_mount
    stop TERM
    start 0 --key-file "$work/key"
    proof=(--key-file "$work/key")
    by_commands ""
    stop TERM
    rm -rf "$work/state"
done
echo "compatibility: $("$old" version) and $("$new" version) work together: $checks checks"
