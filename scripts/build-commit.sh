#!/usr/bin/env bash
# Builds dafs as of a commit: build-commit.sh COMMIT prints the path of the program. Builds lie in
# target/compare, which can be removed at any time. A path of a file is printed as it is.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
[ $# = 1 ] || { echo "usage: build-commit.sh COMMIT" >&2; exit 2; }
if [ -f "$1" ]; then
    echo "$1"
    exit
fi
commit=$(git rev-parse --verify --quiet "$1^{commit}") ||
    { echo "build-commit.sh: no commit or file '$1'" >&2; exit 2; }
tree=target/compare/$commit
if [ ! -x "$tree/dafs" ]; then
    echo "build-commit.sh: building $1" >&2
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
