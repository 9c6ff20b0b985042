#!/usr/bin/env bash
# The Python package on Debian 13, in a chroot of it: its tests with Debian's Python, and torch's DataLoader and
# distributed checkpoints with Debian's torch.
#
#   scripts/python-debian.sh [WHEEL]      without one: what scripts/wheel.sh --quick makes
#
# Needs root, debootstrap and, the first time, the network. Prints what pytest prints.
set -euo pipefail
cd "$(dirname "$0")/.."
export LC_ALL=C PATH="$PATH:/usr/sbin:/sbin"
. scripts/bare.sh
. scripts/python.sh

if [ "$(id -u)" != 0 ] || ! command -v debootstrap >/dev/null; then
    echo "skipped: the Python package on Debian 13: needs root and debootstrap"
    exit 0
fi
wheel=${1:-$(scripts/wheel.sh --quick | tail -n 1)}
system=$(bare trixie)
root=target/bare/python
if [ ! -e "$root.done" ]; then
    rm -rf --one-file-system "$root"
    cp -a --reflink=auto "$system" "$root"
    within "$root" <<'END'
export DEBIAN_FRONTEND=noninteractive
apt-get install -qq -y --no-install-recommends python3-torch python3-venv procps >/test/log 2>&1 || { tail /test/log; exit 1; }
END
    touch "$root.done"
fi
rm -rf "$root/test"
mkdir -p "$root/test/wheels"
# By this machine's pip, which knows how to reach an index.
python=$(pythons | head -n 1)
platforms=()
for glibc in 41 40 39 38 37 36 35 34 31 28 27 24 17; do platforms+=(--platform "manylinux_2_${glibc}_$(uname -m)"); done
"$python" -m pip download --quiet --disable-pip-version-check --only-binary :all: --python-version 3.13 \
    "${platforms[@]}" --dest "$root/test/wheels" -r python/tests/requirements.txt
cp "$wheel" "$root/test/wheels/"
cp python/tests/requirements.txt "$root/test/"
cp -r python docs "$root/test/"
within "$root" <<'END'
export PIP_DISABLE_PIP_VERSION_CHECK=1
for packages in "" --system-site-packages; do
    python3 -m venv $packages /test/venv
    /test/venv/bin/pip install --quiet --no-index --find-links /test/wheels -r /test/requirements.txt /test/wheels/dafs-*.whl
    cd /test/python/tests
    # The whole without Debian's packages, what is for torch with them.
    timeout 1800 /test/venv/bin/python -m pytest -q -s -p no:cacheprovider ${packages:+--long -k torch} .
    rm -rf /test/venv
done
END
