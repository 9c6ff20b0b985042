#!/usr/bin/env bash
# Whether two builds of a commit give the same bytes: the Debian package is made in two directories with different
# names, with nothing in common but the toolchain and cargo's cache. Takes twice the time of a whole build.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin" LC_ALL=C

case $# in 0) ;; *) sed -n '2,3s/^# \{0,1\}//p' "$0"; exit 2 ;; esac
commit=$(git rev-parse --verify HEAD)
SOURCE_DATE_EPOCH=$(git log -1 --format=%ct "$commit")
export SOURCE_DATE_EPOCH
work=$(mktemp -d "${TMPDIR:-/var/tmp}/dafs-reproducible.XXXXXX")
trap 'rm -rf "$work"' EXIT

first="" second=""
for tree in one another/and-longer; do
    mkdir -p "$work/$tree"
    git archive "$commit" | tar -x -C "$work/$tree"
    git describe --tags --always --abbrev=12 "$commit" >"$work/$tree/COMMIT"
    deb=$("$work/$tree/scripts/deb.sh" 2>"$work/log") || { cat "$work/log"; exit 1; }
    first=$second
    second=$work/$tree/$deb
    rm -rf "$work/$tree/target/package"
done
if cmp "$first" "$second"; then
    echo "reproducible: two builds of $commit are the same: $(sha256sum "$second" | cut -d ' ' -f 1)"
    exit
fi
echo "reproducible: the packages differ, in:"
for deb in "$first" "$second"; do
    rm -rf "$work/x"
    dpkg-deb -R "$deb" "$work/x"
    (cd "$work/x" && find . -type f -print0 | sort -z | xargs -0 sha256sum) >"$work/$(basename "$(dirname "$deb")")-$((i = ${i:-0} + 1))"
done
diff "$work"/deb-1 "$work"/deb-2 || true
exit 1
