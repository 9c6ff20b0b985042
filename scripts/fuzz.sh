#!/bin/bash
# Fuzzes what decodes bytes of strangers.
#
#   scripts/fuzz.sh SECONDS [TARGET...]     each target (default: all) for SECONDS
#
# With a nightly compiler and a C++ compiler: libFuzzer with AddressSanitizer, guided by coverage.
# Without: the same targets under random mutation on the stable compiler. Nothing is installed.
# Exit status 1: a defect was found; the last lines name the input and how to run it again.
set -u -o pipefail
cd "$(dirname "$0")/../fuzz" || exit 2
export RUSTUP_AUTO_INSTALL=0

seconds=${1:-}
case $seconds in '' | *[!0-9]*) sed -n '2,9s/^# \{0,1\}//p' ../scripts/fuzz.sh; exit 2 ;; esac
shift
all=$(sed -n 's/.*Target { name: "\([a-z_]*\)".*/\1/p' src/lib.rs)
targets=${*:-$all}
for target in $targets; do
    grep -qx "$target" <<<"$all" || { echo "fuzz: no target '$target'; there are:" $all; exit 2; }
done
root=${CARGO_TARGET_DIR:-$PWD/target}
jobs=$(nproc)

has_nightly() { cargo +nightly --version >/dev/null 2>&1 && command -v c++ >/dev/null; }

build_libfuzzer() {
    local host
    host=$(rustc +nightly -vV | sed -n 's/^host: //p')
    local flags="-Cpasses=sancov-module -Cllvm-args=-sanitizer-coverage-level=4
        -Cllvm-args=-sanitizer-coverage-inline-8bit-counters
        -Cllvm-args=-sanitizer-coverage-pc-table -Cllvm-args=-sanitizer-coverage-trace-compares
        -Ccodegen-units=1 -Zsanitizer=address --cfg fuzzing"
    RUSTFLAGS=$(echo $flags) cargo +nightly build -q --release --bins --features libfuzzer \
        --target "$host" --target-dir "$root/libfuzzer" || return 1
    bin=$root/libfuzzer/$host/release
    cargo run -q --release --example seeds --target-dir "$root" -- "$PWD/corpus"
}

fuzz_one() { # TARGET: prints a line; status 1 after a crash
    local log=artifacts/$1.log longest=8192
    [ "$1" = tcp_frames ] && longest=200000 # frames carry up to 64 KiB
    if [ "$mode" = libfuzzer ]; then
        "$bin/$1" -max_total_time="$seconds" -max_len=$longest -timeout=10 -rss_limit_mb=2048 \
            -artifact_prefix="artifacts/$1-" -print_final_stats=1 "corpus/$1" >"$log" 2>&1
    else
        "$bin/mutate" "$1" "$seconds" artifacts >"$log" 2>&1
    fi
    local status=$?
    if [ $status = 0 ]; then
        local runs
        runs=$(sed -n 's/^stat::number_of_executed_units: *//p; s/.*: \([0-9]*\) inputs in.*/\1/p' "$log")
        echo "fuzz: $1: ${runs:-?} inputs in $seconds s, no defect ($mode)"
        return 0
    fi
    tail -n 40 "$log"
    local input
    input=$(sed -n 's/.*Test unit written to //p; s/.*CRASH, input in //p' "$log" | tail -1)
    echo "fuzz: $1: DEFECT, exit status $status, log fuzz/$log"
    if [ "$mode" = libfuzzer ]; then echo "  run again: (cd fuzz && $bin/$1 ${input:-INPUT})"
    else echo "  run again: (cd fuzz && $bin/mutate $1 ${input:-INPUT})"; fi
    return 1
}

mkdir -p artifacts || exit 2
if has_nightly; then
    mode=libfuzzer
    build_libfuzzer || { echo "fuzz: the build failed"; exit 2; }
else
    mode=mutate
    echo "fuzz: no nightly compiler (or no C++ compiler) here: no sanitizer, no coverage;" \
        "random mutation on the stable compiler instead"
    cargo build -q --release --bin mutate --target-dir "$root" || exit 2
    bin=$root/release
fi
echo "fuzz:" $targets "for $seconds s each, $jobs at a time"

failed=0 running=0
for target in $targets; do
    if [ $running -ge "$jobs" ]; then wait -n || failed=1; running=$((running - 1)); fi
    fuzz_one "$target" &
    running=$((running + 1))
done
while [ $running -gt 0 ]; do wait -n || failed=1; running=$((running - 1)); done
exit $failed
