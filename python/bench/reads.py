"""What a read costs in Python, beside the same reads in C and beside a file object in memory.

    python python/bench/reads.py --lib DIR [--rounds N] [--json]

DIR has libdafs.so.0 and its header is in crates/capi/include (DIR may be target/release). Serves a file of
256 MiB from a private directory by `dafs.serve`, and takes turns:

- 1 MiB and 4 KiB by `readinto` of an unbuffered file into a NumPy array, and by `dap_read`;
- 4 KiB by `readinto` of io.BytesIO: what Python itself costs;
- 10,000 files of 16 KiB by `read_files`.
"""

import argparse
import io
import json
import os
import pathlib
import resource
import statistics
import subprocess
import sys
import tempfile
import time

import dafs
import numpy

FILE_BYTES = 256 << 20
COUNTS = {1 << 20: 1024, 4096: 30_000}
FILES = 10_000


def user():
    return resource.getrusage(resource.RUSAGE_SELF).ru_utime


def compiled(library, directory):
    """The program of reads.c, started."""
    root = pathlib.Path(__file__).resolve().parents[2]
    shared = os.path.join(directory, "libdafs.so.0")
    found = [os.path.join(library, name) for name in ("libdafs.so.0", "libdafs.so")]
    os.symlink(os.path.abspath(next(filter(os.path.exists, found))), shared)
    program = os.path.join(directory, "reads")
    source = root / "python" / "bench" / "reads.c"
    include = root / "crates" / "capi" / "include"
    subprocess.run(["cc", "-O2", "-I", include, source, shared, f"-Wl,-rpath,{directory}", "-o", program], check=True)
    return program


def timed(file, array, count):
    """Wall and user nanoseconds of a `readinto`."""
    start, used = time.perf_counter(), user()
    wanted = len(array)
    for _ in range(count):
        if file.readinto(array) != wanted:
            file.seek(0)
    return (time.perf_counter() - start) * 1e9 / count, (user() - used) * 1e9 / count


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--lib", required=True, help="directory of libdafs.so.0")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    found = {}

    def note(name, value):
        found.setdefault(name, []).append(value)

    with tempfile.TemporaryDirectory() as work:
        served = os.path.join(work, "served")
        os.mkdir(served)
        data = os.urandom(1 << 20)
        with open(os.path.join(served, "large"), "wb") as file:
            for _ in range(FILE_BYTES >> 20):
                file.write(data)
        memory = io.BytesIO(data * 16)
        with dafs.serve(served) as server, server.connect() as session:
            program = subprocess.Popen(
                [compiled(args.lib, work), server.url, "large"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
            )

            def in_c(size, count):
                program.stdin.write(f"{size} {count}\n")
                program.stdin.flush()
                return map(float, program.stdout.readline().split())

            with session.open("large", "rb", buffering=0) as file:
                for size, count in COUNTS.items():
                    array = numpy.empty(size, numpy.uint8)
                    timed(file, array, count // 4)
                    list(in_c(size, count // 4))
                    for _ in range(args.rounds):
                        for name, (wall, used) in (
                            ("python", timed(file, array, count)),
                            ("c", in_c(size, count)),
                            ("memory", timed(memory, array, count)),
                        ):
                            note(f"{name} {size} wall ns", wall)
                            note(f"{name} {size} user ns", used)
            program.stdin.close()
            program.wait()
            session.write_files({f"f{number}": data[:16384] for number in range(FILES)})
            names = [f"f{number}" for number in range(FILES)]
            for _ in range(args.rounds):
                start = time.perf_counter()
                contents = session.read_files(names)
                note("files per s", FILES / (time.perf_counter() - start))
                assert all(content == data[:16384] for content in contents)
    medians = {name: statistics.median(values) for name, values in found.items()}
    if args.json:
        json.dump({"medians": medians, "all": found}, sys.stdout)
        print()
        return
    for name, value in medians.items():
        print(f"{name:24} {value:12,.0f}   ({min(found[name]):,.0f} to {max(found[name]):,.0f})")
    mib, page = 1 << 20, 4096
    print(f"1 MiB: Python has {medians[f'c {mib} wall ns'] / medians[f'python {mib} wall ns']:.2f} of C's bandwidth")
    beyond = [
        python - memory - c
        for python, memory, c in zip(*(found[f"{who} {page} user ns"] for who in ("python", "memory", "c")), strict=True)
    ]
    print(f"4 KiB: {statistics.median(beyond):,.0f} ns of user CPU beside C's and those of a file object in memory")


if __name__ == "__main__":
    main()
