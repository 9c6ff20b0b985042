#!/usr/bin/env bash
# The tests of the Python package: makes its wheel of target/release/dafs, installs it with the programs it is
# tried with in an environment of its own under target, and runs python/tests.
#
#   scripts/python-tests.sh           the oldest Python that is here, some 60 seconds once all is there
#   scripts/python-tests.sh --long    every Python that is here, and full size
#
# What was skipped stands in lines that begin with `skipped: `, and the counts in the form of `cargo test`.
set -uo pipefail
cd "$(dirname "$0")/.."
. scripts/python.sh

case "${1:-}" in
    "" | --long) mode="${1:-}" ;;
    *) echo "usage: python-tests.sh [--long]" >&2; exit 2 ;;
esac

skip() {
    printf -- '---- python stdout ----\nskipped: %s\n' "$1"
    echo "test result: ok. 1 passed; 0 failed; 0 ignored"
    exit 0
}

mapfile -t found < <(pythons)
[ ${#found[@]} -gt 0 ] || skip "no Python 3.11 or later with venv"
[ "$mode" = --long ] || found=("${found[0]}")

requirements=python/tests/requirements.txt
try() { # PYTHON: makes what it needs, and runs the tests
    local python=$1 version venv stamp
    version=$("$python" -c 'import sys; print("3.%d" % sys.version_info[1])')
    venv=$PWD/target/python-$version
    stamp=$(sha256sum <"$requirements")
    echo "== Python $version"
    if [ "$(cat "$venv/stamp" 2>/dev/null)" != "$stamp" ]; then
        rm -rf "$venv"
        "$python" -m venv "$venv" || return 1
        "$venv/bin/pip" install --quiet --disable-pip-version-check --only-binary :all: -r "$requirements" || return 1
        echo "$stamp" >"$venv/stamp"
    fi
    "$venv/bin/pip" install --quiet --disable-pip-version-check --no-deps --no-index --force-reinstall "$wheel" || return 1
    # Away from the sources: what was installed is what is tried.
    (cd python/tests && timeout 3000 "$venv/bin/python" -m pytest -q -s -p no:cacheprovider $mode . 2>&1)
}

output=$(mktemp)
trap 'rm -f "$output"' EXIT
passed=0 failed=0
if ! wheel=$(scripts/wheel.sh --quick | tail -n 1) || [ ! -f "$wheel" ]; then
    echo "python-tests: there is no wheel"
    echo "test result: FAILED. 0 passed; 1 failed; 0 ignored"
    exit 1
fi
for python in "${found[@]}"; do
    try "$python" | tee "$output"
    status=${PIPESTATUS[0]}
    # What pytest sums up; where it does not, all has failed.
    last=$(grep -E '^[0-9]+ (passed|failed|error).* in [0-9.]+s' "$output" | tail -n 1)
    count() { grep -oE "[0-9]+ $1" <<<"$last" | grep -oE '[0-9]+' || echo 0; }
    passed=$((passed + $(count passed)))
    failed=$((failed + $(count failed) + $(count error)))
    # An interpreter that ends badly after its last test is a failure, too.
    if [ -z "$last" ] || { [ "$status" != 0 ] && [ "$(count failed)$(count error)" = 00 ]; }; then
        failed=$((failed + 1))
    fi
    skipped=$(count skipped)
    [ "$skipped" = 0 ] || printf -- '---- python %s stdout ----\nskipped: %s tests of Python\n' "$python" "$skipped"
done
how=ok
[ "$failed" = 0 ] || how=FAILED
echo "test result: $how. $passed passed; $failed failed; 0 ignored"
[ "$failed" = 0 ]
