"""Training on samples that the nodes of a job keep together: as on files, which are read once in all."""

import time

import h5py
import numpy as np
import pytest
from kept_samples import BATCH, SAMPLES, TEST, fails_alike, noted_files, noted_rows, train, write

import mpidl
from mpidl.data import CachedSplit
from mpidl.rma.remote_samples import RemoteSamples

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.fixture(params=[1, 2], ids=["nodes of one", "nodes of two"], autouse=True)
def nodes(request, monkeypatch):
    """How many workers there are on a node: all ranks but the first are workers."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(request.param))
    return request.param


@pytest.fixture
def data(comm, shared_path):
    """See `kept_samples.write`."""
    return write(comm, shared_path, compressed=False)


CHANGES = {
    "plain": {},
    "by samples": {"shuffle": "samples"},
    "changed": {"augment": {"reflect": True, "noise": 0.1}, "normalise": {"mean": 0.3}, "validation": 0.2},
}


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize(
    ("source", "change"), [("hdf5", "plain"), ("idx", "by samples"), ("hdf5", "changed"), ("idx", "changed")]
)
def test_a_run_is_the_same_wherever_its_samples_are(shared_path, data, source, change):
    keys = CHANGES[change]
    found = [train(shared_path, source, data[source], keep, keep, keys) for keep in ("files", "distributed")]
    assert found[0][1] == found[1][1]
    for key in ("samples", "test_loss", "test_accuracy"):
        assert found[0][0][key] == found[1][0][key]


@pytest.fixture
def remote(monkeypatch):
    """What reaches the samples of other nodes, and what it did until the end of the run."""
    made, free = [], RemoteSamples.free

    def note(self):
        made.append((self, [len(each.inputs) for each in self._parts]))
        free(self)

    monkeypatch.setattr(RemoteSamples, "free", note)
    return made


def test_files_are_read_once_and_nodes_keep_their_parts(comm, nodes, shared_path, data, monkeypatch, remote):
    read = noted_rows(monkeypatch)
    train(shared_path, "hdf5", data["hdf5"], "distributed", "parts")
    found = [block for blocks in comm.allgather(read) for block in blocks]
    for samples in (SAMPLES, TEST):
        rows = sorted(row for of, start, stop in found if of == samples for row in range(start, stop))
        assert rows == list(range(samples))
    assert len(remote) == (comm.rank > 0 and comm.size > 1 + nodes)
    held = comm.allgather([(sizes, each.bytes_allocated) for each, sizes in remote])[1::nodes]
    if comm.size > 1 + nodes:
        assert np.sum([each[0][0] for each in held], axis=0).tolist() == [SAMPLES, TEST]
        # A minibatch, those that are asked for ahead, one sample for a checksum, and two batches for evaluations.
        of_sample = 6 * 5 + 8
        assert all(each[0][1] <= of_sample * (2 * (1 + 2 + 1) * BATCH + 2 + 2 * TEST) for each in held)


def test_an_idx_file_is_read_by_one_rank(comm, shared_path, data, monkeypatch):
    read = noted_files(monkeypatch)
    train(shared_path, "idx", data["idx"], "distributed", "once")
    found = comm.allgather(read)
    assert [sum(sizes) for sizes in found] == [0, (SAMPLES + TEST) * 30 + 2 * 16] + [0] * (comm.size - 2)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("slow", [None, 0])
def test_each_sample_is_trained_on_once_in_an_epoch(comm, shared_path, data, monkeypatch, slow):
    """With servers, where a worker computes long while others ask it for samples."""
    taken, original = [], mpidl.data.Split.take

    def note(self, minibatch):
        taken.append(minibatch)
        return original(self, minibatch)

    monkeypatch.setattr(CachedSplit, "take", note)
    options = {"algorithm": mpidl.Downpour(), "epochs": 3, "deterministic": False}
    if slow is not None:
        options["debug"] = {"slow_worker": slow, "gradient_seconds": 0.01, "slow_factor": 30.0}
    summary, _ = train(shared_path, "hdf5", data["hdf5"], "distributed", f"slow-{slow}", **options)
    assert summary["samples"] == 3 * SAMPLES
    for epoch in range(3):
        own = [index for each in taken if each.epoch == epoch for index in each.indices.tolist()]
        # Each worker has computed the first minibatch once more, to compile.
        assert sorted(index for each in comm.allgather(own) for index in each)[:1] == [0]
    counts = np.zeros(SAMPLES, int)
    for each in taken[1:]:
        counts[each.indices] += 1
    assert comm.allreduce(counts).tolist() == [3] * SAMPLES


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("algorithm", [mpidl.Sync(), mpidl.Downpour(wire="bf16")], ids=["sync", "downpour"])
def test_a_worker_that_is_late_gets_its_samples(comm, shared_path, data, monkeypatch, algorithm):
    """Whatever the others wait in, their threads answer."""

    def late(original):
        def call(*arguments):
            if comm.rank == comm.size - 1:
                time.sleep(0.02)
            return original(*arguments)

        return call

    for name in ("prepare", "gather"):
        monkeypatch.setattr(CachedSplit, name, late(getattr(CachedSplit, name)))
    options = {"algorithm": algorithm, "deterministic": False, "epochs": 1}
    summary, _ = train(shared_path, "hdf5", data["hdf5"], "distributed", "late", **options)
    assert summary["samples"] == SAMPLES


def test_what_can_not_be_read_is_one_line_on_all_ranks(comm, shared_path, data):
    if comm.rank == 0:
        path = data["idx"] / "train-images-idx3-ubyte"
        path.write_bytes(path.read_bytes()[:-7] + b"\0" * 6)
    comm.Barrier()
    fails_alike(comm, "train-images-idx3-ubyte", shared_path, "idx", data["idx"], "distributed", "damaged")


def test_a_sample_that_is_not_finite_is_one_line_on_all_ranks(comm, shared_path):
    """In the part of the last worker."""
    path = shared_path / "data.h5"
    if comm.rank == 0:
        with h5py.File(path, "w") as file:
            for part in ("train", "test"):
                inputs = np.zeros((64, 6, 5), np.float32)
                inputs[60] = np.inf if part == "train" else 0
                file[f"{part}/x"], file[f"{part}/y"] = inputs, np.zeros(64, np.uint8)
    comm.Barrier()
    fails_alike(comm, "NaN or infinity in sample 60", shared_path, "hdf5", path, "distributed", "infinite")
