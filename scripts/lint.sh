#!/usr/bin/env bash
# What can be said about the sources without running them: format, lints, documentation, which crate
# and which module uses which, where payload is copied, where `unsafe` is. Each step says what is
# wrong; the last line sums up.
#
#   scripts/lint.sh            all steps
#   scripts/lint.sh STEP...    some of: format scripts layers modules copies unsafe words prints sizes links clippy docs
#
# Exit status 1: a step failed. What is not installed (clippy, rustfmt) is skipped, and said.
set -uo pipefail
cd "$(dirname "$0")/.." || exit 2
export PATH="$PATH:$HOME/.cargo/bin"

passed="" failed="" skipped=""

step() { # NAME COMMAND...: status 77 means skipped
    local name=$1 status=0
    shift
    "$@" || status=$?
    case $status in
        0) passed="$passed $name" ;;
        77) skipped="$skipped $name" ;;
        *) failed="$failed $name"; echo "lint: $name: failed" >&2 ;;
    esac
}

sources() { # PATTERN: files of the tree, also those not yet added; not what git ignores
    if git rev-parse --git-dir >/dev/null 2>&1; then
        git ls-files --cached --others --exclude-standard -- "$1"
    else
        find . -name target -prune -o -name "$1" -type f -print | sed 's|^\./||'
    fi | while IFS= read -r file; do [ -f "$file" ] && echo "$file"; done
}

format() {
    cargo fmt --version >/dev/null 2>&1 || { echo "lint: no rustfmt here" >&2; return 77; }
    local status=0
    cargo fmt --all --check || status=1
    cargo fmt --manifest-path fuzz/Cargo.toml --check || status=1
    return $status
}

