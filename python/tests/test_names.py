"""Calls on names."""

import errno
import os
import pickle
import stat

import dafs
import pytest


def test_names_come_and_go(session):
    session.makedirs("a/b/c")
    session.makedirs("a/b/c", exist_ok=True)
    with pytest.raises(FileExistsError):
        session.makedirs("a/b/c")
    with session.open("a/file", "wb") as file:
        file.write(b"12345")
    assert sorted(session.listdir("a")) == ["b", "file"]
    assert {entry.name: entry.is_dir() for entry in session.scandir("a")} == {"b": True, "file": False}
    session.rename("a/file", "a/other")
    session.link("a/other", "a/linked")
    assert session.stat("a/other").st_nlink == 2
    session.symlink("other", "a/sym")
    assert session.readlink("a/sym") == "other"
    assert stat.S_ISLNK(session.lstat("a/sym").st_mode)
    assert session.stat("a/sym").st_size == 5
    session.remove("a/sym")
    session.unlink("a/linked")
    session.remove("a/other")
    with pytest.raises(OSError) as raised:
        session.rmdir("a")
    assert raised.value.errno == errno.ENOTEMPTY
    for name in ("a/b/c", "a/b", "a"):
        session.rmdir(name)
    assert session.listdir() == []


def test_attributes_are_set(session):
    session.write_file("f", b"x" * 100)
    session.chmod("f", 0o640)
    session.truncate("f", 50)
    session.utime("f", ns=(1_000_000_001, -2_000_000_003))
    found = session.stat("f")
    assert stat.S_IMODE(found.st_mode) == 0o640
    assert found.st_size == 50
    assert (found.st_atime_ns, found.st_mtime_ns) == (1_000_000_001, -2_000_000_003)
    assert found.st_mtime == pytest.approx(-2.000000003)
    session.utime("f")
    assert session.stat("f").st_mtime > 1_600_000_000
    assert session.access("f", os.R_OK) and not session.access("missing", os.R_OK)
    assert session.statvfs().f_bsize > 0


def test_extended_attributes(session):
    session.write_file("f", b"")
    try:
        session.setxattr("f", "user.one", b"1")
    except OSError as error:
        assert error.errno == errno.ENOTSUP
        return
    assert session.getxattr("f", "user.one") == b"1"
    assert "user.one" in session.listxattr("f")
    session.removexattr("f", "user.one")
    with pytest.raises(OSError) as raised:
        session.getxattr("f", "user.one")
    assert raised.value.errno == errno.ENODATA


def test_any_name_is_a_name(session):
    for name in ("plain", "mit Lücke", "日本", "a%20b?c#d", b"\xff\xfe", "-", "~", os.fsdecode(b"\x80")):
        session.write_file(name, b"data")
        assert session.read_file(name) == b"data"
        assert os.fsdecode(name) in session.listdir()
        session.remove(name)
    with pytest.raises(OSError) as raised:
        session.stat("nul\0")
    assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError) as raised:
        session.write_file("n" * 300, b"")
    assert raised.value.errno == errno.ENAMETOOLONG


def test_what_no_file_can_hold_is_too_large(session):
    most = 2**63 - 1
    with session.open("f", "w+b", buffering=0) as file:
        file.write(b"here")
        ways = [
            lambda at: file.pread(8, at),
            lambda at: file.preadinto(bytearray(8), at),
            lambda at: file.lend(8, at),
            lambda at: file.pwrite(b"12345678", at),
        ]
        for way in ways:
            for at in (most - 2, most):
                with pytest.raises(OSError) as raised:
                    way(at)
                assert raised.value.errno == errno.EFBIG
        assert file.pread(2, most - 2) == b""
        file.seek(most - 2)
        for way in (lambda: file.readinto(bytearray(8)), lambda: file.write(b"12345678")):
            with pytest.raises(OSError) as raised:
                way()
            assert raised.value.errno == errno.EFBIG
        file.seek(0)
        assert file.read(most) == b"here"


def test_errors_are_of_the_right_kind_and_name_the_file(session):
    session.mkdir("d")
    session.write_file("f", b"")
    wrong = [
        (FileNotFoundError, lambda: session.open("missing")),
        (FileExistsError, lambda: session.mkdir("d")),
        (FileExistsError, lambda: session.open("f", "x")),
        (FileExistsError, lambda: session.rename("f", "d/../d", replace=False)),
        (NotADirectoryError, lambda: session.listdir("f")),
        (IsADirectoryError, lambda: session.remove("d")),
    ]
    for kind, call in wrong:
        with pytest.raises(OSError) as raised:
            call()
        assert isinstance(raised.value, kind) or raised.value.errno in (errno.EEXIST, errno.EPERM, errno.EISDIR, errno.EINVAL)
        assert raised.value.filename in ("missing", "d", "f")
        assert raised.value.strerror


