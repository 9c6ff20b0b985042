#!/usr/bin/env bash
# Two builds by turns: bench-compare.sh OLD [NEW] [-- OPTIONS of bench-compare]. OLD and NEW are
# commits, or files: builds of dafs. Without NEW it is what lies here. Commits are built in
# target/compare, which can be removed at any time.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
[ $# -ge 1 ] && [ "$1" != -- ] || { echo "usage: bench-compare.sh OLD [NEW] [-- OPTIONS]" >&2; exit 2; }

# Prints the path of a build of a commit.
built() { # COMMIT
    if [ -f "$1" ]; then
        echo "$1"
        return
    fi
    local commit tree
    commit=$(git rev-parse --verify --quiet "$1^{commit}") ||
        { echo "bench-compare.sh: no commit or file '$1'" >&2; exit 2; }
    tree=target/compare/$commit
    if [ ! -x "$tree/dafs" ]; then
        echo "bench-compare.sh: building $1" >&2
        rm -rf "$tree"
        mkdir -p "$tree/source"
        git archive "$commit" | tar x -C "$tree/source"
        # Third-party crates are built once for all commits.
        CARGO_TARGET_DIR=target/compare/target cargo build --quiet --release --package dafs-cli \
            --manifest-path "$tree/source/Cargo.toml"
        cp target/compare/target/release/dafs "$tree/dafs"
        rm -rf "$tree/source"
    fi
    echo "$tree/dafs"
}

old=$(built "$1")
shift
new=target/release/dafs
if [ $# -ge 1 ] && [ "$1" != -- ]; then
    new=$(built "$1")
    shift
else
    cargo build --quiet --release --package dafs-cli
fi
[ "${1:-}" = -- ] && shift
cargo build --quiet --release --package dafs-tests --bin bench-compare
exec target/release/bench-compare "$old" "$new" "$@"
