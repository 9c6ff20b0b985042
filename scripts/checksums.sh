#!/usr/bin/env bash
# Gathers what was made for others in target/dist, with its checksums in SHA256SUMS: the package, the static
# program, the archive of the sources and wheels, as far as they are there.
set -euo pipefail
cd "$(dirname "$0")/.."
version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
dist=target/dist
rm -rf "$dist"
mkdir -p "$dist"
for file in "target/deb/dafs_${version}_"*.deb "target/source/dafs-$version.tar.xz" "target/wheels/"*"-$version-"*.whl; do
    [ ! -f "$file" ] || cp -p "$file" "$dist/"
done
[ ! -f target/static/dafs ] || cp -p target/static/dafs "$dist/dafs-$version-$(uname -m)-static"
cd "$dist"
set -- *
[ -e "$1" ] || { echo "checksums.sh: nothing was made yet: make deb, make static, make source, make wheel" >&2; exit 1; }
sha256sum "$@" >SHA256SUMS
sha256sum --quiet -c SHA256SUMS
echo "$dist/SHA256SUMS"
