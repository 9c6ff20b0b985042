#!/usr/bin/env bash
# Drops asynchronous calls at random points: `dropped-calls.sh CALLS`. With a nightly compiler
# under AddressSanitizer, else without (the last line says which).
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin" RUSTUP_AUTO_INSTALL=0
calls="${1:-5000}"
target="${CARGO_TARGET_DIR:-$PWD/target}"
if cargo +nightly --version >/dev/null 2>&1; then
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    DAFS_SANITIZER=AddressSanitizer RUSTFLAGS="-Zsanitizer=address" \
        cargo +nightly build -q --release --package dafs-tests --bin dropped-calls \
        --target "$host" --target-dir "$target/asan"
    exec "$target/asan/$host/release/dropped-calls" "$calls"
fi
# As test.sh builds them.
cargo build -q --release --package dafs-cli --package dafs-tests
exec "$target/release/dropped-calls" "$calls"
