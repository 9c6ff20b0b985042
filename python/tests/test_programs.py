"""Programs that people use, on files of a server, calm and while that is killed and started again."""

import os
import signal
import subprocess
import sys

import dafs
import dafs.fsspec
import fsspec
import numpy
import pytest


def table(rows=20_000):
    import pandas

    numbers = numpy.random.default_rng(7)
    return pandas.DataFrame(
        {
            "integer": numpy.arange(rows),
            "float": numbers.random(rows),
            "text": [f"row {number % 1000}" for number in range(rows)],
            "flag": numbers.random(rows) > 0.5,
            "time": pandas.date_range("2024-01-01", periods=rows, freq="s"),
        }
    )


def test_pandas_and_parquet(server, trouble):
    import pandas

    frame = table()
    for number in trouble.rounds():
        url = f"{server.url}t{number}.parquet"
        frame.to_parquet(url)
        pandas.testing.assert_frame_equal(pandas.read_parquet(url), frame)
        columns = pandas.read_parquet(url, columns=["float"])
        assert (columns["float"] == frame["float"]).all()
    frame.to_csv(f"{server.url}t.csv", index=False)
    assert (pandas.read_csv(f"{server.url}t.csv")["integer"] == frame["integer"]).all()


def test_pyarrow_datasets(server, trouble):
    import pyarrow
    import pyarrow.dataset
    import pyarrow.fs

    frame = pyarrow.Table.from_pandas(table())
    fs = fsspec.filesystem("dafs", url=server.url)
    arrow = pyarrow.fs.PyFileSystem(pyarrow.fs.FSSpecHandler(fs))
    for number in trouble.rounds():
        pyarrow.dataset.write_dataset(
            frame, f"/d{number}", filesystem=arrow, format="parquet", max_rows_per_file=5000, max_rows_per_group=5000
        )
        found = pyarrow.dataset.dataset(f"/d{number}", filesystem=arrow).to_table().sort_by("integer")
        assert found.equals(frame.cast(found.schema))


def test_polars(server, trouble):
    import polars

    frame = polars.from_pandas(table())
    fs = fsspec.filesystem("dafs", url=server.url)
    for number in trouble.rounds():
        with fs.open(f"/t{number}", "wb") as file:
            frame.write_parquet(file)
        with fs.open(f"/t{number}", "rb") as file:
            assert polars.read_parquet(file).equals(frame)


def test_duckdb(server, trouble):
    import duckdb

    connection = duckdb.connect()
    connection.register_filesystem(fsspec.filesystem("dafs", url=server.url))
    for number in trouble.rounds():
        name = f"dafs:///t{number}.parquet"
        connection.execute(f"COPY (SELECT i, i * 2 AS twice FROM range(50000) r(i)) TO '{name}' (FORMAT parquet)")
        found = connection.execute(f"SELECT count(*), sum(twice) FROM read_parquet('{name}')").fetchone()
        assert found == (50_000, 49_999 * 50_000)


def test_zarr(server, trouble):
    import zarr

    values = numpy.arange(250_000, dtype=numpy.float64).reshape(500, 500)
    for number in trouble.rounds():
        url = f"{server.url}z{number}"
        written = zarr.create_array(url, shape=values.shape, chunks=(100, 100), dtype=values.dtype)
        written[:] = values
        found = zarr.open_array(url, mode="r")
        assert (found[:] == values).all() and (found[3:7, 100:250] == values[3:7, 100:250]).all()


@pytest.mark.parametrize("buffering", [0, -1])
def test_h5py(server, trouble, buffering):
    import h5py

    values = numpy.random.default_rng(3).random((300, 300))
    with dafs.connect(server.url) as session:
        for number in trouble.rounds():
            with session.open(f"h{number}", "w+b", buffering) as file, h5py.File(file, "w") as made:
                made.create_dataset("plain", data=values)
                made.create_dataset("packed", data=values, chunks=(50, 50), compression="gzip")
            with session.open(f"h{number}", "rb", buffering) as file, h5py.File(file, "r") as found:
                assert (found["plain"][:] == values).all() and (found["packed"][:] == values).all()


def test_safetensors(server, trouble):
    import safetensors.numpy

    tensors = {f"t{number}": numpy.random.default_rng(number).random((64, 64)) for number in range(8)}
    with dafs.connect(server.url) as session:
        for number in trouble.rounds():
            with session.open(f"s{number}", "wb") as file:
                file.write(safetensors.numpy.save(tensors))
            with session.open(f"s{number}", "rb") as file:
                found = safetensors.numpy.load(file.read())
            assert all((found[name] == tensors[name]).all() for name in tensors)


