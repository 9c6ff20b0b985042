#!/usr/bin/env bash
# The Debian package on machines that boot with systemd, virtual ones: installed, as a service, mounted at
# boot by a line of /etc/fstab, a newer version over running mounts, purged.
#
#   scripts/deb-virtual.sh DEB [OLD_DEB] [SUITE…]      bookworm and trixie (12 and 13) if none is given
#
# OLD_DEB is what is upgraded from. Without it, it is made of the newest tag with a lower version, and where
# there is none, it is DEB under a lower version, which is said.
#
# Needs root, debootstrap, qemu, some 3 GB and, the first time, the network: the systems are kept in
# target/bare. What happens inside is in scripts/deb-virtual-inside.sh. Each fact is a line; status 1 if one
# does not hold. Where /dev/kvm does not work the processor is emulated, which takes minutes, and times are only told.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
deb=${1:?which package? scripts/deb-virtual.sh target/deb/dafs_VERSION_amd64.deb}
shift
old=""
case ${1:-} in *.deb) old=$1; shift ;; esac
[ $# -gt 0 ] || set -- bookworm trixie
seconds_max=300 emulated_seconds_max=2400
. scripts/bare.sh

skip() { echo "skipped: the package in virtual machines: $*"; exit 0; }
[ "$(id -u)" = 0 ] && command -v debootstrap >/dev/null || skip "needs root and debootstrap"
[ "$(dpkg --print-architecture)" = amd64 ] || skip "the machines are amd64 ones"
command -v qemu-system-x86_64 >/dev/null || skip "needs qemu-system-x86_64 (apt-get install qemu-system-x86)"
command -v mkfs.ext4 >/dev/null || skip "needs mkfs.ext4 (apt-get install e2fsprogs)"

work=$(mktemp -d)
machine=""
end() {
    [ -z "$machine" ] || kill "$machine" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT
trap 'exit 143' TERM HUP

# The processor's own virtual machines, where a kernel comes up in one: some hosts have the device, and nothing
# runs on it. Without a disk it panics, which ends the machine.
accelerator() { # KERNEL
    if timeout 20 qemu-system-x86_64 -accel kvm -cpu max -nodefaults -no-user-config -display none -m 256 \
        -no-reboot -kernel "$1" -append panic=-1 </dev/null >/dev/null 2>&1; then
        echo kvm
    else
        echo tcg
    fi
}

# The newest version that has a tag and is lower than this one's.
earlier_tag() { # VERSION
    local tag
    git tag --list 'v[0-9]*' 2>/dev/null | sort -V -r | while read -r tag; do
        ! dpkg --compare-versions "${tag#v}" lt "$1" || { echo "$tag"; break; }
    done
}

# What is upgraded from.
earlier() {
    local version tag tree
    version=$(dpkg-deb -f "$deb" Version)
    tag=$(earlier_tag "$version")
    if [ -n "$tag" ]; then
        tree=target/compare/deb-$tag
        if [ -z "$(find "$tree/target/deb" -name '*.deb' 2>/dev/null)" ]; then
            rm -rf "$tree"
            mkdir -p "$tree"
            git archive "$tag" | tar x -C "$tree"
            (cd "$tree" && scripts/deb.sh >"$work/said" 2>&1) || { tail "$work/said" >&2; return 1; }
        fi
        find "$tree/target/deb" -name '*.deb'
        return
    fi
    dpkg-deb -R "$deb" "$work/root"
    sed -i "s/^Version: .*/Version: $version~earlier/; s/(= $version)/(= $version~earlier)/g" "$work/root/DEBIAN/control"
    dpkg-deb --root-owner-group -Zgzip -b "$work/root" "$work/earlier.deb" >/dev/null
    rm -rf "$work/root"
    echo "$work/earlier.deb"
}

# A system that boots, as a disk; its kernel lies beside it. At each boot it runs what is on the second disk.
disk() { # SUITE
    local system root=target/bare/virtual-$1
    [ ! -e "$root.done" ] || return 0
    system=$(bare "$1") || return 1
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$system" "$root"
    within "$root" <<'END' || return 1
export DEBIAN_FRONTEND=noninteractive
{
    apt-get update -qq
    apt-get install -qq -y --no-install-recommends linux-image-amd64 initramfs-tools systemd-sysv dbus fuse3 libgcc-s1
    apt-get clean
} >/test/log 2>&1 || { tail /test/log; exit 1; }
echo "/dev/vda / ext4 defaults 0 1" >/etc/fstab
echo virtual >/etc/hostname
echo "127.0.0.1 localhost virtual" >/etc/hosts
cat >/etc/systemd/system/inside.service <<'UNIT'
[Unit]
Description=What is to be tried
[Service]
ExecStart=/bin/sh -c 'mkdir -p /test && cd /test && tar -xf /dev/vdb && exec /bin/bash /test/inside.sh'
[Install]
WantedBy=multi-user.target
UNIT
systemctl enable inside.service
rm -rf /test/log
END
    cp -L "$root/vmlinuz" "$root.kernel"
    cp -L "$root/initrd.img" "$root.initrd"
    rm -f "$root.ext4"
    truncate -s 3G "$root.ext4"
    mkfs.ext4 -q -F -d "$root" "$root.ext4" || return 1
    rm -rf --one-file-system "$root"
    touch "$root.done"
}

# Boots it, and waits until it has ended; what it writes to its disk is thrown away.
boot() { # SUITE SECONDS
    local root=target/bare/virtual-$1 status=0
    : >"$work/facts"
    TMPDIR=$PWD/target/bare timeout -k 5 "$2" qemu-system-x86_64 -accel "$accelerator" -cpu max,la57=off \
        -nodefaults -no-user-config -display none -smp 2 -m 1536 -snapshot \
        -kernel "$root.kernel" -initrd "$root.initrd" -append "root=/dev/vda rw console=ttyS0 quiet" \
        -drive "file=$root.ext4,format=raw,if=virtio" -drive "file=$work/test.tar,format=raw,if=virtio" \
        -device virtio-rng-pci -serial "file:$work/console" -serial "file:$work/facts" \
        -serial "file:$work/said" </dev/null >"$work/qemu" 2>&1 &
    machine=$!
    wait "$machine" || status=$?
    machine=""
    return $status
}

one() { # SUITE
    local suite=$1 limit=$seconds_max start=$SECONDS status=0 kept=target/bare/virtual-$1.said
    [ "$accelerator" = kvm ] || limit=$emulated_seconds_max
    boot "$suite" "$limit" || status=$?
    tr -d '\r' <"$work/facts" | sed -n "s/^\(holds\|FAILED\): /deb-virtual: $suite: &/p" | sed 's/: holds: /: /'
    cat "$work/console" "$work/said" "$work/qemu" | tr -d '\r' >"$kept"
    if [ $status != 0 ] || ! grep -q '^end' "$work/facts"; then
        tail -n 40 "$kept"
        [ $status != 124 ] || echo "deb-virtual: $suite: not done after $limit s"
        return 1
    fi
    if grep -q '^FAILED' "$work/facts"; then
        echo "deb-virtual: $suite: what it said is in $kept"
        return 1
    fi
    echo "deb-virtual: $suite: $(grep -c '^holds' "$work/facts") facts hold, in $((SECONDS - start)) s"
}

for suite in "$@"; do disk "$suite"; done
accelerator=$(accelerator "target/bare/virtual-$1.kernel")
mkdir "$work/test"
cp "$deb" "$work/test/new.deb"
[ -n "$old" ] || old=$(earlier)
cp "$old" "$work/test/old.deb"
cp scripts/deb-virtual-inside.sh "$work/test/inside.sh"
cp scripts/deb-virtual-load.pl "$work/test/load.pl"
# The line that the documentation gives to users.
sed -n 's/^    \(dafs:\/\/localhost\/ .* fuse\.dafs .*\)/\1/p' docs/install.md >"$work/test/fstab"
echo "$accelerator" >"$work/test/accelerator"
tar -cf "$work/test.tar" -C "$work/test" .
case $old in
    "$work"/*) echo "deb-virtual: upgrades are from the same program under a lower version: there is no tag of an earlier one" ;;
    *) echo "deb-virtual: upgrades are from $old" ;;
esac
[ "$accelerator" = kvm ] || echo "deb-virtual: no virtual machine of the processor's works here: the processor is emulated, and times are only told"

bad=0
for suite in "$@"; do
    one "$suite" || { bad=1; echo "deb-virtual: $suite: failed"; }
done
exit $bad
