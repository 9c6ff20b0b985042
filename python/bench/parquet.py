"""pandas reading Parquet over fsspec from a server that has it cached, beside the same files of this machine, warm.

    python python/bench/parquet.py DIR [--bytes N] [--rounds N] [--json]

Makes DIR/mixed.parquet (50 columns of numbers, text, times and flags, snappy) and DIR/floats.parquet (16 columns of
float64, uncompressed), of some N bytes each, where they are missing; DIR is best on ext4 or XFS. Then serves DIR by
`dafs.serve` and reads both files whole, from the server and from DIR by turns.
"""

import argparse
import gc
import json
import os
import statistics
import sys
import time

import dafs
import numpy
import pandas
import pyarrow
import pyarrow.parquet

ROWS = 1 << 17


def mixed(numbers, rows):
    columns = {}
    for number in range(10):
        columns[f"float{number}"] = numbers.random(rows)
        columns[f"integer{number}"] = numbers.integers(0, 1 << 40, rows)
        columns[f"small{number}"] = numbers.integers(0, 100, rows, dtype=numpy.int32)
        columns[f"flag{number}"] = numbers.random(rows) > 0.5
        if number % 2:
            columns[f"text{number}"] = numpy.char.mod("name %d", numbers.integers(0, 1 << 20, rows))
        else:
            seconds = numbers.integers(0, 1 << 30, rows)
            columns[f"time{number}"] = seconds.astype("datetime64[s]").astype("datetime64[us]")
    return columns


def floats(numbers, rows):
    return {f"float{number}": numbers.random(rows) for number in range(16)}


def make(path, columns, compression, wanted):
    if os.path.exists(path) and os.path.getsize(path) >= wanted:
        return
    numbers = numpy.random.default_rng(11)
    writer = None
    with open(path + ".new", "wb") as file:
        while file.tell() < wanted:
            table = pyarrow.table(columns(numbers, ROWS))
            if writer is None:
                writer = pyarrow.parquet.ParquetWriter(file, table.schema, compression=compression)
            writer.write_table(table)
        writer.close()
    os.rename(path + ".new", path)


def read(path):
    gc.collect()
    start = time.perf_counter()
    frame = pandas.read_parquet(path)
    return time.perf_counter() - start, frame


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("dir", metavar="DIR")
    parser.add_argument("--bytes", type=int, default=1 << 30)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args()
    files = {"mixed": (mixed, "snappy"), "floats": (floats, "none")}
    for name, (columns, compression) in files.items():
        make(os.path.join(args.dir, f"{name}.parquet"), columns, compression, args.bytes)
    result = {}
    # All of it cached, as the page cache has all of DIR.
    with dafs.serve(args.dir, arena=3 * args.bytes) as server:
        for name in files:
            near, far = os.path.join(args.dir, f"{name}.parquet"), f"{server.url}{name}.parquet"
            expected = read(near)[1]
            pandas.testing.assert_frame_equal(read(far)[1], expected)
            del expected
            times = {"local": [], "dafs": []}
            for _ in range(args.rounds):
                times["local"].append(read(near)[0])
                times["dafs"].append(read(far)[0])
            local, remote = (statistics.median(times[which]) for which in ("local", "dafs"))
            result[name] = {"bytes": os.path.getsize(near), "ratio": local / remote, **times}
            if not args.json:
                print(f"{name}: {local:.2f} s local, {remote:.2f} s from the server: {local / remote:.2f} × local")
    if args.json:
        json.dump(result, sys.stdout)
        print()


if __name__ == "__main__":
    main()
