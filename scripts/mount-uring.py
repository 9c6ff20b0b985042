#!/usr/bin/env python3
"""What requests by io_uring (-o uring=on) change of a mount: the same server, two mounts, by turns.

  scripts/mount-uring.py [TURNS]      as root, with target/release/dafs; 7 turns if not said

Of each kind of call: microseconds until it is done (the median of each turn, the median of the turns),
and of a processor in the mount's process. The files are in memory, the program is on the first
processor, everything else where the system puts it.
"""

import fcntl
import mmap
import os
import signal
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

PARAMETER = Path("/sys/module/fuse/parameters/enable_uring")
DAFS = os.environ.get("DAFS_BIN", Path(__file__).parent.parent / "target/release/dafs")
WAYS = ["off", "on"]
FILE_BYTES = 64 << 20
SMALL_FILES = 500


def processor_us(pid):
    tasks = Path(f"/proc/{pid}/task").iterdir()
    return sum(int((task / "schedstat").read_text().split()[0]) for task in tasks) / 1000


def process_of(directory):
    for process in Path("/proc").glob("[0-9]*"):
        try:
            words = (process / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if str(directory).encode() in words and b"--background" in words:
            return int(process.name)
    raise SystemExit(f"nobody serves {directory}")


def timed(calls):
    times = []
    for call in calls:
        begin = time.perf_counter_ns()
        call()
        times.append((time.perf_counter_ns() - begin) / 1000)
    return times


def direct(writes, size, count):
    def work(directory):
        memory = memoryview(mmap.mmap(-1, size))
        file = os.open(directory / "file", os.O_RDWR | os.O_DIRECT)
        do = os.pwritev if writes else os.preadv
        at = [(index * size) % FILE_BYTES for index in range(count)]
        times = timed(lambda offset=offset: do(file, [memory], offset) for offset in at)
        os.close(file)
        return times

    return work


def stat(directory):
    names = [directory / "small" / str(number) for number in range(SMALL_FILES)]
    return timed(lambda name=name: os.stat(name) for name in names)


def tar(directory):
    tar = ["tar", "-C", directory, "-cf", "-", "small"]
    times = timed([lambda: subprocess.run(tar, check=True, stdout=subprocess.PIPE)])
    return [times[0] / SMALL_FILES] * SMALL_FILES


CALLS = {
    "read of 4 KiB, direct": direct(False, 4096, 2000),
    "write of 4 KiB, direct": direct(True, 4096, 2000),
    "read of 1 MiB, direct": direct(False, 1 << 20, 100),
    "write of 1 MiB, direct": direct(True, 1 << 20, 100),
    "stat that asks the server": stat,
    "tar c, for each file of 1 KB": tar,
}


def measure(turns, mounts):
    found = {(name, way): [] for name in CALLS for way in WAYS}
    for turn in range(turns + 1):
        for name, work in CALLS.items():
            for way in WAYS if turn % 2 else reversed(WAYS):
                directory, pid = mounts[way]
                before = processor_us(pid)
                times = work(directory)
                used = (processor_us(pid) - before) / len(times)
                # The first turn warms up.
                if turn > 0:
                    found[name, way].append((statistics.median(times), used))
    print(f"{'':30} {'time of a call, µs':>24} {'of a processor, µs':>24}")
    for name in CALLS:
        middle = [[statistics.median(kind) for kind in zip(*found[name, way])] for way in WAYS]
        both = ["%7.1f, on %7.1f: %4.2f" % (off, on, on / off) for off, on in zip(*middle)]
        print(f"{name:30} {both[0]:>24} {both[1]:>24}")


def main():
    turns = int(sys.argv[1]) if len(sys.argv) > 1 else 7
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))
    work = Path(tempfile.mkdtemp(dir="/dev/shm", prefix="mount-uring."))
    served = work / "served"
    (served / "small").mkdir(parents=True)
    (served / "file").write_bytes(os.urandom(FILE_BYTES))
    for number in range(SMALL_FILES):
        (served / "small" / str(number)).write_bytes(os.urandom(1024))
    # Who else changes it waits.
    parameter = PARAMETER.open()
    fcntl.flock(parameter, fcntl.LOCK_EX)
    before = PARAMETER.read_text()
    serve = [DAFS, "serve", "--listen", "tcp://127.0.0.1:0", "--arena", "256m"]
    serve += ["--state", work / "state", served]
    server = subprocess.Popen(serve, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True)
    mounts = {}
    try:
        url = server.stdout.readline().strip()
        PARAMETER.write_text("Y")
        for way in WAYS:
            directory = work / way
            directory.mkdir()
            options = f"uring={way},attr_timeout=0,entry_timeout=0"
            subprocess.run([DAFS, "mount", "-q", "-o", options, url, directory], check=True)
            os.listdir(directory)
            mounts[way] = (directory, process_of(directory))
        os.sched_setaffinity(0, {0})
        measure(turns, mounts)
        print("others beside it: load %.1f, %.1f, %.1f" % os.getloadavg())
    finally:
        PARAMETER.write_text(before)
        for directory, _ in mounts.values():
            subprocess.run([DAFS, "umount", "--force", directory], timeout=30)
        server.send_signal(signal.SIGINT)
        server.wait(timeout=30)
        subprocess.run(["rm", "-rf", work], check=True)


main()
