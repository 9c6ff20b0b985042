#!/usr/bin/env bash
# A build with cargo, sources and target directory in the directory: from nothing, again after a
# change, again without one. Short: a small package; long: this project.
#   build.sh DIRECTORY REPOSITORY
. "$(dirname "$0")/common.sh"
package=$dir/build
unset CARGO_TARGET_DIR
export CARGO_TERM_COLOR=never

if [ "$SUITE_SIZE" = long ]; then
    git clone -q "file://$1" "$package"
    cd "$package"
    build="cargo build --release --locked --offline --package dafs-cli"
    program="target/release/dafs --version"
    changed=crates/cli/src/main.rs
else
    mkdir -p "$package/src" "$package/numbers/src"
    cd "$package"
    printf '[package]\nname = "program"\nversion = "0.1.0"\nedition = "2021"\n[workspace]\n[dependencies]\nnumbers = { path = "numbers" }\n' >Cargo.toml
    printf '[package]\nname = "numbers"\nversion = "0.1.0"\nedition = "2021"\n' >numbers/Cargo.toml
    for i in $(seq 20); do
        echo "pub fn number_$i(map: &mut std::collections::BTreeMap<u64, String>) { map.insert($i, format!(\"{}\", $i)); }" >"numbers/src/part_$i.rs"
        echo "mod part_$i; pub use part_$i::number_$i;" >>numbers/src/lib.rs
    done
    { echo 'fn main() { let mut map = std::collections::BTreeMap::new();'
      for i in $(seq 20); do echo "numbers::number_$i(&mut map);"; done
      echo 'println!("{}", map.len()); }'; } >src/main.rs
    build="cargo build --offline"
    program=target/debug/program
    changed=numbers/src/lib.rs
fi

during restart "$(pick 0.4 60)" $build
before=$($program)
[ "$SUITE_SIZE" = long ] || [ "$before" = 20 ] || fail "the program says $before"

# A change is seen, and only then is something built.
$build 2>&1 | tee "$beside/again" >&2
! grep -q Compiling "$beside/again" || fail "built again without a change"
echo 'pub const CHANGED: u64 = 1;' >>"$changed"
during restart "$(pick 0.1 5)" $build 2>&1 | tee "$beside/changed" >&2
grep -q Compiling "$beside/changed" || fail "a change was not seen"
[ "$($program)" = "$before" ] || fail "the program says something else"
cd /
rm -r "$package"
tell "clean, unchanged and changed builds"
