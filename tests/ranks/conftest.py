"""Ranks of the test's world."""

import contextlib
import dataclasses
import os

import pytest

# PyTorch and JAX take seconds to import: only ranks do so whose world is large enough for these tests.
if int(os.environ.get("OMPI_COMM_WORLD_SIZE", os.environ.get("PMI_SIZE", 4))) < 4:
    collect_ignore = ["test_first_rows_on_ranks.py", "test_jax_on_ranks.py"]
    collect_ignore_glob = ["test_modules_*.py"]


@pytest.fixture(autouse=True)
def transport_of_runs(request, monkeypatch):
    """Let runs whose transport is "auto" take that of ``--transport``, if it is given.

    Algorithms in one node's memory are then left out where there are several nodes.
    """
    chosen = request.config.getoption("--transport")
    if chosen is None or not request.config.getoption("--with-mpi"):
        return
    from mpi4py import MPI

    from mpidl.algorithms import Exchange
    from mpidl.rma.nodes import neighbours
    from mpidl.runs import ranks

    run, node = ranks.run, neighbours(MPI.COMM_WORLD)
    several = node.size < MPI.COMM_WORLD.size
    node.Free()

    def run_so(config, *arguments):
        if several and config.algorithm.exchange is Exchange.SHARED_MEMORY:
            pytest.skip("replicas share one node's memory")
        if config.topology.transport == "auto":
            config = dataclasses.replace(config, topology=dataclasses.replace(config.topology, transport=chosen))
        return run(config, *arguments)

    monkeypatch.setattr(ranks, "run", run_so)


@pytest.fixture
def worker(comm):
    """Skip the test where no rank is left for a worker."""
    if comm.size == 2:
        pytest.skip("2 ranks have no worker beside a server")


@pytest.fixture
def shared_path(comm, tmp_path):
    """Return one directory for all ranks."""
    return comm.bcast(tmp_path)


@pytest.fixture(params=["windows", "messages", "auto"])
def transport(request, monkeypatch):
    """Return windows, messages everywhere, or what several nodes of two ranks each have."""
    if request.param == "auto":
        monkeypatch.setenv("MPIDL_RANKS_PER_NODE", "2")
    return request.param


@pytest.fixture
def group(comm):
    """Return the world as the group of a replica's ranks."""
    from mpidl.engines.mpi.group import MpiGroup

    own = comm.Dup()
    made = MpiGroup(own)
    yield made
    made.free()
    own.Free()


@pytest.fixture
def watch(monkeypatch):
    """Return a function that shows ``see(request, answer, parameters)`` what the replicas of an algorithm ask for."""

    def watch(algorithm, see):
        original = algorithm.replica

        def replica(self, number, parameters, *arguments):
            requests, answer = original(self, number, parameters, *arguments), None
            with contextlib.suppress(StopIteration):
                while True:
                    request = requests.send(answer)
                    answer = yield request
                    if parameters.size > 1:  # else the replica only rehearses
                        see(request, answer, parameters)

        monkeypatch.setattr(algorithm, "replica", replica)

    return watch
