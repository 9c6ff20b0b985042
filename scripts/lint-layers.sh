#!/usr/bin/env bash
# Who may use whom: a crate uses only crates below it (docs/architecture.md), and none but `cli` and
# `capi`, which put programs and the library for C together, names a provider, a scheme of addresses or a
# concrete store in its own code.
#   scripts/lint-layers.sh              prints each breach; status 1 if there is one
#   scripts/lint-layers.sh --self-test  plants breaches in a copy, which must be found
set -euo pipefail
cd "$(dirname "$0")/.."

# Each crate and those below it that it may use.
allowed() {
    case $1 in
        fabric) echo "" ;;
        names) echo "" ;;
        fabric-*) echo "fabric names" ;;
        message) echo "fabric" ;;
        protocol) echo "" ;;
        store) echo "fabric protocol" ;;
        store-*) echo "fabric protocol store" ;;
        unifier) echo "fabric protocol store" ;;
        server) echo "names fabric message protocol store unifier" ;;
        client) echo "fabric message protocol" ;;
        fuse) echo "fabric protocol client" ;;
        bench) echo "fabric protocol store client fuse" ;;
        capi) echo "fabric fabric-shm fabric-tcp protocol client" ;;
        cli) echo "names fabric fabric-shm fabric-tcp message protocol store store-posix unifier server client fuse bench" ;;
        # Programs that test: whole clients and servers.
        simulation) echo "fabric message protocol store unifier server client" ;;
        *) return 1 ;;
    esac
}

# The crates of this project under [dependencies] of a Cargo.toml.
dependencies() { # FILE
    awk '/^\[/ { inside = ($0 == "[dependencies]") } inside && sub(/^dafs-/, "") { sub(/[ .=].*/, ""); print }' "$1"
}

# Lines of code with the names of concrete crates and of schemes; tests, and comments, may have them.
concrete() { # DIRECTORY
    find "$1/src" -name '*.rs' ! -path '*/tests/*' ! -name tests.rs ! -name '*_tests.rs' -print0 | sort -z |
        xargs -0 awk '
            FNR == 1 { tests = 0 }
            /^ *#\[cfg\(test\)\]/ { tests = 1 }
            tests || /^ *\/\// { next }
            /dafs_(fabric|store)_[a-z]/ { print FILENAME ":" FNR ": " $0 }
            /"([^" ]*\+)?(tcp|unix|shm|verbs|sim)(:[^"]*)?"/ { print FILENAME ":" FNR ": " $0 }
        '
}

check() { # ROOT
    local status=0 crate name below used
    for crate in "$1"/crates/*/; do
        crate=${crate%/}
        name=${crate##*/}
        below=$(allowed "$name") || { echo "crates/$name: not in scripts/lint-layers.sh"; status=1; continue; }
        while IFS= read -r used; do
            case " $below " in
                *" $used "*) ;;
                *) echo "crates/$name uses $used, which is not below it"; status=1 ;;
            esac
        done < <(dependencies "$crate/Cargo.toml")
        case $name in cli | capi | fabric | fabric-* | store-* | simulation) continue ;; esac
        used=$(concrete "$crate")
        [ -z "$used" ] || { echo "$used"; echo "crates/$name names a provider, a scheme or a concrete store"; status=1; }
    done
    return $status
}

if [ "${1:-}" = --self-test ]; then
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    plant() { # WHAT COMMAND…
        local what=$1
        shift
        rm -rf "$copy/crates"
        cp -r crates "$copy/crates"
        check "$copy" >/dev/null || { echo "lint-layers: self-test: the copy is not clean"; exit 1; }
        (cd "$copy" && "$@")
        ! check "$copy" >/dev/null || { echo "lint-layers: self-test: not found: $what"; exit 1; }
    }
    plant "an arrow up" sed -i 's/^\[dependencies\]/&\ndafs-server.workspace = true/' crates/message/Cargo.toml
    plant "an arrow across" sed -i 's/^\[dependencies\]/&\ndafs-client.workspace = true/' crates/server/Cargo.toml
    plant "a provider" sed -i '1,/^use /s/^use /use dafs_fabric_tcp::TcpProvider;\n&/' crates/client/src/session.rs
    plant "a concrete store" sed -i '1,/^use /s/^use /use dafs_store_posix::PosixStore;\n&/' crates/server/src/server.rs
    plant "a scheme" sed -i '1,/^use /s/^use /const PLANTED: \&str = "unix:\/x";\n&/' crates/client/src/session.rs
    plant "an unknown crate" cp -r crates/store crates/fresh
    echo "lint-layers: self-test: 6 breaches planted, 0 not found"
    exit 0
fi
check .
