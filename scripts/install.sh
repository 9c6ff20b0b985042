#!/usr/bin/env bash
# Puts what was built where programs, libraries and manuals are looked for, and takes it away again:
#
#   scripts/install.sh install      what lies in target/release, below PREFIX
#   scripts/install.sh uninstall    exactly what install put there
#   scripts/install.sh list         what install would put there, a line each
#   scripts/install.sh program NAME FILE    one program as it is installed: without symbols
#
# From the environment: PREFIX (/usr/local), LIBDIR (PREFIX/lib), DESTDIR (in front of all, empty),
# BUILD (where the programs are, target/release). What was installed is listed in
# PREFIX/share/dafs/installed. Uninstall believes of that list only what lies below PREFIX and is still
# of the kind and owner that it was; no link leads it elsewhere.
set -euo pipefail
cd "$(dirname "$0")/.."

prefix=${PREFIX:-/usr/local}
libdir=${LIBDIR:-$prefix/lib}
destdir=${DESTDIR:-}
build=${BUILD:-target/release}
root=$destdir$prefix
list=share/dafs/installed

die() { echo "install: $*" >&2; exit 1; }
say() { echo "install: $*" >&2; }

case $prefix in /*) ;; *) die "PREFIX=$prefix: an absolute path, please, such as PREFIX=$PWD/$prefix" ;; esac
case $prefix in *[[:space:]]*) die "PREFIX=$prefix: no blanks, please" ;; esac
case $libdir in "$prefix"/*) ;; *) die "LIBDIR=$libdir: it must lie below PREFIX=$prefix" ;; esac
lib=${libdir#"$prefix"/}

# mount(8) and systemd look into the system's own directories only.
is_system() { [ "$prefix" = /usr ] || [ "$prefix" = /usr/local ]; }

# Where mount(8) looks for helpers, if that is not below PREFIX.
helper_directory() {
    if [ -d "$destdir/sbin" ] && [ ! -L "$destdir/sbin" ]; then echo "$destdir/sbin"; else echo "$destdir/usr/sbin"; fi
}

work=""
clean() { [ -z "$work" ] || rm -rf "$work"; }
trap clean EXIT

# Everything as it will lie below PREFIX, in a directory of its own.
stage() {
    work=$(mktemp -d)
    local stage=$work/stage dafs=$build/dafs section file
    [ -x "$dafs" ] && [ -f "$build/libdafs.so" ] || die "$build lacks dafs or libdafs.so: make programs comes first"
    install -d "$stage/bin"
    program "$dafs" "$stage/bin/dafs"
    mkdir "$work/man"
    "$dafs" man-pages "$work/man"
    install -D -m 0644 -t "$stage/share/man/man1" "$work"/man/*.1
    install -d "$stage/share/man/man8"
    echo '.so man1/dafs-mount.1' >"$stage/share/man/man8/mount.fuse.dafs.8"
    "$dafs" completion bash >"$work/bash"
    "$dafs" completion zsh >"$work/zsh"
    "$dafs" completion fish >"$work/fish"
    install -D -m 0644 "$work/bash" "$stage/share/bash-completion/completions/dafs"
    install -D -m 0644 "$work/zsh" "$stage/share/zsh/${ZSH_COMPLETIONS:-site-functions}/_dafs"
    install -D -m 0644 "$work/fish" "$stage/share/fish/vendor_completions.d/dafs.fish"
    library "$stage"
    if is_system; then
        install -d "$stage/lib/systemd/system"
        sed "s|@BINDIR@|$prefix/bin|g" packaging/dafs@.service >"$stage/lib/systemd/system/dafs@.service"
        chmod 0644 "$stage/lib/systemd/system/dafs@.service"
    fi
    if [ "$prefix" != /usr/local ]; then
        install -d "$stage/sbin"
        ln -s ../bin/dafs "$stage/sbin/mount.fuse.dafs"
    fi
}

# Without symbols, which debuggers find in target/symbols by the build's number.
program() { # FROM TO
    install -m 0755 "$1" "$2"
    command -v objcopy >/dev/null || { say "no objcopy here (binutils): $(basename "$1") keeps its symbols"; return; }
    mkdir -p target/symbols
    objcopy --only-keep-debug "$1" "target/symbols/$(basename "$1").debug"
    strip --strip-unneeded --remove-section=.comment "$2"
}

library() { # STAGE
    local stage=$1 version
    version=$(sed -n '/^\[workspace.package\]/,/^\[/s/^version = "\(.*\)"/\1/p' Cargo.toml)
    install -d "$stage/$lib/pkgconfig" "$stage/include"
    program "$build/libdafs.so" "$stage/$lib/libdafs.so.$version"
    chmod 0644 "$stage/$lib/libdafs.so.$version"
    ln -s "libdafs.so.$version" "$stage/$lib/libdafs.so.0"
    ln -s libdafs.so.0 "$stage/$lib/libdafs.so"
    install -m 0644 "$build/libdafs.a" "$stage/$lib/libdafs.a"
    ! command -v strip >/dev/null || strip --strip-debug "$stage/$lib/libdafs.a"
    install -m 0644 crates/capi/include/dafs.h "$stage/include/dafs.h"
    sed "s|@PREFIX@|$prefix|g; s|@LIBDIR@|$libdir|g; s|@INCLUDEDIR@|$prefix/include|g; s|@VERSION@|$version|g" \
        crates/capi/dafs.pc.in >"$stage/$lib/pkgconfig/dafs.pc"
    chmod 0644 "$stage/$lib/pkgconfig/dafs.pc"
    install -d "$stage/share/man/man3"
    install -m 0644 -t "$stage/share/man/man3" crates/capi/man/*.3
}

# The directory that a path of ours lies in is below PREFIX, wherever links lead.
is_within() { # PATH-BELOW-PREFIX
    local parent
    case /$1/ in */../* | *//*) return 1 ;; esac
    parent=$(realpath -e -- "$root/$(dirname -- "$1")" 2>/dev/null) || return 1
    case $parent/ in "$(realpath -e -- "$root")"/*) ;; *) return 1 ;; esac
}

kind() { # FILE: d, l or f, with the target of a link
    if [ -L "$1" ]; then echo "l:$(readlink -- "$1")"; elif [ -d "$1" ]; then echo d; elif [ -f "$1" ]; then echo f; else echo none; fi
}

do_install() {
    stage
    local path at to new lines=$work/list
    install -d "$root" || die "$root cannot be made: as root, or with PREFIX=\$HOME/.local"
    [ -w "$root" ] || die "$root cannot be written: as root, or with PREFIX=\$HOME/.local"
    : >"$lines"
    # Directories that an earlier installation made are still ours.
    if [ -f "$root/$list" ]; then grep '^d ' "$root/$list" >>"$lines" || true; fi
    install -d "$work/stage/$(dirname "$list")"
    while IFS= read -r path; do
        at=$work/stage/$path to=$root/$path
        is_within "$path" || die "$to would lie outside $root: a link leads away"
        if [ -d "$at" ] && [ ! -L "$at" ]; then
            [ -d "$to" ] && continue
            mkdir "$to"
            chmod 0755 "$to"
            echo "d $(id -u) $path" >>"$lines"
            continue
        fi
        [ ! -d "$to" ] || [ -L "$to" ] || die "$to is a directory: what should be there is a file"
        new=$to.dafs-new
        rm -f -- "$new"
        cp -P -p -- "$at" "$new"
        mv -f -T -- "$new" "$to"
        echo "$(kind "$to" | cut -c1) $(stat -c %u -- "$to") $path" >>"$lines"
    done < <(cd "$work/stage" && find . -mindepth 1 -printf '%P\n' | LC_ALL=C sort)
    remove_what_was "$lines"
    sort -u -o "$lines" "$lines"
    install -m 0644 "$lines" "$root/$list"
    install_helper
    [ -n "$destdir" ] || [ "$(id -u)" != 0 ] || refresh
    say "installed below $root; make uninstall PREFIX=$prefix takes it away"
}

# What an earlier installation put there and this one does not.
remove_what_was() { # LIST
    [ -f "$root/$list" ] || return 0
    local old
    old=$(grep '^[fl] ' "$root/$list" | while read -r a b path; do
        grep -qxF "$a $b $path" "$1" || echo "$a $b $path"
    done) || true
    [ -z "$old" ] || remove "$old"
}

install_helper() {
    local at
    if [ "$prefix" = /usr ]; then return; fi
    if ! is_system; then
        say "$root/sbin/mount.fuse.dafs is not where mount(8) looks: for lines of /etc/fstab, as root:"
        say "    ln -s $prefix/bin/dafs /sbin/mount.fuse.dafs"
        say "and no service of systemd was installed: those are for PREFIX=/usr/local"
        return
    fi
    at=$(helper_directory)/mount.fuse.dafs
    if [ -e "$at" ] || [ -L "$at" ]; then
        [ "$(kind "$at")" = "l:$prefix/bin/dafs" ] || { say "$at is not ours, and stays (the Debian package's?)"; return; }
    fi
    if ! { mkdir -p "$(dirname "$at")" && ln -sfn "$prefix/bin/dafs" "$at"; } 2>/dev/null; then
        say "$at cannot be written: lines of /etc/fstab need it"
    fi
}

# Libraries, units and the like are found at once.
refresh() {
    ! is_system || ! command -v ldconfig >/dev/null || ldconfig
    ! is_system || [ ! -d /run/systemd/system ] || systemctl daemon-reload
}

# Lines of a list, directories last and innermost first.
remove() { # LINES
    local what owner path at is
    while read -r what owner path; do
        at=$root/$path
        is_within "$path" || { say "$at is not below $root, and stays"; continue; }
        is=$(kind "$at")
        case $is in none) continue ;; esac
        [ "${is:0:1}" = "$what" ] && [ "$(stat -c %u -- "$at")" = "$owner" ] ||
            { say "$at is not what was installed, and stays"; continue; }
        if [ "$what" = d ]; then
            rmdir -- "$at" 2>/dev/null || say "$at is not empty, and stays"
        else
            rm -f -- "$at"
        fi
    done < <({ grep '^[fl] ' <<<"$1" || true; grep '^d ' <<<"$1" | LC_ALL=C sort -r -k3 || true; })
}

do_uninstall() {
    local at lines
    if is_system && [ "$prefix" != /usr ]; then
        at=$(helper_directory)/mount.fuse.dafs
        [ "$(kind "$at")" != "l:$prefix/bin/dafs" ] || rm -f -- "$at"
    fi
    [ -f "$root/$list" ] || { say "nothing is installed below $root"; return; }
    is_within "$list" || die "$root/$list lies outside $root"
    lines=$(grep -E '^[fld] [0-9]+ [^ /][^ ]*$' "$root/$list") || die "$root/$list is damaged"
    rm -f -- "$root/$list"
    remove "$lines"
    [ -n "$destdir" ] || [ "$(id -u)" != 0 ] || refresh
    say "removed from $root"
}

do_list() {
    stage
    (cd "$work/stage" && find . -mindepth 1 ! -type d -printf '%P\n' | LC_ALL=C sort)
}

case ${1:-} in
    install) do_install ;;
    uninstall) do_uninstall ;;
    list) do_list ;;
    program) program "$build/${2:?}" "${3:?}" ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
