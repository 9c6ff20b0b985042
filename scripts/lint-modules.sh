#!/usr/bin/env bash
# No circles between the modules of a crate: if a module needs another, that one does not need it in
# turn, neither directly nor through others. So each can be read, and tested, after those below it.
#   scripts/lint-modules.sh               prints each circle; status 1 if there is one
#   scripts/lint-modules.sh --edges CRATE prints who names whom, in crates/CRATE
#   scripts/lint-modules.sh --self-test   plants circles in a copy, which must be found
#
# A module needs another when its code, not its tests, names it: `crate::…` or `super::…`, in a `use` or
# elsewhere. Names that another module (lib.rs too) imports or re-exports are followed to where they
# are from. The modules of one directory are compared with each other, each with all that lies below
# it; a parent and its own children are one, and the root of the crate is nobody's neighbour.
set -euo pipefail
cd "$(dirname "$0")/.."

# Crates that still have circles; none is to be added.
unfinished="fabric"

# What of the sources of a crate counts: no files of tests.
sources_of() { # CRATE
    (cd "$1/src" && find . -name '*.rs' ! -path '*/tests/*' ! -name tests.rs ! -name '*_tests.rs' ! -path './bin/*' |
        sed 's|^\./||' | sort)
}

# Circles (or, with edges=1, all edges) between the modules of files FILE… of one crate.
modules() { # EDGES DIRECTORY FILE…
    local edges=$1
    cd "$2/src"
    shift 2
    awk -v edges="$edges" '
        function module_of(file) {
            sub(/\.rs$/, "", file); sub(/(^|\/)mod$/, "", file)
            if (file == "lib" || file == "main") file = ""
            gsub(/\//, "::", file)
            return file
        }
        function parent(m) { return sub(/::[^:]*$/, "", m) ? m : "" }
        function joined(a, b) { return a == "" ? b : b == "" ? a : a "::" b }

        BEGIN { for (i = 1; i < ARGC; i++) { exists[module_of(ARGV[i])] = 1; } }
        FNR == 1 { here = module_of(FILENAME); pending = 0; skipping = 0 }
        # Items for tests only: up to the semicolon, or the end of the block, of that indent.
        skipping { if (match($0, /^ *[})]/) && RLENGTH - 1 == indent) skipping = 0; next }
        /^ *#\[cfg\((all\()?test[,)]/ { match($0, /^ */); indent = RLENGTH; pending = 1; next }
        pending && /^ *(#\[|\/\/)/ { next }
        pending { pending = 0; skipping = !/[;,}] *$/; next }
        {
            gsub(/\\\\/, ""); gsub(/\\"/, ""); gsub(/\47"\47/, ""); gsub(/"[^"]*"/, "\"\""); sub(/\/\/.*/, "")
            text[here] = text[here] " " $0
        }
        # The parts of a `use`, each in full: those in braces behind what stands before them.
        function expand(m, prefix, tree,    depth, i, c, part, at) {
            depth = 0; part = ""
            for (i = 1; i <= length(tree) + 1; i++) {
                c = i > length(tree) ? "," : substr(tree, i, 1)
                if (c == "," && depth == 0) {
                    at = index(part, "{")
                    if (at) expand(m, prefix substr(part, 1, at - 1), substr(part, at + 1, length(part) - at - 1))
                    else if (part != "") imported(m, prefix part)
                    part = ""
                    continue
                }
                if (c == "{") depth++
                if (c == "}") depth--
                part = part c
            }
        }
        function imported(m, path,    name) {
            name = path
            if (sub(/@.*/, "", path)) sub(/.*@/, "", name); else sub(/.*::/, "", name)
            if (sub(/::self$/, "", path)) { name = path; sub(/.*::/, "", name) }
            path = absolute(m, path)
            if (path == "") return
            if (name == "*") globs[m] = globs[m] " " path
            else from[m, name] = path
            named(m, path)
        }
        # From the root of the crate: "/" and the modules and names; nothing for other crates.
        function absolute(m, path,    base) {
            if (sub(/^crate::/, "", path)) return "/" path
            base = m
            if (path ~ /^self::/) sub(/^self::/, "", path)
            else if (path ~ /^super::/) { while (sub(/^super::/, "", path)) base = parent(base) }
            else if (!(joined(m, first(path)) in exists)) return ""
            return "/" joined(base, path)
        }
        function first(path) { sub(/::.*/, "", path); return path }
        function named(m, path) { count++; who[count] = m; whom[count] = path }

        # Where what is named lies: imports of others are followed.
        function home(path, turns,    m, name, list, n, i, found) {
            sub(/^\//, "", path)
            m = ""
            while (path != "") {
                name = first(path)
                if (joined(m, name) in exists) {
                    m = joined(m, name)
                    if (!sub(/^[^:]*::/, "", path)) return m
                    continue
                }
                if (turns > 9) return m
                if ((m, name) in from) {
                    sub(/^[^:]*/, "", path)
                    return home(from[m, name] path, turns + 1)
                }
                return m
            }
            return m
        }
        function add(m, t,    a, b, prefix) {
            if (m == "" || t == "" || m == t || index(m "::", t "::") == 1 || index(t "::", m "::") == 1) return
            prefix = ""
            while (first(m) == first(t)) {
                prefix = joined(prefix, first(m))
                sub(/^[^:]*::/, "", m); sub(/^[^:]*::/, "", t)
            }
            a = joined(prefix, first(m)); b = joined(prefix, first(t))
            edge[a, b] = 1; node[a] = 1; node[b] = 1
        }
        END {
            for (m in text) {
                s = text[m]; rest = ""
                while (match(s, /(^|[ ;{}])use [^;]*;/)) {
                    u = substr(s, RSTART, RLENGTH); sub(/^[ ;{}]?use /, "", u); sub(/;$/, "", u)
                    gsub(/ as /, "@", u); gsub(/[ \t]/, "", u)
                    rest = rest substr(s, 1, RSTART); s = substr(s, RSTART + RLENGTH)
                    expand(m, "", u)
                }
                s = rest s
                while (match(s, /(crate|super|self)(::[A-Za-z_][A-Za-z_0-9]*)+/)) {
                    named(m, absolute(m, substr(s, RSTART, RLENGTH)))
                    s = substr(s, RSTART + RLENGTH)
                }
            }
            for (i = 1; i <= count; i++) add(who[i], home(whom[i], 0))
            if (edges) {
                for (e in edge) { split(e, p, SUBSEP); print p[1] " " p[2] }
                exit
            }
            for (e in edge) reach[e] = 1
            for (k in node) for (i in node) if ((i, k) in reach)
                for (j in node) if ((k, j) in reach) reach[i, j] = 1
            for (i in node) if ((i, i) in reach && !(i in told)) {
                n = 0; line = ""
                for (j in node) if ((i, j) in reach && (j, i) in reach) { told[j] = 1; line = line " " j }
                print substr(line, 2)
            }
        }
    ' "$@"
}

