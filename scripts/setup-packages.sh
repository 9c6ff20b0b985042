#!/usr/bin/env bash
# Installs Debian packages for setup.sh, as root: `setup-packages.sh PACKAGE…`. Asks nothing, removes
# nothing. No service is started, or will be at boot, and PostgreSQL makes no database: what keeps them
# from it is undone at the end, or by the next run where this one is killed (`setup-packages.sh` alone
# only undoes).
set -euo pipefail
export DEBIAN_FRONTEND=noninteractive NEEDRESTART_SUSPEND=1 LC_ALL=C

undo=/var/lib/dafs-setup # what is to be put back
policy=/usr/sbin/policy-rc.d
cluster=/etc/postgresql-common/createcluster.conf

exec 9</var/lib/dpkg # one at a time
flock 9

# Links that start something at boot.
boot_links() {
    { find /etc/systemd/system /etc/systemd/user /etc/rc[2-5].d -type l ! -name 'K*' 2>/dev/null || true; } | sort
}

# Puts standard input in the place of FILE, until it is put back.
stand_in() { # NAME FILE
    if [ -e "$2" ]; then
        cp -a "$2" "$undo/$1.new" && mv "$undo/$1.new" "$undo/$1.saved"
    else
        : >"$undo/$1.none"
    fi
    cat >"$2"
}

put_back() { # NAME FILE
    if [ -e "$undo/$1.saved" ]; then
        cp -a "$undo/$1.saved" "$2"
        rm "$undo/$1.saved"
    elif [ -e "$undo/$1.none" ]; then
        rm -f "$2" "$undo/$1.none"
    fi
}

# Services of the packages installed meanwhile; those that were there, and the system's own, stay.
disable_new() {
    local link unit
    comm -13 "$undo/links" <(boot_links) | while read -r link; do
        unit=${link##*/}
        case $link in
            */S[0-9][0-9]dbus) ;;
            /etc/rc*) update-rc.d "${unit#S[0-9][0-9]}" disable || true ;;
            *)
                case $(dpkg -S "$(readlink "$link")" "/usr$(readlink "$link")" 2>/dev/null) in
                    systemd* | udev* | dbus* | init*) ;;
                    *) DPKG_MAINTSCRIPT_PACKAGE=dafs deb-systemd-helper disable "$unit"; rm -f "$link" ;;
                esac
                ;;
        esac
    done
}

undo_all() {
    [ -e "$undo" ] || return 0
    put_back policy "$policy"
    put_back cluster "$cluster"
    [ ! -e "$undo/links" ] || disable_new
    rm -rf "$undo"
}

apt() {
    apt-get -q -y -o DPkg::Lock::Timeout=300 -o Dpkg::Options::=--force-confold "$@" </dev/null 9<&-
}

# A killed run may have left packages half installed.
if [ -e "$undo" ]; then
    dpkg --configure -a --force-confold </dev/null 9<&- || true
    undo_all
fi
[ $# -gt 0 ] || exit 0

trap undo_all EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP
mkdir "$undo"
boot_links >"$undo/links.new" && mv "$undo/links.new" "$undo/links"
printf '#!/bin/sh\nexit 101\n' | stand_in policy "$policy"
chmod 755 "$policy"
apt update
case " $* " in *" postgresql "*)
    # First what brings the file, so that it is the package's own that is put back.
    apt install --no-install-recommends --no-remove postgresql-common
    { cat "$cluster" 2>/dev/null || true; echo "create_main_cluster = false"; } >"$undo/cluster.conf"
    stand_in cluster "$cluster" <"$undo/cluster.conf"
    ;;
esac
apt install --no-install-recommends --no-remove "$@"
