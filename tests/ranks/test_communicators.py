"""Training among some of a program's ranks, which has MPI already."""

import numpy as np
import pytest
from mpi4py import MPI

import mpidl

pytestmark = pytest.mark.mpi(min_size=4)


def train(comm, shared_path, model, **options):
    x = np.random.default_rng(0).normal(size=(64, 3)).astype(np.float32)
    data = mpidl.Arrays((x, x[:, :1]), (x, x[:, :1]))
    options = {"rule": mpidl.Sgd(0.1), "epochs": 3, "batch": 8, "dir": shared_path} | options
    return mpidl.train(model, data, comm=comm, **options)


def network():
    return mpidl.Network([mpidl.Dense(1)], (3,), loss=mpidl.nn.MeanSquaredError())


def test_two_groups_of_ranks_train_at_the_same_time(comm, shared_path):
    color = 0 if comm.rank < comm.size - 1 else 1
    part = comm.Split(color)
    model = network()
    summary = train(part, shared_path, model, name=f"part-{color}", seed=color)
    assert (summary["ranks"], summary["samples"]) == (part.size, 3 * 64)
    found = comm.allgather(model.parameters.tobytes())
    assert len({found[rank] for rank in range(comm.size - 1)}) == 1
    assert found[-1] != found[0]
    # As many ranks of another part would have trained the same, and all may train together afterwards.
    alone = network()
    train(MPI.COMM_SELF, shared_path, alone, name=f"alone-{comm.rank}", seed=1)
    assert alone.parameters.tobytes() == found[-1]
    assert train(comm, shared_path, network(), name="all")["ranks"] == comm.size
    part.Free()


def test_an_error_of_a_part_is_one_line_on_its_ranks(comm, shared_path):
    part = comm.Split(0 if comm.rank < 3 else 1)
    if comm.rank < 3:
        with pytest.raises(mpidl.UsageError, match=r"^run.steps: expected int >= 1, found -1$") as error:
            train(part, shared_path, network(), steps=-1)
        # Else the script would end without the other ranks, which wait for these.
        assert not error.value.everywhere
    part.Free()


@pytest.mark.parametrize("given", [3, MPI.COMM_NULL])
def test_what_is_no_communicator_is_one_line(comm, shared_path, given):
    with pytest.raises(
        mpidl.UsageError, match=r"^comm: found .*, expected a communicator of mpi4py that this rank is in"
    ):
        train(given, shared_path, network())
