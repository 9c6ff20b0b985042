#!/usr/bin/env bash
# The Debian package in bare Debian systems, in chroots of them: installed, served from, purged.
#
#   scripts/deb-bare.sh DEB [SUITE…]      bookworm and trixie (12 and 13) if none is given
#
# Needs root, debootstrap and, the first time, the network: the systems are kept in target/bare. What a suite
# shows is a line; status 1 if something is wrong in one.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
deb=${1:?which package? scripts/deb-bare.sh target/deb/dafs_VERSION_ARCHITECTURE.deb}
shift
[ $# -gt 0 ] || set -- bookworm trixie
install_seconds_max=10
. scripts/bare.sh

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "skipped: the package in bare systems: needs root and debootstrap"
    exit 0
fi

# All files with their kind, rights and owners; not those of the package system, nor what runs write.
files() { # ROOT
    (cd "$1" && find . -xdev \( -path ./proc -o -path ./dev -o -path ./sys -o -path ./tmp -o -path ./test -o -path ./var/lib/dpkg \
        -o -path ./var/lib/apt -o -path ./var/cache -o -path ./var/log \) -prune -o -printf '%p %y %m %u:%g %l\n' |
        grep -v 'ld.so.cache\|/etc/apt' | sort)
}

one() { # SUITE
    local suite=$1 system root start took
    system=$(bare "$suite") || return 1
    root=target/bare/run-$suite
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$system" "$root"
    mkdir -p "$root/test" "$root/srv/data"
    cp "$deb" "$root/test/dafs.deb"
    files "$root" >"$root.before"
    start=$(date +%s%N)
    within "$root" <<'END' || return 1
export DEBIAN_FRONTEND=noninteractive
apt-get install -qq -y --no-install-recommends /test/dafs.deb >/test/log 2>&1 || { cat /test/log; exit 1; }
END
    took=$(($(date +%s%N) - start))
    within "$root" <<'END' || return 1
dafs version
mkdir -p /etc/dafs /test/socket
printf 'listen = ["unix:/test/socket/s"]\narena_bytes = 67108864\n[[export]]\nname = "data"\npath = "/srv/data"\n' >/etc/dafs/data.toml
dafs serve --config /etc/dafs/data.toml >/test/urls 2>/test/log &
server=$!
for i in $(seq 600); do ! grep -q Ctrl-C /test/urls || break; kill -0 $server 2>/dev/null || { cat /test/log; exit 1; }; sleep 0.1; done
url=dafs+unix:///test/socket/s//
head -c 3000000 /dev/urandom >/test/file
dafs cp -q /test/file "${url}file"
dafs cat "${url}file" | cmp - /test/file
kill $server
wait $server
cmp /srv/data/file /test/file
ls /var/lib/dafs | grep -q '^clients-'
apt-get purge -qq -y dafs >/test/log 2>&1 || { cat /test/log; exit 1; }
cmp /srv/data/file /test/file
rm /srv/data/file
END
    files "$root" >"$root.after"
    if ! diff "$root.before" "$root.after"; then
        echo "deb-bare: $suite: the purge left something, or took something"
        return 1
    fi
    rm -rf --one-file-system "$root"
    echo "deb-bare: $suite: installed in $((took / 1000000)) ms, served, purged, nothing left"
    [ $((took / 1000000000)) -lt $install_seconds_max ] || { echo "deb-bare: $suite: that is too long"; return 1; }
}

bad=0
for suite in "$@"; do
    one "$suite" || { bad=1; echo "deb-bare: $suite: failed"; }
done
exit $bad
