"""What is read of the server's cache without its program, while others write and the server is killed."""

import mmap
import os
import random
import struct
import time

import dafs
import pytest
from test_transports import connected

# A unit begins in the middle of a page, and lies in three.
PAGE, UNITS = 4096, 32
UNIT, FIRST = 2 * PAGE, PAGE // 2
WANTED = int(os.environ.get("DAFS_TEST_HISTORY_HITS", "5000"))


class History:
    """Of each unit the version of which a write has begun last, and the one that is acknowledged: memory that
    processes share, each number written by the one writer."""

    def __init__(self):
        # Behind the numbers of units: of two readers the hits, and whether it is over.
        self.words = memoryview(mmap.mmap(-1, 4 * PAGE)).cast("Q")

    def begun(self, unit):
        return self.words[2 * unit]

    def acknowledged(self, unit):
        return self.words[2 * unit + 1]

    def write(self, file, unit, is_early=False):
        version = self.words[2 * unit] = self.begun(unit) + 1
        if is_early:
            self.words[2 * unit + 1] = version
        assert file.pwrite(struct.pack("<Q", version << 16 | unit) * (UNIT // 8), FIRST + unit * UNIT) == UNIT
        self.words[2 * unit + 1] = version

    def read(self, file, unit, memory):
        """Reads it, or says what is wrong with what was read."""
        least = self.acknowledged(unit)
        assert file.preadinto(memory, FIRST + unit * UNIT) == UNIT
        most = self.begun(unit)
        word = struct.unpack_from("<Q", memory)[0]
        assert bytes(memory) == struct.pack("<Q", word) * (UNIT // 8), f"unit {unit} is torn"
        assert word & 0xFFFF == unit, f"unit {word & 0xFFFF} for {unit}"
        assert least <= word >> 16 <= most, f"unit {unit}: read {word >> 16} of {least} to {most}"

    def reader(self, number, url, transport):
        """What a child does: reads until it is over."""
        memory, dice = bytearray(UNIT), random.Random(number)
        with connected(url, transport) as session, session.open("history", "rb", buffering=0) as file:
            while not self.words[-1]:
                for _ in range(16):
                    self.read(file, dice.randrange(UNITS), memory)
                self.words[-2 - number] = session.info()["optimistic_hits"]

    def hits(self):
        return self.words[-2] + self.words[-3]


def readers(history, url, transport):
    """Two of them, in processes of their own."""
    children = []
    for number in range(2):
        child = os.fork()
        if child == 0:
            how = 1
            try:
                history.reader(number, url, transport)
                how = 0
            except AssertionError as error:
                os.write(2, f"{error}\n".encode())
                how = 3
            finally:
                os._exit(how)
        children.append(child)
    return children


def run(history, url, transport, wanted, is_early=False):
    """The exit codes of the readers."""
    dice, ended = random.Random(1), {}
    with connected(url, transport) as session, session.open("history", "wb+", buffering=0) as file:
        for unit in range(UNITS):
            history.write(file, unit)
        children = readers(history, url, transport)
        until = time.monotonic() + 120
        while history.hits() < wanted and not ended and time.monotonic() < until:
            history.write(file, dice.randrange(UNITS), is_early)
            found, status = os.waitpid(-1, os.WNOHANG)
            if found:
                ended[found] = os.waitstatus_to_exitcode(status)
        history.words[-1] = 1
        for child in children:
            if child not in ended:
                ended[child] = os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
    return sorted(ended.values())


@pytest.mark.parametrize("transport", ["shm", "tcp"])
def test_reads_without_the_server_see_what_was_acknowledged(tmp_path, transport):
    options = ["--listen", "tcp://127.0.0.1:0", "--optimistic", "both"]
    with dafs.serve(tmp_path, arena="64m", options=options) as server:
        url = server.url
        if transport == "tcp":
            with server.connect() as first:
                addresses = first.info()["server_addresses"]
            url = "dafs" + next(one for one in addresses if one.startswith("tcp://"))[3:] + "/?transport=tcp"
        history = History()
        assert run(history, url, transport, WANTED) == [0, 0]
        assert history.hits() >= WANTED


def test_a_read_older_than_what_was_acknowledged_is_found(shared):
    # The writer says too early that it has written: the judge is not blind.
    assert 3 in run(History(), shared.url, "shm", 1 << 60, is_early=True)


def test_a_killed_servers_memory_is_not_believed(server):
    history, memory, dice = History(), bytearray(UNIT), random.Random(2)
    with connected(server.url, "shm") as session:
        with session.open("history", "wb+", buffering=0) as file:
            for unit in range(UNITS):
                history.write(file, unit)
            session.sync()
        with session.open("history", "rb", buffering=0) as file:
            for _ in range(4):
                before, until = session.info()["optimistic_hits"], time.monotonic() + 60
                while session.info()["optimistic_hits"] < before + 100:
                    history.read(file, dice.randrange(UNITS), memory)
                    assert time.monotonic() < until, "no hits"
                server.kill()
                with open(os.path.join(server.directory, "history"), "rb+", buffering=0) as local:
                    for unit in range(UNITS):
                        version = history.words[2 * unit] = history.words[2 * unit + 1] = history.begun(unit) + 1
                        os.pwrite(local.fileno(), struct.pack("<Q", version << 16 | unit) * (UNIT // 8), FIRST + unit * UNIT)
                server.start()
                for unit in range(UNITS):
                    history.read(file, unit, memory)
