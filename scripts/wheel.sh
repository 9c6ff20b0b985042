#!/usr/bin/env bash
# Makes the Python wheel, with the program `dafs` in it, in target/wheels: one file for CPython 3.11 and
# later on Linux with glibc 2.28 and later, where the package index has zig; otherwise with this machine's.
#
#   scripts/wheel.sh            the wheel to give to others
#   scripts/wheel.sh --quick    of target/release/dafs as it is, for this machine: for tests
#
# The last line is the wheel's name.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"
. scripts/python.sh

case "${1:-}" in
    "" | --quick) mode="${1:-}" ;;
    *) echo "usage: wheel.sh [--quick]" >&2; exit 2 ;;
esac

python=$(pythons | head -n 1)
[ -n "$python" ] || {
    echo "wheel: no Python 3.11 or later with venv here: install python3 and python3-venv, or set PYTHON" >&2
    exit 1
}
venv=target/wheel-venv
[ -x "$venv/bin/maturin" ] || {
    "$python" -m venv "$venv"
    "$venv/bin/pip" install --quiet --disable-pip-version-check "maturin==1.16.0"
}

binary=target/release/dafs
options=(--release --compatibility linux)
if [ -z "$mode" ]; then
    if "$venv/bin/pip" install --quiet --disable-pip-version-check "ziglang==0.17.1" "cargo-zigbuild==0.24.1" >&2 &&
        PATH=$PWD/$venv/bin:$PATH cargo-zigbuild zigbuild --release --package dafs-cli \
            --target x86_64-unknown-linux-gnu.2.28 >&2; then
        binary=${CARGO_TARGET_DIR:-target}/x86_64-unknown-linux-gnu/release/dafs
        options=(--release --zig --compatibility manylinux_2_28 --target x86_64-unknown-linux-gnu)
    else
        echo "wheel: zig is not here or did not build it, so the wheel needs a glibc like this machine's" >&2
        cargo build --release --package dafs-cli >&2
    fi
fi
[ -x "$binary" ] || { echo "wheel: no $binary: cargo build --release --package dafs-cli" >&2; exit 1; }

# What is in the package and not in git. An extension that was put there for tests is not for it.
rm -f python/dafs/_dafs.abi3.so
install -D -m 0755 "$binary" python/dafs/bin/dafs
strip python/dafs/bin/dafs
"$python" scripts/licences.py texts dafs-cli dafs-python >python/dafs/bin/LICENCES

mkdir -p target/wheels
made=$(mktemp -d target/wheels/new.XXXXXX)
trap 'rm -rf "$made"' EXIT
PATH=$PWD/$venv/bin:$PATH "$venv/bin/maturin" build --quiet --strip --manifest-path python/Cargo.toml --out "$made" \
    --interpreter "$python" "${options[@]}" >&2
name=$(basename "$made"/*.whl)
mv "$made/$name" "target/wheels/$name"
echo "target/wheels/$name"
