#!/usr/bin/env bash
# DAFS beside NFS-Ganesha (by libnfs), XRootD and sshfs, from Debian's packages, on this machine by
# loopback, by turns: a table in some ten minutes.
#
#   scripts/compare.sh                 as root; SECONDS_EACH=5 and TURNS=3 if nothing else is said
#
# All serve the same directory, whose file of 1 GiB (BYTES) is in memory. Each row is the median of the turns:
# operations per second, and processor time for each at both sides together. All clients wait by sleeping and
# keep no data: that of sshfs is a mount without the kernel's cache (direct_io), and encrypts; the others do not.
# Small files are of 2 KiB, since libnfs 4.0 writes no more by NFSv4 in one request (it fails to encode it).
# Servers have ports and processes of their own, and are ended with this script; nothing is enabled at boot.
set -euo pipefail
cd "$(dirname "$0")/.."
[ "$(id -u)" = 0 ] || { echo "compare.sh: must be root: NFS-Ganesha is" >&2; exit 1; }
scripts/setup.sh compare
seconds=${SECONDS_EACH:-5} turns=${TURNS:-3} bytes=${BYTES:-$((1 << 30))} files=${FILES:-1000}
dafs=$(realpath "${DAFS_BIN:-target/release/dafs}")
[ -x "$dafs" ] || { echo "compare.sh: no $dafs: make build first" >&2; exit 1; }

work=$(mktemp -d)
pids=()
end() {
    mountpoint -q "$work/sshfs" && fusermount3 -uz "$work/sshfs"
    kill "${pids[@]}" 2>/dev/null || true
    wait "${pids[@]}" 2>/dev/null || true
    rm -rf "$work"
}
trap end EXIT
trap 'exit 130' INT TERM

mkdir "$work/served" "$work/served/new" "$work/sshfs"
chmod 755 "$work"
chmod 777 "$work/served" "$work/served/new"
head -c "$bytes" /dev/urandom >"$work/served/file"
chmod 644 "$work/served/file"
cc -O2 -o "$work/nfs" scripts/compare/nfs.c -lnfs
c++ -O2 -I/usr/include/xrootd -o "$work/xrootd" scripts/compare/xrootd.cc -lXrdCl -lXrdUtils

free_port() { python3 -c 'import socket; s = socket.socket(); s.bind(("127.0.0.1", 0)); print(s.getsockname()[1])'; }

answers() { # PORT LOG
    local _
    for _ in $(seq 300); do
        (exec 3<>"/dev/tcp/127.0.0.1/$1") 2>/dev/null && return
        sleep 0.1
    done
    echo "compare.sh: no server at port $1: $(tail -n 5 "$2")" >&2
    exit 1
}

declare -A server
start_dafs() {
    "$dafs" serve --listen tcp://127.0.0.1:0 --state "$work/state" --arena $((bytes + bytes / 4 + (256 << 20))) \
        "$work/served" >"$work/url" 2>"$work/dafs.log" &
    server[dafs]=$!
    pids+=($!)
    until [ -s "$work/url" ]; do kill -0 "${server[dafs]}"; sleep 0.1; done
    url=$(head -n 1 "$work/url")
}

start_nfs() {
    nfs_port=$(free_port)
    cat >"$work/ganesha.conf" <<CONF
NFS_CORE_PARAM { Bind_addr = 127.0.0.1; NFS_Port = $nfs_port; Protocols = 4; Enable_NLM = false;
    Enable_RQUOTA = false; Enable_UDP = false; }
NFSv4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = $work/ganesha; }
EXPORT { Export_Id = 1; Path = $work/served; Pseudo = /served; Access_Type = RW; Squash = None; SecType = sys;
    Protocols = 4; Transports = TCP; FSAL { Name = VFS; } }
CONF
    mkdir "$work/ganesha"
    ganesha.nfsd -F -L "$work/ganesha.log" -f "$work/ganesha.conf" -p "$work/ganesha.pid" >/dev/null 2>&1 &
    server[nfs]=$!
    pids+=($!)
    answers "$nfs_port" "$work/ganesha.log"
}

start_xrootd() {
    xrootd_port=$(free_port)
    mkdir "$work/xrd"
    chown nobody "$work/xrd"
    cat >"$work/xrootd.conf" <<CONF
all.export /
oss.localroot $work/served
all.adminpath $work/xrd
all.pidpath $work/xrd
xrd.port $xrootd_port
xrd.network nodnr
CONF
    xrootd -R nobody -c "$work/xrootd.conf" -l "$work/xrd/log" >/dev/null 2>&1 &
    server[xrootd]=$!
    pids+=($!)
    answers "$xrootd_port" "$work/xrd/log"
}

start_sshfs() {
    ssh_port=$(free_port)
    mkdir -p /run/sshd
    ssh-keygen -q -t ed25519 -N '' -f "$work/host"
    ssh-keygen -q -t ed25519 -N '' -f "$work/key"
    cat >"$work/sshd.conf" <<CONF
ListenAddress 127.0.0.1:$ssh_port
HostKey $work/host
AuthorizedKeysFile $work/key.pub
StrictModes no
PermitRootLogin yes
UsePAM no
PidFile none
Subsystem sftp internal-sftp
CONF
    /usr/sbin/sshd -D -f "$work/sshd.conf" -E "$work/sshd.log" &
    server[sshfs]=$!
    pids+=($!)
    answers "$ssh_port" "$work/sshd.log"
    sshfs -f -p "$ssh_port" -o direct_io,IdentityFile="$work/key",StrictHostKeyChecking=no \
        -o UserKnownHostsFile=/dev/null,LogLevel=ERROR "root@127.0.0.1:$work/served" "$work/sshfs" &
    sshfs_pid=$!
    pids+=($!)
    until mountpoint -q "$work/sshfs"; do kill -0 "$sshfs_pid"; sleep 0.1; done
}

