#!/usr/bin/env bash
# Programs with much small work, on a directory of the local disk and on a mount of it, by turns:
# seconds, and how many times as long the mount takes. The median of TURNS (3). As root, in DIR or
# a new directory of the current one.
#   scripts/small-work.sh [DIR]
set -euo pipefail
root=$(cd "$(dirname "$0")/.." && pwd)
export PATH="$PATH:$HOME/.cargo/bin:/usr/sbin"
"$root/scripts/setup.sh" small-work
dafs=${DAFS_BIN:-$root/target/release/dafs}
[ -x "$dafs" ] || { echo "small-work.sh: no $dafs: make build first" >&2; exit 1; }
turns=${TURNS:-3}
work=$(mktemp -d -p "${1:-.}" small-work.XXXXXX)
work=$(cd "$work" && pwd)
mkdir "$work/served" "$work/local" "$work/mount" "$work/state"

server='' mount=''
# What fails while it is cleaned up is told by who fails, and is no result of the measurement.
end() {
    [ -z "$mount" ] || "$dafs" umount "$work/mount" || umount -l "$work/mount" || true
    [ -z "$server" ] || { kill "$server" && wait "$server"; } || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

"$dafs" serve --listen tcp://127.0.0.1:0 --state "$work/state" "$work/served" >"$work/told" 2>&1 &
server=$!
port=
until [ -n "$port" ]; do
    kill -0 "$server" 2>/dev/null || { cat "$work/told" >&2; exit 1; }
    port=$(sed -n 's/.*dafs:\/\/[^ ]*:\([0-9][0-9]*\)\/.*/\1/p' "$work/told" | head -n 1)
done
"$dafs" mount "dafs://127.0.0.1:$port/" "$work/mount"
mount=1

python=/usr/bin/python3
library=$($python -c 'import os; print(os.path.dirname(os.__file__))')
tree=$work/tree
mkdir "$tree"
(cd "$library" && find . -name '*.py' -not -path './*-packages/*' -print0 |
    head -z -n 600 | xargs -0 cp --parents -t "$tree")
(cd "$tree" && zip -q -r "$work/tree.zip" .)

leveldb() { # PUTS
    $python - "$1" <<'PYTHON'
import sys, plyvel
db = plyvel.DB("leveldb", create_if_missing=True)
for i in range(int(sys.argv[1])):
    db.put(b"%08d" % (i * 7919 % 100_000_000), b"v" * 100)
db.close()
PYTHON
}

# Each in an empty directory, with the tree beside it where it is named so.
leveldb-50000-puts() { leveldb 50000; }
rocksdb-50000-puts() {
    db_bench --benchmarks=fillrandom --num=50000 --db="$PWD/rocksdb" --compression_type=none
}
dbench-8-clients() { dbench -t 5 -c /usr/share/dbench/client.txt -D . 8; }
compileall() { $python -m compileall -q -j 1 tree; }
unzip-600-files() { unzip -q "$work/tree.zip"; }
grep-r() { grep -r 'no such words' tree || true; }
cp-r() { cp -r "$tree" copy; }
bonnie-write() { bonnie++ -q -d . -s 256 -r 128 -n 0 -f -u root; }

needs_tree() { case "$1" in compileall | grep-r) ;; *) return 1 ;; esac }

# What a program took, or for dbench how little it moved in its time.
took() { # PLACE PROGRAM
    local start=$EPOCHREALTIME end told
    (cd "$1" && "$2") >"$work/said" 2>&1 || { cat "$work/said" >&2; exit 1; }
    end=$EPOCHREALTIME
    told=$(sed -n 's/^Throughput \([0-9.]*\) MB.*/\1/p' "$work/said")
    if [ -n "$told" ]; then
        awk "BEGIN { print 1 / $told }"
    else
        awk "BEGIN { print $end - $start }"
    fi
}

median() { sort -g | awk '{ of[NR] = $1 } END { print of[int((NR + 1) / 2)] }'; }

printf '%-20s %10s %10s %8s\n' program local mount ratio
for program in leveldb-50000-puts rocksdb-50000-puts dbench-8-clients compileall \
    unzip-600-files grep-r cp-r bonnie-write; do
    : >"$work/of-local"
    : >"$work/of-mount"
    for _ in $(seq "$turns"); do
        for place in local mount; do
            mkdir "$work/$place/run"
            ! needs_tree "$program" || cp -r "$tree" "$work/$place/run/tree"
            sync -f "$work/$place"
            took "$work/$place/run" "$program" >>"$work/of-$place"
            rm -rf "$work/$place/run"
        done
    done
    local_time=$(median <"$work/of-local")
    mount_time=$(median <"$work/of-mount")
    awk -v p="$program" -v l="$local_time" -v m="$mount_time" \
        'BEGIN { printf "%-20s %10.3f %10.3f %8.1f\n", p, l, m, m / l }'
done
