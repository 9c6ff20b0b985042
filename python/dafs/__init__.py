"""Files on a DAFS server.

    with dafs.connect("dafs://host/data") as session:
        with session.open("table.bin", "rb") as file:
            file.readinto(array)

Beside the operating system's names (``stat``, ``listdir``, ``rename``…) a session has calls for many
files at a time, and `AsyncSession` the same for asyncio. `dafs.fsspec` is a file system for fsspec.
"""

import sysconfig as _sysconfig

if _sysconfig.get_config_var("Py_GIL_DISABLED"):
    raise ImportError("dafs has no module for free-threaded builds of Python: use the usual build")

from ._asyncio import AsyncFile, AsyncSession, connect_async
from ._dafs import Buffer, DirEntry, Loan, Stat, __version__, join_url, split_url
from ._io import BufferedRandom, BufferedReader, BufferedWriter, FileIO
from ._serve import Server, serve
from ._session import Session, connect, open

__all__ = [
    "AsyncFile",
    "AsyncSession",
    "Buffer",
    "BufferedRandom",
    "BufferedReader",
    "BufferedWriter",
    "DirEntry",
    "FileIO",
    "Loan",
    "Server",
    "Session",
    "Stat",
    "connect",
    "connect_async",
    "join_url",
    "open",
    "serve",
    "split_url",
]
