"""The file system for fsspec, by fsspec's own tests and by ours."""

import asyncio
import itertools
import multiprocessing
import os
import pickle

import dafs.fsspec
import fsspec
import fsspec.tests.abstract as abstract
import pytest
from fsspec.asyn import sync


_numbers = itertools.count()


class Fixtures(abstract.AbstractFixtures):
    @pytest.fixture
    def fs(self, shared):
        return fsspec.filesystem("dafs", url=shared.url, durable=False)

    @pytest.fixture
    def fs_path(self, fs):
        path = f"/fsspec-{next(_numbers)}"
        fs.makedirs(path)
        return path

    @pytest.fixture
    def fs_join(self):
        return os.path.join

    @pytest.fixture
    def supports_empty_directories(self):
        return True


class TestCopy(abstract.AbstractCopyTests, Fixtures):
    pass


class TestGet(abstract.AbstractGetTests, Fixtures):
    pass


class TestOpen(abstract.AbstractOpenTests, Fixtures):
    pass


class TestPipe(abstract.AbstractPipeTests, Fixtures):
    pass


class TestPut(abstract.AbstractPutTests, Fixtures):
    pass


@pytest.fixture
def fs(shared):
    return fsspec.filesystem("dafs", url=shared.url)


@pytest.fixture
def top(fs):
    path = f"/own-{next(_numbers)}"
    fs.mkdir(path)
    return path


def test_urls_are_paths(shared, fs, top):
    url = f"{shared.url}{top.lstrip('/')}/f"
    with fsspec.open(url, "wb") as file:
        file.write(b"data")
    assert fsspec.open(url, "r").open().read() == "data"
    found, path = fsspec.url_to_fs(url)
    assert path == f"{top}/f" and found.cat(path) == b"data"
    assert found.unstrip_protocol(path) == url
    assert fs.cat([url, path]) == {path: b"data"}
    assert fsspec.get_filesystem_class("dafs") is dafs.fsspec.DafsFileSystem


def test_what_is_known_of_a_file(fs, top):
    fs.pipe_file(f"{top}/f", b"12345")
    facts = fs.info(f"{top}/f")
    assert (facts["name"], facts["size"], facts["type"]) == (f"{top}/f", 5, "file")
    assert fs.created(f"{top}/f").tzinfo and fs.modified(f"{top}/f").tzinfo
    before = fs.checksum(f"{top}/f"), fs.ukey(f"{top}/f")
    fs.pipe_file(f"{top}/f", b"54321")
    assert before[0] != fs.checksum(f"{top}/f") and before[1] != fs.ukey(f"{top}/f")
    fs.symlink("/nowhere", f"{top}/dangling")
    assert fs.info(f"{top}/dangling")["type"] == "link"
    assert {one["name"]: one["type"] for one in fs.ls(top)} == {f"{top}/f": "file", f"{top}/dangling": "link"}


def test_trees_are_found(fs, top):
    names = ["a", "b/c", "b/d/e", "b/d/f.txt"]
    for name in names:
        fs.makedirs(fs._parent(f"{top}/{name}"), exist_ok=True)
        fs.pipe_file(f"{top}/{name}", name.encode())
    assert fs.find(top) == [f"{top}/{name}" for name in names]
    assert fs.glob(f"{top}/**/*.txt") == [f"{top}/b/d/f.txt"]
    assert [path for path, _, _ in fs.walk(top)] == [top, f"{top}/b", f"{top}/b/d"]
    assert fs.du(top) == sum(len(name) for name in names)
    fs.mv(f"{top}/b/d", f"{top}/moved")
    assert fs.exists(f"{top}/moved/e") and not fs.exists(f"{top}/b/d")
    fs.rm(top, recursive=True)
    assert not fs.exists(top)


def test_ranges_are_read(fs, top):
    data = os.urandom(100_000)
    fs.pipe_file(f"{top}/f", data)
    for start, end in [(None, None), (5, 10), (-7, None), (None, -10), (99_990, 200_000), (10, 5)]:
        assert fs.cat_file(f"{top}/f", start, end) == data[start:end]
    found = fs.cat_ranges([f"{top}/f"] * 3 + [f"{top}/missing"], [0, 5, -5, 0], [10, 500, None, 1])
    assert found[:3] == [data[:10], data[5:500], data[-5:]] and isinstance(found[3], FileNotFoundError)


def test_a_transaction_is_all_or_nothing(fs, top):
    fs.pipe_file(f"{top}/f", b"old")
    with fs.transaction:
        with fs.open(f"{top}/f", "wb") as file:
            file.write(b"new")
        fs.pipe_file(f"{top}/g", b"g")
        assert fs.cat(f"{top}/f") == b"old" and not fs.exists(f"{top}/g")
    assert fs.cat(f"{top}/f") == b"new" and fs.cat(f"{top}/g") == b"g"
    with pytest.raises(RuntimeError), fs.transaction:
        fs.pipe_file(f"{top}/f", b"lost")
        raise RuntimeError
    assert fs.cat(f"{top}/f") == b"new"
    assert sorted(fs.ls(top, detail=False)) == [f"{top}/f", f"{top}/g"]


