"""By which network a session goes, and memory that the server reaches as it is."""

import asyncio
import gc
import os

import dafs
import numpy
import pytest
from test_processes import child_of

LENGTH = 1 << 20


def connected(url, transport):
    """A session that goes by it. A server has 100 ms to answer by shared memory, which is not always enough."""
    for _ in range(100):
        session = dafs.connect(url)
        if session.info()["transport"] == transport:
            return session
        session.close()
    raise AssertionError(f"never by {transport}")


@pytest.fixture
def near(shared):
    with connected(shared.url, "shm") as session:
        yield session


def copied(session):
    return session.info()["copied_bytes"]


def test_shared_memory_is_found_by_itself(shared, near):
    assert near.info()["transport"] == "shm"
    with dafs.connect(shared.url, transport="unix") as other:
        assert other.info()["transport"] == "unix"
    with pytest.raises(OSError, match="transport=mesh"):
        dafs.connect(shared.url, transport="mesh")


@pytest.mark.parametrize("transport", ["shm", "unix", "tcp"])
def test_work_by_each_transport(tmp_path, transport):
    with dafs.serve(tmp_path, arena="64m", options=["--listen", "tcp://127.0.0.1:0"]) as server:
        with server.connect() as first:
            addresses = first.info()["server_addresses"]
        url = server.url
        if transport == "tcp":
            url = "dafs" + next(one for one in addresses if one.startswith("tcp://"))[3:] + "/"
        with dafs.connect(url, transport=transport) as session:
            assert session.info()["transport"] == transport
            data = os.urandom(3 * LENGTH + 5)
            session.write_file("large", data)
            assert session.read_file("large") == data
            files = {f"{number}": os.urandom(number * 997) for number in range(80)}
            session.write_files(files)
            assert session.read_files(list(files)) == list(files.values())
            for memory in (bytearray(len(data)), numpy.zeros(len(data), "u1"), session.buffer(len(data))):
                with session.open("large", "rb", buffering=0) as file:
                    assert file.readinto(memory) == len(data)
                assert memoryview(memory) == data
            asyncio.run(_work(dafs.AsyncSession(session), data))


async def _work(session, data):
    async with await session.open("large", "rb+") as file:
        assert await file.pread(len(data), 0) == data
        memory = session.buffer(LENGTH)
        assert await file.preadinto(memory, 5) == LENGTH
        assert memoryview(memory) == data[5 : 5 + LENGTH]
        assert await file.pwrite(memory, len(data)) == LENGTH
        assert await file.pread(LENGTH, len(data)) == data[5 : 5 + LENGTH]


def test_a_sessions_buffers_are_not_copied(near):
    near.write_file("copies", bytes(range(256)) * (LENGTH // 256))
    with near.open("copies", "rb+", buffering=0) as file:
        own, array = bytearray(LENGTH), numpy.asarray(near.buffer(LENGTH))
        before = copied(near)
        file.preadinto(own, 0)
        assert copied(near) - before >= LENGTH
        before = copied(near)
        for _ in range(4):
            assert file.preadinto(array, 0) == LENGTH
            assert file.preadinto(array[LENGTH // 2 :], LENGTH // 2) == LENGTH // 2
        assert copied(near) - before < LENGTH
        assert memoryview(array) == own

        async def reads():
            wrapped = dafs.AsyncSession(near)
            buffer = wrapped.buffer(LENGTH)
            async with await wrapped.open("copies") as again:
                before = copied(near)
                assert await again.preadinto(buffer, 0) == LENGTH
                assert copied(near) - before < LENGTH // 2
            assert memoryview(buffer) == own

        asyncio.run(reads())


def test_a_buffer_outlives_its_session_and_is_zero_again(shared):
    session = connected(shared.url, "shm")
    buffer = session.buffer(LENGTH)
    array = numpy.asarray(buffer)
    array[:] = 7
    session.close()
    del session, buffer
    gc.collect()
    assert array.sum() == 7 * LENGTH
    with connected(shared.url, "shm") as other:
        first = numpy.asarray(other.buffer(LENGTH))
        first[:] = 9
        del first
        gc.collect()
        assert not numpy.asarray(other.buffer(LENGTH)).any()


def test_a_child_has_its_own_view_of_a_buffer(near):
    near.write_file("f", b"x" * LENGTH)
    buffer = near.buffer(LENGTH)
    array = numpy.asarray(buffer)
    array[:] = 5

    def child():
        seen = [int(array[0]), int(array[-1])]
        array[:] = 6
        seen.append(int(numpy.asarray(buffer)[LENGTH // 2]))
        try:
            near.buffer(10)
        except ChildProcessError:
            seen.append("ended")
        return seen

    assert child_of(child) == ("[5, 5, 6, 'ended']", 0)
    assert array.sum() == 5 * LENGTH

    def child_that_drops():
        nonlocal buffer, array
        del buffer, array
        gc.collect()

    assert child_of(child_that_drops) == ("None", 0)
    with near.open("f", "rb", buffering=0) as file:
        assert file.preadinto(array, 0) == LENGTH
    assert array.sum() == ord("x") * LENGTH


def test_loans_are_read_where_they_are(shared, near):
    numbers = numpy.arange(LENGTH // 8)
    near.write_file("lent", numbers)
    with near.open("lent", "r+b", buffering=0) as file:
        before = copied(near)
        with file.lend(LENGTH, LENGTH // 2) as loan:
            assert loan.mapped and len(loan) == loan.nbytes == LENGTH // 2
            pieces = [numpy.frombuffer(piece, numbers.dtype) for piece in loan.pieces]
        assert copied(near) - before < LENGTH // 4
        # What is written goes elsewhere, and what is held stays.
        file.pwrite(bytes(LENGTH), 0)
    assert sum(int(piece.sum()) for piece in pieces) == int(numbers[LENGTH // 16 :].sum())
    with pytest.raises(ValueError, match="read-only"):
        pieces[0][0] = 1
    with pytest.raises(ValueError, match="released"):
        loan.pieces
    with near.open("lent", "rb") as file:
        assert not any(bytes(piece).strip(b"\0") for piece in file.lend(LENGTH, 0).pieces)
    # Elsewhere it is a copy.
    with dafs.connect(shared.url, transport="unix") as other, other.open("lent", "rb") as file:
        loan = file.lend(100_000, 5)
        assert not loan.mapped and sum(piece.nbytes for piece in loan.pieces) == 100_000
