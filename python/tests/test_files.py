"""Open files."""

import array
import io
import os
import threading

import dafs
import numpy
import pytest


def test_a_file_is_read_into_any_writable_memory(session):
    data = os.urandom(100_000)
    session.write_file("f", data)
    with session.open("f", "rb", buffering=0) as file:
        for memory in (
            bytearray(100_000),
            memoryview(bytearray(100_000)),
            numpy.zeros(12_500, numpy.float64),
            numpy.zeros((100, 1000), numpy.uint8),
            array.array("i", [0] * 25_000),
            dafs.Buffer(100_000),
        ):
            file.seek(0)
            assert file.readinto(memory) == 100_000
            assert bytes(memoryview(memory).cast("B")) == data
        assert file.readinto(bytearray(1)) == 0
        for memory in (b"x" * 10, numpy.zeros((10, 10), numpy.uint8)[:, ::2], [1, 2], "text"):
            with pytest.raises((BufferError, TypeError, ValueError)):
                file.readinto(memory)


def test_a_file_is_written_from_any_memory(session):
    with session.open("f", "wb", buffering=0) as file:
        assert file.write(b"12") == 2
        assert file.write(bytearray(b"34")) == 2
        assert file.write(numpy.arange(4, dtype=numpy.uint16)) == 8
        assert file.write(memoryview(b"xyz")[1:]) == 2
        assert file.write(b"") == 0
        assert file.tell() == 14
        with pytest.raises(TypeError):
            file.write("text")
    assert session.read_file("f") == b"1234" + numpy.arange(4, dtype=numpy.uint16).tobytes() + b"yz"


def test_modes_are_those_of_open(session, tmp_path):
    for mode in ("rb", "r", "wb", "w+b", "ab", "a+b", "r+b", "xb", "br", "rw", "", "rbt", "rr", "z"):
        outcomes = []
        for opener, path in ((open, tmp_path / "f"), (session.open, "f")):
            for start in (None, b"old contents"):
                outcome = outcomes.append
                if isinstance(path, str):
                    if session.exists(path):
                        session.remove(path)
                    if start is not None:
                        session.write_file(path, start)
                else:
                    path.unlink(missing_ok=True)
                    if start is not None:
                        path.write_bytes(start)
                try:
                    with opener(path, mode) as file:
                        told = [file.readable(), file.writable(), file.seekable(), file.tell()]
                        if file.writable():
                            told.append(file.write(b"new" if "b" in mode else "new"))
                        if file.readable():
                            file.seek(0)
                            told.append(file.read())
                        outcome(told)
                except (OSError, ValueError) as error:
                    outcome(type(error))
                except TypeError as error:
                    outcome(type(error))
        assert outcomes[:2] == outcomes[2:], mode


def test_text_is_decoded_and_lines_are_found(session):
    with session.open("t", "w", encoding="utf-16", newline="") as file:
        file.write("eins\r\nzwei\nüber\n")
    with session.open("t", encoding="utf-16") as file:
        assert list(file) == ["eins\n", "zwei\n", "über\n"]
    with session.open("t", "rb") as file:
        assert file.readline().endswith(b"\n")
    with pytest.raises(ValueError):
        session.open("t", "rb", encoding="utf-8")
    with pytest.raises(ValueError):
        session.open("t", "r", buffering=0)


def test_positions_and_holes(session):
    with session.open("f", "w+b", buffering=0) as file:
        assert file.seek(1_000_000) == 1_000_000
        file.write(b"end")
        assert file.seek(-3, io.SEEK_END) == 1_000_000
        assert file.seek(1, io.SEEK_CUR) == 1_000_001
        assert file.read() == b"nd"
        assert file.read(10) == b""
        assert file.pread(5, 999_998) == b"\0\0end"[:5]
        assert file.truncate(10) == 10
        assert file.readall() == b""
        assert file.seek(0) == 0 and file.readall() == bytes(10)
        for wrong in (lambda: file.seek(-1), lambda: file.seek(0, 9), lambda: file.pread(1, -1)):
            with pytest.raises((ValueError, OSError)):
                wrong()
        with pytest.raises((ValueError, OSError, OverflowError)):
            file.pwrite(b"x", (1 << 63) - 1)


