"""Owners of MPI objects free them once, also as context managers, and can't be used afterwards."""

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi


def test_a_freed_window_raises(comm):
    from mpidl.rma.counters import Counter
    from mpidl.rma.windows import Window

    with Window(comm, {"values": (np.int64, 3)}) as window:
        counter = Counter(window, 0, "values")
        counter.read()
        comm.Barrier()
    values = np.zeros(3, np.int64)
    for use in (
        lambda: window.to(0).put(values, 0, "values"),
        lambda: window.to(0).get(values, 0, "values"),
        lambda: window.to(0).flush(0),
        lambda: window.local("values"),
        window.sync,
        window.free,
        counter.read,
    ):
        with pytest.raises(RuntimeError, match="the window has been freed"):
            use()


def test_freed_memory_and_doorbells_raise(comm):
    from mpidl.rma.doorbells import Doorbells
    from mpidl.rma.nodes import neighbours
    from mpidl.rma.shared_state import SharedVectors

    node = neighbours(comm)
    with SharedVectors(node, 1, 4, np.float32) as shared:
        comm.Barrier()
    node.Free()
    with pytest.raises(RuntimeError, match="the shared memory has been freed"):
        shared.vectors[0]
    with Doorbells(comm) as doorbells:
        comm.Barrier()
    with pytest.raises(RuntimeError, match="the doorbell has been freed"):
        doorbells.clear()


def test_a_freed_transport_raises(comm):
    from mpidl.rma.transport import Transport
    from mpidl.topology.roles import Roles
    from mpidl.transport.capacity import Capacity

    roles = Roles((), tuple((rank,) for rank in range(comm.size)))
    shards = [Range(rank, rank + 1) for rank in range(comm.size)]
    with Transport(comm, roles, Capacity(shards, np.float32)) as transport:
        link = transport.worker(comm.rank)
        coordinator = transport.coordinator() if comm.rank == 0 else None
        comm.Barrier()
    with pytest.raises(RuntimeError, match="freed"):
        transport.backoff().pause()
    with pytest.raises(RuntimeError, match="freed"):
        link.clocks.show(1)
    if coordinator is not None:
        with pytest.raises(RuntimeError, match="freed"):
            coordinator.posted.look()
