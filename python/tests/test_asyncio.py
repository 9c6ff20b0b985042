"""Calls that are awaited."""

import asyncio
import contextlib
import os
import time
from pathlib import Path

import dafs
import numpy
import pytest


def test_names_and_files(session):
    async def main():
        calls = dafs.AsyncSession(session)
        await calls.makedirs("a/b")
        with pytest.raises(FileExistsError):
            await calls.mkdir("a")
        data = os.urandom(5_000_000)
        async with await calls.open("a/f", "w+b") as file:
            assert await file.pwrite(data, 0) == len(data)
            assert await file.pread(len(data) + 5, 0) == data
            assert (await file.stat()).st_size == len(data)
            await file.fsync()
            await file.truncate(100)
        assert file.closed
        assert await calls.read_file("a/f") == data[:100]
        await calls.rename("a/f", "a/g")
        await calls.symlink("g", "a/s")
        assert await calls.readlink("a/s") == "g"
        assert await calls.exists(["a/s", "a/f"]) == [True, False]
        assert sorted(await calls.listdir("a")) == ["b", "g", "s"]
        await calls.remove("a/s")
        await calls.rmdir("a/b")
        with pytest.raises(FileNotFoundError) as raised:
            await calls.open("a/f")
        assert raised.value.filename == "a/f"
        with pytest.raises(FileExistsError):
            await calls.write_file("a/g", b"", exclusive=True)
        async with await calls.open("a/g") as file:
            assert await file.pread(1 << 50, 3) == data[3:100] and await file.pread(1 << 50, 200) == b""
        await calls.symlink("circle", "a/circle")
        assert await calls.exists(["a/circle"]) == session.exists(["a/circle"]) == [False]
        await calls.ping()
        await calls.sync()

    asyncio.run(main())


def test_many_calls_are_under_way_at_once(session):
    files = {f"{number}": os.urandom(10_000) for number in range(300)}
    files["large"] = os.urandom(3_000_000)

    async def main():
        calls = dafs.AsyncSession(session)
        await asyncio.gather(*(calls.write_file(name, data, fsync=False) for name, data in files.items()))
        assert await calls.read_files(list(files)) == list(files.values())
        assert len(await calls.listdir()) == 301

    asyncio.run(main())


def test_a_buffer_has_one_call_at_a_time(session):
    session.write_file("f", bytes(range(256)) * 4096)

    async def main():
        calls = dafs.AsyncSession(session)
        buffer = dafs.Buffer(1 << 20)
        async with await calls.open("f", "r+b") as file:
            first = asyncio.ensure_future(file.preadinto(buffer, 0))
            await asyncio.sleep(0)
            with pytest.raises(BufferError):
                await file.preadinto(buffer, 0)
            assert await first == 1 << 20
            assert not buffer.in_flight
            shown = numpy.asarray(buffer)
            assert (shown == numpy.arange(1 << 20, dtype=numpy.uint64) % 256).all()
            shown[:] = 9
            assert await file.pwrite(buffer, 0) == 1 << 20
            with pytest.raises(TypeError):
                await file.preadinto(bytearray(10), 0)
            with pytest.raises(ValueError):
                await file.preadinto(buffer, 0, (1 << 20) + 1)
        assert await calls.read_file("f") == b"\x09" * (1 << 20)

    asyncio.run(main())


def _system_calls_of_keepers():
    """Numbers of the system calls that threads of sessions wait in."""
    found = set()
    for task in os.listdir("/proc/self/task"):
        with contextlib.suppress(OSError):
            name = Path(f"/proc/self/task/{task}/comm").read_text().strip()
            if name == "dafs-keeper":
                found.add(Path(f"/proc/self/task/{task}/syscall").read_text().split()[0])
    return found


def test_a_long_write_after_a_pause_goes_on_at_once(session):
    # epoll_wait and epoll_pwait, of x86-64 and of arm64: it listens to a session without calls.
    listens = {"232", "281", "22"}

    async def main():
        buffer = dafs.Buffer(1 << 20)
        async with await dafs.AsyncSession(session).open("f", "w+b") as file:
            for _ in range(30):
                end = time.monotonic() + 10
                while not _system_calls_of_keepers() & listens and time.monotonic() < end:
                    os.sched_yield()
                assert await file.pwrite(buffer, 0) == len(buffer)

    asyncio.run(asyncio.wait_for(main(), 60))


def test_a_cancelled_call_does_no_harm(session):
    session.write_file("f", b"x" * 100)

    async def main():
        calls = dafs.AsyncSession(session)
        for _ in range(50):
            task = asyncio.ensure_future(calls.read_file("f"))
            await asyncio.sleep(0)
            task.cancel()
        assert await calls.read_file("f") == b"x" * 100

    asyncio.run(main())
    # Of a loop that is closed before the answer comes.
    async def leaves():
        asyncio.ensure_future(dafs.AsyncSession(session).ping())
        await asyncio.sleep(0)

    asyncio.run(leaves())
    session.ping()