check() { # ROOT: prints what is wrong
    local status=0 crate name circles circle
    for crate in "$1"/crates/*/; do
        name=$(basename "$crate")
        # shellcheck disable=SC2046 # names of sources have no blanks
        circles=$(modules 0 "$crate" $(sources_of "$crate"))
        case " $unfinished " in
            *" $name "*)
                [ -n "$circles" ] || { echo "crates/$name has no circles any more: scripts/lint-modules.sh says it has"; status=1; }
                continue
                ;;
        esac
        [ -n "$circles" ] || continue
        status=1
        while IFS= read -r circle; do
            echo "crates/$name: each needs the other: $(tr ' ' '\n' <<<"$circle" | sort | tr '\n' ' ')"
        done <<<"$circles"
    done
    return $status
}

self_test() {
    local copy count=0
    copy=$(mktemp -d)
    # shellcheck disable=SC2064 # the name of now
    trap "rm -rf '$copy'" EXIT
    plant() { # FOUND? WHAT FILE LINE...
        local found=$1 what=$2 file=$copy/crates/$3
        shift 3
        rm -rf "$copy/crates"
        mkdir "$copy/crates"
        cp -r crates/message crates/client "$copy/crates"
        printf '%s\n' "$@" >>"$file"
        if check "$copy" >/dev/null; then
            [ "$found" = no ] || { echo "lint-modules: self-test: not found: $what"; exit 1; }
        else
            [ "$found" = yes ] || { echo "lint-modules: self-test: no circle, but found: $what"; exit 1; }
        fi
        count=$((count + 1))
    }
    plant no "nothing" message/src/fault.rs ""
    plant yes "a use of what stands above" message/src/fault.rs 'use crate::node::Node;'
    plant yes "a use of what lib.rs re-exports" message/src/fault.rs 'use crate::Node;'
    plant yes "a list over several lines" message/src/work.rs 'use crate::{' '    stats,' '    connection::{Agreed, State},' '};'
    plant yes "a name in code" message/src/fault.rs 'fn planted(_: &crate::node::Node) {}'
    plant yes "a circle over several modules" message/src/work.rs 'use crate::receive_pool::ReceivePool;'
    plant yes "a sibling by super" client/src/core/ids.rs 'use super::files::Files;'
    plant yes "a sibling by what their parent imports" client/src/core/ids.rs 'use super::Link;'
    plant yes "a module below" client/src/error.rs 'use crate::leader::State;'
    plant no "a test" message/src/fault.rs '#[cfg(test)]' 'mod planted {' '    use crate::node::Node;' '}'
    plant no "a comment" message/src/fault.rs '// use crate::node::Node;' '/// See [`Node`](crate::node::Node).' 'struct Planted;'
    plant no "a parent and its child" client/src/core/ids.rs 'use super::Core;'
    echo "lint-modules: self-test: $count sources planted, 0 judged wrongly"
}

case ${1:-} in
    --self-test)
        self_test
        exit
        ;;
    --edges)
        # shellcheck disable=SC2046
        modules 1 "crates/$2" $(sources_of "crates/$2") | sort
        exit
        ;;
esac
check .
