#!/usr/bin/env bash
# All tests: `test.sh` in their short form, `test.sh --long` with every bar at full size. What
# fails keeps nothing else from being run. The last line counts, and names what was skipped with
# its reason; with CI set in the environment nothing may be skipped. What was printed stays in
# target/test-output.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

mode="${1:-}"
case "$mode" in
    "" | --long) ;;
    *) echo "usage: test.sh [--long]" >&2; exit 2 ;;
esac

# How often a test has somebody's port taken by root while he is asked for.
[ "$mode" = --long ] && export DAFS_TEST_PORT_REUSES=100000

# All processes of the run mark free memory with one pattern, so that each knows the others'.
DAFS_POISON=$(od -An -tx1 -N64 /dev/urandom | tr -d ' \n')
export DAFS_POISON

out=target/test-output
rm -rf "$out"
mkdir -p "$out"
failed="" times=""

# Runs a step, with its standard output in a file and on the screen.
step() { # FILE WHAT COMMAND…
    local file=$out/$1 what=$2 start=$SECONDS
    shift 2
    echo "== $what"
    # Servers that end in order say so, for people.
    "$@" 2> >(grep --line-buffered -v "dafs serve: flushing" >&2) | tee "$file" || failed+=" $what;"
    took "$what" "$start"
}

took() { # WHAT SINCE
    times+="== $(printf '%5d s  %s' $((SECONDS - $2)) "$1")"$'\n'
}

# Runs tests. A test that skips says so and passes, so all is kept, and the screen gets failures.
tests() { # FILE WHAT ARGUMENTS…
    local file=$out/$1 what=$2 start=$SECONDS
    shift 2
    echo "== $what"
    cargo test --no-run "$@"
    took "building $what" "$start"
    start=$SECONDS
    if ! cargo test --no-fail-fast "$@" -- --show-output >>"$file" 2>&1; then
        awk '/^(failures|successes):$/ { shown = $0 == "failures:" } shown' "$file"
        grep -E "^(test result: FAILED|error)" "$file" || true
        failed+=" $what;"
    fi
    took "$what" "$start"
}

start=$SECONDS
cargo build --release --package dafs-cli --package dafs-tests
took "building the release" "$start"
tests tests "unit, conformance and system tests" --workspace
tests tests "fuzzers' own tests" --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
step packages "packages" scripts/packages.sh
step page "the page of the admin port, in a browser" scripts/admin-page.sh
# shellcheck disable=SC2086 # no mode is no argument
step acceptance "acceptance" target/release/acceptance $mode
if [ "$mode" = --long ]; then
    # A server and mounts with a defect each, to be found.
    cargo build --release --package dafs-cli --features planted --target-dir target/planted
    export DAFS_TEST_PLANTED=$PWD/target/planted/release/dafs
fi
# shellcheck disable=SC2086
step mount-acceptance "acceptance of the mount" target/release/mount-acceptance $mode
# shellcheck disable=SC2086
step cache-acceptance "acceptance of the cache" target/release/cache-acceptance $mode

printf '%s== %5d s  in all\n' "$times" "$SECONDS"
closed=0
target/release/closing-line "$out"/{tests,acceptance,mount-acceptance,cache-acceptance} || closed=$?
[ -z "$failed" ] || { echo "== FAILED:${failed%;} (see $out)"; exit 1; }
exit $closed
