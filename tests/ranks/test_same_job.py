"""Ranks agree before a run begins: all raise the same line if their jobs differ or one of them fails."""

from pathlib import Path

import numpy as np
import pytest
from small_runs import dataset

import mpidl
from mpidl.data import ArraySplit, Dataset
from mpidl.errors import MpidlError, UsageError
from mpidl.parameters import Layout
from mpidl.runs.agreement import by_first_rank, together

pytestmark = pytest.mark.mpi


def data(samples=101, classes=3, last=0):
    labels = np.arange(samples) % classes
    split = ArraySplit(np.full((samples, 5), 0.5, np.float32), labels)
    other = labels.copy()
    other[-1] = last
    return Dataset("test", (5,), classes, ArraySplit(np.full((samples, 5), 0.5, np.float32), other), split)


def network(units=3, name=""):
    return mpidl.Network([mpidl.Dense(units, name=name), mpidl.Dense(3)], (5,))


class Flat:
    def __init__(self, dtype="float32", name="a"):
        self.parameters = np.zeros(6, dtype)
        self.layout = Layout([(name, (2, 3))])

    def loss_and_gradient(self, batch):
        return 0.0, np.zeros_like(self.parameters)


#: What one rank is given instead of what the others have, and how the line begins.
CASES = [
    ({"epochs": 40}, "run.epochs: 4 on rank 0, 40 on rank {}; all ranks must have the same configuration"),
    ({"servers": 2}, "topology.servers: 1 on rank 0, 2 on rank {}; all ranks must have the same configuration"),
    ({"resume": True}, "--resume: not given on rank 0, {path}/run on rank {}; all ranks must"),
    ({"rule": mpidl.Sgd(0.5)}, "server.rule: 'adagrad' on rank 0, 'sgd' on rank {}; all ranks must"),
    ({"data": data(77)}, "data: training samples: 101 on rank 0, 77 on rank {}; all ranks must have the same data"),
    ({"model": network(4)}, "model: 0-dense/weight: shape (5, 3) on rank 0, shape (5, 4) on rank {}; all ranks must"),
    ({"model": network(name="x")}, "model: 0-dense/weight: shape (5, 3) on rank 0, absent on rank {}; all ranks must"),
    ({"model": Flat()}, "model: 0-dense/weight: shape (5, 3) on rank 0, absent on rank {}; all ranks must have the"),
]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(("given", "line"), CASES, ids=[line[:20] for _, line in CASES])
def test_what_differs_is_named_with_its_rank(comm, shared_path, given, line):
    other = comm.size - 1
    options = {"model": network(), "data": data(), "epochs": 4, "batch": 8, "dir": shared_path}
    with pytest.raises(mpidl.UsageError) as error:
        mpidl.train(**(options | given if comm.rank == other else options))
    assert str(error.value).startswith(line.format(other, path=shared_path))
    assert len(set(comm.allgather(str(error.value)))) == 1
    assert not (shared_path / "run").exists()


@pytest.mark.mpi(min_size=4)
def test_samples_are_compared_among_the_ranks_that_train(comm, shared_path):
    given = data(last=1 if comm.rank == comm.size - 1 else 0)
    with pytest.raises(
        mpidl.UsageError, match=r"^data: checksum of the training samples: \w+ on rank 2, \w+ on rank 3;"
    ):
        mpidl.train(network(), given, epochs=1, batch=8, dir=shared_path)


@pytest.mark.mpi(min_size=3)
def test_a_rank_whose_model_fails_is_named_and_the_others_do_not_wait(comm, shared_path):
    model = Flat()
    if comm.rank == comm.size - 1:
        model.loss_and_gradient = lambda batch: 1 / 0
    who = rf"\(rank {comm.size - 1}, worker {comm.size - 3}\)"
    line = rf"^model: Flat.loss_and_gradient raised ZeroDivisionError: .* {who}$"
    with pytest.raises(mpidl.UsageError, match=line):
        mpidl.train(model, data(), epochs=1, batch=8, dir=shared_path)


@pytest.mark.mpi(min_size=4)
def test_more_servers_than_parameters(comm, shared_path, tally):
    model, split = tally(size=1)
    with pytest.raises(mpidl.UsageError, match=r"^topology.servers: 2, expected at most one for each "):
        mpidl.train(model, dataset(split), servers=2, rule=mpidl.Sgd(1.0), epochs=1, dir=shared_path / "runs")
    comm.Barrier()
    assert not Path(shared_path / "runs").exists()


def refuse():
    raise mpidl.UsageError("train inputs: not a valid file")


def exhaust():
    raise MemoryError("Unable to allocate 7 TiB")


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    ("read", "line"),
    [(refuse, "train inputs: not a valid file"), (exhaust, "out of memory: Unable to allocate 7 TiB")],
)
def test_data_that_can_not_be_read(comm, shared_path, read, line):
    """Workers read it after the coordinator has made the run's directory."""
    labels = np.arange(9) % 3
    good, bad = ArraySplit(np.zeros((9, 4)), labels), ArraySplit(read, labels)
    network = mpidl.Network([mpidl.Dense(3)], (4,))
    with pytest.raises(mpidl.UsageError) as error:
        mpidl.train(network, Dataset("test", (4,), 3, bad, good), dir=shared_path / "runs", epochs=1)
    assert str(error.value).startswith(line)
    assert "(rank " in str(error.value)
    comm.Barrier()
    assert not Path(shared_path / "runs").exists()


def divide():
    return 1 // 0


FAILURES = [
    (divide, MpidlError, "ZeroDivisionError: integer division or modulo by zero (MPIDL_DEBUG=1 shows where)"),
    (exhaust, UsageError, "out of memory: Unable to allocate 7 TiB"),
]


@pytest.mark.parametrize(("action", "kind", "line"), FAILURES)
def test_any_error_of_the_first_rank_is_all_ranks(comm, action, kind, line):
    with pytest.raises(kind) as error:
        by_first_rank(action)
    assert str(error.value) == line


@pytest.mark.parametrize(("action", "kind", "line"), FAILURES)
def test_any_error_of_one_rank_is_all_ranks(comm, action, kind, line):
    last = comm.size - 1
    with pytest.raises(kind) as error:
        together(action if comm.rank == last else lambda: 0)
    assert str(error.value) == line + (f" (rank {last})" if last else "")


def test_keeping_open_mpi_quiet_leaves_the_thread_level(comm):
    from mpi4py import MPI

    from mpidl.rma import ucx

    before = MPI.Query_thread()
    ucx.quieten()
    assert MPI.Query_thread() == before
