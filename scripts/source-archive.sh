#!/usr/bin/env bash
# Makes target/source/dafs-VERSION.tar.xz: the sources of a commit with those of all crates that they need, which
# builds without the network, and says by `dafs version` which commit it is of.
#
#   scripts/source-archive.sh           of HEAD
#   scripts/source-archive.sh --check   also unpacks it and has cargo look at it, with no network
#
# The crates are had from cargo's cache, and what is not there (those for other systems) by the network. Of those that
# nothing for Linux is made of, which are most of the bytes, there is only what cargo looks at: their names and licences.
# The same commit gives the same bytes.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin" LC_ALL=C

case ${1:-} in "" | --check) ;; *) sed -n '2,11s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
commit=$(git rev-parse --verify HEAD)
version=$(git show "$commit:Cargo.toml" | sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p')
epoch=$(git log -1 --format=%ct "$commit")
name=dafs-$version
out=target/source
rm -rf "${out:?}/$name"
mkdir -p "$out/$name"
git archive "$commit" | tar -x -C "$out/$name"
git describe --tags --always --abbrev=12 "$commit" >"$out/$name/COMMIT"
(
    cd "$out/$name"
    mkdir -p .cargo
    [ ! -f .cargo/config.toml ] || echo >>.cargo/config.toml
    # Cargo prints what makes it look there; with --quiet it does not.
    cargo vendor --locked --versioned-dirs vendor >>.cargo/config.toml 2>../vendor.log ||
        { cat ../vendor.log >&2; exit 1; }
    rm ../vendor.log
    wanted=$(for target in {x86_64,aarch64}-unknown-linux-{gnu,musl}; do
        cargo tree --quiet --offline --locked --workspace --all-features --edges all --prefix none --target "$target"
    done | sed -n 's/^\([^ ]*\) v\([^ ]*\).*/\1-\2/p' | sort -u)
    for crate in vendor/*; do
        ! grep -qxF "${crate#vendor/}" <<<"$wanted" || continue
        # Cargo compares what is there with what this names, and the sum of the whole with Cargo.lock.
        sum=$(sed -n 's/.*"package":"\([0-9a-f]*\)".*/\1/p' "$crate/.cargo-checksum.json")
        find "$crate" -type f ! -name Cargo.toml ! -iname 'licen[cs]e*' ! -iname 'copying*' ! -iname 'notice*' -delete
        find "$crate" -mindepth 1 -type d -empty -delete
        mkdir -p "$crate/src"
        : >"$crate/src/lib.rs"
        printf '{"files":{},"package":"%s"}' "$sum" >"$crate/.cargo-checksum.json"
    done
)
tar -C "$out" --sort=name --mtime="@$epoch" --owner=0 --group=0 --numeric-owner \
    --mode='u+rw,go=rX' -c "$name" | xz -T2 -3 >"$out/$name.tar.xz"
rm -rf "${out:?}/$name"

if [ "${1:-}" = --check ]; then
    rm -rf "$out/check"
    mkdir -p "$out/check"
    tar -x -J -C "$out/check" -f "$out/$name.tar.xz"
    # Without the network where that can be: what is missing is then seen.
    alone=()
    unshare -r -n true 2>/dev/null && alone=(unshare -r -n)
    (cd "$out/check/$name" && CARGO_HOME=$PWD/home "${alone[@]}" cargo check --quiet --offline --locked --package dafs-cli)
    rm -rf "$out/check"
fi
echo "$out/$name.tar.xz"
