#!/usr/bin/env bash
# What scripts/deb-virtual.sh does in a virtual machine, as root, at each of its boots. Facts go to the second
# serial port, what commands say to the third.
set -uo pipefail
cd /test || exit 1
exec >/dev/ttyS2 2>&1
export LC_ALL=C DEBIAN_FRONTEND=noninteractive HOME=/root
install_seconds_max=10
url=dafs://localhost/
data=/srv/data mount=/mnt/data

tell() { echo "$*"; echo "$*" >/dev/ttyS1; }
fact() { # WHAT COMMAND…
    local what=$1
    shift
    if "$@"; then tell "holds: $what"; else tell "FAILED: $what ($*)"; false; fi
}
# Without which nothing else can be shown.
must() { # WHAT COMMAND…
    fact "$@" || finish
}
finish() {
    tell end
    systemctl poweroff
    exit
}
now() { date +%s%N; }
not() { ! "$@"; }
is() { [ "$1" = "$2" ] || { echo "'$1', not '$2'"; false; }; }
state() { systemctl show -P ActiveState "$1"; }
process() { systemctl show -P MainPID "$1"; }
contents() { (cd "$data" && find . -printf '%P %y %m %U %s\n' -type f -exec sha256sum {} + | sort); }

# Waits until a command succeeds, at most two minutes.
becomes() { # COMMAND…
    local end=$((SECONDS + 120))
    until "$@"; do
        [ $SECONDS -lt $end ] || { echo "not in time: $*"; return 1; }
        sleep 0.1
    done
}

install() { # FILE: milliseconds in $took
    local start
    start=$(now)
    apt-get install -qq -y --no-install-recommends "./$1"
    local status=$?
    took=$((($(now) - start) / 1000000))
    return $status
}

in_time() { [ "$(cat accelerator)" != kvm ] || [ $((took / 1000)) -lt $install_seconds_max ]; }

# As docs/install.md says.
serve() {
    mkdir -p "$data" && dafs config new data "$data" && systemctl enable --now dafs@data
}

# At once after each start, by a client that does not try again. The unit takes five starts a minute.
is_ready_when_active() {
    local round
    for round in 1 2; do
        systemctl restart dafs@data && is "$(state dafs@data)" active && dafs ls "$url" || { echo "round $round"; return 1; }
        systemctl stop dafs@data
        not dafs ls "$url" || { echo "something else serves"; return 1; }
    done
    systemctl start dafs@data
}

is_copied() {
    head -c 3000000 /dev/urandom >file && dafs cp -q file "${url}file" && cmp file "$data/file" && dafs cat "${url}file" | cmp - file
}

fails() { # STATE CONFIGURATION
    local status=0
    printf '%s\n' "$2" >/etc/dafs/bad.toml
    ! systemctl start dafs@bad && is "$(state dafs@bad)" "$1" || status=1
    systemctl stop dafs@bad
    systemctl reset-failed dafs@bad 2>/dev/null
    rm /etc/dafs/bad.toml
    return $status
}

killed_is_back() {
    local before
    systemctl reset-failed dafs@data
    before=$(process dafs@data)
    kill -9 "$before"
    another() { [ "$(process dafs@data)" != "$before" ] && [ "$(state dafs@data)" = active ]; }
    becomes another && dafs ls "$url"
}

first_boot() {
    must "it installs with what it depends on there" install new.deb
    fact "in $took ms" in_time
    must "dafs@data is enabled and started" serve
    must "it is active when it answers, and not before" is_ready_when_active
    fact "a file that dafs cp wrote is in the directory, and comes back" is_copied
    fact "the start of a server with a wrong configuration fails, and is not tried again" fails failed 'nonsense = 1'
    fact "that of one whose directory is not there fails, and is tried again" fails activating \
        $'listen = ["unix:/run/bad"]\n[[export]]\nname = "bad"\npath = "/nowhere"'
    must "a server that was killed is started again" killed_is_back
    mkdir -p "$mount"
    cat fstab >>/etc/fstab
    systemctl daemon-reload
    must "mount takes the line of /etc/fstab" mount "$mount"
    fact "the data are there" cmp file "$mount/file"
    # By nothing but the order in which the machine goes down.
    head -c 5000000 /dev/urandom | tee late >"$mount/late"
    sha256sum <late >late.sum
    systemctl reboot
}

is_mounted() { is "$(findmnt -n -o FSTYPE "$mount")" fuse.dafs; }
is_late_there() { is "$(sha256sum <"$mount/late")" "$(cat late.sum)" && is "$(sha256sum <"$data/late")" "$(cat late.sum)"; }

after_reboot() {
    fact "after the next boot the service is there" is "$(state dafs@data)" active
    fact "and the mount" is_mounted
    fact "with the data" cmp file "$mount/file"
    fact "and what was written just before" is_late_there
    fact "no unit has failed" is "$(systemctl list-units --failed --plain --no-legend)" ""
}

# Programs that were replaced under processes that run.
replaced_programs() { readlink /proc/[0-9]*/exe 2>/dev/null | grep -c '^/usr/bin/dafs.* (deleted)$'; }

# The program's own data, in the directory, by the new program, and by the mount.
is_all_right() {
    cmp expected "$data/kept" && cmp expected "$data/direct" && dafs cat "${url}kept" | cmp - expected &&
        cmp expected "$mount/direct"
}

upgrade() {
    local load before
    must "an earlier version installs" install old.deb
    must "and serves" serve
    must "and mounts" systemctl start "$(systemd-escape -p --suffix=mount "$mount")"
    rm -f started stop load expected
    perl load.pl "$mount" &
    load=$!
    becomes test -e started || { kill $load; tell "FAILED: the program on the mount starts"; }
    before=$(process dafs@data)
    must "the newer version installs over a server and a mount that run" install new.deb
    fact "in $took ms" in_time
    fact "it is the newer one" is "$(dpkg-query -W -f '${Version}' dafs)" "$(dpkg-deb -f new.deb Version)"
    fact "the server is another process" not is "$(process dafs@data)" "$before"
    fact "of the new program" is "$(readlink "/proc/$(process dafs@data)/exe")" /usr/bin/dafs
    fact "the mount is the earlier program's, which went on" is "$(replaced_programs)" 1
    fact "locks are held" not flock -n "$mount/kept" true
    touch stop
    fact "the program on the mount saw no error" wait $load
    fact "nor a wrong byte: $(cat load)" is_all_right
    fact "a mount of the new program has the same" remount
}

remount() {
    umount "$mount" && mount "$mount" && cmp expected "$mount/kept" && is "$(replaced_programs)" 0
}

# The server goes with its package; a mount would wait for it.
purge() {
    umount "$mount"
    contents >before
    must "it is purged" apt-get purge -qq -y dafs
    fact "the server has ended" not pidof dafs
    fact "no program is left" not ls /usr/bin/dafs /usr/sbin/mount.fuse.dafs
    fact "no configuration and no state" not ls -d /etc/dafs /var/lib/dafs /run/dafs
    fact "no unit" is "$(systemctl list-unit-files --no-legend 'dafs@*')$(find /etc/systemd -name 'dafs@*')" ""
    contents >after
    fact "all $(grep -c ' f ' before) exported files are as they were" cmp before after
}

# Everything that a boot starts is started, or has failed.
systemctl is-system-running --wait
if [ ! -e booted ]; then
    touch booted
    first_boot
    exit
fi
after_reboot
purge
upgrade
purge
finish
