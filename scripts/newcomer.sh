#!/usr/bin/env bash
# Whether a bare Debian is enough: both commands of the README, `make serve` and `make test`, there, as
# who is named (all of them, where nobody is):
#
#   scripts/newcomer.sh [--quick] [root|sudo|alone]…
#
#   root    works
#   sudo    a user who may use sudo without a password: works
#   alone   a user without: is told what an administrator is to be asked for; when that is done, it works
#
# --quick installs what both commands need, and builds and tests nothing. What is committed is tried, in
# a chroot in mount and process namespaces of its own below target/newcomer: whatever happens, nothing
# stays mounted or running. Needs root, debootstrap and the network; says where it cannot. RELEASE=trixie
# tries another Debian.
set -euo pipefail
cd "$(dirname "$0")/.."

release=${RELEASE:-bookworm}
here=target/newcomer
mirror=${MIRROR:-http://deb.debian.org/debian}

skip() { echo "skipped: newcomer: $*"; exit 0; }
fail() { echo "newcomer: $who: $*" >&2; exit 1; }

if [ -z "${NEWCOMER_INSIDE:-}" ]; then
    [ "$(id -u)" = 0 ] || skip "needs root"
    command -v debootstrap >/dev/null || skip "needs debootstrap (apt-get install debootstrap)"
    unshare --mount --pid --fork true 2>/dev/null || skip "no namespaces here"
    NEWCOMER_INSIDE=1 exec unshare --mount --propagation private --pid --fork --kill-child \
        bash "$0" "$@"
fi

quick="" kinds=()
for arg; do
    case $arg in
        --quick) quick=yes ;;
        root | sudo | alone) kinds+=("$arg") ;;
        *) sed -n '2,15s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
    esac
