#!/usr/bin/env bash
# Two builds by turns: bench-compare.sh OLD [NEW] [-- OPTIONS of bench-compare]. OLD and NEW are
# commits, or files: builds of dafs. Without NEW it is what lies here. Commits are built in
# target/compare, which can be removed at any time.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
[ $# -ge 1 ] && [ "$1" != -- ] || { echo "usage: bench-compare.sh OLD [NEW] [-- OPTIONS]" >&2; exit 2; }

old=$(scripts/build-commit.sh "$1")
shift
new=target/release/dafs
if [ $# -ge 1 ] && [ "$1" != -- ]; then
    new=$(scripts/build-commit.sh "$1")
    shift
else
    cargo build --quiet --release --package dafs-cli
fi
[ "${1:-}" = -- ] && shift
cargo build --quiet --release --package dafs-tests --bin bench-compare
exec target/release/bench-compare "$old" "$new" "$@"