def test_lists_of_buffers_and_ranges(session):
    with session.open("f", "w+b", buffering=0) as file:
        assert file.writev([b"abc", bytearray(b"de"), b""], 2) == 5
        first, second = bytearray(3), bytearray(10)
        assert file.readv([first, second], 1) == 6
        assert (bytes(first), bytes(second[:3])) == (b"\0ab", b"cde")
        ranges = [(0, 3), (6, 100), (100, 5), (2, 0), (3, 2)]
        assert file.read_ranges(ranges) == [b"\0\0a", b"e", b"", b"", b"bc"]
        big = os.urandom(3 << 20)
        file.pwrite(big, 0)
        assert file.read_ranges([(0, 3 << 20), (5, 7)]) == [big, big[5:12]]


def test_what_is_asked_for_may_be_longer_than_the_file(session):
    session.write_file("f", b"data")
    with session.open("f", "rb", buffering=0) as file:
        for size in (5, 1 << 30, 1 << 62, (1 << 63) - 1):
            assert file.pread(size, 1) == b"ata"
            assert file.read_ranges([(0, size), (7, size)]) == [b"data", b""]
            file.seek(2)
            assert file.read(size) == b"ta"
        assert file.pread((1 << 64) - 1, 1) == b"ata"


def test_a_flush_hands_on_what_another_thread_wrote_during_one(server):
    with dafs.connect(server.url) as session, session.open("f", "wb", buffering=0) as file:
        local = os.path.join(server.directory, "f")
        stop = threading.Event()

        def flushes():
            while not stop.is_set():
                file.pwrite(b"x", 1 << 20)
                file.flush()

        thread = threading.Thread(target=flushes)
        thread.start()
        try:
            for number in range(2000):
                data = b"%8d" % number
                file.pwrite(data, 0)
                file.flush()
                with open(local, "rb") as here:
                    assert here.read(8) == data
        finally:
            stop.set()
            thread.join()


def test_append_goes_to_the_end(session):
    with session.open("f", "ab", buffering=0) as one, session.open("f", "ab", buffering=0) as other:
        one.write(b"1")
        other.write(b"2")
        assert other.tell() == 2
        one.write(b"3")
    assert session.read_file("f") == b"123"


def test_what_is_written_is_seen_by_others_at_once(session, shared):
    with session.open("f", "wb") as file, dafs.connect(session.url) as other:
        file.write(b"buffered")
        assert other.read_file("f") == b""
        file.flush()
        assert other.read_file("f") == b"buffered"
        file.write(b" more")
        file.fsync()
        assert file.stat().st_size == 13


def test_closed_files_say_so(session):
    session.write_file("f", b"x")
    for mode, buffering in (("rb", -1), ("rb", 0), ("r+b", -1), ("wb", -1)):
        file = session.open("f", mode, buffering)
        file.close()
        file.close()
        assert file.closed
        for call in (file.tell, lambda: file.read(1), lambda: file.write(b"x")):
            with pytest.raises(ValueError):
                call()
    file = session.open("f", "rb", 0)
    with pytest.raises(io.UnsupportedOperation):
        file.write(b"x")
    with pytest.raises(io.UnsupportedOperation):
        file.fileno()
    file.close()
    file = session.open("f", "wb")
    raw = file.detach()
    with pytest.raises(ValueError, match="detached"):
        file.close()
    raw.close()


def test_a_full_disk_and_no_rights_are_told(session):
    session.write_file("f", b"x")
    with session.open("f", "r+b", buffering=0) as file:
        with pytest.raises(OSError) as raised:
            file.truncate((1 << 63) - 1)
        assert raised.value.filename == "f"


def test_buffers_are_shown_without_a_copy(session):
    buffer = dafs.Buffer(8192)
    assert len(buffer) == buffer.nbytes == 8192
    shown, dlpack = numpy.asarray(buffer), numpy.from_dlpack(buffer)
    memoryview(buffer)[3] = 7
    assert shown[3] == 7 and dlpack[3] == 7
    assert shown.ctypes.data == dlpack.ctypes.data and shown.ctypes.data % 4096 == 0
    # Nor is there one where it is wished.
    with pytest.raises(BufferError):
        buffer.__dlpack__(copy=True)
    with pytest.raises(BufferError):
        buffer.__dlpack__(dl_device=(2, 0))
    del buffer
    assert shown[3] == 7 and dlpack[3] == 7
    with pytest.raises(ValueError):
        dafs.Buffer(0)
    with pytest.raises((MemoryError, ValueError, OverflowError)):
        dafs.Buffer(1 << 62)
