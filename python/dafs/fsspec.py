"""A file system for fsspec, registered for ``dafs://``.

Files that are opened go straight to the server: no cache lies between, large reads go into the memory
they are for, and what is written is on the server's disk when ``close`` returns (``durable=False``: in its
memory). In a transaction a file appears, or replaces another, when the transaction is committed.
"""

import asyncio
import io
import os
import secrets
import stat
from datetime import datetime, timezone

import fsspec
from fsspec.asyn import AsyncFileSystem, get_loop
from fsspec.callbacks import DEFAULT_CALLBACK
from fsspec.utils import stringify_path, tokenize

from . import _dafs
from ._asyncio import AsyncSession
from ._io import BufferedRandom, BufferedWriter, FileIO, flags_of, wrap
from ._session import Session, _umask

#: Bytes that files are copied by, from and to this machine.
COPY_BYTES = 8 << 20


def _kind(mode):
    if stat.S_ISREG(mode):
        return "file"
    if stat.S_ISDIR(mode):
        return "directory"
    return "link" if stat.S_ISLNK(mode) else "other"


def _facts(path, found):
    return {
        "name": path,
        "size": found.st_size if stat.S_ISREG(found.st_mode) else 0,
        "type": _kind(found.st_mode),
        "mode": found.st_mode,
        "uid": found.st_uid,
        "gid": found.st_gid,
        "nlink": found.st_nlink,
        "ino": found.st_ino,
        "mtime": found.st_mtime,
        "created": found.st_birthtime if found.st_birthtime is not None else found.st_ctime,
        "change": found.change,
    }


def _listed_link(path, found):
    """A link in a listing: as what it leads to, but for directories, which walks would follow in circles."""
    facts = _facts(path, found)
    if facts["type"] == "directory":
        facts["type"] = "link"
    return facts


def _join(directory, name):
    return f"{directory.rstrip('/')}/{name}"


class _Durable(FileIO):
    """On disk when it is closed."""

    def close(self):
        if self.closed or self._raw.inherited:
            return
        try:
            self.fsync()
        finally:
            super().close()


class _Deferred:
    """A file of a transaction: under another name until that is committed."""

    def __init__(self, raw, buffer_size, fs, path, exclusive):
        super().__init__(raw, buffer_size)
        self._fs, self._path, self._exclusive = fs, path, exclusive
        self._failed = None

    def close(self):
        try:
            super().close()
        except BaseException as error:
            self._failed = error
            raise

    def commit(self):
        self.close()
        if self._failed is not None:
            # It was raised, and caught: what the file lacks is not to replace anything.
            raise self._failed
        self._fs.session.rename(self.raw.name, self._path, replace=not self._exclusive)

    def discard(self):
        try:
            self.close()
        finally:
            self._fs.session.remove(self.raw.name)


class _DeferredWriter(_Deferred, BufferedWriter):
    pass


class _DeferredRandom(_Deferred, BufferedRandom):
    pass


class _Committed:
    """A file outside of transactions, which may be asked to commit all the same."""

    def commit(self):
        self.close()

    def discard(self):
        self.close()


class _CommittedWriter(_Committed, BufferedWriter):
    pass


class _CommittedRandom(_Committed, BufferedRandom):
    pass


