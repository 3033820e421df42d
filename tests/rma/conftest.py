"""Ranks of the test's world, in roles."""

import pytest


@pytest.fixture
def comm():
    """Return a communicator of the test's own."""
    from mpi4py import MPI

    comm = MPI.COMM_WORLD.Dup()
    yield comm
    comm.Barrier()
    comm.Free()
