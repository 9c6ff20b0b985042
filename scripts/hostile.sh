#!/usr/bin/env bash
# A client that sends well-formed lies to a real server.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
cargo build -q --release --package dafs-cli --bin dafs
cargo build -q --release --package dafs-tests --bin hostile
exec "${CARGO_TARGET_DIR:-target}/release/hostile"
