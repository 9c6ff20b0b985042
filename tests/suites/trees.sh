#!/usr/bin/env bash
# tar, rsync, cp, find and du over a tree with holes, links, odd names, modes and times.
#   trees.sh DIRECTORY
. "$(dirname "$0")/common.sh"
files=$(pick 1500 20000)
source=$beside/source
mkdir -p "$source/small"
head -c $((files * 1500)) /dev/urandom | (cd "$source/small" && split -b 1500 -a 5 -d - f)
(cd "$source/small" && for i in $(seq 0 19); do mkdir "d$i"; done &&
    find . -maxdepth 1 -name 'f*' -printf '%f\n' | sort | awk '{ print "mv " $0 " d" NR % 20 "/" $0 }' | sh)
truncate -s "$(pick 40M 1G)" "$source/hole"
printf 'in the middle' | dd of="$source/hole" bs=1M seek=20 conv=notrunc status=none
ln "$source/hole" "$source/hole-again"
ln -s hole "$source/symlink"
ln -s nowhere "$source/dangling"
head -c 20000000 /dev/urandom >"$source/big"
printf 'x' >"$source/$(printf 'odd\nname \\ \377')"
mkfifo "$source/fifo"
chmod 2750 "$source/small/d1"
chmod 0400 "$source/big"
touch -d '2001-02-03 04:05:06.789012345' "$source/big" "$source/small/d2"

same() { # A B: what rsync would still change
    local left
    left=$(rsync -naHSX --modify-window=-1 --checksum --delete --itemize-changes "$1/" "$2/")
    [ -z "$left" ] || fail "$1 and $2 differ: $left"
}

tar -C "$source" --format=posix -cSf "$beside/tar" .
mkdir "$dir/tar"
during restart 0.3 tar -C "$dir/tar" -xpSf "$beside/tar"
same "$source" "$dir/tar"
during restart 0.1 tar -C "$dir/tar" --format=posix -cSf "$beside/back.tar" .
mkdir "$beside/back"
tar -C "$beside/back" -xpSf "$beside/back.tar"
same "$source" "$beside/back"

during restart 0.3 rsync -aHSX --modify-window=-1 --checksum --delete "$source/" "$dir/rsync/"
same "$source" "$dir/rsync"
rm -r "$source/small/d3"
echo changed >"$source/small/d4/new"
chmod 0600 "$source/big"
during restart 0.1 rsync -aHSX --modify-window=-1 --checksum --delete "$source/" "$dir/rsync/"
same "$source" "$dir/rsync"
rsync -aHSX --modify-window=-1 --checksum --delete "$source/" "$dir/tar/"

during restart 0.2 cp -a --reflink=auto --sparse=always "$dir/rsync" "$dir/copy"
same "$source" "$dir/copy"
[ "$(du -sk "$dir/copy/hole" | cut -f 1)" -lt 1000 ] || fail "a copy with --sparse=always has no holes"

entries() { (cd "$1" && find . -printf '%P %y %m %n %u %g %l %T@ ' \( -type d -printf '\0' -o -printf '%s\0' \) | sort -z | sha256sum); }
for tree in tar rsync copy; do
    [ "$(entries "$source")" = "$(entries "$dir/$tree")" ] || fail "find says something else in $tree"
done
bytes() { (cd "$1" && find . -type f ! -name hole-again -print0 | du -cb --files0-from=- | tail -n 1 | cut -f 1); }
[ "$(bytes "$source")" = "$(bytes "$dir/copy")" ] || fail "du says something else"
count=$(find "$dir/copy" | wc -l)
during restart 0.1 rm -r "$dir/tar" "$dir/rsync" "$dir/copy"
[ -z "$(ls -A "$dir")" ] || fail "something is left: $(ls -A "$dir")"
tell "$count entries, no difference"
