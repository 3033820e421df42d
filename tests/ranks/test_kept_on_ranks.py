"""Samples that are kept in memory: each node reads them once, and its workers share them."""

import gzip

import pytest
from kept_samples import SAMPLES, TEST, fails_alike, noted_files, noted_rows, train, write

import mpidl

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture
def data(comm, shared_path):
    """See `kept_samples.write`."""
    return write(comm, shared_path, compressed=True)


@pytest.fixture(params=[None, "2"], ids=["one node", "nodes of two"])
def nodes(request, comm, monkeypatch):
    """How many workers there are on a node: all ranks but the first are workers."""
    if request.param is None:
        return comm.size
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", request.param)
    return int(request.param)


def test_the_workers_of_a_node_read_each_sample_once(comm, shared_path, data, nodes, monkeypatch):
    read = noted_rows(monkeypatch)
    summary, parameters = train(shared_path, "hdf5", data["hdf5"], name="memory", keep="memory")
    found = comm.allgather(read)
    expected = {SAMPLES: list(range(SAMPLES)), TEST: list(range(TEST))}
    for first in range(1, comm.size, nodes):
        node = [block for each in found[first : first + nodes] for block in each]
        for samples, all_ in expected.items():
            rows = sorted(row for of, start, stop in node if of == samples for row in range(start, stop))
            assert rows == all_
            assert all(start % 8 == 0 for of, start, _ in node if of == samples)
    assert found[0] == []
    other, expected_parameters = train(shared_path, "hdf5", data["hdf5"], name="files")
    assert parameters == expected_parameters
    assert summary["test_loss"] == other["test_loss"]


def test_a_file_that_is_read_whole_is_read_by_one_rank_of_a_node(comm, shared_path, data, nodes, monkeypatch):
    read = noted_files(monkeypatch)
    _, parameters = train(shared_path, "idx", data["idx"], name="memory", keep="memory")
    readers = [rank for rank, names in enumerate(comm.allgather(read)) for _ in names]
    assert readers == [first for first in range(1, comm.size, nodes) for _ in range(2)]
    _, expected = train(shared_path, "idx", data["idx"], name="files")
    assert parameters == expected


def test_samples_in_memory_are_shuffled_one_by_one_if_so_wished(comm, shared_path, data):
    kept = train(shared_path, "hdf5", data["hdf5"], name="a", keep="memory", data={"shuffle": "samples"})[1]
    # Idx files are, wherever their samples are.
    assert kept == train(shared_path, "idx", data["idx"], name="b", keep="memory")[1]
    assert kept != train(shared_path, "hdf5", data["hdf5"], name="c", keep="memory")[1]


def test_what_can_not_be_read_is_one_line_on_all_ranks(comm, shared_path, data):
    if comm.rank == 0:
        path = data["idx"] / "train-images-idx3-ubyte.gz"
        contents = gzip.decompress(path.read_bytes())
        path.write_bytes(gzip.compress(contents[:100]) + gzip.compress(contents[100:-9] + b"x" * 9)[:-5] + b"\0" * 5)
    comm.Barrier()
    fails_alike(comm, "train-images-idx3-ubyte.gz", shared_path, "idx", data["idx"], keep="memory")


@pytest.mark.mpi(min_size=3)
def test_samples_are_kept_with_servers_and_validation_too(comm, shared_path, data):
    options = {"algorithm": mpidl.Downpour(), "validation": 0.2, "epochs": 3, "deterministic": False}
    summary, _ = train(shared_path, "hdf5", data["hdf5"], keep="memory", **options)
    # Two whole portions are held out.
    assert summary["samples"] == 3 * (SAMPLES - 2 * 8)
