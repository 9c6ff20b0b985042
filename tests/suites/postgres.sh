#!/usr/bin/env bash
# PostgreSQL: initdb, pgbench, kill -9 of the database and of the file server under load,
# recovery, sums of pgbench, rows that were committed, pg_amcheck.
#   postgres.sh DIRECTORY
. "$(dirname "$0")/common.sh"
bin=$(echo /usr/lib/postgresql/*/bin)
data=$dir/postgres
export PGHOST=$beside PGUSER=postgres PGDATABASE=postgres LC_ALL=C
chmod 755 "$beside"
mkdir "$data" "$beside/run"
chown postgres "$data" "$beside/run" "$beside"
as() { setpriv --reuid postgres --regid postgres --init-groups "$@"; }

start() {
    as "$bin/pg_ctl" -D "$data" -l "$beside/run/log" -w -t 60 \
        -o "-k $beside -c listen_addresses= -c max_connections=20 -c checkpoint_timeout=30s -c shared_buffers=16MB" start
    postmaster=$(head -n 1 "$data/postmaster.pid")
}
kill_all() {
    # shellcheck disable=SC2046 # pids
    kill -9 "$postmaster" $(pgrep -P "$postmaster") 2>/dev/null || true
    while pgrep -P "$postmaster" >/dev/null || kill -0 "$postmaster" 2>/dev/null; do sleep 0.05; done
}
postmaster=""
trap '[ -z "$postmaster" ] || kill_all; tail -n 5 "$beside/run/log" 2>/dev/null || true' EXIT
query() { "$bin/psql" -XAtq -v ON_ERROR_STOP=1 -c "$1"; }

load() { # SECONDS: pgbench, and a stream of inserts of which each answer is kept
    seq 1 1000000 | sed "s/.*/INSERT INTO acknowledged VALUES(&, $run);/" |
        "$bin/psql" -XAt >"$beside/answers" 2>/dev/null &
    local inserts=$!
    "$bin/pgbench" -n -c 4 -j 1 -T "$1" >"$beside/pgbench" 2>&1 &
    local bench=$!
    "${@:2}"
    # A database that was killed ends it; a file server that was must not.
    wait $bench || [ -n "$may_break" ] || fail "pgbench: $(tail -n 3 "$beside/pgbench")"
    # It may be over by itself.
    kill $inserts 2>/dev/null || true
    wait $inserts 2>/dev/null || true
}

checked() { # sound, and everything acknowledged is there
    local i
    for i in $(seq 100); do
        query 'SELECT 1' >/dev/null 2>&1 && break
        kill -0 "$postmaster" 2>/dev/null || start
        sleep 0.2
    done
    local said there
    said=$(grep -c '^INSERT 0 1' "$beside/answers" || true)
    there=$(query "SELECT count(*) FROM acknowledged WHERE run = $run")
    [ "$there" -ge "$said" ] || fail "run $run: $said inserts acknowledged, $there there"
    [ "$(query 'SELECT (SELECT sum(abalance) FROM pgbench_accounts) = (SELECT sum(bbalance) FROM pgbench_branches)
        AND (SELECT sum(bbalance) FROM pgbench_branches) = (SELECT sum(tbalance) FROM pgbench_tellers)
        AND (SELECT sum(tbalance) FROM pgbench_tellers) = (SELECT coalesce(sum(delta), 0) FROM pgbench_history)')" = t ] ||
        fail "run $run: the sums of pgbench differ"
    acknowledged=$((acknowledged + said))
    run=$((run + 1))
}

as "$bin/initdb" -D "$data" -A trust -U postgres >/dev/null
start
"$bin/pgbench" -i -q -s "$(pick 1 10)"
query 'CREATE TABLE acknowledged(id INTEGER, run INTEGER, PRIMARY KEY(run, id))'
run=1
acknowledged=0
may_break=""
seconds=$(pick 2 30)
load "$seconds" true
checked
may_break=yes
load "$seconds" eval 'sleep 1; kill_all'
may_break=""
start
checked
if [ -n "$SUITE_DISTURBED" ]; then
    load "$seconds" eval 'sleep 0.7; tell crash'
    checked
    load "$seconds" eval 'sleep 0.7; tell restart'
    checked
fi
[ "$acknowledged" -gt 0 ] || fail "nothing was written"
"$bin/pg_amcheck" --all --install-missing --heapallindexed
as "$bin/pg_ctl" -D "$data" -w -m fast stop
postmaster=""
rm -r "$data"
tell "$acknowledged rows acknowledged, sums and pg_amcheck right"
