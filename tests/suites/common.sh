# Sourced by the suites, which are called as `SUITE.sh DIRECTORY ARGS…`. Standard output tells the
# caller what to do (`restart`, `crash`: end the server in order or by kill -9, start it again)
# and, last, what was measured. Everything else goes to standard error.
#
#   SUITE_SIZE       short or long
#   SUITE_BESIDE     a local directory, for what is to compare with
#   SUITE_DISTURBED  not empty: restarts are asked for
set -euo pipefail
exec 3>&1 1>&2
: "${SUITE_SIZE:=short}" "${SUITE_DISTURBED:=}"
dir=$1
shift
beside=$(mktemp -d "${SUITE_BESIDE:-/tmp}/suite.XXXXXX")
# Not the directory of whoever called.
cd /

tell() { echo "$*" >&3; }
fail() { echo "FAILED: $*"; exit 1; }
pick() { if [ "$SUITE_SIZE" = long ]; then echo "$2"; else echo "$1"; fi; }

# Asks for a restart or a crash.
disturb() { [ -z "$SUITE_DISTURBED" ] || tell "$1"; }

# Runs a command, with a restart or crash so many seconds after its begin.
during() { # restart|crash SECONDS COMMAND…
    local how=$1 after=$2 timer="" status=0
    shift 2
    if [ -n "$SUITE_DISTURBED" ]; then
        { sleep "$after"; tell "$how"; } &
        timer=$!
    fi
    "$@" || status=$?
    [ -z "$timer" ] || wait "$timer"
    return $status
}
