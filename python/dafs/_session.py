"""Sessions with names for everything, and files as ``open`` makes them."""

import os
import posixpath
import weakref
from urllib.parse import quote

from . import _dafs
from ._io import flags_of, wrap


def _umask():
    try:
        with os.fdopen(os.open("/proc/self/status", os.O_RDONLY | os.O_CLOEXEC)) as status:
            for line in status:
                if line.startswith("Umask:"):
                    return int(line.split()[1], 8)
    except (OSError, ValueError):
        pass
    return 0o022


def _option(value):
    if value is True or value is False:
        return "on" if value else "off"
    return str(value)


def _with_options(url, options):
    """`url`, with options that are not in it yet."""
    if not options:
        return url
    pairs = []
    for name, value in options.items():
        for one in value if isinstance(value, (list, tuple)) else [value]:
            pairs.append(f"{quote(name)}={quote(_option(one), safe='')}")
    return f"{url}{'&' if '?' in url else '?'}{'&'.join(pairs)}"


def _key(key, key_file):
    if key is not None and key_file is not None:
        raise ValueError("key= or key_file=, not both")
    if key_file is not None:
        with open_local(key_file, "rb") as file:
            key = file.read().strip()
        if not key:
            raise ValueError(f"{os.fspath(key_file)}: the key is empty")
    return key


class Session(_dafs.RawSession):
    """A session with a server, from `connect`; a context manager that closes it.

    Paths are relative to the path of the URL. Calls block, without the interpreter's lock, and threads
    may share a session. A lost server is looked for, for as long as ``retry`` says, and calls go on.
    A forked child cannot use its parent's session: calls there raise `OSError`. Pickled, a session
    is its URL and options, and connects again where it is loaded.
    """

    def __new__(cls, url, *, key=None, key_file=None, export=None, **options):
        whole = _with_options(url, options)
        self = super().__new__(cls, whole, key=_key(key, key_file), export=export)
        self._arguments = (url, dict(options, key=key, key_file=key_file, export=export))
        return self

    def __enter__(self):
        return self

    def __exit__(self, *raised):
        self.close()

    def __reduce__(self):
        url, options = self._arguments
        return (_again, (url, options))

    def __repr__(self):
        return f"<dafs.Session {self._arguments[0]}{' closed' if self.closed else ''}>"

    def buffer(self, size):
        """Memory for calls of this session, which a server on the same host reaches as it is: see `dafs.Buffer`."""
        return _dafs.Buffer(size, self)

    def open(self, path, mode="r", buffering=-1, encoding=None, errors=None, newline=None, *, permissions=0o666):
        """Opens a file, as the built-in ``open`` does; ``permissions``, less the umask, are for a new one."""
        flags, _ = flags_of(mode)
        raw = self.open_raw(path, flags, permissions & ~_umask() if flags & os.O_CREAT else 0)
        file = wrap(raw, mode, buffering, encoding, errors, newline)
        if file.writable():
            self._writes(file)
        return file

    def _writes(self, file):
        """Remembers a file that may hold what is to be written."""
        _written[file] = self.url

    def mkdir(self, path, mode=0o777):
        """Makes a directory."""
        super().mkdir(path, mode & ~_umask())

    def makedirs(self, path, mode=0o777, exist_ok=False):
        """Makes a directory and those above it that are missing."""
        missing = [os.fsdecode(path)]
        while missing:
            try:
                self.mkdir(missing[-1], mode)
            except FileNotFoundError:
                above = posixpath.dirname(missing[-1].rstrip("/"))
                if not above:
                    raise
                missing.append(above)
                continue
            except FileExistsError:
                # The last is what was asked for; somebody else may have made one above.
                if len(missing) == 1 and not (exist_ok and self.isdir(path)):
                    raise
            missing.pop()

    def exists(self, path):
        """Whether a name is there, symlinks followed; of a list, one answer for each, asked for together."""
        if isinstance(path, (list, tuple)):
            return self.exists_many(path)
        return self.exists_one(path)

    def isdir(self, path):
        """Whether it is a directory."""
        try:
            return self.stat(path).st_mode & 0o170000 == 0o040000
        except (FileNotFoundError, NotADirectoryError):
            return False

    def isfile(self, path):
        """Whether it is a regular file."""
        try:
            return self.stat(path).st_mode & 0o170000 == 0o100000
        except (FileNotFoundError, NotADirectoryError):
            return False

    def utime(self, path, times=None, *, ns=None, follow_symlinks=True):
        """Sets access and modification time: seconds, or ``ns``; without either, the server's clock."""
        if times is not None and ns is not None:
            raise ValueError("times or ns, not both")
        if times is not None:
            ns = tuple(int(time * 1_000_000_000) for time in times)
        self.utime_ns(path, ns=ns, follow_symlinks=follow_symlinks)

    def statvfs(self, path=""):
        """Space and limits of the file system."""
        return os.statvfs_result(self.statvfs_fields(path))

    def write_file(self, path, data, *, permissions=0o666, fsync=False):
        """Makes a whole file, or replaces what is in it, in one round trip where it is small."""
        self.write_files([(path, data)], permissions=permissions, fsync=fsync)

    def write_files(self, files, *, permissions=0o666, fsync=False):
        """Makes whole files, from pairs of path and bytes or a mapping; answers how many were written.

        All are tried; where some fail, the first exception is raised, with the number of files that
        were written as ``written`` and all exceptions by index as ``failed``.
        """
        if hasattr(files, "items"):
            files = files.items()
        written, failed = self.write_files_raw(list(files), permissions & ~_umask(), commit=fsync)
        if failed:
            error = failed[0][1]
            error.written = written
            error.failed = dict(failed)
            raise error
        return written

    def walk(self, top=""):
        """As ``os.walk``, from the top down."""
        top = os.fsdecode(top)
        directories, others = [], []
        for entry in self.scandir(top):
            (directories if entry.is_dir(follow_symlinks=False) else others).append(entry.name)
        yield top, directories, others
        for name in directories:
            yield from self.walk(posixpath.join(top, name))


