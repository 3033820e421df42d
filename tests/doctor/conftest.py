"""Two ranks of the test's world, as the doctor takes them."""

import pytest


@pytest.fixture
def pair():
    """Return the pair of the first and the last rank; None on the others."""
    from mpi4py import MPI

    from mpidl.doctor.windows import Pair

    world = MPI.COMM_WORLD
    chosen = world.rank in (0, world.size - 1)
    comm = world.Split(0 if chosen else MPI.UNDEFINED)
    yield Pair(comm) if chosen else None
    world.Barrier()
    if chosen:
        comm.Free()
