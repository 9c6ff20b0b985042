"""A server of this program's own."""

import errno
import os
import shutil
import subprocess
import tempfile
import weakref

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
    if process.stdin and not process.stdin.closed:
        process.stdin.close()
    try:
        process.wait(timeout=60)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
    if process.stdout:
        process.stdout.close()
    shutil.rmtree(private, ignore_errors=True)


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
                    start_new_session=True,
                )
        except BaseException:
            shutil.rmtree(private, ignore_errors=True)
            raise
        self._log = log
        self._finish = weakref.finalize(self, _end_here, pid, self._process, private)
        #: Where it is reached.
        self.url = self._process.stdout.readline().decode().strip()
        if not self.url:
            said = self.log().strip()
            self._finish()
            raise OSError(errno.EIO, f"the server did not start: {said or 'it said nothing'}", directory)

    def connect(self, **options):
        """A session with it."""
        from ._session import connect

        return connect(self.url, **options)

    def log(self):
        """What the server has said, while it runs."""
        try:
            with open(self._log, errors="replace") as said:
                return said.read()
        except FileNotFoundError:
            return ""

    def close(self):
        """Ends the server, which writes what it has to disk. A second time does nothing."""
        self._finish()

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()

    def __repr__(self):
        return f"<dafs.Server {self.url}>"


def _end_here(pid, process, private):
    # A forked child leaves its parent's server alone.
    if pid == os.getpid():
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
