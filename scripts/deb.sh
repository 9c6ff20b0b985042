#!/usr/bin/env bash
# Makes target/deb/dafs_VERSION_ARCHITECTURE.deb, without the network: one package with everything, since
# one file is what somebody installs who has no repository to install others from.
#
#   scripts/deb.sh                  builds, then packs
#   scripts/deb.sh --programs DIR   packs the programs that lie in DIR
#   ... --version VERSION           under another version (for tests of upgrades)
#
# The last line of the output is the file.
set -euo pipefail
cd "$(dirname "$0")/.."
export PATH="$PATH:$HOME/.cargo/bin" LC_ALL=C

programs="" version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
while [ $# -gt 0 ]; do
    case $1 in
        --programs) programs=${2:?}; shift 2 ;;
        --version) version=${2:?}; shift 2 ;;
        *) sed -n '2,9s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done
[ -n "$programs" ] || programs=$(scripts/package-build.sh)

maintainer="DAFS maintainers <maintainers@dafs.invalid>"
architecture=$(dpkg --print-architecture)
SOURCE_DATE_EPOCH=${SOURCE_DATE_EPOCH:-$(git log -1 --format=%ct 2>/dev/null || stat -c %Y Cargo.toml)}
export SOURCE_DATE_EPOCH
out=target/deb
root=$out/root
rm -rf "$root"
mkdir -p "$root/DEBIAN"
umask 022

crates=(dafs-cli dafs-capi)
PREFIX=/usr LIBDIR=/usr/lib/$(gcc -print-multiarch) DESTDIR=$root BUILD=$programs \
    ZSH_COMPLETIONS=vendor-completions scripts/install.sh install >&2
rm -r "$root/usr/share/dafs"

documents() {
    local doc=$root/usr/share/doc/dafs
    install -d "$doc" "$root/etc/dafs"
    cat packaging/debian/copyright >"$doc/copyright"
    { echo; scripts/licences.py summary "${crates[@]}" | sed 's/^/  /'; } >>"$doc/copyright"
    scripts/licences.py texts "${crates[@]}" >"$doc/licences.txt"
    install -m 0644 CHANGELOG.md "$doc/NEWS"
    printf 'dafs (%s) unstable; urgency=medium\n\n  * What is new is in NEWS.gz.\n\n -- %s  %s\n' \
        "$version" "$maintainer" "$(date -u -R -d "@$SOURCE_DATE_EPOCH")" >"$doc/changelog"
    gzip -9n "$doc/licences.txt" "$doc/NEWS" "$doc/changelog"
    find "$root/usr/share/man" -name '*.[1-8]' -exec gzip -9n {} +
}

# The C library whose symbols the programs ask for, and what unwinds.
dependencies() {
    local newest
    newest=$(objdump -T "$root/usr/bin/dafs" "$programs/libdafs.so" | grep -o 'GLIBC_[0-9.]*' | sort -u -V | tail -n 1)
    echo "libc6 (>= ${newest#GLIBC_}), libgcc-s1"
}

control() {
    local size
    size=$(du -k -s --apparent-size "$root" | cut -f 1)
    sed "s|@VERSION@|$version|; s|@ARCHITECTURE@|$architecture|; s|@MAINTAINER@|$maintainer|; s|@SIZE@|$size|
        s|@DEPENDS@|$(dependencies)|; s|@VERSION@|$version|g" packaging/debian/control >"$root/DEBIAN/control"
    install -m 0755 packaging/debian/{postinst,prerm,postrm} "$root/DEBIAN/"
    echo "activate-noawait ldconfig" >"$root/DEBIAN/triggers"
    echo "libdafs 0 dafs (>= $version)" >"$root/DEBIAN/shlibs"
    (cd "$root" && find usr -type f -print0 | sort -z | xargs -0 md5sum) >"$root/DEBIAN/md5sums"
}

documents
control
chmod -R u+rwX,go+rX,go-w "$root"
find "$root" -exec touch -h -d "@$SOURCE_DATE_EPOCH" {} +
deb=$out/dafs_${version}_$architecture.deb
# One thread: how many there are is seen in what xz writes.
dpkg-deb --root-owner-group --threads-max=1 --build "$root" "$deb" >&2
rm -rf "$root"
echo "$deb"
