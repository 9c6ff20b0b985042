"""Forks, signals, ends of processes, kills of the server."""

import asyncio
import errno
import gc
import multiprocessing
import os
import signal
import subprocess
import sys
import threading
import time

import dafs
import pytest


def child_of(function):
    """Runs it in a forked child; what that wrote to a pipe, and its exit status."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            os.close(read)
            os.write(write, str(function()).encode())
            code = 0
        except BaseException as error:
            os.write(write, repr(error).encode())
        finally:
            os._exit(code)
    os.close(write)
    with os.fdopen(read) as told:
        text = told.read()
    return text, os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])


def test_a_child_is_told_that_the_session_is_its_parents(session):
    file = session.open("f", "wb", buffering=0)

    def child():
        outcomes = []
        for call in (session.listdir, lambda: file.write(b"x"), lambda: session.open("g"), session.ping):
            try:
                call()
            except OSError as error:
                outcomes.append(error.errno)
        gc.collect()
        return outcomes

    assert child_of(child) == (str([errno.ECHILD] * 4), 0)
    assert file.write(b"still there") == 11
    file.close()


def test_children_fork_while_calls_are_under_way(session):
    session.write_file("f", bytes(1 << 20))
    stop = threading.Event()

    def reads():
        with session.open("f", "rb", buffering=0) as file:
            memory = bytearray(1 << 20)
            while not stop.is_set():
                file.preadinto(memory, 0)

    threads = [threading.Thread(target=reads) for _ in range(3)]
    for thread in threads:
        thread.start()
    try:
        for _ in range(20):
            pid = os.fork()
            if pid == 0:
                gc.collect()
                os._exit(7 if _fails(session) else 1)
            assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 7
    finally:
        stop.set()
        for thread in threads:
            thread.join()


def _fails(session):
    try:
        session.ping()
    except ChildProcessError:
        return True
    return False


_EXITS = """
import dafs, os, sys
session = dafs.connect(sys.argv[1])
file = session.open("exits", "wb")
file.write(b"x")
if os.fork() == 0:
    sys.exit(3)
assert os.waitstatus_to_exitcode(os.wait()[1]) == 3
file.flush()
print(session.read_file("exits"))
"""


def test_interpreters_end_in_order(shared):
    run = subprocess.run(
        [sys.executable, "-W", "ignore::DeprecationWarning", "-c", _EXITS, shared.url], capture_output=True, text=True, timeout=120
    )
    assert (run.stdout, run.stderr, run.returncode) == ("b'x'\n", "", 0)


def _worker(session, name):
    with session.open(name, "wb") as file:
        file.write(name.encode())
    return session.read_file(name), os.getpid()


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_connect_by_themselves(session, method):
    context = multiprocessing.get_context(method)
    with context.Pool(2) as pool:
        done = pool.starmap(_worker, [(session, f"{method}-{number}") for number in range(8)])
    assert [data for data, _ in done] == [f"{method}-{number}".encode() for number in range(8)]
    assert os.getpid() not in {pid for _, pid in done}


def signal_when_asked(session):
    """Sends a signal to this process when the session has sent its next request."""
    before = session.info()["round_trips"]

    def watch():
        while session.info()["round_trips"] == before:
            os.sched_yield()
        os.kill(os.getpid(), signal.SIGUSR1)

    thread = threading.Thread(target=watch)
    thread.start()
    return thread


def test_an_interrupt_ends_a_call_that_waits(server):
    session = dafs.connect(server.url, retry="600s")
    session.write_file("f", b"x")
    server.freeze()

    class Raised(Exception):
        pass

    def handler(number, frame):
        raise Raised

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        for call in (session.listdir, lambda: session.read_files(["f"] * 100), lambda: session.read_file("f")):
            with pytest.raises(Raised):
                thread = signal_when_asked(session)
                call()
            thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
        server.process.send_signal(signal.SIGCONT)
    assert session.read_file("f") == b"x"
    session.close()


def test_handlers_that_return_leave_calls_alone(server):
    session = dafs.connect(server.url, retry="600s")
    session.write_file("f", b"x")
    server.freeze()
    said = []

    def handler(number, frame):
        try:
            session.ping()
        except RuntimeError as error:
            said.append(str(error))
        server.process.send_signal(signal.SIGCONT)

    before = signal.signal(signal.SIGUSR1, handler)
    try:
        thread = signal_when_asked(session)
        assert session.stat("f").st_size == 1
        thread.join()
    finally:
        signal.signal(signal.SIGUSR1, before)
    assert len(said) == 1 and "signal handler" in said[0]
    session.close()


def test_writes_outlive_a_kill_of_the_server(server):
    data = os.urandom(8 << 20)
    with dafs.connect(server.url) as session:
        file = session.open("f", "wb", buffering=0)
        file.write(data[: 4 << 20])
        server.restart(signal.SIGKILL)
        file.write(data[4 << 20 :])
        file.fsync()
        server.restart(signal.SIGKILL)
        file.close()
        assert session.read_file("f") == data
        assert session.info()["new_sessions"] + session.info()["reconnects"] >= 2


def test_a_server_that_stays_away_is_an_error(server):
    with dafs.connect(server.url, retry="100ms") as session:
        server.kill()
        with pytest.raises(OSError) as raised:
            session.listdir()
        assert raised.value.errno in (errno.ECONNREFUSED, errno.ENOTCONN)
        assert "server" in str(raised.value)


_SERVES = """
import dafs, sys, time
server = dafs.serve(sys.argv[1], arena="64m")
print(server.url, flush=True)
sys.stdin.read()
"""


@pytest.mark.parametrize("how", ["exit", "kill"])
def test_a_private_server_ends_with_its_program(tmp_path, how):
    program = subprocess.Popen(
        [sys.executable, "-c", _SERVES, str(tmp_path)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    url = program.stdout.readline().strip()
    private = os.path.dirname(url.removeprefix("dafs+unix://").split("//")[0])
    with dafs.connect(url, retry="0s") as session:
        session.write_file("f", b"kept")
        if how == "kill":
            program.kill()
        program.communicate("", timeout=60)
        end = time.monotonic() + 60
        while os.path.exists(private) and time.monotonic() < end:
            os.sched_yield()
        assert not os.path.exists(private)
    assert (tmp_path / "f").read_bytes() == b"kept"


_ENDS_AMONG_ANSWERS = """
import dafs, sys, time
session = dafs.connect(sys.argv[1])
for _ in range(2000):
    # Gives the interpreter's lock away in each.
    session.begin_ping(lambda result, error: time.sleep(0.0005))
