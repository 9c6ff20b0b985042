#!/usr/bin/env bash
# Installs what is missing on this machine: `setup.sh build|deb|browser|test|test-long|small-work`.
# Does nothing, quickly, when everything is there.
set -euo pipefail

cd "$(dirname "$0")/.."
need="${1:-build}"
rust_least=1.89

say() { echo "setup: $*" >&2; }

apt_install() {
    command -v apt-get >/dev/null || { say "please install: $*"; exit 1; }
    local run=()
    if [ "$(id -u)" != 0 ]; then
        command -v sudo >/dev/null || { say "needs root or sudo to install: $*"; exit 1; }
        run=(sudo)
    fi
    if [ -z "${apt_updated:-}" ]; then
        "${run[@]}" apt-get update -qq
        apt_updated=1
    fi
    say "installing $*"
    # After sudo, which drops the environment: a package that asks would wait for ever.
    "${run[@]}" env DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends "$@" >/dev/null
}

rust_is_new_enough() {
    command -v cargo >/dev/null && command -v rustc >/dev/null || return 1
    local have
    have=$(rustc --version | awk '{print $2}')
    [ "$(printf '%s\n%s\n' "$rust_least" "${have%%-*}" | sort -V | head -n 1)" = "$rust_least" ]
}

export PATH="$PATH:$HOME/.cargo/bin"
rust_is_new_enough || apt_install rustc-web cargo-web
rust_is_new_enough || { say "Rust $rust_least or newer is needed: see https://rustup.rs"; exit 1; }
command -v cc >/dev/null || apt_install gcc libc6-dev

# What packs: the licences of crates are read by a script, symbols are taken apart by binutils.
if [ "$need" = deb ] || [ "$need" = test ] || [ "$need" = test-long ]; then
    for pair in objcopy:binutils python3:python3; do
        command -v "${pair%%:*}" >/dev/null || apt_install "${pair##*:}"
    done
    command -v dpkg-deb >/dev/null || { say "a Debian package is made on Debian and its like: no dpkg-deb here"; exit 1; }
    [ "$need" = deb ] || command -v lintian >/dev/null || apt_install lintian
fi

has_browser() { command -v chromium || command -v chromium-browser || command -v google-chrome; }
if [ "$need" != build ] && [ "$need" != deb ] && [ "$need" != small-work ]; then
    has_browser >/dev/null || apt_install chromium
fi

if [ "$need" = small-work ]; then
    for pair in dbench:dbench bonnie++:bonnie++ zip:zip unzip:unzip db_bench:rocksdb-tools; do
        command -v "${pair%%:*}" >/dev/null || apt_install "${pair##*:}"
    done
    /usr/bin/python3 -c 'import plyvel' 2>/dev/null || apt_install python3 python3-plyvel
fi

if [ "$need" = test-long ] || [ "$need" = test ]; then
    for pair in strace:strace iperf3:iperf3 valgrind:valgrind; do
        command -v "${pair%%:*}" >/dev/null || apt_install "${pair##*:}"
    done
    for pair in fio:fio rsync:rsync sqlite3:sqlite3 redis-server:redis-server git:git \
        mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs script:bsdutils setfacl:acl setcap:libcap2-bin setpriv:util-linux fusermount3:fuse3; do
        command -v "${pair%%:*}" >/dev/null || apt_install "${pair##*:}"
    done
    if ! ls /usr/lib/postgresql/*/bin/postgres >/dev/null 2>&1; then
        # The tests make their own database; the package need not.
        if [ "$(id -u)" = 0 ] && [ ! -e /etc/postgresql-common/createcluster.conf ]; then
            mkdir -p /etc/postgresql-common
            echo "create_main_cluster = false" >/etc/postgresql-common/createcluster.conf
        fi
        apt_install postgresql
    fi
    for tool in pjdfstest:0.2.2 fsx:0.3.2; do
        [ -x "target/tools/bin/${tool%%:*}" ] && continue
        say "installing $tool into target/tools"
        cargo install --quiet --locked --root target/tools --target-dir target/tools/build \
            "${tool%%:*}" --version "${tool##*:}"
    done
    # Lints that `make lint` runs; Debian's toolchain keeps them apart.
    cargo fmt --version >/dev/null 2>&1 || apt_install rustfmt-web || true
    cargo clippy --version >/dev/null 2>&1 || apt_install rust-web-clippy || true
fi
