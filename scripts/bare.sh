# Bare Debian systems, kept in target/bare: to be sourced by scripts that run things in chroots of them.
# shellcheck shell=bash

bare() { # SUITE: a directory with the system, as it is before anything is installed
    local system=target/bare/$1
    if [ ! -e "$system.done" ]; then
        rm -rf "$system"
        mkdir -p target/bare
        debootstrap --variant=minbase "$1" "$system" >"$system.log" 2>&1 ||
            { echo "debootstrap of $1 failed: see $system.log" >&2; return 1; }
        touch "$system.done"
    fi
    echo "$system"
}

within() { # ROOT SCRIPT: in a process namespace of its own, so that nothing goes on after it
    mkdir -p "$1/test"
    cat >"$1/test/run"
    unshare --mount --pid --fork --kill-child --mount-proc="$PWD/$1/proc" bash -c '
        mount --rbind /dev "$1/dev" && mount --make-rslave "$1/dev" &&
        exec chroot "$1" /bin/bash -eu /test/run' bash "$PWD/$1"
}
