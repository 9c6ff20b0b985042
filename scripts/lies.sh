#!/usr/bin/env bash
# Random lies of a process without rights to a real server.
#   scripts/lies.sh --seconds 30               for so long, each seed in another way
#   scripts/lies.sh --seed 17                  one of them again
#   scripts/lies.sh --by shm --seconds 30      by shared memory instead of TCP; --seed as well
#   scripts/lies.sh --planted                  finds each planted defect within ten minutes
#   scripts/lies.sh --seed 17 --plant NAME     one of them again with a planted defect
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
target="${CARGO_TARGET_DIR:-$PWD/target}"
# The packages that test.sh builds: others would make Cargo choose other features, and build again.
cargo build -q --release --package dafs-cli --package dafs-tests

planted=
for argument in "$@"; do
    case "$argument" in --plant | --planted) planted=1 ;; esac
done
if [ -n "$planted" ]; then
    cargo build -q --profile simulation --package dafs-cli --features planted \
        --target-dir "$target/planted"
    export DAFS_BIN="$target/planted/simulation/dafs"
fi
[ "${1:-}" = --planted ] || exec "$target/release/lies" "$@"

found=0 all=0 told=
for plant in ResentWithOtherData ReadersNotCounted WaitsNotCounted; do
    all=$((all + 1))
    out=$("$target/release/lies" --seconds 600 --plant "$plant") && found=$((found + 1))
    echo "$plant: $out"
    told+="; $plant $(sed -n 's/^FOUND \(by seed [0-9]* after [0-9]* s\).*/\1/p' <<<"$out")"
done
echo "$found of $all planted defects found$told"
[ "$found" = "$all" ]
