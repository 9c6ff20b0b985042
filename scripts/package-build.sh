#!/usr/bin/env bash
# Builds what packages carry: package-build.sh [--static] prints the directory of the programs. Names of
# directories of this machine are not in them, so that two builds of the same sources are the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

flags=${RUSTFLAGS:-}
flags=${flags// /$'\x1f'}
add() { flags+=${flags:+$'\x1f'}$1; }
add "--remap-path-prefix=${CARGO_HOME:-$HOME/.cargo}=/usr/src/cargo"
add "--remap-path-prefix=$PWD=/usr/src/dafs"

out=target/package/release
library=()
build=(cargo build --release --locked --target-dir target/package --package dafs-cli)
case ${1:-} in
    --static)
        target=$(rustc -vV | sed -n 's/^host: //p')
        case $target in *-linux-gnu) ;; *) echo "package-build.sh: $target: a static build is for Linux with glibc" >&2; exit 1 ;; esac
        add "-Ctarget-feature=+crt-static"
        # Named, the flags are not for build scripts and macros, which cannot be static.
        build+=(--target "$target")
        out=target/package/$target/release
        ;;
    # By its own command: with the library for Rust beside them they are not optimized as a whole.
    "") library=(cargo rustc --release --locked --target-dir target/package --package dafs-capi --lib
        --crate-type cdylib --crate-type staticlib) ;;
    *) echo "usage: package-build.sh [--static]" >&2; exit 2 ;;
esac
CARGO_ENCODED_RUSTFLAGS=$flags "${build[@]}" >&2
[ ${#library[@]} = 0 ] || CARGO_ENCODED_RUSTFLAGS=$flags "${library[@]}" >&2
echo "$out"
