"""The replicas' clocks on real ranks, under random slowdowns."""

import time

import numpy as np
import pytest

from mpidl.parameters import Range

pytestmark = pytest.mark.mpi(min_size=2)


@pytest.mark.parametrize("bound", [0, 2])
def test_no_clock_is_more_than_the_bound_ahead(comm, bound):
    from mpidl.rma.transport import WindowTransport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import STOPPED

    roles = assign([0] * comm.size, 0)
    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    with WindowTransport(comm, roles, Capacity(shards, np.float32)) as transport:
        if comm.rank > 0:
            link = transport.worker(comm.rank - 1)
            random = np.random.default_rng(comm.rank)
            link.set_clock(0)
            transport.peers.Barrier()
            for clock in range(1, 41 + 7 * comm.rank):
                if random.random() < 0.2:
                    time.sleep(0.002 * (comm.rank + 1))
                link.set_clock(clock)
                while (slowest := link.slowest_clock()) < clock - bound:
                    time.sleep(1e-4)
                assert slowest == STOPPED or slowest >= clock - bound
            link.set_clock(STOPPED)
            transport.peers.Barrier()
            assert link.slowest_clock() == STOPPED
        comm.Barrier()


@pytest.mark.usefixtures("one_node")
def test_the_slowest_replica_wakes_those_that_wait_for_it(comm):
    from mpidl.rma.transport import WindowTransport
    from mpidl.topology.roles import assign
    from mpidl.transport.capacity import Capacity

    shards = [Range(number, number + 1) for number in range(comm.size - 1)]
    with WindowTransport(comm, assign([0] * comm.size, 0), Capacity(shards, np.float32)) as transport:
        if comm.rank > 0:
            link = transport.worker(comm.rank - 1)
            backoff, slept = link.backoff(5.0), 0
            for clock in range(1, 4):
                if comm.rank == 1:
                    time.sleep(0.05)
                link.set_clock(clock)
                while link.slowest_clock() < clock:
                    slept += backoff.pause()
            assert slept == 0
        comm.Barrier()