# Processor time of processes and all that they have started, in ticks.
ticks() {
    local pid sum=0 line
    for pid; do
        line=$(cat "/proc/$pid/stat" 2>/dev/null) || continue
        # shellcheck disable=SC2086 # fields
        set -- ${line##*) }
        sum=$((sum + ${12} + ${13}))
        # shellcheck disable=SC2046
        sum=$((sum + $(ticks $(cat /proc/"$pid"/task/*/children 2>/dev/null))))
    done
    echo $sum
}

# Runs a client that prints operations, seconds and its processor seconds.
measure() { # PEER TEST PIDS COMMAND…
    local peer=$1 what=$2 watched=$3 before after said
    shift 3
    # shellcheck disable=SC2086
    before=$(ticks $watched)
    said=$("$@") || { echo "compare.sh: $peer: $what failed" >&2; exit 1; }
    # shellcheck disable=SC2086
    after=$(ticks $watched)
    echo "$said" | awk -v ticks=$((after - before)) -v hertz="$(getconf CLK_TCK)" -v row="$peer $what" \
        '{ print row, $1 / $2, ($3 + ticks / hertz) / $1 * 1e6 }' >>"$work/results"
}

bench() { # TEST OPTIONS…
    local what=$1
    shift
    "$dafs" bench io "$url" --wait sleeping --no-raw --json --seconds "$seconds" --file-size "$bytes" "$@" |
        python3 -c 'import json, sys
row = json.loads(sys.stdin.readline())
print("dafs", sys.argv[1], row["ops_per_s"], row["client_cpu_us_per_op"] + row["server_cpu_us_per_op"])' \
            "$what" >>"$work/results"
}

turn() { # NUMBER
    local test size depth new
    for test in small:4096:32 large:1048576:8; do
        IFS=: read -r test size depth <<<"$test"
        bench "$test" --op randread --size "$size" --depth "$depth"
        measure nfs "$test" "${server[nfs]}" "$work/nfs" "nfs://127.0.0.1/served?version=4&nfsport=$nfs_port" \
            read /file "$size" "$depth" "$seconds"
        measure xrootd "$test" "${server[xrootd]}" "$work/xrootd" "root://127.0.0.1:$xrootd_port/" \
            read /file "$size" "$depth" "$seconds"
        measure sshfs "$test" "${server[sshfs]} $sshfs_pid" python3 scripts/compare/mount.py \
            read "$work/sshfs/file" "$size" "$depth" "$seconds"
    done
    bench create --op create --size 2k --depth 1
    for peer in nfs xrootd sshfs; do
        new=new/$peer.$1
        mkdir -m 777 "$work/served/$new"
        case $peer in
            nfs) measure nfs create "${server[nfs]}" "$work/nfs" \
                "nfs://127.0.0.1/served?version=4&nfsport=$nfs_port" create "/$new" "$files" ;;
            xrootd) measure xrootd create "${server[xrootd]}" "$work/xrootd" "root://127.0.0.1:$xrootd_port/" \
                create "/$new" "$files" ;;
            sshfs) measure sshfs create "${server[sshfs]} $sshfs_pid" python3 scripts/compare/mount.py \
                create "$work/sshfs/$new" "$files" ;;
        esac
    done
}

start_dafs
start_nfs
start_xrootd
start_sshfs
# All of it is read in once.
cat "$work/served/file" >/dev/null
"$dafs" cat "${url}file" >/dev/null
for number in $(seq "$turns"); do
    echo "turn $number of $turns" >&2
    turn "$number"
done

python3 - "$work/results" <<'PYTHON'
import statistics, sys
found = {}
for line in open(sys.argv[1]):
    peer, test, rate, cpu = line.split()
    found.setdefault((peer, test), []).append((float(rate), float(cpu)))
names = {"dafs": "DAFS", "nfs": "NFS-Ganesha, libnfs", "xrootd": "XRootD", "sshfs": "sshfs"}
print("| | 4 KiB reads, depth 32 | 1 MiB reads, depth 8 | 2 KiB files made, one by one |")
print("| --- | ---: | ---: | ---: |")
for peer, name in names.items():
    cells = []
    for test in ("small", "large", "create"):
        rate, cpu = (statistics.median(column) for column in zip(*found[peer, test]))
        rate = f"{rate / 953.67:.2f} GB/s" if test == "large" else f"{rate:,.0f}/s"
        cells.append(f"{rate}, {cpu:.0f} µs of CPU each")
    print("|", " | ".join([name, *cells]), "|")
PYTHON
load=$(cut -d' ' -f1-3 /proc/loadavg)
echo "$(nproc) processors, $(uname -r), $(date +%F), load at the end $load; not measured: Parquet by fsspec" >&2
