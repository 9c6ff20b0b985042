"""Sessions and files for asyncio: the session's own thread tells the event loop of ends of calls."""

import asyncio
import errno
import os
import posixpath

from ._dafs import Buffer
from ._io import flags_of
from ._session import Session, _umask

#: Files that `read_files` reads at a time, each of which has memory of WHOLE_BYTES.
READS_MAX = 48

#: Files up to this size are read in one round trip.
WHOLE_BYTES = 256 << 10


def _settle(future, result, error):
    # It was cancelled: the answer is dropped.
    if future.done():
        return
    if error is None:
        future.set_result(result)
    else:
        future.set_exception(error)


def _ask(begin, *arguments):
    """Begins a call; its future."""
    loop = asyncio.get_running_loop()
    future = loop.create_future()

    def then(result, error):
        try:
            loop.call_soon_threadsafe(_settle, future, result, error)
        except RuntimeError:
            # The loop was closed: nobody waits.
            pass

    begin(*arguments, then)
    return future


async def _ask_again(begin, *arguments):
    """As `_ask`, for what may be done twice: again where the server ended and nobody knows whether it was."""
    for _ in range(8):
        try:
            return await _ask(begin, *arguments)
        except OSError as error:
            if error.errno != errno.EIO or "outcome of the operation unknown" not in error.strerror:
                raise
    return await _ask(begin, *arguments)


class AsyncFile:
    """An open file whose calls are awaited. Positional: any number of them may be under way.

    ``write``, ``fsync`` and ``close`` mean what those of `dafs.FileIO` mean, but that writes which are
    lost with the server are not written again: ``fsync`` and ``close`` raise then.
    """

    def __init__(self, raw, piece_bytes):
        self._raw = raw
        self._piece_bytes = piece_bytes
        self.name = raw.name

    @property
    def closed(self):
        return self._raw.closed

    async def pread(self, size, offset):
        """Up to ``size`` bytes at ``offset``; fewer at the end of the file."""
        if size <= self._piece_bytes:
            return await _ask(self._raw.begin_pread, size, offset)
        if size > 64 * self._piece_bytes:
            # No memory for what is not there.
            size = min(size, max((await self.stat()).st_size - offset, 1))
        starts = range(0, size, self._piece_bytes)
        lengths = [min(self._piece_bytes, size - start) for start in starts]
        pieces = await asyncio.gather(
            *(_ask(self._raw.begin_pread, length, offset + start) for start, length in zip(starts, lengths))
        )
        for number, (piece, length) in enumerate(zip(pieces, lengths)):
            if len(piece) < length:
                return b"".join(pieces[: number + 1])
        return b"".join(pieces)

    async def preadinto(self, buffer, offset, size=None):
        """Reads into a `dafs.Buffer` without a copy; answers how many bytes."""
        if not isinstance(buffer, Buffer):
            raise TypeError("preadinto needs a dafs.Buffer: other memory may move or end while a call has it")
        return await _ask(self._raw.begin_preadinto, buffer, size, offset)

    async def pwrite(self, data, offset):
        """Writes a `dafs.Buffer` without a copy, or a copy of any other buffer; answers how many bytes."""
        if isinstance(data, Buffer):
            return await _ask(self._raw.begin_pwrite_from, data, None, offset)
        view = memoryview(data).cast("B")
        starts = range(0, len(view), self._piece_bytes)
        await asyncio.gather(
            *(
                _ask(self._raw.begin_pwrite, view[start : start + self._piece_bytes], offset + start)
                for start in starts
            )
        )
        return len(view)

    async def truncate(self, size):
        await _ask_again(self._raw.begin_truncate, size)
        return size

    async def fsync(self, *, data_only=False):
        await _ask(self._raw.begin_fsync, data_only)

    async def stat(self):
        return await _ask(self._raw.begin_stat)

    async def close(self):
        if not self._raw.closed:
            await _ask(self._raw.begin_close)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        await self.close()