"""


def test_interpreters_end_among_answers(shared):
    for _ in range(3):
        run = subprocess.run(
            [sys.executable, "-c", _ENDS_AMONG_ANSWERS, shared.url], capture_output=True, text=True, timeout=120
        )
        assert (run.stderr, run.returncode) == ("", 0)


_LEAVES_FILES = """
import dafs, dafs.fsspec, sys
server = dafs.serve(sys.argv[1], arena="64m")
session = server.connect()
files = [session.open("a", "w"), session.open("b", "wb"), dafs.open(server.url + "c", "w")]
files.append(dafs.fsspec.DafsFileSystem(server.url).open("/d", "wb"))
raw = session.open("e", "wb", buffering=0)
raw.write(b"data")
for file in files:
    file.write("data" if file.mode == "w" else b"data")
"""


def test_a_private_server_ends_after_the_files_of_its_program(tmp_path):
    subprocess.run([sys.executable, "-c", _LEAVES_FILES, str(tmp_path)], check=True, timeout=120)
    assert {name: (tmp_path / name).read_bytes() for name in "abcde"} == dict.fromkeys("abcde", b"data")


def test_a_private_server_ends_while_a_forked_child_lives(tmp_path):
    server = dafs.serve(tmp_path, arena="64m")
    session = server.connect()
    private = os.path.dirname(server._log)
    pid = os.fork()
    if pid == 0:
        signal.pause()
        os._exit(1)
    try:
        session.close()
        server.close()
        assert not os.path.exists(private)
        assert server._process.returncode == 0
    finally:
        os.kill(pid, signal.SIGKILL)
        os.waitpid(pid, 0)


def test_another_interpreter_of_the_process_does_not_import_it(shared):
    # Its end would be taken for that of this one.
    try:
        import _interpreters as interpreters
    except ImportError:
        interpreters = pytest.importorskip("_xxsubinterpreters")
    read, write = os.pipe()
    code = f"""
import os, sys
sys.path.insert(0, {os.path.dirname(dafs.__path__[0])!r})
try:
    import dafs
    told = "imported"
except ImportError as error:
    told = str(error)
os.write({write}, told.encode())
"""
    other = interpreters.create()
    interpreters.run_string(other, code)
    interpreters.destroy(other)
    os.close(write)
    with os.fdopen(read) as told:
        assert "interpreter" in told.read()

    async def read_by_futures():
        async with await dafs.connect_async(shared.url) as session:
            return await session.listdir()

    assert isinstance(asyncio.run(read_by_futures()), list)


def test_a_session_keeps_the_private_server_that_it_is_of(tmp_path):
    session = dafs.serve(tmp_path, arena="64m").connect(retry="0s")
    gc.collect()
    session.write_file("f", b"data")
    assert session.read_file("f") == b"data"


def test_a_server_that_cannot_start_says_why(tmp_path):
    with pytest.raises(OSError, match="did not start"):
        dafs.serve(tmp_path / "missing")
