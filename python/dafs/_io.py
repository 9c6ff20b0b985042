"""File objects, as ``io`` has them."""

import io
import os

#: Bytes that buffered files read ahead, and gather before they write.
BUFFER_BYTES = 128 << 10

# Called on the object of the extension itself, without a Python function in between.
_DIRECT = (
    "fsync",
    "flush",
    "lend",
    "pread",
    "preadinto",
    "pwrite",
    "read",
    "read_ranges",
    "readable",
    "readall",
    "readinto",
    "readv",
    "seek",
    "seekable",
    "stat",
    "tell",
    "truncate",
    "writable",
    "write",
    "writev",
)


class FileIO(io.RawIOBase):
    """An open file without a buffer: each call is one of the server's.

    ``write`` returns when the server has the data in memory: every client sees it. ``flush`` hands it
    to the server's file system: local programs there see it, and it outlives the server's process.
    ``fsync`` puts it on disk. ``close`` is a flush that raises what went wrong with writes.
    """

    def __init__(self, raw, mode):
        self._raw = raw
        self.name = raw.name
        self.mode = mode
        set_attribute = self.__dict__.__setitem__
        for name in _DIRECT:
            set_attribute(name, getattr(raw, name))

    @property
    def closed(self):
        return self._raw.closed

    def close(self):
        self._raw.close()

    def fileno(self):
        raise io.UnsupportedOperation("a file of a server has no descriptor here: use fsync() of the file")

    def __repr__(self):
        return f"<dafs.FileIO name={self.name!r} mode={self.mode!r}{' closed' if self.closed else ''}>"

    def __reduce_ex__(self, protocol):
        raise TypeError("an open file cannot be pickled: pickle its session and open it again")


class _Flushing:
    """What buffered files that write add: flush and fsync reach the server."""

    _closing = False

    def flush(self):
        super().flush()
        # A close brings its own.
        if not self._closing:
            self.raw.flush()

    def fsync(self, *, data_only=False):
        """What was written is on the server's disk when it returns."""
        super().flush()
        self.raw.fsync(data_only=data_only)

    def close(self):
        # What a forked child inherits, with its parent's unwritten data, is the parent's to close.
        if self.raw is not None and self.raw._raw.inherited:
            return
        self._closing = True
        try:
            super().close()
        finally:
            self._closing = False

    def stat(self):
        super().flush()
        return self.raw.stat()


class BufferedReader(io.BufferedReader):
    """A file that is read, with a buffer for small reads; large ones go straight to their memory.

    What the buffer holds is as old as the read that filled it: other clients' writes since then are
    not in it. ``pread``, ``preadinto`` and ``lend`` pass the buffer by.
    """

    def pread(self, size, offset):
        return self.raw.pread(size, offset)

    def preadinto(self, buffer, offset):
        return self.raw.preadinto(buffer, offset)

    def lend(self, size, offset):
        return self.raw.lend(size, offset)

    def read_ranges(self, ranges):
        return self.raw.read_ranges(ranges)

    def stat(self):
        return self.raw.stat()

    @property
    def size(self):
        return self.raw.stat().st_size


class BufferedWriter(_Flushing, io.BufferedWriter):
    """A file that is written, with a buffer for small writes."""


class BufferedRandom(_Flushing, io.BufferedRandom):
    """A file that is read and written, with a buffer."""


def flags_of(mode):
    """Flags of ``os.open``, and whether it is text, of a mode as ``open`` takes it."""
    kinds = [letter for letter in mode if letter in "rwxa"]
    if len(kinds) != 1 or set(mode) - set("rwxabt+") or len(set(mode)) != len(mode):
        raise ValueError(f"invalid mode: {mode!r}")
    if "b" in mode and "t" in mode:
        raise ValueError("can't have text and binary mode at once")
    kind = kinds[0]
    flags = os.O_RDWR if "+" in mode else os.O_RDONLY if kind == "r" else os.O_WRONLY
    flags |= {
        "r": 0,
        "w": os.O_CREAT | os.O_TRUNC,
        "x": os.O_CREAT | os.O_EXCL,
        "a": os.O_CREAT | os.O_APPEND,
    }[kind]
    return flags, "b" not in mode


def wrap(raw, mode, buffering=-1, encoding=None, errors=None, newline=None):
    """The file object that ``open`` answers for a file of the extension."""
    is_text = "b" not in mode
    if not is_text and (encoding is not None or errors is not None or newline is not None):
        raise ValueError("binary mode takes no encoding, errors or newline argument")
    file = FileIO(raw, mode)
    try:
        if "a" in mode:
            file.seek(0, io.SEEK_END)
        if buffering == 0:
            if is_text:
                raise ValueError("can't have unbuffered text I/O")
            return file
        line_buffering = buffering == 1 and is_text
        size = BUFFER_BYTES if buffering in (-1, 1) else buffering
        if "+" in mode:
            buffered = BufferedRandom(file, size)
        elif "r" in mode:
            buffered = BufferedReader(file, size)
        else:
            buffered = BufferedWriter(file, size)
        if not is_text:
            return buffered
        text = io.TextIOWrapper(buffered, encoding, errors, newline, line_buffering)
        text.mode = mode
        return text
    except BaseException:
        file.close()
        raise