open_local = open


def _again(url, options):
    return Session(url, **options)


def connect(url, **options):
    """A session with the server of a URL: ``dafs://HOST[:PORT]/PATH``, ``dafs+unix:///SOCKET//PATH``.

    ``key`` or ``key_file``: the pre-shared key. ``export``: which one, by name. All other options are
    those of URLs, ``retry="5s"`` or ``wait="polled"`` for example.
    """
    return Session(url, **options)


#: Open files that may hold what is to be written, and the URLs of their sessions.
_written = weakref.WeakKeyDictionary()


def close_written(server):
    """Closes the files of a server that is going to end, by its URL."""
    raised = None
    for file, url in list(_written.items()):
        if url.startswith(server):
            try:
                file.close()
            except (OSError, ValueError) as error:
                raised = raised or error
    if raised is not None:
        raise raised


_shared = {}


def _after_fork():
    _shared.clear()
    _written.clear()


os.register_at_fork(after_in_child=_after_fork)


def shared_session(server, options):
    """The session of this process for a server and options; connected when it is first asked for."""
    key = (server, tuple(sorted((name, str(value)) for name, value in options.items())))
    session = _shared.get(key)
    if session is not None and not session.closed:
        return session
    # Without a lock: a signal handler may ask while this thread connects, and a server that is away
    # keeps nobody from others.
    made = Session(server, **options)
    session = _shared.setdefault(key, made)
    if session.closed:
        _shared[key] = session = made
    elif session is not made:
        made.close()
    return session


def open(url, mode="r", buffering=-1, encoding=None, errors=None, newline=None, **options):
    """Opens the file of a URL, as the built-in ``open`` does, by a session that all such files share."""
    server, path = _dafs.split_url(url)
    return shared_session(server, options).open(path, mode, buffering, encoding, errors, newline)
