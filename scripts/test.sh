#!/usr/bin/env bash
# All tests: `test.sh` in their short form, `test.sh --long` with every bar at full size.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

mode="${1:-}"
case "$mode" in
    "" | --long) ;;
    *) echo "usage: test.sh [--long]" >&2; exit 2 ;;
esac

echo "== unit, conformance and system tests"
cargo build --release --package dafs-cli --package dafs-tests
cargo test --workspace --quiet

echo "== fuzzers' own tests"
cargo test --quiet --manifest-path fuzz/Cargo.toml --target-dir target/fuzz

echo "== the page of the admin port, in a browser"
scripts/admin-page.sh

echo "== bars"
target/release/bars $mode

echo "== bars of the mount"
target/release/mount-bars $mode

echo "== bars of the cache"
target/release/cache-bars $mode
