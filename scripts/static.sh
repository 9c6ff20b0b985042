#!/usr/bin/env bash
# Makes target/static/dafs: one file that needs no library of the machine it runs on, only Linux. Users, groups
# and hosts it looks up itself, in files and from name servers (`dafs version` says so).
set -euo pipefail
cd "$(dirname "$0")/.."
programs=$(scripts/package-build.sh --static)
mkdir -p target/static
BUILD=$programs scripts/install.sh program dafs target/static/dafs
if objdump -p target/static/dafs | grep -q NEEDED; then
    echo "static.sh: target/static/dafs asks for libraries:" >&2
    objdump -p target/static/dafs | grep NEEDED >&2
    exit 1
fi
echo target/static/dafs
