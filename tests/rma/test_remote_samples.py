"""Samples in the memory of several nodes: ranks that ask get them, whatever the rank that has them does."""

import contextlib
import time
from itertools import pairwise

import numpy as np
import pytest
from mpi4py import MPI

from mpidl.data import ArraySplit, Batch, Cached, Split
from mpidl.data.cached import part
from mpidl.errors import MpidlError, UsageError
from mpidl.rma import remote_samples
from mpidl.rma.remote_samples import NodeSamples, RemoteSamples
from mpidl.rma.shared_samples import SharedSamples, Sharers

pytestmark = [
    pytest.mark.mpi(min_size=2),
    pytest.mark.skipif(
        MPI.Query_thread() != MPI.THREAD_MULTIPLE, reason="runs need MPI's thread level multiple for it"
    ),
]
SAMPLES = (101, 2, 23)


def arrays(number):
    """Inputs and targets of a split."""
    random = np.random.default_rng(number)
    samples = SAMPLES[number]
    return random.integers(0, 2**16, (samples, 3, 5), np.uint16), random.random((samples, 2), np.float32)


@pytest.fixture
def nodes(comm):
    """The ranks of each node, of two at most unless the first has only one."""
    ranks = list(range(comm.size))
    return [ranks[:1], *(ranks[start : start + 2] for start in range(1, comm.size, 2))]


def starts_of(samples, comm, nodes):
    """Return where each node's samples begin, and where the last ones end."""
    return np.array([*(part(samples, 1, ranks[0], comm.size).start for ranks in nodes), samples])


@pytest.fixture
def remote(comm, nodes):
    """What reaches the samples of three splits, of which each node has the parts of its ranks."""
    parts = []
    for number, samples in enumerate(SAMPLES):
        starts = starts_of(samples, comm, nodes)
        (own,) = [slice(*starts[place : place + 2]) for place, ranks in enumerate(nodes) if comm.rank in ranks]
        inputs, targets = arrays(number)
        parts.append(NodeSamples(inputs[own].copy(), targets[own].copy(), starts))
    return RemoteSamples(comm, nodes, parts, contextlib.nullcontext)


def check(coming, number, indices):
    """Check samples that have been asked for."""
    inputs, targets = arrays(number)
    found, labels, rows = coming.result()
    assert np.array_equal(found[rows], inputs[indices])
    assert np.array_equal(labels[rows], targets[indices])
    coming.release()


@pytest.mark.parametrize("longest", [None, "rows", "bytes"])
def test_samples_are_those_that_were_asked_for(comm, remote, monkeypatch, longest):
    if longest == "rows":
        monkeypatch.setattr(remote_samples, "ROWS", 7)
    if longest == "bytes":
        monkeypatch.setattr(remote_samples, "BYTES", 100)
    random = np.random.default_rng(comm.rank)
    with remote:
        comm.Barrier()
        under_way = []
        for _ in range(60):
            number = int(random.integers(len(SAMPLES)))
            indices = random.integers(0, SAMPLES[number], int(random.integers(1, 40)))
            under_way.append((remote.store(number).ask(indices), number, indices))
            if random.random() < 0.5:
                check(*under_way.pop(int(random.integers(len(under_way)))))
        for each in under_way:
            check(*each)
        check(remote.store(0).ask(np.arange(101)), 0, np.arange(101))


def test_a_rank_that_computes_answers(comm, remote, tmp_path):
    """Each rank waits outside MPI until the next one has taken samples of all nodes."""
    shared = comm.bcast(tmp_path)
    with remote:
        for turn in range(comm.size):
            if comm.rank == turn:
                check(remote.store(0).ask(np.arange(101)), 0, np.arange(101))
                (shared / f"{turn}").touch()
            while not (shared / f"{turn}").exists():
                time.sleep(1e-3)


def test_a_rank_that_is_done_answers_until_all_are(comm, remote):
    """The last rank begins to ask when all others are about to end."""
    last = comm.rank == comm.size - 1
    if last:
        for _ in range(comm.size - 1):
            comm.recv()
        for _ in range(20):
            check(remote.store(0).ask(np.arange(101)), 0, np.arange(101))
    else:
        comm.send(None, comm.size - 1)
    remote.free()
    with pytest.raises(RuntimeError, match="has been freed"):
        remote.ask(0, np.arange(3))


def test_samples_that_are_on_their_way_arrive_before_the_end(remote):
    with remote:
        asked = [remote.store(number).ask(np.arange(samples)) for number, samples in enumerate(SAMPLES)]
    for number, each in enumerate(asked):
        assert each.arrived.is_set()
        check(each, number, np.arange(SAMPLES[number]))


def test_memory_for_batches_is_used_again(comm, remote, nodes):
    with remote:
        of_batch = 10 * (3 * 5 * 2 + 2 * 4)
        random = np.random.default_rng(comm.rank)
        (own,) = [place for place, ranks in enumerate(nodes) if comm.rank in ranks]
        starts, taken, coming = starts_of(101, comm, nodes), 0, None
        for _ in range(30):
            indices = random.integers(0, 101, 10)
            following = remote.store(0).ask(indices)
            taken += int(((indices < starts[own]) | (indices >= starts[own + 1])).sum())
            if coming is not None:
                check(*coming)
            coming = following, 0, indices
        check(*coming)
        assert remote.bytes_allocated == 2 * of_batch
        assert remote.bytes_taken == taken * of_batch // 10


