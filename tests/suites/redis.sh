#!/usr/bin/env bash
# Redis with an append-only file, synced before each answer: killed again and again, every
# acknowledged write is there.
#   redis.sh DIRECTORY
. "$(dirname "$0")/common.sh"
data=$dir/redis
socket=$beside/socket
mkdir "$data"
writes=$(pick 2000 50000)

start() {
    redis-server --port 0 --unixsocket "$socket" --dir "$data" --appendonly yes \
        --appendfsync always --save '' --daemonize no &
    redis=$!
    for _ in $(seq 600); do
        [ "$(redis-cli -s "$socket" ping 2>/dev/null)" = PONG ] && return
        kill -0 $redis || fail "redis does not start"
        sleep 0.05
    done
    fail "redis does not answer"
}
trap 'kill -9 $redis 2>/dev/null || true' EXIT

start
next=1
kills=0
for round in 1 2 3 4 5 6 7 8 9 10; do
    for i in $(seq $next "$writes"); do echo "set key-$i value-$i"; done >"$beside/commands"
    redis-cli -s "$socket" <"$beside/commands" >"$beside/answers" 2>/dev/null &
    writer=$!
    if [ $round -le 3 ]; then
        sleep 0.15
        if [ $round = 2 ]; then disturb crash; sleep 0.3; fi
        kill -9 $redis && kills=$((kills + 1))
    fi
    wait $writer || true
    wait $redis 2>/dev/null & 
    # A server of redis that got an error at a write ends itself.
    if ! redis-cli -s "$socket" ping 2>/dev/null | grep -q PONG; then
        kill -9 $redis 2>/dev/null || true
        wait $redis 2>/dev/null || true
        rm -f "$socket"
        start
    fi
    acknowledged=$((next - 1 + $(grep -cx OK "$beside/answers" || true)))
    for i in $(seq 1 "$acknowledged"); do echo "get key-$i"; done | redis-cli -s "$socket" >"$beside/there"
    [ "$acknowledged" = 0 ] || seq 1 "$acknowledged" | sed 's/^/value-/' | diff -q - "$beside/there" ||
        fail "of $acknowledged acknowledged writes some are lost"
    next=$((acknowledged + 1))
    [ $next -le "$writes" ] || break
done
[ $next -gt "$writes" ] || fail "no end of writes"
redis-cli -s "$socket" bgrewriteaof
redis-cli -s "$socket" shutdown nosave 2>/dev/null || true
wait $redis || true
manifest=$(echo "$data"/appendonlydir/*.manifest)
redis-check-aof "$manifest" | tail -n 1 | grep -q 'All AOF files and manifest are valid' || fail "redis-check-aof"
rm -r "$data"
tell "$writes acknowledged writes, $kills kills of redis"
