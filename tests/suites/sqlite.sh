#!/usr/bin/env bash
# SQLite with both journals: the writer is killed again and again, no committed row is lost, no
# transaction is there in part. Then two writers on two mounts take turns under its locks.
#   sqlite.sh DIRECTORY THE-SAME-DIRECTORY-BY-ANOTHER-MOUNT
. "$(dirname "$0")/common.sh"
other=$1
each=5 # rows of a transaction
transactions=$(pick 300 10000)

# Transactions FIRST to LAST; says each one's number once it can be read back.
statements() { # FIRST LAST
    echo '.timeout 30000'
    awk -v first="$1" -v last="$2" -v each=$each 'BEGIN {
        for (t = first; t <= last; t++) {
            print "BEGIN IMMEDIATE;"
            for (i = 0; i < each; i++)
                printf "INSERT OR REPLACE INTO rows VALUES(%d, %d, hex(randomblob(200)));\n", t * each + i, t
            print "COMMIT;"
            printf "SELECT DISTINCT part FROM rows WHERE part = %d;\n", t
        }
    }'
}

check() { # DATABASE: all that was said is there, whole, and the file is sound
    [ "$(sqlite3 "$1" 'PRAGMA integrity_check')" = ok ] || fail "$1: integrity_check"
    sqlite3 "$1" "SELECT part FROM rows GROUP BY part HAVING count(*) <> $each" | grep . &&
        fail "$1: half a transaction"
    sqlite3 "$1" 'SELECT DISTINCT part FROM rows ORDER BY part' | sort >"$beside/there"
    grep -x '[0-9]*' "$beside/said" | sort -u >"$beside/said-once"
    comm -13 "$beside/there" "$beside/said-once" >"$beside/lost"
    [ ! -s "$beside/lost" ] || fail "$1: committed and lost: $(wc -l <"$beside/lost")"
}

kills=0
for journal in DELETE WAL; do
    database=$dir/$journal.db
    : >"$beside/said"
    sqlite3 "$database" "PRAGMA journal_mode=$journal; CREATE TABLE rows(id INTEGER PRIMARY KEY, part INTEGER, data TEXT); CREATE INDEX parts ON rows(part);"
    next=1
    rounds=0
    while [ $rounds -lt 3 ] || [ "$next" -le "$transactions" ]; do
        rounds=$((rounds + 1))
        [ $rounds -le 200 ] || fail "$journal: no progress"
        last=$transactions
        # Who is to be killed has more to do than it can.
        [ $rounds -gt 3 ] || last=$((next + 3 * transactions))
        statements $next $last >"$beside/statements"
        stdbuf -oL sqlite3 "$database" <"$beside/statements" >>"$beside/said" &
        writer=$!
        if [ $rounds -le 3 ]; then
            until [ "$(wc -l <"$beside/said")" -ge $((next + transactions / 6)) ]; do
                kill -0 $writer 2>/dev/null || break
                sleep 0.005
            done
            # The server first, so that the writer sees errors or goes on.
            if [ $rounds = 2 ] && [ -n "$SUITE_DISTURBED" ]; then tell crash; sleep 0.1; fi
            if kill -9 $writer 2>/dev/null; then kills=$((kills + 1)); fi
        fi
        wait $writer 2>/dev/null || true
        check "$database"
        next=$((1 + $(sqlite3 "$database" 'SELECT ifnull(max(part), 0) FROM rows')))
    done
    [ "$(sqlite3 "$database" 'SELECT count(*) FROM rows')" -gt 0 ] || fail "$journal: no rows"
done
[ $kills -ge 4 ] || fail "only $kills writers were killed"

database=turns.db
turns=$(pick 100 2000)
sqlite3 "$dir/$database" 'CREATE TABLE counter(n INTEGER); INSERT INTO counter VALUES(0); CREATE TABLE rows(id INTEGER PRIMARY KEY, who TEXT, n INTEGER);'
turn() { # MOUNT
    { echo '.timeout 60000'
      awk -v turns="$turns" -v who="$1" 'BEGIN { for (t = 0; t < turns; t++)
        printf "BEGIN IMMEDIATE; UPDATE counter SET n = n + 1; INSERT INTO rows(who, n) SELECT \"%s\", n FROM counter; COMMIT;\n", who }'
    } | sed "s/\"/'/g" | sqlite3 -bail "$1/$database"
}
turn "$dir" & one=$!
turn "$other" & two=$!
sleep 0.2
disturb restart
wait $one || fail "the writer of the first mount"
wait $two || fail "the writer of the second mount"
[ "$(sqlite3 "$dir/$database" 'PRAGMA integrity_check')" = ok ] || fail "turns: integrity_check"
[ "$(sqlite3 "$other/$database" 'SELECT n FROM counter')" = $((2 * turns)) ] || fail "turns: updates were lost"
[ "$(sqlite3 "$dir/$database" 'SELECT count(DISTINCT n) FROM rows')" = $((2 * turns)) ] || fail "turns: rows were lost"
rm "$dir"/*.db*
tell "$((transactions * each)) rows twice, $kills writers killed, $((2 * turns)) turns"
