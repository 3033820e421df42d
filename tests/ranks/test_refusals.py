"""A job that a rank refuses before it begins: one error on all ranks, and no directory."""

from pathlib import Path

import numpy as np
import pytest

import mpidl
from mpidl.data import ArraySplit, Dataset

pytestmark = pytest.mark.mpi


@pytest.mark.mpi(min_size=4)
def test_more_servers_than_parameters(comm, shared_path, tally):
    model, split = tally(size=1)
    data = Dataset("test", (1,), None, split, split)
    with pytest.raises(mpidl.UsageError, match=r"^topology.servers: 2, expected at most one for each "):
        mpidl.train(model, data, servers=2, rule=mpidl.Sgd(1.0), epochs=1, dir=shared_path / "runs")
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
