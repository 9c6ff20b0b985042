"""A server of this program's own."""

import contextlib
import errno
import os
import shutil
import signal
import subprocess
import tempfile
import weakref

from ._session import close_written, connect

# Ends the server when its standard input ends, which is when this program does, however it ends; then
# removes what was private to it.
_KEEPER = """
exec 3<&0 0</dev/null
private=$1; shift
"$@" 3<&- &
server=$!
exec 1>&-
trap '' INT
read -r _ <&3
kill -TERM "$server" 2>/dev/null
wait "$server"
status=$?
rm -rf "$private"
exit "$status"
"""


def find_binary():
    """The program ``dafs``: that of ``DAFS_BINARY``, the package's own, or one in ``PATH``."""
    named = os.environ.get("DAFS_BINARY")
    if named:
        return named
    own = os.path.join(os.path.dirname(os.path.abspath(__file__)), "bin", "dafs")
    if os.access(own, os.X_OK):
        return own
    found = shutil.which("dafs")
    if found:
        return found
    raise FileNotFoundError(2, "this package has no program 'dafs': install it, or set DAFS_BINARY to it", own)


def _private():
    """A directory for a socket, whose path must be short."""
    runtime = os.environ.get("XDG_RUNTIME_DIR")
    for parent in (runtime if runtime and os.access(runtime, os.W_OK) else None, None, "/tmp"):
        made = tempfile.mkdtemp(prefix="dafs-", dir=parent)
        if len(os.path.join(made, "socket")) < 100:
            return made
        os.rmdir(made)
    raise OSError("no directory with a short path for a Unix socket: set TMPDIR to one")


def _end(process, private):
    # A line, not its end only: that a forked child may hold open.
    with contextlib.suppress(OSError):
        process.stdin.write(b"\n")
    process.stdin.close()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        # With the server, which the keeper would leave behind.
        os.killpg(process.pid, signal.SIGKILL)
        process.wait()
    process.stdout.close()
    shutil.rmtree(private, ignore_errors=True)


#: Those whose keepers wait for the end of this process.
_running = weakref.WeakSet()


def _after_fork():
    # Its parent's servers end with the parent.
    for server in list(_running):
        server._process.stdin.close()
    _running.clear()


os.register_at_fork(after_in_child=_after_fork)


class Server:
    """A server of one directory, from `serve`; a context manager that ends it."""

    def __init__(self, directory, options, pid):
        private = _private()
        self._pid = pid
        socket = os.path.join(private, "socket")
        command = [find_binary(), "serve", "--listen", f"unix:{socket}", "--state", os.path.join(private, "state")]
        log = os.path.join(private, "log")
        try:
            with open(log, "wb") as errors:
                self._process = subprocess.Popen(
                    ["/bin/sh", "-c", _KEEPER, "dafs-serve", private, *command, *options, "--", directory],
                    stdin=subprocess.PIPE,
                    stdout=subprocess.PIPE,
                    stderr=errors,
                    bufsize=0,
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise
        self._log = log
        urls = []
        self._finish = weakref.finalize(self, _end_here, pid, self._process, private, urls)
        _running.add(self)
        #: Where it is reached.
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            said = self.log().strip()
            self._finish()
            raise OSError(errno.EIO, f"the server did not start: {said or 'it said nothing'}", directory)
        urls.append(self.url)

    def connect(self, **options):
        """A session with it."""
        session = connect(self.url, **options)
        # It runs for as long as the session is used.
        session._server = self
        return session

    def log(self):
        """What the server has said, while it runs."""
        try:
            with open(self._log, errors="replace") as said:
                return said.read()
        except FileNotFoundError:
            return ""

    def close(self):
        """Ends the server, which writes what it has to disk. A second time does nothing.

        Files that are still open for writing are closed first, and what went wrong with them is raised.
        """
        self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()

    def __repr__(self):
        return f"<dafs.Server {self.url}>"


def _end_here(pid, process, private, urls):
    # A forked child leaves its parent's server alone.
    if pid != os.getpid():
        return
    try:
        for url in urls:
            close_written(url)
    finally:
        _end(process, private)


def serve(directory, *, arena=None, read_only=False, options=()):
    """Serves a directory of this machine for as long as this program runs, on a private Unix socket.

    ``arena``: bytes of its cache (``"512m"``). ``options``: more of ``dafs serve``. The server ends with
    the context manager, with ``close``, or with this program, also where that is killed.
    """
    arguments = [str(option) for option in options]
    if arena is not None:
        arguments += ["--arena", str(arena)]
    if read_only:
        arguments.append("--read-only")
    return Server(os.fsdecode(directory), arguments, os.getpid())
