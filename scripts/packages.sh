#!/usr/bin/env bash
# Whether packages hold what they should, and leave nothing behind: installation below a PREFIX, the
# Debian package in a root of its own, its unit. Uses the programs that lie in BUILD (target/release).
#
# A line that begins with `skipped: ` tells what could not be tried; with CI set that is a failure.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"

export BUILD=${BUILD:-target/release}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
bad=0 good=0

ok() { good=$((good + 1)); }
fail() { echo "packages: $*"; bad=$((bad + 1)); }
check() { # WHAT COMMAND…
    local what=$1
    shift
    if "$@" >"$work/said" 2>&1; then ok; else fail "$what"; sed 's/^/    /' "$work/said"; fi
}
same() { # WHAT EXPECTED FOUND
    if [ "$2" = "$3" ]; then ok; else fail "$1"; diff <(echo "$2") <(echo "$3") | sed 's/^/    /'; fi
}
skip() { echo "skipped: packages: $*"; [ -z "${CI:-}" ] || bad=$((bad + 1)); }
tree() { (cd "$1" && find . -mindepth 1 -printf '%P %y %l\n' | sort); }

# Below a PREFIX: twice, and nothing is left; what is not ours stays.
prefix_installs() {
    local destdir=$work/destdir prefix=/usr/local before first
    mkdir -p "$destdir$prefix/bin" "$destdir/usr/sbin"
    echo theirs >"$destdir$prefix/bin/other"
    before=$(tree "$destdir")
    export PREFIX=$prefix DESTDIR=$destdir
    check "install" scripts/install.sh install
    first=$(tree "$destdir")
    check "the installed program runs" "$destdir$prefix/bin/dafs" version
    check "a unit is installed" grep -q "ExecStart=/usr/local/bin/dafs" "$destdir$prefix/lib/systemd/system/dafs@.service"
    same "the helper of mount(8)" /usr/local/bin/dafs "$(readlink "$destdir/usr/sbin/mount.fuse.dafs")"
    check "install again" scripts/install.sh install
    same "a second installation changes nothing" "$first" "$(tree "$destdir")"
    check "uninstall" scripts/install.sh uninstall
    same "uninstall leaves nothing" "$before" "$(tree "$destdir")"
    check "uninstall again" scripts/install.sh uninstall
    same "and what is not ours" "$before" "$(tree "$destdir")"
}

# A list that somebody wrote removes nothing outside, and nothing that has become another's.
prefix_is_not_led_away() {
    local destdir=$work/away prefix=/home/me/.local list
    list=$destdir$prefix/share/dafs/installed
    export PREFIX=$prefix DESTDIR=$destdir
    check "install below a home" scripts/install.sh install
    same "a word that fstab will not find it" 1 "$(grep -c "not where mount(8) looks" "$work/said")"
    mkdir -p "$destdir/precious" "$destdir$prefix/lib/keep"
    echo precious | tee "$destdir/precious/file" "$destdir/file" "$destdir$prefix/lib/keep/file" >"$destdir$prefix/mine"
    ln -s "$destdir/precious" "$destdir$prefix/link"
    printf 'f %s %s\n' "$(id -u)" ../../../file 77 mine "$(id -u)" link/file >>"$list"
    printf 'f %s %s\n' "$(id -u)" /etc/hostname "$(id -u)" lib/keep >>"$list"
    rm "$destdir$prefix/share/man/man1/dafs-ls.1"
    mkdir "$destdir$prefix/share/man/man1/dafs-ls.1"
    check "uninstall by a wrong list" scripts/install.sh uninstall
    same "what is not ours stays" "$(printf '%s\n' file home/me/.local/lib/keep/file home/me/.local/mine precious/file)" \
        "$(cd "$destdir" && find . -type f -printf '%P\n' | sort)"
    check "a directory that took a name of ours stays" test -d "$destdir$prefix/share/man/man1/dafs-ls.1"
    rm -rf "$destdir"
    mkdir -p "$destdir$prefix" "$destdir/elsewhere"
    ln -s "$destdir/elsewhere" "$destdir$prefix/share"
    if scripts/install.sh install >/dev/null 2>&1; then fail "installed through a link that leads away"; else ok; fi
    same "nothing was written there" "" "$(tree "$destdir/elsewhere")"
}