done
[ ${#kinds[@]} -gt 0 ] || kinds=(root sudo alone)

base() {
    local dir=$here/$release
    [ ! -e "$dir.done" ] || return 0
    echo "== a bare Debian $release"
    rm -rf "$dir"
    mkdir -p "$here"
    debootstrap --variant=minbase "$release" "$dir" "$mirror" >"$here/debootstrap.log" 2>&1 ||
        skip "debootstrap failed, see $here/debootstrap.log"
    touch "$dir.done"
}

# Certificates that this machine trusts beside Debian's, as those of a proxy, are trusted there too.
prepare() {
    rm -rf "$root"
    cp -a --reflink=auto "$here/$release" "$root"
    cp /etc/resolv.conf "$root/etc/resolv.conf"
    mkdir -p "$root/usr/local/share/ca-certificates"
    cp /usr/local/share/ca-certificates/*.crt "$root/usr/local/share/ca-certificates/" 2>/dev/null || true
    mount --bind "$root" "$root"
    mount -t proc proc "$root/proc"
    mount --rbind /dev "$root/dev"
    mount --rbind -o ro /sys "$root/sys"
    # As Debian has it from 13 on.
    [ "$release" = bookworm ] || mount -t tmpfs tmpfs "$root/tmp"
    grep -q security "$root/etc/apt/sources.list" ||
        echo "deb http://deb.debian.org/debian-security $release-security main" >>"$root/etc/apt/sources.list"
    as root 'apt-get update -q && apt-get install -q -y --no-install-recommends make git' \
        >"$here/$who.prepare" 2>&1 || skip "make and git cannot be installed, see $here/$who.prepare"
    user=root home=/root
    if [ "$who" != root ]; then
        user=newcomer home=/home/newcomer
        as root 'useradd --create-home newcomer'
    fi
    if [ "$who" = sudo ]; then
        as root 'apt-get install -q -y --no-install-recommends sudo' >>"$here/$who.prepare" 2>&1
        echo 'newcomer ALL=(ALL) NOPASSWD: ALL' >"$root/etc/sudoers.d/newcomer"
    fi
    git clone -q --no-hardlinks . "$root$home/dafs"
    mkdir -p "$root/srv/data"
    echo hello >"$root/srv/data/hello"
    as root "chown -R $user: $home/dafs /srv/data"
    before=$(traces)
}

as() { # USER COMMANDS: there, where / is a mount as on a machine: programs may make namespaces
    # Under nohup too signals end what they end for a newcomer.
    unshare --mount --propagation private bash -c 'cd "$1" && pivot_root . . && umount -l . && shift && exec "$@"' - \
        "$root" /usr/bin/env -i --default-signal HOME="$(chroot "$root" getent passwd "$1" | cut -d: -f6)" TERM=dumb \
        PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin ${CI:+CI=$CI} \
        setpriv --reuid "$1" --regid "$1" --init-groups bash -c "$2" </dev/null
}

in_tree() { as "$user" "cd $home/dafs && $1"; }

# What an installation could leave behind that works by itself.
traces() {
    (
        cd "$root"
        find etc/systemd/system etc/rc[2-5].d \( -type l -o -type f \) ! -name 'K*' ! -name 'S*dbus' \
            ! -name 'getty@*' ! -name 'remote-fs.target' ! -name 'systemd-*' 2>/dev/null
        ls -d usr/sbin/policy-rc.d var/lib/dafs-setup etc/postgresql/*/* 2>/dev/null
        grep -H '^create_main_cluster' etc/postgresql-common/createcluster.conf 2>/dev/null
        ls -l proc/[0-9]*/exe 2>/dev/null | grep -o '[^/ ]*redis[^ ]*\|postgres$\|iperf3$'
    ) | sort || true
}

same_machine() {
    local left
    left=$(comm -13 <(echo "$before") <(traces))
    [ -z "$left" ] || fail "the installation left: $left"
}

# By an administrator, exactly as was said.
ask_as_told() { # LOG
    local line
    line=$(sed -n 's/^ *\(apt-get install .*\)/\1/p' "$1")
    [ -n "$line" ] || fail "nobody said what to ask for: $(cat "$1")"
    [ "$(echo "$line" | wc -l)" = 1 ] || fail "more than one line to ask for"
    grep -q 'https://rustup.rs' "$1" || grep -qv rustc "$1" || fail "no word about rustup"
    echo "   told: $line"
    printf '#!/bin/sh\nexit 101\n' >"$root/usr/sbin/policy-rc.d"
    chmod 755 "$root/usr/sbin/policy-rc.d"
    as root "DEBIAN_FRONTEND=noninteractive $line -y -q" >"$1.asked" 2>&1 || fail "what was said fails: see $1.asked"
    rm "$root/usr/sbin/policy-rc.d"
}

# scripts/setup.sh for a command, with what must come of it.
setup() { # WHAT
    local log=$here/$who.setup-$1
    if [ "$who" = alone ]; then
        if in_tree "scripts/setup.sh $1" >"$log" 2>&1; then fail "setup.sh $1 works, with nothing there"; fi
        ask_as_told "$log"
    fi
    timeout -k 5 1200 bash -c "$(declare -f as in_tree)
        $(declare -p root user home)
        in_tree 'scripts/setup.sh $1'" >"$log.done" 2>&1 || fail "setup.sh $1: $(tail -n 20 "$log.done")"
    [ "$who" = alone ] || same_machine
    # And is quick when everything is there.
    [ -z "$(in_tree "scripts/setup.sh $1" 2>&1)" ] || fail "setup.sh $1 is not done after one run"
}

serve() {
    local log=$here/$who.serve server url
    in_tree 'exec make serve DIR=/srv/data ARGS="--listen tcp://127.0.0.1:0"' >"$log" 2>"$log.errors" &
    server=$!
    until url=$(grep -m 1 '^dafs://' "$log"); do
        kill -0 "$server" 2>/dev/null || fail "make serve ended: $(tail -n 20 "$log.errors")"
        sleep 1
    done
    [ "$(in_tree "target/release/dafs cat ${url}hello")" = hello ] || fail "nothing is served"
    as root 'pkill -INT -x dafs' 2>/dev/null || as root 'for exe in /proc/[0-9]*/exe; do
        case $(readlink $exe) in */target/release/dafs) pid=${exe#/proc/}; kill -INT ${pid%/exe} ;; esac; done'
    wait "$server" || fail "make serve ended with $?: $(tail -n 5 "$log.errors")"
}

base
for who in "${kinds[@]}"; do
    root=$PWD/$here/$who start=$SECONDS
    echo "== $who"
    prepare
    # A wrong directory is no reason to build.
    if in_tree 'make serve DIR=/srv/none' >"$here/$who.wrong" 2>&1; then fail "serves what is not there"; fi
    grep -q '/srv/none' "$here/$who.wrong" || fail "a wrong DIR is not named: $(cat "$here/$who.wrong")"
    [ ! -e "$root$home/dafs/target" ] || fail "builds before it looks at DIR"
    setup build
    echo "   what make serve needs is there: $((SECONDS - start)) s"
    if [ -z "$quick" ]; then
        serve
        echo "   make serve serves: $((SECONDS - start)) s"
    fi
    setup test
    echo "   what make test needs is there: $((SECONDS - start)) s"
    if [ -z "$quick" ]; then
        in_tree 'make test' >"$here/$who.test" 2>&1 || fail "make test: $(tail -n 20 "$here/$who.test")"
        tail -n 1 "$here/$who.test"
        same_machine
    fi
    umount -R "$root"
    rm -rf --one-file-system "$root"
    echo "   done: $((SECONDS - start)) s"
done
