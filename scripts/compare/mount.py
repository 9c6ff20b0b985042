"""Reads a file, or makes files, on a mount, for compare.sh: mount.py read FILE SIZE DEPTH SECONDS, or
mount.py create DIR COUNT. Prints operations, seconds, and processor seconds of its own."""

import os
import random
import sys
import threading
import time


def read(name, size, depth, seconds):
    descriptor = os.open(name, os.O_RDONLY)
    blocks = os.fstat(descriptor).st_size // size
    end = time.monotonic() + seconds
    done = [0] * depth

    def reader(number):
        draw = random.Random(number)
        while time.monotonic() < end:
            if len(os.pread(descriptor, size, draw.randrange(blocks) * size)) != size:
                os._exit(1)
            done[number] += 1

    threads = [threading.Thread(target=reader, args=(number,)) for number in range(depth)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return sum(done)


def create(directory, count):
    for number in range(count):
        with open(f"{directory}/{number}", "xb", buffering=0) as file:
            file.write(bytes(2048))
    return count


start, used = time.monotonic(), time.process_time()
if sys.argv[1] == "read":
    operations = read(sys.argv[2], int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5]))
else:
    operations = create(sys.argv[2], int(sys.argv[3]))
print(operations, f"{time.monotonic() - start:.3f}", f"{time.process_time() - used:.3f}")
