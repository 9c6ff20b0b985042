#!/usr/bin/env bash
# Makes the traces of this folder again, with real programs on a mount: `record.sh [NAME…]`.
# Needs root, sqlite3, git, gcc, tar; DAFS is the binary (target/release/dafs).
set -euo pipefail
here=$(cd "$(dirname "$0")" && pwd)
top=$(cd "$here/../../../.." && pwd)
dafs=${DAFS:-$top/target/release/dafs}
work=$(mktemp -d)
mount=$work/mount
mkdir "$mount"
server=
failed=0

unmount() { timeout -k 1 30 "$dafs" umount "$mount" >/dev/null 2>&1 || true; }
finish() {
    unmount
    if [ -n "$server" ]; then
        # A server that did not end well has not written its trace to the end.
        kill -INT "$server" && wait "$server" || {
            echo "record.sh: the server of the trace ended with an error" >&2
            failed=1
        }
    fi
    server=
}
trap 'finish; rm -rf "$work"' EXIT

# A new mount has nothing cached in the kernel, as another client has.
mount_again() {
    unmount
    "$dafs" mount ${1:+-o "$1"} "$url" "$mount"
}

record() { # NAME: what is served is $work/data
    finish
    mkdir -p "$work/data"
    "$dafs" serve --listen tcp://127.0.0.1:0 --state "$work/state" --arena 64m \
        --record-trace "$here/$1.trace" "$work/data" >"$work/out" &
    server=$!
    for _ in $(seq 100); do
        url=$(head -n 1 "$work/out")
        [ -n "$url" ] && return
        sleep 0.1
    done
    echo "record.sh: the server did not start" >&2
    exit 1
}

sqlite() {
    record sqlite
    mount_again direct_io
    (
        echo "PRAGMA cache_size=200; PRAGMA synchronous=OFF;"
        echo "CREATE TABLE t(k INTEGER PRIMARY KEY, a TEXT, b TEXT); CREATE INDEX i ON t(a);"
        echo "WITH RECURSIVE n(x) AS (SELECT 1 UNION ALL SELECT x+1 FROM n WHERE x<15000)"
        echo "INSERT INTO t SELECT x, hex(x*7919%15000), hex(zeroblob(150)) FROM n;"
        for round in 1 2 3; do
            echo "BEGIN;"
            awk -v seed="$round" 'BEGIN { srand(seed); for (i = 0; i < 500; i++) {
                k = int(exp(rand() * log(15000)));
                if (i % 10) printf "SELECT length(b) FROM t WHERE k=%d;\n", k;
                else printf "UPDATE t SET b=hex(zeroblob(149)) WHERE k=%d;\n", k } }'
            echo "COMMIT; SELECT count(*) FROM t WHERE b LIKE '%11%';"
        done
    ) | sqlite3 "$mount/db" >/dev/null
}

git_history() {
    record git
    mount_again
    git clone -q --no-hardlinks "$top" "$mount/repository"
    for _ in 1 2; do
        mount_again
        git -C "$mount/repository" -c gc.auto=0 log --stat -30 >/dev/null
        git -C "$mount/repository" grep -c unifier >/dev/null
        git -C "$mount/repository" status --short >/dev/null
        mount_again
        git -C "$mount/repository" -c gc.auto=0 checkout -q HEAD~40
        git -C "$mount/repository" -c gc.auto=0 checkout -q -
    done
}

compiler() {
    mkdir -p "$work/data/source"
    cp -rL /usr/include/*.h /usr/include/{linux,asm-generic} \
        /usr/include/"$(gcc -print-multiarch)"/{bits,sys,gnu,asm} "$work/data/source/"
    record compiler
    mount_again direct_io
    headers=(stdio stdlib string unistd signal math time pthread errno fcntl regex wchar)
    for unit in $(seq 40); do
        {
            for at in 0 1 2 3 4; do
                echo "#include <${headers[(unit * (at + 1) + at) % ${#headers[@]}]}.h>"
            done
            echo "int f$unit(int x) { return x * $unit; }"
        } >"$mount/unit$unit.c"
        gcc -nostdinc -isystem "$mount/source" -isystem "$(gcc -print-file-name=include)" \
            -O1 -c "$mount/unit$unit.c" -o "$mount/unit$unit.o"
    done
    ar rcs "$mount/lib.a" "$mount"/unit*.o
}

tar_tree() {
    mkdir -p "$work/data/tree"
    git -C "$top" archive HEAD crates docs | tar -x -C "$work/data/tree"
    record tar
    mount_again direct_io
    for round in 1 2; do
        tar -c -b 128 -f "$mount/archive$round.tar" -C "$mount" tree
        tar -x -b 128 -f "$mount/archive$round.tar" -C "$mount" tree/docs
        rm "$mount/archive$round.tar"
    done
}

# Files without the word make grep answer 1; other answers are errors.
search() {
    grep -r -c "$1" "$mount/tree" >/dev/null || [ $? -eq 1 ]
}

sort_and_grep() {
    mkdir -p "$work/data/tree" "$work/data/scratch"
    git -C "$top" archive HEAD crates/server crates/client | tar -x -C "$work/data/tree"
    awk 'BEGIN { srand(1); for (i = 0; i < 400000; i++) printf "%08d %s\n", rand() * 1e8, i }' \
        >"$work/data/lines"
    record sort-grep
    mount_again direct_io
    search unifier
    sort -S 2M -T "$mount/scratch" --parallel 1 "$mount/lines" >"$mount/sorted"
    for word in session slot unifier lease; do
        search $word
    done
    sort -c "$mount/sorted"
}

for name in "${@:-sqlite git_history compiler tar_tree sort_and_grep}"; do
    for one in $name; do
        "$one"
        finish
        rm -rf "$work/data"
    done
done
ls -l "$here"/*.trace
exit "$failed"
