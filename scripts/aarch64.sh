#!/usr/bin/env bash
# Builds for aarch64 with Debian's cross compiler, and runs unit tests of the crates below under qemu-user. Says
# so, and ends well, where one of these cannot be had. It is no proof for real machines of that kind: their memory
# is ordered more loosely than an emulator on x86-64 shows.
#
#   scripts/aarch64.sh             all crates named below
#   scripts/aarch64.sh CRATE…      some, as protocol
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin"

target=aarch64-unknown-linux-gnu
# What needs no io_uring, sock_diag or FUSE, which an emulated process lacks, and is done in a minute.
crates=(protocol message store client)
left_out="unifier (its caches take minutes here), fabric-tcp and store-posix (io_uring), server (sock_diag), fuse, cli"
[ $# = 0 ] || crates=("$@")

skip() { echo "skipped: aarch64: $*"; exit 0; }

[ "$(uname -m)" = x86_64 ] || skip "this machine is not x86-64"
for pair in aarch64-linux-gnu-gcc:gcc-aarch64-linux-gnu qemu-aarch64:qemu-user; do
    command -v "${pair%%:*}" >/dev/null ||
        skip "no ${pair%%:*} here (apt-get install ${pair##*:} libc6-dev-arm64-cross)"
done
if [ ! -d "$(rustc --print sysroot)/lib/rustlib/$target" ]; then
    command -v rustup >/dev/null || skip "no standard library of Rust for $target here, and no rustup to bring it"
    rustup target add "$target" || skip "rustup cannot bring the standard library for $target"
fi

export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_LINKER=aarch64-linux-gnu-gcc
export CARGO_TARGET_AARCH64_UNKNOWN_LINUX_GNU_RUNNER="qemu-aarch64 -L /usr/aarch64-linux-gnu"
export CARGO_INCREMENTAL=0
packages=()
for crate in "${crates[@]}"; do packages+=(--package "dafs-$crate"); done

# All of the program must build; the tests run of a part.
[ $# != 0 ] || cargo check --target "$target" --target-dir target/aarch64 --package dafs-cli
cargo test --target "$target" --target-dir target/aarch64 --lib "${packages[@]}"
echo "aarch64: unit tests of ${crates[*]} pass under qemu-user; left out: $left_out"