def test_safetensors_on_a_mount(mounted, trouble):
    """`safe_open` and `load_file` map the file."""
    import safetensors
    import safetensors.numpy

    random = numpy.random.default_rng(6)
    tensors = {f"t{number}": random.random((256, 256)) for number in range(8)}
    for number in trouble.rounds():
        path = mounted / f"s{number}"
        safetensors.numpy.save_file(tensors, path)
        found = safetensors.numpy.load_file(path)
        assert found.keys() == tensors.keys()
        assert all((found[name] == tensors[name]).all() for name in tensors)
        with safetensors.safe_open(path, framework="numpy") as opened:
            assert set(opened.keys()) == tensors.keys()
            assert (opened.get_tensor("t3") == tensors["t3"]).all()
            part = opened.get_slice("t5")
            assert part.get_shape() == [256, 256] and (part[7:9] == tensors["t5"][7:9]).all()


def test_numpy(server, trouble):
    values = numpy.random.default_rng(5).random(400_000)
    with dafs.connect(server.url) as session:
        for number in trouble.rounds():
            with session.open(f"n{number}", "wb") as file:
                numpy.save(file, values)
            with session.open(f"n{number}", "rb") as file:
                assert (numpy.load(file) == values).all()
            with session.open(f"raw{number}", "w+b", buffering=0) as file:
                file.write(values)
                found = numpy.empty_like(values)
                assert file.preadinto(found, 0) == values.nbytes and (found == values).all()


class Dataset:
    """Files of a server, as a torch dataset has them."""

    def __init__(self, fs, names):
        self.fs, self.names = fs, names

    def __len__(self):
        return len(self.names)

    def __getitem__(self, index):
        import torch

        data = self.fs.cat_file(self.names[index])
        return torch.frombuffer(bytearray(data), dtype=torch.uint8), os.getpid()


@pytest.mark.long
@pytest.mark.parametrize("method", ["fork", "forkserver", "spawn"])
def test_torch_data_loader(server, method):
    pytest.importorskip("torch")
    import torch.utils.data

    names = [f"/{number}" for number in range(64)]
    # A forked worker inherits it with its session, and makes another one; to others it is pickled.
    fs = fsspec.filesystem("dafs", url=server.url)
    for number, name in enumerate(names):
        fs.pipe_file(name, bytes([number]) * 1000)
    options = {"batch_size": 8, "num_workers": 4, "multiprocessing_context": method}
    loader = torch.utils.data.DataLoader(Dataset(fs, names), **options)
    batches = list(loader)
    found = [tensor for batch, _ in batches for tensor in batch]
    assert [int(tensor[0]) for tensor in found] == list(range(64))
    workers = {int(pid) for _, pids in batches for pid in pids}
    assert len(workers) == 4 and os.getpid() not in workers


# Ends as a machine does: nothing of the process is left when the call has returned.
SAVE = """
import os, signal, sys
import torch, torch.distributed.checkpoint as checkpoint
from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

url, seed, server = sys.argv[1], int(sys.argv[2]), int(sys.argv[3])
torch.manual_seed(seed)
state = {f"layer{number}": torch.rand(256, 256) for number in range(16)}
# Before 2.7 it takes no file without a descriptor. A file is on disk when it is closed: that is the sync.
sync = tuple(int(number) for number in torch.__version__.split(".")[:2]) >= (2, 7)
checkpoint.save(state, storage_writer=FsspecWriter(url, thread_count=2, sync_files=sync))
os.kill(server, signal.SIGKILL)
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.long
def test_torch_checkpoint(server):
    """What torch has saved is there although its process and the server were killed at once."""
    torch = pytest.importorskip("torch")
    import torch.distributed.checkpoint as checkpoint
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecReader

    for seed in range(5):
        url = f"{server.url}checkpoint{seed}"
        saved = subprocess.run([sys.executable, "-c", SAVE, url, str(seed), str(server.process.pid)], timeout=300)
        assert saved.returncode == -signal.SIGKILL
        server.restart(signal.SIGKILL)
        state = {f"layer{number}": torch.zeros(256, 256) for number in range(16)}
        checkpoint.load(state, storage_reader=FsspecReader(url))
        torch.manual_seed(seed)
        assert all(torch.equal(found, torch.rand(256, 256)) for found in state.values())
