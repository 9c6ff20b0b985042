#!/usr/bin/env bash
# A client that sends well-formed lies to a real server; with --by shm, by shared memory.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
# The packages that test.sh builds: others would make Cargo choose other features, and build again.
cargo build -q --release --package dafs-cli --package dafs-tests
exec "${CARGO_TARGET_DIR:-target}/release/hostile" "$@"