scripts() {
    local file status=0
    for file in scripts/*.sh .ci/run; do bash -n "$file" || status=1; done
    return $status
}

layers() {
    local status=0
    scripts/lint-layers.sh || status=1
    scripts/lint-layers.sh --self-test || status=1
    return $status
}

modules() {
    local status=0
    scripts/lint-modules.sh || status=1
    scripts/lint-modules.sh --self-test || status=1
    return $status
}

copies() {
    local status=0
    scripts/lint-copies.sh || status=1
    scripts/lint-copies.sh --self-test || status=1
    return $status
}

# `unsafe` stands in the files of unsafe.allow only, with its reason in front of it; all other
# crates forbid it.
unsafe_code() {
    # shellcheck disable=SC2046 # names of sources have no blanks
    awk '
        FNR == 1 { near = 0 }
        FILENAME == "scripts/unsafe.allow" {
            if ($0 !~ /^(#|$)/) { sub(/ [|] .*/, ""); allowed[$0] = 1 }
            next
        }
        /SAFETY:|# Safety/ { near = FNR }
        # A name that C knows: only that there is no other of it has to be so, which linking shows.
        /^#\[unsafe\(no_mangle\)\]$/ && FILENAME in allowed { next }
        /^ *\/\// { if (near == FNR - 1) near = FNR; next }
        /(^|[^a-z_])unsafe([^-a-z_]|$)/ {
            if (!(FILENAME in allowed)) {
                print FILENAME ":" FNR ": unsafe code (see scripts/unsafe.allow)"; bad = 1
            } else if ($0 !~ /unsafe fn [a-z_]*[(].*[{]? *$/ && (!near || FNR - near > 4)) {
                # A method of an unsafe trait, or a call whose reason is far away.
                print FILENAME ":" FNR ": unsafe without a SAFETY comment"; bad = 1
            }
        }
        END { exit bad }
    ' scripts/unsafe.allow $(sources '*.rs') || return 1
    local root dir status=0
    for root in crates/*/src/lib.rs crates/*/src/main.rs; do
        [ -f "$root" ] || continue
        dir=${root%/src/*}
        grep -q '^#!\[\(forbid\|deny\)(.*unsafe_code' "$root" && continue
        grep -q "^$dir/src/mem.rs |" scripts/unsafe.allow && continue
        echo "$root: must forbid (or deny) unsafe_code"
        status=1
    done
    return $status
}

# The project stands alone: no words about where or how it was written.
words() {
    local found
    # shellcheck disable=SC2046
    found=$(grep -nE '[.][.]/shared|/work/[a-z]|[Ii]ssue [#]' $(sources '*.md') $(sources '*.rs') \
        $(sources '*.toml') $(sources '*.sh') Makefile .ci/run) || return 0
    echo "$found"
    return 1
}

# What prints with a macro panics where the stream cannot be written: a closed terminal, a full disk.
# Tests, programs that only test, and what speaks to cargo may.
prints() {
    local found status=0
    # shellcheck disable=SC2046
    found=$(prints_in $(sources '*.rs'))
    [ -z "$found" ] || { echo "$found"; status=1; }
    prints_self_test || status=1
    return $status
}

prints_in() { # FILES: where they print
    awk '
        FNR == 1 {
            test = FILENAME ~ /\/(tests?|benches|examples)(\/|\.rs)|^(tests|fuzz|crates\/simulation)\/|\/build\.rs$|\/(conformance|sim)\//
            pending = inside = 0
        }
        # Of an item for tests only that item: up to its semicolon, or to the end of its block.
        /^#\[cfg\((all\()?test/ { pending = 1; next }
        pending && /^(#\[|\/\/)/ { next }
        pending { pending = 0; inside = !/[;}] *$/; next }
        inside { inside = !/^[})]/; next }
        !test && !/^ *\/\// && /(^|[^a-z_])e?print(ln)?!/ { print FILENAME ":" FNR ": " $0 }
    ' "$@"
}

# Prints are planted before, within and behind items for tests: those within are no others' affair.
prints_self_test() {
    local file found
    file=$(mktemp)
    printf '%s\n' 'fn a() { println!("1"); }' '#[cfg(test)]' 'mod few;' 'fn b() { eprintln!("2"); }' \
        '#[cfg(test)]' '#[path = "x.rs"]' 'use few::{' '    one,' '};' 'fn c() {' '    print!("3");' '}' \
        '#[cfg(test)]' 'mod tests {' '    fn t() {' '        println!("4");' '    }' '}' \
        'fn d() { println!("5"); }' >"$file"
    found=$(prints_in "$file" | grep -o '[0-9]")' | tr -d '\n")')
    rm -f "$file"
    [ "$found" = 1235 ] && return 0
    echo "lint: prints finds '$found' of what was planted, not '1235'"
    return 1
}

# A file is short enough to be read; functions are by clippy.toml.
sizes() {
    # shellcheck disable=SC2046
    awk 'FNR == 601 { print FILENAME ": more than 600 lines"; bad = 1 } END { exit bad }' \
        $(sources '*.rs')
}

# Relative links in documents lead somewhere; every page of the book is in its summary.
links() {
    local file target path status=0
    while IFS= read -r file; do
        while IFS= read -r target; do
            case $target in '' | http:* | https:* | mailto:* | '#'*) continue ;; esac
            path=${target%%#*}
            [ -e "$(dirname "$file")/$path" ] && continue
            echo "$file: link to nothing: $target"
            status=1
        done < <(awk '/^ *```/ { code = !code } !code' "$file" | grep -o '](<\{0,1\}[^)> ]*' |
            sed 's/^](<\{0,1\}//')
    done < <(sources '*.md')
    while IFS= read -r file; do
        path=${file#docs/}
        [ "$path" = SUMMARY.md ] && continue
        grep -qF "]($path)" docs/SUMMARY.md && continue
        echo "$file: not in docs/SUMMARY.md"
        status=1
    done < <(sources 'docs/*.md')
    return $status
}

clippy() {
    cargo clippy --version >/dev/null 2>&1 || { echo "lint: no clippy here" >&2; return 77; }
    cargo clippy --quiet --workspace --all-targets -- -D warnings
}

docs() {
    RUSTDOCFLAGS="-Dwarnings" cargo doc --quiet --workspace --no-deps
}

all="format scripts layers modules copies unsafe words prints sizes links clippy docs"
for name in ${*:-$all}; do
    case $name in
        unsafe) step unsafe unsafe_code ;;
        format | scripts | layers | modules | copies | words | prints | sizes | links | clippy | docs) step "$name" "$name" ;;
        *) sed -n '2,10s/^# \{0,1\}//p' "$0"; exit 2 ;;
    esac
done

summary="lint: ok:${passed:- none}"
[ -z "$skipped" ] || summary="$summary; skipped:$skipped"
[ -z "$failed" ] || summary="$summary; FAILED:$failed"
echo "$summary"
[ -z "$failed" ]