def test_a_transaction_takes_files_of_all_kinds(fs, top):
    fs.pipe_file(f"{top}/f", b"old")
    with fs.transaction:
        with fs.open(f"{top}/f", "w+b") as file:
            file.write(b"new")
            file.seek(0)
            assert file.read() == b"new"
        fs.pipe(f"{top}/g", b"g")
        assert fs.cat(f"{top}/f") == b"old" and not fs.exists(f"{top}/g")
    assert fs.cat(f"{top}/f") == b"new" and fs.cat(f"{top}/g") == b"g"
    with fs.open(f"{top}/f", "r+b", autocommit=False) as file:
        file.write(b"N")
    file.commit()
    assert fs.cat(f"{top}/f") == b"New"


def test_what_could_not_be_closed_is_not_committed(fs, top, monkeypatch):
    fs.pipe_file(f"{top}/f", b"old")

    def fails():
        raise OSError("lost")

    with pytest.raises(OSError, match="lost"), fs.transaction:
        file = fs.open(f"{top}/f", "wb")
        file.write(b"new")
        monkeypatch.setattr(file.raw, "fsync", fails)
        with pytest.raises(OSError, match="lost"):
            file.close()
    assert fs.cat(f"{top}/f") == b"old"
    assert fs.ls(top, detail=False) == [f"{top}/f"]


def test_links_are_not_followed_to_other_trees(fs, top):
    for name in ("kept", "tree/below"):
        fs.makedirs(f"{top}/{name}")
        fs.pipe_file(f"{top}/{name}/f", b"data")
    fs.session.symlink("../kept", f"{top}/tree/away")
    fs.session.symlink(".", f"{top}/tree/itself")
    fs.session.symlink("circle", f"{top}/tree/circle")
    found = [f"{top}/tree/{name}" for name in ("away", "below/f", "circle", "itself")]
    assert fs.find(f"{top}/tree") == found
    assert [path for path, _, _ in fs.walk(f"{top}/tree")] == [f"{top}/tree", f"{top}/tree/below"]
    for listing in (fs.ls(f"{top}/tree"), sync(fs.loop, fs._ls, f"{top}/tree")):
        assert sorted(one["type"] for one in listing) == ["directory", "link", "link", "link"]
    assert fs.isdir(f"{top}/tree/away") and fs.ls(f"{top}/tree/away", detail=False) == [f"{top}/tree/away/f"]
    fs.rm(f"{top}/tree/away", recursive=True)
    fs.session.symlink("../kept", f"{top}/tree/away")
    fs.rm(f"{top}/tree", recursive=True)
    assert fs.find(top) == [f"{top}/kept/f"] and not fs.exists(f"{top}/tree")
    fs.rm(f"{top}/k*", recursive=True)
    assert fs.ls(top) == []


def test_exclusive_files_are_made_once(fs, top):
    fs.pipe_file(f"{top}/f", b"1", mode="create")
    with pytest.raises(FileExistsError):
        fs.pipe_file(f"{top}/f", b"2", mode="create")
    with pytest.raises(FileExistsError):
        fs.open(f"{top}/f", "xb")
    assert fs.cat(f"{top}/f") == b"1"


def test_large_files_come_and_go(fs, top, tmp_path):
    data = os.urandom((17 << 20) + 5)
    (tmp_path / "f").write_bytes(data)
    fs.put_file(str(tmp_path / "f"), f"{top}/new/f")
    fs.get_file(f"{top}/new/f", str(tmp_path / "other/g"))
    assert (tmp_path / "other/g").read_bytes() == data
    fs.copy(f"{top}/new/f", f"{top}/g")
    assert fs.cat_file(f"{top}/g") == data


def test_asynchronous_calls(shared, top):
    async def main():
        fs = fsspec.filesystem("dafs", url=shared.url, asynchronous=True)
        await fs._pipe_file(f"{top}/f", b"12345")
        assert await fs._cat_file(f"{top}/f", 1, -1) == b"234"
        await fs._makedirs(f"{top}/a/b")
        await fs._cp_file(f"{top}/f", f"{top}/a/b/f")
        assert await fs._find(top) == [f"{top}/a/b/f", f"{top}/f"]
        assert (await fs._info(f"{top}/f"))["size"] == 5
        assert await fs._exists(f"{top}/f") and not await fs._exists(f"{top}/x")
        assert await fs._cat_ranges([f"{top}/f"] * 2, [0, 3], [2, 5]) == [b"12", b"45"]
        await fs._rm(f"{top}/a", recursive=True)
        assert await fs._ls(top, detail=False) == [f"{top}/f"]

    asyncio.run(main())


def _read(fs, path):
    return fs.cat(path), [one["size"] for one in fs.ls(path)], fs.find(path)


@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_workers_use_a_file_system_of_their_parents(fs, top, method):
    fs.pipe_file(f"{top}/f", b"data")
    assert pickle.loads(pickle.dumps(fs)).cat(f"{top}/f") == b"data"
    with multiprocessing.get_context(method).Pool(2) as pool:
        found = pool.starmap(_read, [(fs, f"{top}/f")] * 4)
    assert found == [(b"data", [4], [f"{top}/f"])] * 4


def test_a_forked_child_uses_an_instance_that_it_inherits(fs, top):
    fs.pipe_file(f"{top}/f", b"data")
    fs.find(top)
    pid = os.fork()
    if pid == 0:
        try:
            os._exit(0 if _read(fs, f"{top}/f")[0] == b"data" else 1)
        finally:
            os._exit(2)
    assert os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]) == 0
    assert fs.cat(f"{top}/f") == b"data"
