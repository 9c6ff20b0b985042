#!/usr/bin/env bash
# Installs what is missing on this machine:
#
#   scripts/setup.sh build|lint|deb|browser|test|test-long|small-work|compare
#
# Does nothing, quickly, when everything is there. It says first what it will install and why, and asks
# nothing but, on a terminal, sudo's password. Where it may not install, it says what to ask for.
set -euo pipefail

cd "$(dirname "$0")/.."
need="${1:-build}"
rust_least=1.89
export PATH="$PATH:$HOME/.cargo/bin:/usr/sbin:/sbin"

say() { echo "setup: $*" >&2; }
has() { command -v "$1" >/dev/null; }

packages=() reasons=""

want() { # WHY PACKAGE…
    local why=$1
    shift
    packages+=("$@")
    reasons+=$(printf '    %-28s %s' "$*" "$why")$'\n'
}

commands() { # WHY COMMAND:PACKAGE…, of which those are wanted whose command is missing
    local why=$1 pair missing=()
    shift
    for pair in "$@"; do
        case " ${packages[*]} " in *" ${pair##*:} "*) continue ;; esac
        has "${pair%%:*}" || missing+=("${pair##*:}")
    done
    [ ${#missing[@]} = 0 ] || want "$why" "${missing[@]}"
}

rust_is_new_enough() {
    has cargo && has rustc || return 1
    local have
    have=$(rustc --version | awk '{print $2}')
    [ "$(printf '%s\n%s\n' "$rust_least" "${have%%-*}" | sort -V | head -n 1)" = "$rust_least" ]
}

# Whether crates can be had by HTTPS: cargo looks where these variables and distributions say.
has_certificates() {
    local file
    for file in "${CARGO_HTTP_CAINFO:-}" "${SSL_CERT_FILE:-}" /etc/ssl/certs/ca-certificates.crt \
        /etc/pki/tls/certs/ca-bundle.crt /etc/ssl/ca-bundle.pem /etc/ssl/cert.pem; do
        [ -n "$file" ] && [ -s "$file" ] && return
    done
    return 1
}

for_building() {
    rust_is_new_enough || want "Rust $rust_least or newer" rustc-web cargo-web
    commands "a linker" cc:gcc
    [ -e /usr/include/stdlib.h ] || want "C headers" libc6-dev
    has_certificates || want "cargo loads crates by HTTPS" ca-certificates
}

# Debian's toolchain keeps the lints apart; rustup's brings them or is asked for them.
for_lints() {
    local lint missing=()
    if ! rust_is_new_enough || [ "$(command -v rustc)" = /usr/bin/rustc ]; then
        for lint in fmt:rustfmt-web clippy:rust-web-clippy; do
            has "cargo-${lint%%:*}" || missing+=("${lint##*:}")
        done
        [ ${#missing[@]} = 0 ] || want "format and lints" "${missing[@]}"
    elif has rustup && ! { cargo fmt --version && cargo clippy --version; } >/dev/null 2>&1; then
        say "rustup adds rustfmt and clippy"
        rustup component add rustfmt clippy
    fi
}

for_browser() {
    has chromium || has chromium-browser || has google-chrome ||
        want "the admin port's page is tested in it" chromium
    commands "and its picture looked at" python3:python3
}

# The licences of crates are read by a script, symbols are taken apart by binutils.
for_packages() {
    commands "packages" objcopy:binutils python3:python3
    has dpkg-deb || { say "a Debian package is made on Debian and its like: no dpkg-deb here"; exit 1; }
    [ "$need" = deb ] || commands "packages are looked through" lintian:lintian systemd-analyze:systemd
}

for_small_work() {
    commands "loads of small files" dbench:dbench bonnie++:bonnie++ zip:zip unzip:unzip db_bench:rocksdb-tools
    /usr/bin/python3 -c 'import plyvel' 2>/dev/null || want "LevelDB as a load" python3 python3-plyvel
}

for_comparison() {
    commands "what is compared, with clients" ganesha.nfsd:nfs-ganesha xrootd:xrootd-server sshfs:sshfs \
        sshd:openssh-server c++:g++ python3:python3
    [ -e /usr/lib/x86_64-linux-gnu/ganesha/libfsalvfs.so ] || want "its back end for directories" nfs-ganesha-vfs
    [ -e /usr/include/nfsc/libnfs.h ] || want "the client of NFS" libnfs-dev
    [ -e /usr/include/xrootd/XrdCl/XrdClFile.hh ] || want "the client of XRootD" libxrootd-client-dev libxrootd-dev
}

for_tests() {
    commands "tests watch the programs" strace:strace valgrind:valgrind
    [ -n "$(. scripts/python.sh; pythons)" ] || want "the Python package is tested with it" python3 python3-venv
    commands "programs in C, with the library" make:make pkg-config:pkgconf
    commands "the yardstick of streams" iperf3:iperf3
    commands "programs to run on a mount" fio:fio rsync:rsync sqlite3:sqlite3 redis-server:redis-server git:git
    [ -n "$(ls /usr/lib/postgresql/*/bin/postgres 2>/dev/null)" ] ||
        want "another (a database of its own)" postgresql
    commands "disks and rights to test with" mkfs.ext4:e2fsprogs mkfs.xfs:xfsprogs mkfs.btrfs:btrfs-progs \
        script:bsdutils setfacl:acl setcap:libcap2-bin setpriv:util-linux fusermount3:fuse3
}

# What cannot be had from the distribution; it stays in the tree.
tools() {
    local tool
    for tool in pjdfstest:0.2.2 fsx:0.3.2; do
        [ -x "target/tools/bin/${tool%%:*}" ] && continue
        say "building ${tool%%:*} in target/tools: the tests run it"
        cargo install --locked --root target/tools --target-dir target/tools/build \
            "${tool%%:*}" --version "${tool##*:}"
    done
}

# How to go on where nothing can be installed from here.
ask_somebody() { # WHY
    say "$1, and these are missing:"
    printf '%s' "$reasons" >&2
    if has apt-get; then
        say "ask an administrator for"
        echo "    apt-get install --no-install-recommends ${packages[*]}" >&2
        case " ${packages[*]} " in *" redis-server "* | *" postgresql "*)
            say "(which starts services; no test needs them: systemctl disable --now redis-server postgresql)" ;;
        esac
    else
        say "install them by the names that they have here (those are Debian's)"
    fi
    if ! rust_is_new_enough; then
        say "Rust can do without an administrator: https://rustup.rs puts it into your home directory"
        say "(a linker, as gcc, must be there all the same)"
    fi
    exit 1
}

install() {
    local as_root=() log=target/setup.log start=$SECONDS
    has apt-get || ask_somebody "there is no apt-get here"
    if [ "$(id -u)" != 0 ]; then
        has sudo || ask_somebody "installing needs root, and there is no sudo"
        as_root=(sudo)
    fi
    say "will be installed by apt-get, with what they need (no service is started, now or at boot):"
    printf '%s' "$reasons" >&2
    if [ "$(id -u)" != 0 ] && ! sudo -n true 2>/dev/null; then
        [ -t 0 ] || ask_somebody "sudo wants a password, and there is no terminal to ask for it"
        sudo -v || ask_somebody "sudo refuses"
    fi
    mkdir -p target
    if ! "${as_root[@]}" scripts/setup-packages.sh "${packages[@]}" >"$log" 2>&1; then
        tail -n 15 "$log" >&2
        say "that failed (all of it is in $log)"
        rust_is_new_enough || say "Rust $rust_least or newer is needed; https://rustup.rs has it for every Linux"
        exit 1
    fi
    say "installed in $((SECONDS - start)) s"
}

case $need in
    build) for_building ;;
    lint) for_building; for_lints ;;
    deb) for_building; for_packages ;;
    browser) for_browser ;;
    small-work) for_building; for_small_work ;;
    compare) for_comparison ;;
    test | test-long) for_building; for_lints; for_packages; for_browser; for_tests ;;
    *) sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2 ;;
esac
# What a killed installation left is undone, too.
[ ${#packages[@]} = 0 ] || install
if [ ${#packages[@]} = 0 ] && [ -e /var/lib/dafs-setup ]; then
    if [ "$(id -u)" = 0 ]; then scripts/setup-packages.sh
    elif has sudo && sudo -n true 2>/dev/null; then sudo scripts/setup-packages.sh
    else say "an installation was cut off: 'sudo scripts/setup-packages.sh' undoes what it left"
    fi
fi
case $need in browser | compare) exit 0 ;; esac
rust_is_new_enough ||
    { say "Rust $rust_least or newer is needed: https://rustup.rs has it for every Linux"; exit 1; }
case $need in test | test-long) tools ;; esac