class AsyncSession:
    """A session whose calls are awaited, from `connect_async`, or of a `Session` that is there."""

    def __init__(self, session):
        self.session = session
        self._piece_bytes = session.info()["data_bytes_max"]

    @property
    def closed(self):
        return self.session.closed

    def buffer(self, size):
        """As `Session.buffer`."""
        return self.session.buffer(size)

    async def ping(self):
        await _ask(self.session.begin_ping)

    async def sync(self):
        await _ask(self.session.begin_sync)

    async def open(self, path, mode="rb", *, permissions=0o666):
        """Opens a file; ``mode`` as of ``open``, always binary."""
        flags, _ = flags_of(mode)
        permissions &= ~_umask()
        ask = _ask if flags & os.O_EXCL else _ask_again
        raw = await ask(self.session.begin_open, path, flags, permissions)
        return AsyncFile(raw, self._piece_bytes)

    async def stat(self, path, *, follow_symlinks=True):
        return await _ask(self.session.begin_stat, path, not follow_symlinks)

    async def exists(self, path):
        if isinstance(path, (list, tuple)):
            return await asyncio.gather(*(self.exists(one) for one in path))
        try:
            await self.stat(path)
        except OSError as error:
            if error.errno not in (errno.ENOENT, errno.ENOTDIR, errno.ELOOP):
                raise
            return False
        return True

    async def scan(self, path=""):
        """Pairs of name and attributes (`None` where they may not be read) of a directory."""
        entries, cookie = [], 0
        while cookie is not None:
            batch, cookie = await _ask(self.session.begin_list, path, cookie)
            entries += batch
        return entries

    async def listdir(self, path=""):
        return [name for name, _ in await self.scan(path)]

    async def mkdir(self, path, mode=0o777):
        await _ask(self.session.begin_mkdir, path, mode & ~_umask())

    async def makedirs(self, path, mode=0o777, exist_ok=False):
        try:
            await _ask_again(self.session.begin_mkdir, path, mode & ~_umask())
        except FileNotFoundError:
            above = posixpath.dirname(os.fsdecode(path).rstrip("/"))
            if not above:
                raise
            await self.makedirs(above, mode, exist_ok=True)
            await self.makedirs(path, mode, exist_ok)
        except FileExistsError:
            if not exist_ok or (await self.stat(path)).st_mode & 0o170000 != 0o040000:
                raise

    async def remove(self, path):
        await _ask(self.session.begin_remove, path, False)

    async def rmdir(self, path):
        await _ask(self.session.begin_remove, path, True)

    async def rename(self, source, target, *, replace=True):
        await _ask(self.session.begin_rename, source, target, not replace)

    async def link(self, source, target):
        await _ask(self.session.begin_link, source, target)

    async def symlink(self, target, path):
        await _ask(self.session.begin_symlink, target, path)

    async def readlink(self, path):
        return await _ask(self.session.begin_readlink, path)

    async def truncate(self, path, length):
        await _ask_again(self.session.begin_truncate, path, length)

    async def chmod(self, path, mode):
        await _ask_again(self.session.begin_chmod, path, mode)

    async def read_file(self, path):
        """All bytes of a file, in one round trip where it is small."""
        size, data = await _ask(self.session.begin_get, path, WHOLE_BYTES)
        if size <= len(data):
            return data
        async with await self.open(path) as file:
            return await file.pread(size, 0)

    async def write_file(self, path, data, *, permissions=0o666, exclusive=False, fsync=False):
        """Makes a whole file, or replaces what is in it."""
        view = memoryview(data).cast("B")
        if len(view) <= self._piece_bytes:
            permissions &= ~_umask()
            ask = _ask if exclusive else _ask_again
            await ask(self.session.begin_put, path, view, permissions, (exclusive, fsync))
            return
        async with await self.open(path, "xb" if exclusive else "wb", permissions=permissions) as file:
            await file.pwrite(view, 0)
            if fsync:
                await file.fsync()

    async def read_files(self, paths):
        """The bytes of many files, in order."""
        room = asyncio.Semaphore(READS_MAX)

        async def read(path):
            async with room:
                return await self.read_file(path)

        return await asyncio.gather(*(read(path) for path in paths))

    async def close(self):
        await asyncio.get_running_loop().run_in_executor(None, self.session.close)

    async def __aenter__(self):
        return self

    async def __aexit__(self, *raised):
        await self.close()


async def connect_async(url, **options):
    """As `dafs.connect`, for asyncio."""
    return AsyncSession(await asyncio.to_thread(Session, url, **options))
