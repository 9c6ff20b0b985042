"""Random operations on a file, held against a model, while the server is restarted and killed."""

import os
import random
import signal

import dafs
import pytest

SIZE_MAX = 1 << 20


class Model:
    """What the file must hold, and how many writes were told as lost and written again."""

    def __init__(self):
        self.data = bytearray()
        self.again = 0

    def write(self, at, data):
        if not data:
            return
        if at > len(self.data):
            self.data.extend(bytes(at - len(self.data)))
        self.data[at : at + len(data)] = data

    def truncate(self, size):
        if size < len(self.data):
            del self.data[size:]
        else:
            self.data.extend(bytes(size - len(self.data)))


class Exerciser:
    def __init__(self, session, seed):
        self.session, self.random, self.model = session, random.Random(seed), Model()
        self.file = session.open("fsx", "w+b", buffering=0)

    def repeat(self, call):
        """Makes a call that tells of lost writes; those are written again from the model."""
        while True:
            try:
                return call()
            except OSError as error:
                if "lost" not in str(error):
                    raise
                self.model.again += 1
                if self.file.closed:
                    self.file = self.session.open("fsx", "r+b", buffering=0)
                self.file.truncate(len(self.model.data))
                self.file.pwrite(self.model.data, 0)

    def place(self):
        at = self.random.randrange(SIZE_MAX)
        # Small and large, at and off the borders of blocks.
        length = min(self.random.choice([1, 100, 4096, 5000, 70_000, 300_000]), SIZE_MAX - at)
        return (at & ~4095 if self.random.random() < 0.3 else at), length

    def check(self, at, data, length):
        expected = bytes(self.model.data[at : at + length])
        assert data == expected, f"{len(data)} of {length} bytes at {at}"

    def step(self):
        at, length = self.place()
        what = self.random.choice(
            ["read", "read", "readinto", "pread", "readv", "ranges", "write", "write", "pwrite", "writev"]
            + ["truncate", "flush", "fsync", "reopen", "append", "stat", "whole"]
        )
        getattr(self, what)(at, length)

    def read(self, at, length):
        self.file.seek(at)
        self.check(at, self.file.read(length), length)
        assert self.file.tell() == at + len(self.model.data[at : at + length])

    def readinto(self, at, length):
        memory = bytearray(length)
        self.file.seek(at)
        self.check(at, bytes(memory[: self.file.readinto(memory)]), length)

    def pread(self, at, length):
        self.check(at, self.file.pread(length, at), length)

    def readv(self, at, length):
        first, second = bytearray(length // 3), bytearray(length - length // 3)
        read = self.file.readv([first, second], at)
        self.check(at, bytes((first + second)[:read]), length)

    def ranges(self, at, length):
        ranges = [(at, length), (0, 10), (at // 2, 5000)]
        for (start, size), found in zip(ranges, self.file.read_ranges(ranges)):
            self.check(start, found, size)

    def write(self, at, length):
        data = self.random.randbytes(length)
        self.file.seek(at)
        assert self.file.write(data) == length
        self.model.write(at, data)

    def pwrite(self, at, length):
        data = self.random.randbytes(length)
        assert self.file.pwrite(data, at) == length
        self.model.write(at, data)

    def writev(self, at, length):
        data = self.random.randbytes(length)
        assert self.file.writev([data[:7], memoryview(data)[7:]], at) == length
        self.model.write(at, data)

    def truncate(self, at, length):
        assert self.file.truncate(at) == at
        self.model.truncate(at)

    def flush(self, at, length):
        self.repeat(lambda: self.file.flush())

    def fsync(self, at, length):
        self.repeat(lambda: self.file.fsync())

    def reopen(self, at, length):
        self.repeat(lambda: self.file.close())
        self.file = self.session.open("fsx", "r+b", buffering=0)

    def append(self, at, length):
        if len(self.model.data) + length > SIZE_MAX:
            return
        data = self.random.randbytes(length)
        with self.session.open("fsx", "ab", buffering=0) as file:
            file.write(data)
        self.model.write(len(self.model.data), data)

    def stat(self, at, length):
        assert self.file.stat().st_size == len(self.model.data)
        assert self.file.seek(0, os.SEEK_END) == len(self.model.data)

    def whole(self, at, length):
        assert self.session.read_file("fsx") == bytes(self.model.data)


@pytest.mark.parametrize("seed", [1])
def test_a_file_is_what_a_model_says(server, is_long, seed):
    operations, restarts = (1_000_000, 10) if is_long else (3000, 2)
    period = operations // (2 * restarts + 1)
    with dafs.connect(server.url) as session:
        exerciser = Exerciser(session, seed)
        for number in range(1, operations + 1):
            try:
                exerciser.step()
            except AssertionError as error:
                raise AssertionError(f"operation {number} of seed {seed}: {error}") from error
            if number % period == 0:
                server.restart(signal.SIGKILL if number // period % 2 else signal.SIGTERM)
        exerciser.whole(0, 0)
        exerciser.file.close()
        print(f"{operations} operations, {exerciser.model.again} times written again")