@pytest.mark.parametrize("wrong", [-1, 101])
def test_samples_that_are_not_there_raise_an_error(remote, wrong):
    with remote, pytest.raises(IndexError, match=rf"^samples .*{wrong}.*: outside \[0, 101\)$"):
        remote.store(0).ask(np.array([3, wrong]))


# Reading them.


class Rows(Split):
    """Samples that are read as a whole, or by parts; those from `breaks` on can't be read."""

    def __init__(self, by_parts, breaks=None):
        self.samples, self.by_parts, self.breaks = 101, by_parts, breaks
        self.read = []

    def gather(self, indices, epoch=0):
        if self.breaks is not None and indices.max() >= self.breaks:
            raise MpidlError(f"sample {self.breaks} is bad")
        self.read += indices.tolist()
        inputs, targets = arrays(0)
        return Batch(inputs[indices], targets[indices])


def shared(comm, kept, trains=True):
    """Return the samples of splits, shared by all nodes."""

    def agree(action):
        error = result = None
        try:
            result = action()
        except MpidlError as raised:
            error = raised
        found = [each for each in comm.allgather(error) if each is not None]
        if found:
            raise found[0]
        return result

    return SharedSamples(comm, trains, kept, agree, contextlib.nullcontext)


@pytest.fixture(params=[1, 2], ids=["nodes of one", "nodes of two"])
def ranks_per_node(request, monkeypatch):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(request.param))
    monkeypatch.setattr("mpidl.data.cached.BLOCK_BYTES", 200)
    return request.param


@pytest.mark.parametrize("by_parts", [True, False])
def test_each_sample_is_read_once_and_kept_once(comm, ranks_per_node, by_parts):
    split = Rows(by_parts)
    kept = Cached(split, distributed=True)
    with shared(comm, [kept]) as samples:
        read = comm.allgather(split.read)
        assert read[0].pop(0) == 0  # for the form of the samples
        assert sorted(row for rows in read for row in rows) == list(range(101))
        if not by_parts:
            assert len(read[0]) == 101
        (held,) = samples.held
        several = comm.size > ranks_per_node
        assert samples.nbytes <= held.size * (3 * 5 * 2 + 2 * 4) + 2 * 64
        of_nodes = comm.allgather(tuple(held))[::ranks_per_node]
        assert [row for each in of_nodes for row in range(*each)] == list(range(101))
        assert (kept.store is not None) == several
        if several:
            check(kept.store.ask(np.arange(101)), 0, np.arange(101))
    assert kept.store is None


@pytest.mark.parametrize("breaks", [0, 1, 50, 70, 100])
@pytest.mark.parametrize("by_parts", [True, False])
def test_what_can_not_be_read_is_told_by_all_ranks(comm, ranks_per_node, by_parts, breaks):
    with pytest.raises(MpidlError, match=f"^sample {breaks} is bad$"):
        shared(comm, [Cached(Rows(True), distributed=True), Cached(Rows(by_parts, breaks), distributed=True)])


@pytest.mark.mpi(min_size=3)
def test_nodes_without_workers_have_nothing(comm, monkeypatch):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    kept = Cached(Rows(True), distributed=True)
    with shared(comm, [kept], trains=comm.rank > 0) as samples:
        found = comm.allgather([each.size for each in samples.held])
    assert found[0] == []
    assert sum(size for sizes in found for size in sizes) == 101
    assert max(found[1:])[0] - min(found[1:])[0] <= 1


def test_more_workers_than_samples(comm, monkeypatch):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    kept = Cached(ArraySplit(np.ones((1, 3)), np.zeros(1, int)), distributed=True)
    with shared(comm, [kept]):
        assert kept.store.ask(np.zeros(5, np.int64)).result()[0].tolist() == [[1.0] * 3] * 5


def test_nodes_whose_ranks_are_not_neighbours_have_parts_that_are(comm, monkeypatch):
    """As where a launcher gives ranks to nodes in turn."""
    turns = comm.Split(0, key=(comm.rank % 2) * comm.size + comm.rank)
    monkeypatch.setattr(
        "mpidl.rma.shared_samples.neighbours", lambda workers: workers.Split(workers.rank % 2, workers.rank)
    )
    sharers = Sharers(comm, distributed=True)
    found = comm.allgather(tuple(sharers.part(Cached(Rows(True)))))
    for node in (found[::2], found[1::2]):
        assert all(before[1] == after[0] for before, after in pairwise(node))
    assert MPI.Comm.Compare(turns, sharers.comm) == MPI.CONGRUENT
    assert sharers.held(Cached(Rows(True))) == (found[comm.rank % 2][0], found[comm.rank % 2 :: 2][-1][1])
    sharers.free()
    turns.Free()


def test_where_one_thread_calls_mpi_is_one_line(comm, monkeypatch):
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "1")
    monkeypatch.setattr("mpidl.rma.shared_samples.MPI.Query_thread", lambda: MPI.THREAD_FUNNELED)
    with pytest.raises(UsageError) as error:
        shared(comm, [Cached(Rows(True), distributed=True)])
    expected = "expected 'memory' or 'files', or MPI4PY_RC_THREAD_LEVEL=multiple"
    assert str(error.value) == f"data.keep: 'distributed', but MPI allows calls from one thread only, {expected}"
    with shared(comm, [Cached(Rows(True))]) as samples:
        assert samples.remote is None