class DafsFileSystem(AsyncFileSystem):
    """Files of a DAFS server.

    ``url``: the server, as in ``dafs://host:20490`` or ``dafs+unix:///socket``; URLs of files bring it. Paths
    begin with ``/``, the root of what is served. ``durable``: files are on disk when they are closed.
    ``auto_mkdir``: directories of new files are made where they are missing. Others, such as ``key_file`` or ``retry``, are those
    of `dafs.connect`.
    """

    protocol = ("dafs", "dafs+unix", "dafs+tcp")
    root_marker = "/"

    def __init__(
        self,
        url="dafs://localhost",
        *,
        durable=True,
        auto_mkdir=True,
        asynchronous=False,
        loop=None,
        batch_size=None,
        **options,
    ):
        ours = ("skip_instance_cache", "use_listings_cache", "listings_expiry_time", "max_paths")
        general = {name: options.pop(name) for name in ours if name in options}
        super().__init__(asynchronous=asynchronous, loop=loop, batch_size=batch_size, **general)
        self.url, _ = _dafs.split_url(url)
        self._durable, self._auto_mkdir, self._options = durable, auto_mkdir, options
        # By process: a forked child connects again.
        self._sessions = {}

    @property
    def loop(self):
        if self._pid != os.getpid():
            self._pid = os.getpid()
            self._loop = None if self.asynchronous else get_loop()
        return self._loop

    @property
    def fsid(self):
        return f"dafs_{tokenize(self.url)}"

    @property
    def session(self):
        """The session of this process."""
        pid = os.getpid()
        session = self._sessions.get(pid)
        if session is None or session.closed:
            made = Session(self.url, **self._options)
            session = self._sessions[pid] = made
        return session

    async def _calls(self):
        pid = os.getpid()
        session = self._sessions.get(pid)
        if session is None or session.closed:
            session = await asyncio.to_thread(lambda: self.session)
        return AsyncSession(session)

    # Names.

    @classmethod
    def _strip_protocol(cls, path):
        if isinstance(path, (list, tuple)):
            return [cls._strip_protocol(one) for one in path]
        path = stringify_path(path)
        if path.startswith("dafs:///"):
            # Without a server: that of the instance.
            path = path.removeprefix("dafs://")
        elif "://" in path and path.split("://", 1)[0] in cls.protocol:
            path = _dafs.split_url(path)[1]
        path = "/" + path.strip("/")
        return path

    @staticmethod
    def _get_kwargs_from_urls(path):
        path = stringify_path(path)
        names_server = "://" in path and not path.startswith("dafs:///")
        return {"url": _dafs.split_url(path)[0]} if names_server else {}

    def unstrip_protocol(self, name):
        return _dafs.join_url(self.url, self._strip_protocol(name).lstrip("/"))

    # One name at a time; what has an answer at once is asked without an event loop.

    def info(self, path, **kwargs):
        path = self._strip_protocol(path)
        try:
            return _facts(path, self.session.stat(path))
        except FileNotFoundError:
            # A link to nothing.
            return _facts(path, self.session.lstat(path))

    async def _info(self, path, **kwargs):
        path = self._strip_protocol(path)
        calls = await self._calls()
        try:
            return _facts(path, await calls.stat(path))
        except FileNotFoundError:
            return _facts(path, await calls.stat(path, follow_symlinks=False))

    def exists(self, path, **kwargs):
        return self.session.exists(self._strip_protocol(path))

    def isdir(self, path):
        return self.session.isdir(self._strip_protocol(path))

    def isfile(self, path):
        return self.session.isfile(self._strip_protocol(path))

    def ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        try:
            entries = [(entry.name, self._entry(path, entry)) for entry in self.session.scandir(path)]
        except NotADirectoryError:
            entries = [(path, self.info(path))]
        found = [facts for _, facts in entries]
        return found if detail else sorted(facts["name"] for facts in found)

    def _entry(self, directory, entry):
        path = _join(directory, entry.name)
        if not entry.is_symlink():
            return _facts(path, entry.stat())
        try:
            return _listed_link(path, entry.stat())
        except OSError:
            return _facts(path, entry.stat(follow_symlinks=False))

    async def _ls(self, path, detail=True, **kwargs):
        path = self._strip_protocol(path)
        calls = await self._calls()
        try:
            entries = await calls.scan(path)
        except NotADirectoryError:
            found = [await self._info(path)]
        else:
            found = []
            for name, known in entries:
                whole = _join(path, name)
                if known is None:
                    known = await calls.stat(whole, follow_symlinks=False)
                if not stat.S_ISLNK(known.st_mode):
                    found.append(_facts(whole, known))
                    continue
                try:
                    found.append(_listed_link(whole, await calls.stat(whole)))
                except OSError:
                    found.append(_facts(whole, known))
        return found if detail else sorted(facts["name"] for facts in found)

    def created(self, path):
        return datetime.fromtimestamp(self.info(path)["created"], tz=timezone.utc)

    def modified(self, path):
        return datetime.fromtimestamp(self.info(path)["mtime"], tz=timezone.utc)

    def ukey(self, path):
        facts = self.info(path)
        return tokenize(self.url, *(facts[name] for name in ("name", "ino", "size", "mtime", "change")))

    def checksum(self, path):
        return int(self.ukey(path), 16)

    def mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        if create_parents:
            self.session.makedirs(path)
        else:
            self.session.mkdir(path)

    async def _mkdir(self, path, create_parents=True, **kwargs):
        path = self._strip_protocol(path)
        calls = await self._calls()
        await (calls.makedirs(path) if create_parents else calls.mkdir(path))

    def makedirs(self, path, exist_ok=False):
        self.session.makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    async def _makedirs(self, path, exist_ok=False):
        await (await self._calls()).makedirs(self._strip_protocol(path), exist_ok=exist_ok)

    def rmdir(self, path):
        self.session.rmdir(self._strip_protocol(path))

    def rm_file(self, path):
        self._rm_one(self._strip_protocol(path))

    def _rm_one(self, path):
        try:
            self.session.remove(path)
        except OSError:
            if not stat.S_ISDIR(self.session.lstat(path).st_mode):
                raise
            self.session.rmdir(path)

    def _rm_tree(self, path, maxdepth):
        """Removes what is below a directory, and itself; of links the links, not what they lead to."""
        found, directories = [path], []
        if stat.S_ISDIR(self.session.lstat(path).st_mode):
            directories.append((path, 0))
        while directories:
            directory, depth = directories.pop()
            if maxdepth is not None and depth >= maxdepth:
                continue
            for entry in self.session.scandir(directory):
                name = _join(directory, entry.name)
                found.append(name)
                if entry.is_dir(follow_symlinks=False):
                    directories.append((name, depth + 1))
        # What is below comes after what is above it.
        for name in reversed(found):
            self._rm_one(name)

    async def _rm_file(self, path, **kwargs):
        await asyncio.to_thread(self.rm_file, path)

    def rm(self, path, recursive=False, maxdepth=None):
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            self._rm_found(self.expand_path(one), recursive, maxdepth)

    async def _rm(self, path, recursive=False, batch_size=None, maxdepth=None, **kwargs):
        for one in [path] if isinstance(path, (str, os.PathLike)) else path:
            found = await self._expand_path(one)
            await asyncio.to_thread(self._rm_found, found, recursive, maxdepth)

    def _rm_found(self, found, recursive, maxdepth):
        # The deepest first.
        for name in sorted(map(self._strip_protocol, found), reverse=True):
            if recursive:
                self._rm_tree(name, maxdepth)
            else:
                self._rm_one(name)

    def mv(self, path1, path2, recursive=False, maxdepth=None, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if source == target:
            return
        if stringify_path(path2).endswith("/") or self.isdir(target):
            target = _join(target, source.rsplit("/", 1)[1])
        self.session.lstat(source)
        self._with_directory(target, lambda: self.session.rename(source, target))

    def mv_file(self, path1, path2, **kwargs):
        self.session.rename(self._strip_protocol(path1), self._strip_protocol(path2))

    async def _mv_file(self, path1, path2, **kwargs):
        await (await self._calls()).rename(self._strip_protocol(path1), self._strip_protocol(path2))

    def cp_file(self, path1, path2, **kwargs):
        source, target = self._strip_protocol(path1), self._strip_protocol(path2)
        if self.info(source)["type"] == "directory":
            self.makedirs(target, exist_ok=True)
        else:
            self._with_directory(target, lambda: self.session.copy(source, target))

    async def _cp_file(self, path1, path2, **kwargs):
        await asyncio.to_thread(self.cp_file, path1, path2)

    def _with_directory(self, path, call):
        """Makes the directory of `path` where the call does not find it."""
        try:
            return call()
        except FileNotFoundError:
            self.makedirs(self._parent(path), exist_ok=True)
            return call()

    def touch(self, path, truncate=True, **kwargs):
        path = self._strip_protocol(path)
        with self._open(path, "wb" if truncate else "ab"):
            pass
        if not truncate:
            self.session.utime(path)

    def chmod(self, path, mode):
        self.session.chmod(self._strip_protocol(path), mode)

    def symlink(self, source, target):
        self.session.symlink(self._strip_protocol(source), self._strip_protocol(target))

    # Data.

    def _open(self, path, mode="rb", block_size=None, autocommit=True, cache_options=None, **kwargs):
        path = self._strip_protocol(path)
        flags, _ = flags_of(mode)
        session = self.session
        writes = flags & os.O_ACCMODE != os.O_RDONLY
        deferred = not autocommit and mode[0] in "wx"
        name = f"{path}.{secrets.token_hex(8)}.part" if deferred else path

        def opened():
            return session.open_raw(name, flags, 0o666 & ~_umask())

        raw = self._with_directory(name, opened) if writes and self._auto_mkdir else opened()
        if not writes:
            return wrap(raw, mode, block_size if block_size else -1)
        file = _Durable(raw, mode) if self._durable else FileIO(raw, mode)
        file = self._buffered(file, mode, block_size or 1 << 20, path if deferred else None)
        session._writes(file)
        return file

    def _buffered(self, file, mode, size, deferred):
        if deferred is not None:
            kind = _DeferredRandom if "+" in mode else _DeferredWriter
            return kind(file, size, self, deferred, mode[0] == "x")
        if "a" in mode:
            file.seek(0, io.SEEK_END)
        return (_CommittedRandom if "+" in mode else _CommittedWriter)(file, size)

    def cat_file(self, path, start=None, end=None, **kwargs):
        path = self._strip_protocol(path)
        if start is None and end is None:
            return self.session.read_file(path)
        with self._open(path) as file:
            start, end = _range(start, end, lambda: file.size)
            return file.pread(max(end - start, 0), start)

    async def _cat_file(self, path, start=None, end=None, **kwargs):
        path = self._strip_protocol(path)
        calls = await self._calls()
        if start is None and end is None:
            return await calls.read_file(path)
        async with await calls.open(path) as file:
            size = (await file.stat()).st_size if _needs_size(start, end) else 0
            start, end = _range(start, end, lambda: size)
            return await file.pread(max(end - start, 0), start)

    def cat_ranges(self, paths, starts, ends, max_gap=None, on_error="return", **kwargs):
        if not isinstance(paths, list):
            raise TypeError("paths must be a list")
        starts = starts if isinstance(starts, (list, tuple)) else [starts] * len(paths)
        ends = ends if isinstance(ends, (list, tuple)) else [ends] * len(paths)
        if len(starts) != len(paths) or len(ends) != len(paths):
            raise ValueError("as many starts and ends as paths are needed")
        by_path, results = {}, [None] * len(paths)
        for number, path in enumerate(paths):
            by_path.setdefault(self._strip_protocol(path), []).append(number)
        for path, numbers in by_path.items():
            try:
                with self._open(path) as file:
                    ranges = [_range(starts[number], ends[number], lambda: file.size) for number in numbers]
                    pieces = file.read_ranges([(start, max(end - start, 0)) for start, end in ranges])
            except OSError as error:
                if on_error == "raise":
                    raise
                pieces = [error] * len(numbers)
            for number, piece in zip(numbers, pieces):
                results[number] = piece
        return results

    def pipe_file(self, path, value, mode="overwrite", **kwargs):
        path = self._strip_protocol(path)
        if self._intrans or mode == "create":
            with self.open(path, "xb" if mode == "create" else "wb") as file:
                file.write(value)
            return

        def written():
            self.session.write_file(path, value, fsync=self._durable)

        self._with_directory(path, written) if self._auto_mkdir else written()

    async def _pipe_file(self, path, value, mode="overwrite", **kwargs):
        if self._intrans:
            await asyncio.to_thread(self.pipe_file, path, value, mode)
            return
        path = self._strip_protocol(path)
        calls = await self._calls()
        try:
            await calls.write_file(path, value, exclusive=mode == "create", fsync=self._durable)
        except FileNotFoundError:
            if not self._auto_mkdir:
                raise
            await calls.makedirs(self._parent(path), exist_ok=True)
            await calls.write_file(path, value, exclusive=mode == "create", fsync=self._durable)

    def put_file(self, lpath, rpath, callback=DEFAULT_CALLBACK, mode="overwrite", **kwargs):
        path = self._strip_protocol(rpath)
        if os.path.isdir(lpath):
            self.makedirs(path, exist_ok=True)
            return

        def opened():
            # Through `open`, which knows of transactions.
            return self.open(path, "xb" if mode == "create" else "wb", block_size=1)

        with open(lpath, "rb", buffering=0) as source, self._with_directory(path, opened) as target:
            callback.set_size(os.fstat(source.fileno()).st_size)
            memory = memoryview(bytearray(COPY_BYTES))
            while count := source.readinto(memory):
                target.write(memory[:count])
                callback.relative_update(count)

    async def _put_file(self, lpath, rpath, mode="overwrite", callback=DEFAULT_CALLBACK, **kwargs):
        await asyncio.to_thread(self.put_file, lpath, rpath, callback, mode)

    def get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, outfile=None, **kwargs):
        path = self._strip_protocol(rpath)
        if outfile is None and self.isdir(path):
            os.makedirs(lpath, exist_ok=True)
            return
        with self._open(path, block_size=0) as source:
            callback.set_size(source.stat().st_size)
            if outfile is None:
                os.makedirs(os.path.dirname(os.path.abspath(lpath)), exist_ok=True)
            target = outfile if outfile is not None else open(lpath, "wb", buffering=0)
            try:
                memory = memoryview(bytearray(COPY_BYTES))
                while count := source.readinto(memory):
                    rest = memory[:count]
                    while rest:
                        rest = rest[target.write(rest) :]
                    callback.relative_update(count)
            finally:
                if outfile is None:
                    target.close()

    async def _get_file(self, rpath, lpath, callback=DEFAULT_CALLBACK, **kwargs):
        await asyncio.to_thread(self.get_file, rpath, lpath, callback)


def _needs_size(start, end):
    return end is None or (start or 0) < 0 or end < 0


def _range(start, end, size):
    """A range as slices have it, with numbers that are no less than 0."""
    if _needs_size(start, end):
        whole = size()
        start, end, _ = slice(start, end).indices(whole)
        return start, end
    return start or 0, end


for _protocol in DafsFileSystem.protocol:
    fsspec.register_implementation(_protocol, DafsFileSystem, clobber=True)
