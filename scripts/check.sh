#!/usr/bin/env bash
# Whether a change is good so far, in three minutes where nothing else is to be built: format, lints,
# unit and property tests, 100 seeds of the simulation. What needs real processes, mounts or disks
# is in test.sh.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

failed=""
step() { # WHAT COMMAND…
    local what=$1 start=$SECONDS
    shift
    "$@" || failed+=" $what;"
    echo "== $what: $((SECONDS - start)) s"
}

# All tests of crates whose tests start no process of their own; of the others those beside the code.
# shellcheck disable=SC2207 # names of crates have no blanks
whole=(fabric $(cd crates && echo fabric-*) names message protocol store unifier)
mapfile -t whole_args < <(printf -- '-pdafs-%s\n' "${whole[@]}")
mapfile -t rest_args < <(printf -- '--exclude=dafs-%s\n' "${whole[@]}")

step "format and lints" scripts/lint.sh
step "tests of the lower crates" cargo test --quiet "${whole_args[@]}"
step "unit tests of the others" cargo test --quiet --workspace "${rest_args[@]}" --lib --bins
step "the client's core, the server's worker" cargo test --quiet -p dafs-client --test core -p dafs-server --test driven --test operations --test replays
step "the fuzzers compile" cargo check --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz --all-targets
step "100 seeds" scripts/simulate.sh --seeds 100
[ -z "$failed" ] || { echo "== FAILED:${failed%;}"; exit 1; }
echo "== good, in $SECONDS s"
