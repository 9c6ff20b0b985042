"""A server for the tests, which can be killed and started again."""

import os
import shutil
import signal
import subprocess
import tempfile
import threading

import dafs
import pytest
from dafs._serve import find_binary


class Restartable:
    """A server process on a Unix socket, whose next life is the same server."""

    def __init__(self, directory, private):
        self.directory = directory
        self.private = private
        self.process = None
        self.url = None
        self.start()

    def start(self):
        with open(os.path.join(self.private, "log"), "ab") as log:
            self.process = subprocess.Popen(
                [
                    find_binary(),
                    "serve",
                    "--listen",
                    f"unix:{self.private}/socket",
                    "--state",
                    f"{self.private}/state",
                    "--arena",
                    "128m",
                    self.directory,
                ],
                stdout=subprocess.PIPE,
                stderr=log,
            )
        self.url = self.process.stdout.readline().decode().strip()
        assert self.url, open(os.path.join(self.private, "log")).read()

    def stop(self, how=signal.SIGTERM):
        self.process.send_signal(how)
        self.process.wait(timeout=60)
        self.process.stdout.close()

    def freeze(self):
        """It stands still when this returns, until SIGCONT."""
        self.process.send_signal(signal.SIGSTOP)
        tasks = f"/proc/{self.process.pid}/task"

        def runs(task):
            try:
                with open(f"{tasks}/{task}/stat") as stat:
                    return stat.read().rsplit(")", 1)[1].split()[0] != "T"
            except FileNotFoundError:
                return False

        while any(runs(task) for task in os.listdir(tasks)):
            os.sched_yield()

    def kill(self):
        self.stop(signal.SIGKILL)

    def restart(self, how=signal.SIGTERM):
        self.stop(how)
        self.start()


def pytest_addoption(parser):
    parser.addoption("--long", action="store_true", help="full size")


def pytest_configure(config):
    config.addinivalue_line("markers", "long: only with --long")


def pytest_collection_modifyitems(config, items):
    if not config.getoption("--long"):
        long = [item for item in items if item.get_closest_marker("long")]
        config.hook.pytest_deselected(items=long)
        items[:] = [item for item in items if item not in long]


@pytest.fixture
def is_long(request):
    return request.config.getoption("--long")


class Trouble:
    """Kills the server and starts it again, a few times, from a thread of its own."""

    def __init__(self, server, times):
        self.server, self.times = server, times
        self.thread = threading.Thread(target=self._make)

    def _make(self):
        for _ in range(self.times):
            self.server.restart(signal.SIGKILL)

    def rounds(self):
        """Numbers of rounds of what is to be tried: a calm one, then some until the last server is up."""
        yield 0
        if not self.times:
            return
        self.thread.start()
        number, is_over = 1, False
        while not is_over:
            is_over = not self.thread.is_alive()
            yield number
            number += 1


@pytest.fixture(params=["calm", "killed"])
def trouble(request, server):
    return Trouble(server, 0 if request.param == "calm" else 4)


@pytest.fixture
def server(tmp_path):
    directory = tmp_path / "served"
    directory.mkdir()
    private = tempfile.mkdtemp(prefix="dafs-test-")
    running = Restartable(str(directory), private)
    yield running
    if running.process.poll() is None:
        running.stop()
    shutil.rmtree(private)


@pytest.fixture
def mounted(server, tmp_path):
    """The directory where what is served is mounted, by the program that is in the package."""
    if os.geteuid() != 0 or not os.access("/dev/fuse", os.R_OK | os.W_OK):
        pytest.skip("needs root and /dev/fuse")
    directory = tmp_path / "mounted"
    directory.mkdir()
    made = subprocess.run([find_binary(), "mount", server.url, directory], capture_output=True, text=True)
    if made.returncode != 0 and "Operation not permitted" in made.stderr:
        pytest.skip("mounts are not permitted here")
    assert made.returncode == 0, made.stderr
    yield directory
    if server.process.poll() is not None:
        server.start()
    subprocess.run([find_binary(), "umount", "--force", directory], check=True, timeout=60)


@pytest.fixture(scope="session")
def shared(tmp_path_factory):
    """A server for tests that do not end it."""
    with dafs.serve(tmp_path_factory.mktemp("shared"), arena="256m") as running:
        yield running


@pytest.fixture
def session(shared, request):
    """A session in a directory of the test's own."""
    name = request.node.name.replace("/", "-").replace("[", "-").replace("]", "")
    with shared.connect() as root:
        root.mkdir(name)
    with dafs.connect(f"{shared.url}{name}") as opened:
        yield opened