# What the package has in it: the list is packaging/debian/files, and a page for each command.
deb_holds() { # FILE
    local listing version
    version=$(dpkg-deb -f "$1" Version)
    listing=$(dpkg-deb -c "$1" | awk '{ $1 = $2 = $3 = $4 = $5 = ""; sub(/^ +\.\//, ""); print }')
    same "the files of the package" \
        "$(sed "s|@MULTIARCH@|$(gcc -print-multiarch)|; s|@VERSION@|$version|" packaging/debian/files | sort)" \
        "$(grep -E '[^/]$|^etc/dafs/$' <<<"$listing" | grep -v '/man1/dafs-\|/man3/' | sort)"
    same "a page for each command" \
        "$("$BUILD/dafs" --help | sed -n '/^Commands:/,/^$/s/^  \([a-z]\{1,\}\) .*/\1/p' | grep -vx help | sort)" \
        "$(sed -n 's|.*/man1/dafs-\([a-z]*\)\.1\.gz$|\1|p' <<<"$listing" | grep -vx help | sort)"
    same "a page for each call" "$(cd crates/capi/man && ls | sort)" "$(sed -n 's|.*/man3/\(.*\)\.gz$|\1|p' <<<"$listing" | sort)"
    same "all is root's" "root/root" "$(dpkg-deb -c "$1" | awk '{ print $2 }' | sort -u)"
    same "no name of a directory here" "" "$(dpkg-deb --fsys-tarfile "$1" | grep -a -o -m 1 "$PWD/[a-z]*" | head -n 1)"
    if command -v lintian >/dev/null; then
        check "lintian" lintian --allow-root --fail-on error "$1"
    else
        skip "lintian is not installed"
    fi
}

dpkg_here() { # ROOT ARGUMENTS…: in a root that has nothing but dpkg's own files
    local root=$1
    shift
    dpkg --root="$root" --force-script-chrootless --force-depends --force-not-root --log=/dev/null "$@"
}

# Installed and purged in a root of its own: the program, what it was told and what it keeps go, exported
# files stay wherever they are.
deb_purges() { # FILE
    local root=$work/root state exported
    mkdir -p "$root"/var/lib/dpkg/{info,updates,triggers} "$root"/var/lib/dafs/x "$root"/{srv/data,outside} "$root/etc/dafs/given"
    : >"$root/var/lib/dpkg/status"
    : >"$root/var/lib/dpkg/available"
    check "the package installs" dpkg_here "$root" -i "$1"
    check "its program runs" "$root/usr/bin/dafs" version
    state=$root/var/lib/dafs/clients-0123456789abcdef
    touch "$state" "$state.lock" "$state.notes" "$state.numbers" "$state.ended" "$root/var/lib/dafs/handle.key" "$root/etc/dafs/data.key"
    printf '[[export]]\npath = "/srv/data"\n' >"$root/etc/dafs/data.toml"
    for exported in var/lib/dafs/x/clients-0123456789abcdef var/lib/dafs/clients-mine srv/data/file etc/dafs/given/file outside/file; do
        echo exported >"$root/$exported"
    done
    ln -s "$root/outside" "$root/var/lib/dafs/clients-fedcba9876543210"
    mkdir -p "$root/etc/systemd/system/multi-user.target.wants"
    ln -s /usr/lib/systemd/system/dafs@.service "$root/etc/systemd/system/multi-user.target.wants/dafs@data.service"
    check "the package is removed" dpkg_here "$root" -r dafs
    check "the configuration stays" test -e "$root/etc/dafs/data.toml" -a -e "$state.notes"
    check "the package is purged" dpkg_here "$root" -P dafs
    same "what is left is not the package's" \
        "$(printf '%s\n' etc/dafs/given/file outside/file srv/data/file var/lib/dafs/clients-mine var/lib/dafs/x/clients-0123456789abcdef)" \
        "$(cd "$root" && find . ! -type d ! -path './var/lib/dpkg/*' -printf '%P\n' | sort)"
    rm -rf "$root/var/lib/dafs" "$root/etc/dafs"
    check "it installs again" dpkg_here "$root" -i "$1"
    ln -s "$root/outside" "$root/var/lib/dafs"
    printf "[[export]]\npath = '/etc/dafs'\n" >"$root/etc/dafs/own.toml"
    check "and is purged again" dpkg_here "$root" -P dafs
    same "no link is followed, and an exported /etc/dafs stays" "$(printf '%s\n' etc/dafs/own.toml outside/file srv/data/file)" \
        "$(cd "$root" && find . ! -type d ! -path './var/lib/dpkg/*' -printf '%P\n' | sort)"
}

# systemd reads the unit without a complaint.
unit_is_good() {
    command -v systemd-analyze >/dev/null || { skip "no systemd-analyze here"; return; }
    mkdir "$work/units"
    sed "s|@BINDIR@|$(realpath "$BUILD")|" packaging/dafs@.service >"$work/units/dafs@.service"
    check "the unit" systemd-analyze --man=no verify "$work/units/dafs@data.service"
    same "systemd complains of nothing" "" "$(cat "$work/said")"
}

[ -x "$BUILD/dafs" ] || { echo "packages: $BUILD/dafs is not there: make programs"; exit 1; }
prefix_installs
prefix_is_not_led_away
unset PREFIX DESTDIR
unit_is_good
if command -v dpkg-deb >/dev/null; then
    deb=$(scripts/deb.sh --programs "$BUILD" 2>"$work/log" | tail -n 1)
    if [ -f "$deb" ]; then
        deb_holds "$deb"
        deb_purges "$deb"
    else
        fail "no package was made"
        sed 's/^/    /' "$work/log"
    fi
else
    skip "no dpkg-deb here"
fi
echo "packages: $good checks good, $bad bad"
[ "$bad" = 0 ]
