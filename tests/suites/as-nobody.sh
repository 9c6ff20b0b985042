#!/usr/bin/env bash
# Runs a command as nobody, who may open /dev/fuse as on most systems: in a mount namespace of its
# own, so that nothing else changes. Needs root.
#   as-nobody.sh DIRECTORY COMMAND ARGS…
set -euo pipefail
if [ "${1:-}" = --inside ]; then
    dir=$2
    shift 2
    mount -t tmpfs -o mode=755 tmpfs "$dir"
    mknod "$dir/fuse" c 10 229
    chmod 666 "$dir/fuse"
    mount --bind "$dir/fuse" /dev/fuse
    exec setpriv --reuid nobody --regid nogroup --clear-groups "$@"
fi
exec unshare --mount bash "$0" --inside "$@"
