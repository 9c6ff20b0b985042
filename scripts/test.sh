#!/usr/bin/env bash
# All tests: `test.sh` in their short form, `test.sh --long` with every bar at full size. What
# fails keeps nothing else from being run. At the end stand all parts with their times, what failed
# and where its output is, and one line that counts, and names what was skipped with its reason; with
# CI set in the environment nothing may be skipped. What was printed stays in target/test-output, what
# servers said in the file beside it that ends in .said.
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
# How often a server is killed to see what its memory says then.
[ "$mode" = --long ] && export DAFS_TEST_LIFE_KILLS=300
# How often one is killed while clients read its memory, what local programs change meanwhile, and for how
# many seconds ten clients compare what they see.
[ "$mode" = --long ] && export DAFS_TEST_HIT_KILLS=1000 DAFS_TEST_LOCAL_STEPS=10000 DAFS_TEST_HISTORY_HITS=200000

# All processes of the run mark free memory with one pattern, so that each knows the others'.
DAFS_POISON=$(od -An -tx1 -N64 /dev/urandom | tr -d ' \n')
export DAFS_POISON

out=target/test-output
rm -rf "$out"
mkdir -p "$out"
failed="" parts=""

ended() { # HOW WHAT SINCE [FILE]
    parts+="   $(printf '%-8s %5d s  %s' "$1" $((SECONDS - $3)) "$2")"$'\n'
    [ "$1" != FAILED ] || failed+="== FAILED: $2: see $4"$'\n'
}

# Runs a step, with its standard output in a file and on the screen. Of standard error, where servers
# write too, the screen gets the verdicts that long bars tell early, and the end when it failed.
step() { # FILE WHAT COMMAND…
    local file=$out/$1 what=$2 start=$SECONDS how=passed
    shift 2
    echo "== $what"
    "$@" 2> >(tee "$file.said" | grep --line-buffered -E '^[a-z]*[0-9]* .*: (Pass|Miss|Skipped)' >&2) |
        tee "$file" || how=FAILED
    [ $how = passed ] || grep -v '^dafs serve: flushing' "$file.said" | tail -n 20 >&2 || true
    ended $how "$what" "$start" "$file and $file.said"
}

# A step whose success needs no more than a line; all of its output is in the file.
quiet() { # FILE WHAT COMMAND…
    local file=$out/$1 what=$2 start=$SECONDS how=passed
    shift 2
    echo "== $what"
    "$@" >"$file" 2>&1 || how=FAILED
    if [ $how = passed ]; then tail -n 1 "$file"; else tail -n 40 "$file"; fi
    ended $how "$what" "$start" "$file"
}

# Builds, with cargo's progress on the screen.
build() { # WHAT ARGUMENTS…
    local what=$1 start=$SECONDS how=passed
    shift
    "$@" || how=FAILED
    ended $how "$what" "$start" "above what cargo says"
    [ $how = passed ]
}

# Runs tests. A test that skips says so and passes, so all is kept, and the screen gets failures.
tests() { # FILE WHAT ARGUMENTS…
    local file=$out/$1 what=$2 start how=passed
    shift 2
    echo "== $what"
    build "building $what" cargo test --no-run "$@" || return 0
    start=$SECONDS
    if ! cargo --color never test --no-fail-fast "$@" -- --color never --show-output >>"$file" 2>&1; then
        awk '/^(failures|successes):$/ { shown = $0 == "failures:" } shown' "$file"
        grep -E "^(test result: FAILED|error)" "$file" || true
        how=FAILED
    fi
    ended $how "$what" "$start" "$file"
}

: >"$out/tests"
built=yes
build "building the release" cargo build --release --package dafs-cli --package dafs-tests || built=""
# By its own command, as one for C: with its library for Rust all else would be built differently.
build "building libdafs" cargo rustc --release --package dafs-capi --lib --crate-type cdylib --crate-type staticlib || built=""
tests tests "unit, conformance and system tests" --workspace
tests tests "fuzzers' own tests" --manifest-path fuzz/Cargo.toml --target-dir target/fuzz
tables=()
if [ -n "$built" ]; then
    step packages "packages" scripts/packages.sh
    # shellcheck disable=SC2086 # no mode is no argument
    step python "the Python package" scripts/python-tests.sh $mode
    cat "$out/python" >>"$out/tests"
    step page "the page of the admin port, in a browser" scripts/admin-page.sh
    step documents "the examples of README and docs" target/release/documents
    tables=(documents acceptance mount-acceptance cache-acceptance)
    # shellcheck disable=SC2086 # no mode is no argument
    step acceptance "acceptance" target/release/acceptance $mode
    if [ "$mode" = --long ]; then
        # A server and mounts with a defect each, to be found.
        build "building planted defects" \
            cargo build --release --package dafs-cli --features planted --target-dir target/planted || true
        export DAFS_TEST_PLANTED=$PWD/target/planted/release/dafs
    fi
    # shellcheck disable=SC2086
    step mount-acceptance "acceptance of the mount" target/release/mount-acceptance $mode
    # shellcheck disable=SC2086
    step cache-acceptance "acceptance of the cache" target/release/cache-acceptance $mode
fi
if [ "$mode" = --long ]; then
    package=$(find target/deb -name 'dafs_*.deb' | sort -V | tail -n 1)
    quiet bare "the package in bare Debian systems" scripts/deb-bare.sh "$package"
    quiet virtual "the package in virtual machines" scripts/deb-virtual.sh "$package"
    quiet debian "the Python package on Debian 13, and torch" scripts/python-debian.sh
    quiet static "a static program" scripts/static.sh
    quiet newcomer "the README's commands on a bare Debian" scripts/newcomer.sh
    quiet aarch64 "aarch64, under qemu" scripts/aarch64.sh
fi

printf '== parts\n%s   %-8s %5d s\n' "$parts" "in all" "$SECONDS"
printf '%s' "$failed"
closed=0
if [ -n "$built" ]; then
    target/release/closing-line "$out/tests" "${tables[@]/#/$out/}" || closed=$?
fi
[ -z "$failed" ] || exit 1
exit $closed
