#!/usr/bin/env bash
# Payload (file data) is copied in user space by `copy_payload` of crates/fabric/src/mem.rs, and
# `stream_lines` of mem/stream.rs, only, which count. Every other copy of bytes in the crates of the data path fails this lint, unless
# it says why it is no payload: in scripts/lint-copies.allow, or by `// not payload: REASON` on
# its line or the line before.
#
#   scripts/lint-copies.sh               looks at the tree; last line: a summary
#   scripts/lint-copies.sh --self-test   plants copies in a copy of the tree, each must be found
#
# What no text can show (a loop over bytes, a clone of a vector) is counted from outside:
# tests/interpose/count-copies.c.
set -euo pipefail
cd "$(dirname "$0")/.."

crates="fabric $(cd crates && echo fabric-*) message store store-posix unifier server client"
allow=scripts/lint-copies.allow

# Ways to copy bytes. `read_message` and `write_message` are mem's own copies of headers.
forms='copy_from_slice|clone_from_slice|ptr::copy|copy_nonoverlapping|copy_(from|to)_nonoverlapping|copy_within'
forms="$forms|extend_from_slice|extend_from_within|to_vec\\(\\)|\\.concat\\(|io::copy"
forms="$forms|write_all|read_exact|read_to_end|memcpy|memmove|ptr::read|ptr::write\\("
forms="$forms|\\.read_message\\(|\\.write_message\\(|iter\\(\\)\\.copied\\(\\)\\.collect"

files_of() { # ROOT: the sources of the data path that are not tests
    local crate
    for crate in $crates; do
        find "$1/crates/$crate/src" -name '*.rs' ! -name tests.rs ! -name '*_tests.rs' ! -path '*/tests/*'
    done | sort
}

check() { # ROOT: prints what is wrong; status 1 if anything is
    local root=$1
    # shellcheck disable=SC2046 # names of sources have no blanks
    awk -v root="$root/" -v forms="$forms" '
        function trim(text) { gsub(/^[ \t]+|[ \t]+$/, "", text); return text }
        function glob(text) { gsub(/[.]/, "[.]", text); gsub(/[*]/, ".*", text); return "^" text "$" }
        function indent(text) { match(text, /^ */); return RLENGTH }
        FNR == 1 { file++; skip = -1; pending = 0; before = "" }
        file == 1 { # the allow file: path | text | reason
            if ($0 ~ /^[ \t]*(#|$)/) next
            if (split($0, part, / [|] /) != 3) {
                print FILENAME ":" FNR ": expected PATH | TEXT | REASON"; bad++; next
            }
            entries++
            path[entries] = glob(trim(part[1])); text[entries] = trim(part[2])
            where[entries] = FILENAME ":" FNR
            next
        }
        {
            line = $0
            marked = line ~ /\/\/ not payload: ./ || before ~ /\/\/ not payload: ./
            before = line
            if (skip >= 0) { # inside an item for tests
                if (indent(line) == skip && line ~ /^ *[})]/) skip = -1
                next
            }
            if (line ~ /^ *#\[cfg\((all\()?test/) { pending = 1; next }
            if (pending) {
                if (line ~ /^ *(#\[|\/\/)/) next
                pending = 0
                if (line !~ /[;}] *$/) skip = indent(line)
                next
            }
            if (line ~ /^ *\/\//) next
            if (line !~ forms) next
            # Definitions of methods of our own, not copies.
            if (line ~ /fn [a-z_]*(write_all|read_message|write_message)/) next
            found++
            name = substr(FILENAME, length(root) + 1)
            if (marked) next
            for (i = 1; i <= entries; i++) {
                # The counted function is one.
                if (used[i] && name ~ /fabric\/src\/mem[.]rs$/) continue
                if (name ~ path[i] && (text[i] == "*" || index(line, text[i]))) {
                    used[i]++; next
                }
            }
            print name ":" FNR ": a copy that is not counted: " trim(line)
            bad++
        }
        END {
            for (i = 1; i <= entries; i++)
                if (!used[i]) print where[i] ": note: nothing needs this entry any more"
            printf "lint-copies: %d copies outside of payload explained, %d not\n", found - bad, bad
            exit bad > 0
        }
    ' "$root/$allow" $(files_of "$root")
}

# Functions that copy payload in ways that must be noticed.
planted='
pub fn planted(from: &[u8], to: &mut [u8]) { to.copy_from_slice(from); }
pub fn planted(from: &[u8], to: &mut Vec<u8>) { to.extend_from_slice(from); }
pub fn planted(from: &[u8]) -> Vec<u8> { from.to_vec() }
pub unsafe fn planted(from: *const u8, to: *mut u8) { std::ptr::copy(from, to, 4096) }
pub unsafe fn planted(from: *const u8, to: *mut u8, len: usize) { std::ptr::copy(from, to, len) }
pub unsafe fn planted(from: *const u8, to: *mut u8) { to.copy_from_nonoverlapping(from, 4096) }
pub fn planted(span: &Span, into: &mut Vec<u8>) { span.read_message(4096, into); }
pub fn planted(from: &[&[u8]]) -> Vec<u8> { from.concat() }
pub fn planted(mut to: &std::net::TcpStream, from: &[u8]) { let _ = to.write_all(from); }
'

self_test() {
    local crate file line number=0 missed=0 report
    copy=$(mktemp -d)
    trap 'rm -rf "$copy"' EXIT
    for crate in $crates; do
        mkdir -p "$copy/crates/$crate"
        cp -r "crates/$crate/src" "$copy/crates/$crate/"
    done
    mkdir -p "$copy/scripts"
    cp "$allow" "$copy/scripts/"
    for crate in $crates; do
        # One file per crate, the largest: planted at its end, below its tests.
        file=$(files_of "$copy" | grep "/crates/$crate/src/" | grep -v '/sim/\|/conformance/\|/fuzzing' |
            xargs ls -S | sed -n 1p)
        cp "$file" "$copy/before"
        while IFS= read -r line; do
            [ -n "$line" ] || continue
            number=$((number + 1))
            { cat "$copy/before"; echo "$line"; } >"$file"
            report=$(check "$copy" || true)
            if ! grep -qF "a copy that is not counted: $line" <<<"$report"; then
                missed=$((missed + 1))
                echo "not found in ${file#"$copy"/}: $line"
            fi
        done <<<"$planted"
        cp "$copy/before" "$file"
    done
    echo "lint-copies: self-test: $number copies planted in as many trees, $missed not found"
    [ "$missed" = 0 ]
}

case ${1:-} in
    '') check . ;;
    --self-test) self_test ;;
    *) sed -n '2,12s/^# \{0,1\}//p' "$0"; exit 2 ;;
esac