def test_copies_are_made_by_the_server(session):
    data = os.urandom(3_000_001)
    session.write_file("from", data)
    assert session.copy("from", "to") == len(data)
    assert session.read_file("to") == data
    with pytest.raises(FileExistsError):
        session.copy("from", "to", replace=False)
    session.write_file("short", b"12345")
    assert session.copy("short", "to") == 5
    assert session.read_file("to") == b"12345"


def test_a_copy_onto_itself_leaves_the_file_as_it_is(session):
    session.write_file("f", b"data")
    session.link("f", "hard")
    session.symlink("f", "soft")
    for target in ("f", "./f", "hard", "soft"):
        with pytest.raises(OSError, match="same file") as raised:
            session.copy("f", target)
        assert raised.value.filename == "f"
        assert session.read_file("f") == b"data"


def test_many_files_take_one_round_trip_each(session):
    files = {f"{number}": os.urandom(16 << 10) for number in range(500)}
    before = session.info()["round_trips"]
    assert session.write_files(files) == 500
    written = session.info()["round_trips"]
    names = list(files)
    assert session.read_files(names) == list(files.values())
    read = session.info()["round_trips"]
    assert session.exists(names + ["missing"]) == [True] * 500 + [False]
    assert written - before <= 650 and read - written <= 650
    assert session.info()["round_trips"] - read <= 510


def test_of_many_files_each_failure_is_told(session):
    session.mkdir("d")
    found = session.read_files(["missing", "d"], errors="return")
    assert isinstance(found[0], FileNotFoundError) and isinstance(found[1], OSError)
    with pytest.raises(FileNotFoundError):
        session.read_files(["missing"])
    with pytest.raises(OSError) as raised:
        session.write_files([("a", b"1"), ("missing/b", b"2"), ("d", b"3"), ("c", b"4")])
    assert raised.value.written == 2 and sorted(raised.value.failed) == [1, 2]
    assert session.read_files(["a", "c"]) == [b"1", b"4"]
    large = os.urandom(5 << 20)
    assert session.write_files([("large", large), ("empty", b"")]) == 2
    assert session.read_files(["large", "empty"]) == [large, b""]
    with pytest.raises(ValueError):
        session.read_files([], errors="ignore")


def test_closed_sessions_say_so(shared):
    session = shared.connect()
    file = session.open("closed-session", "wb")
    session.close()
    session.close()
    for call in (session.listdir, session.ping, lambda: session.open("x"), lambda: file.raw.write(b"x")):
        with pytest.raises(ValueError, match="closed session"):
            call()


def test_wrong_urls_and_options_are_named(shared):
    for url, word in [
        ("http://host/", "dafs://"),
        ("dafs://host/?colour=red", "colour"),
        ("dafs://host/?wait=never", "wait"),
    ]:
        with pytest.raises(OSError, match=word) as raised:
            dafs.connect(url)
        assert raised.value.errno == errno.EINVAL
    with pytest.raises(OSError) as raised:
        dafs.connect("dafs+unix:///nowhere/socket//")
    assert "dafs serve" in str(raised.value)
    with pytest.raises(ValueError):
        dafs.connect(shared.url, key=b"1", key_file="/x")


def test_a_session_can_be_pickled(session):
    session.write_file("f", b"data")
    with pickle.loads(pickle.dumps(session)) as other:
        assert other.read_file("f") == b"data"
    with session.open("f", "rb") as file, pytest.raises(TypeError):
        pickle.dumps(file)


def test_urls_are_taken_apart_and_put_together():
    assert dafs.split_url("dafs://host/a%20b?retry=1s") == ("dafs://host/?retry=1s", "a b")
    assert dafs.join_url("dafs://host:7/", "a b") == "dafs://host:7/a%20b"


def test_a_url_can_be_opened(shared):
    with dafs.open(f"{shared.url}by-url", "w") as file:
        file.write("text")
    with dafs.open(f"{shared.url}by-url") as file:
        assert file.read() == "text"


def test_walk_finds_all(session):
    session.makedirs("a/b")
    session.write_files([("a/f", b""), ("a/b/g", b"")])
    assert list(session.walk("a")) == [("a", ["b"], ["f"]), ("a/b", [], ["g"])]
