"""What servers apply while a worker's fetch is held between its reads is counted, and nothing else."""

import numpy as np
import pytest

from mpidl.algorithms.requests import Fetch, Push
from mpidl.parameters import shards
from mpidl.shards.policies import AddChange
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

SIZE = 1009


class HeldLink:
    """A link whose next fetches are held after they have begun: one action for each."""

    def __init__(self, link, actions):
        self._link, self._actions = link, iter(actions)

    def start_fetch(self, parameters, clocks, without=()):
        self._link.start_fetch(parameters, clocks, without)
        next(self._actions)()

    def __getattr__(self, name):
        return getattr(self._link, name)


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("ahead", [False, True])
def test_updates_between_the_reads_of_a_fetch_are_counted(comm, tmp_path, monkeypatch, ahead):
    from mpidl.engines.mpi import tearing
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.rma.transport import WindowTransport
    from mpidl.roles.server import Server
    from mpidl.topology.roles import Roles
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import Phase

    monkeypatch.setattr(tearing, "SAMPLED", 2)
    roles = Roles(tuple(range(1, comm.size)), ((0,),), coordinator=0)
    ranges = shards(SIZE, len(roles.servers))
    with WindowTransport(comm, roles, Capacity(ranges, np.dtype(np.float64), chunk_bytes=800)) as transport:
        if comm.rank > 0:
            part = ranges[comm.rank - 1]
            shard = Shard(part, np.zeros(part.size), ScheduledRule(None), AddChange(), 100)
            server = Server(comm.rank - 1, {comm.rank - 1: shard}, tmp_path, workers=1)
            server.bind(transport)
            comm.Barrier()
            server.serve()
            server.unbind()
        else:
            comm.Barrier()
            handler, coordinator, counted = (
                ThroughServers(ranges, np.float64),
                transport.coordinator(),
                [],
            )
            backoff, parameters = coordinator.backoff(), np.empty(SIZE)

            def pushed(times):
                for _ in range(times):
                    handler.actions[Push](Push(np.ones(SIZE)))
                    while not handler.applied():
                        backoff.pause()

            held = [0, 9, 3, 9, 0, 0, 1, 0]
            handler.bind(HeldLink(transport.worker(0), [lambda times=times: pushed(times) for times in held]))
            for _ in range(len(held) - ahead):
                pushed(2)
                handler.actions[Fetch](Fetch(parameters, ahead=ahead))
                counted.append(tuple(handler.status.row[["sampled_fetches", "tearing_sum", "tearing_max"]][0].tolist()))
            handler.unbind()
            coordinator.set_phase(Phase.EXIT)
        comm.Barrier()
    if comm.rank == 0:
        expected = [(1, 0, 0), (1, 0, 0), (2, 3, 3), (2, 3, 3), (3, 3, 3), (3, 3, 3), (4, 4, 3), (4, 4, 3)]
        assert counted == expected[ahead:]
