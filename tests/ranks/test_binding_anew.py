"""Roles are bound to one transport after another: their own state goes on, and nothing that was pushed is lost."""

import numpy as np
import pytest
from small_runs import coordinate, digits, serve

from mpidl.algorithms.requests import Fetch, Push
from mpidl.parameters import shards
from mpidl.shards.policies import AddChange
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.topology.roles import assign
from mpidl.wire import parse

SIZE, PUSHES = 1009, 13


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("way", ["windows", "messages"])
@pytest.mark.parametrize("wire", ["fp32", "bf16", "topk:0.1"])
def test_servers_and_workers_go_on_in_other_windows(comm, tmp_path, wire, way):
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.engines.progress import Encodings
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity

    roles = assign([0] * comm.size, servers=1 if comm.size == 3 else 2)
    ranges, workers = shards(SIZE, len(roles.servers)), len(roles.replicas)
    capacity = Capacity(ranges, np.dtype(np.float64), wire=parse(wire), chunk_bytes=800)
    server = handler = None
    if comm.rank in roles.servers:
        number = roles.servers.index(comm.rank)
        part = ranges[number]
        shard = Shard(part, np.zeros(part.size), ScheduledRule(None), AddChange(), 100)
        server = Server(number, {number: shard}, tmp_path, None, workers=workers)
    elif comm.rank > 0:
        encodings = Encodings.of(ranges, np.dtype(np.float64), parse(wire))
        handler = ThroughServers(ranges, encodings)
    random, pushed = np.random.default_rng(comm.rank), np.zeros(SIZE)
    windows = []
    for _ in range(3):
        with Transport(comm, roles, capacity, way=way) as transport:
            if server is not None:
                serve(comm, transport, server)
                windows.append(shard.parameters)
                server.unbind()
            elif handler is not None:
                comm.Barrier()
                handler.bind(transport.worker(comm.rank - 1 - len(roles.servers), encodings.feedback))
                for _ in range(PUSHES):
                    values = random.integers(-9, 9, SIZE).astype(float)
                    pushed += values
                    handler.actions[Push](Push(values))
                    handler.actions[Fetch](Fetch(fetched := np.empty(SIZE)))
                comm.send(None, 0)
                handler.unbind()
            else:
                coordinate(comm, transport)
    residual = np.zeros(SIZE)
    if handler is not None and encodings.feedback:
        residual = np.concatenate([each.residual for each in encodings.feedback])
    total = np.zeros(SIZE)
    if server is not None:
        total[slice(*shard.range)] = shard.parameters
        assert shard.pushes == 3 * PUSHES * workers
        assert not any(np.shares_memory(shard.parameters, window) for window in windows)
    np.testing.assert_array_equal(comm.allreduce(total) + comm.allreduce(residual), comm.allreduce(pushed))
    if handler is not None:
        assert np.isfinite(fetched).all()
        assert handler.status.figures["pushes"] == handler.status.figures["fetches"] == 3 * PUSHES


@pytest.mark.mpi(min_size=2)
@pytest.mark.parametrize("name", ["downpour", "sandblaster", "sync", "hogwild"])
def test_whole_roles_bring_their_state_along(comm, shared_path, name):
    """After a run: a new transport shows the same parameters, totals and order as the one before."""
    from mpidl.config import from_dict
    from mpidl.engines.totals import from_status
    from mpidl.job.build import build
    from mpidl.rma.transport import Transport
    from mpidl.roles.coordinator import Coordinator
    from mpidl.roles.server import Server
    from mpidl.roles.worker import Worker
    from mpidl.runs.ranks import run
    from mpidl.transport.protocol import Phase, ShardClock

    if comm.size == 2 and name in ("downpour", "sandblaster"):
        pytest.skip("needs a server, too")
    config = from_dict(digits(shared_path, run={"epochs": 1}, algorithm={"name": name}))
    after = []

    def free(transport):
        """Free the run's transport, and look at what the roles show in another."""
        free_windows(transport)
        role = bound.pop()
        role.bind(again := Transport(comm, transport.roles, transport.capacity))
        again.quiesce()
        if comm.rank == 0:
            link = again.coordinator()
            link.posted.look()
            after.append(from_status(0.0, link.posted.workers, link.posted.servers))
            assert not after[0].batches or again.window.local("control").tolist()[1] == Phase.EXIT
        elif comm.rank in again.workers and again.roles.servers:
            vector = np.empty(again.capacity.shards[-1].stop, np.float32)
            link = again.worker(again.workers.index(comm.rank))
            link.fetches.start(vector, np.zeros((len(again.capacity.shards), len(ShardClock)), np.int64))
            link.fetches.finish()
            after.append(vector)
        again.quiesce()
        role.unbind()
        free_windows(again)

    bound, free_windows = [], Transport.free
    with pytest.MonkeyPatch.context() as patch:
        for role in (Coordinator, Server, Worker):
            bind = role.bind
            patch.setattr(role, "bind", lambda self, to, bind=bind: (bound.append(self), bind(self, to))[1])
        patch.setattr(Transport, "free", free)
        job = build(config)
        summary = run(config, lambda: job, comm)
    if comm.rank == 0:
        (totals,) = after
        assert (totals.samples, totals.pushes) == (summary["samples"], summary["pushes"])
        assert totals.samples > 0
    elif after and comm.rank > 0:
        np.testing.assert_array_equal(after[0], job.original.parameters)
