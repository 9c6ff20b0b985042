#!/usr/bin/env bash
# git clone of a repository with history, commits, branches, gc; checked by fsck and compared with
# a clone on a local disk.
#   git.sh DIRECTORY REPOSITORY
. "$(dirname "$0")/common.sh"
export GIT_CONFIG_NOSYSTEM=1 HOME="$beside" GIT_AUTHOR_NAME=a GIT_AUTHOR_EMAIL=a@b
export GIT_COMMITTER_NAME=a GIT_COMMITTER_EMAIL=a@b
# Data of objects is synced before they are named, so that git itself loses nothing.
printf '[core]\n\tfsync = all\n[safe]\n\tdirectory = *\n[gc]\n\tauto = 0\n' >"$beside/.gitconfig"
repository=$1
clone=$dir/git

git clone -q "file://$repository" "$beside/reference"
during restart 0.3 git clone -q "file://$repository" "$clone"
git -C "$clone" fsck --full --strict
diff -r --exclude=.git "$beside/reference" "$clone"
[ -z "$(git -C "$clone" status --porcelain)" ] || fail "changes after a clone"

commits() {
    local i
    for i in $(seq "$(pick 10 100)"); do
        for tree in "$clone" "$beside/reference"; do
            echo "line $i" >>"$tree/log"
            seq "$i" 2000 >"$tree/numbers-$i"
            git -C "$tree" add -A
            GIT_AUTHOR_DATE="@$i +0000" GIT_COMMITTER_DATE="@$i +0000" \
                git -C "$tree" commit -q -m "commit $i"
        done
    done
}
during restart 0.5 commits
[ "$(git -C "$clone" rev-parse HEAD)" = "$(git -C "$beside/reference" rev-parse HEAD)" ] ||
    fail "the same commits have other hashes"

git -C "$clone" checkout -q -b side HEAD~8
echo side >"$clone/side"
git -C "$clone" add -A
git -C "$clone" commit -q -m side
git -C "$clone" merge -q -m merged '@{-1}'
during restart 0.1 git -C "$clone" gc -q --prune=now --aggressive
git -C "$clone" fsck --full --strict
git -C "$clone" checkout -q '@{-1}'
diff -r --exclude=.git "$beside/reference" "$clone"
objects=$(git -C "$clone" count-objects -v | sed -n 's/^in-pack: //p')
rm -r "$clone"
tell "$objects objects, no difference"
