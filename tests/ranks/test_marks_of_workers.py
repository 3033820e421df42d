"""A checkpoint is one cut through the pushes of all workers, and holds up none of them."""

import time
from functools import partial

import h5py
import numpy as np
import pytest

from mpidl.algorithms.requests import Push
from mpidl.parameters import shards
from mpidl.shards.policies import AddChange
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.files import scratch
from mpidl.topology.roles import assign

SIZE, CHUNK = 4000, 100


@pytest.mark.mpi(min_size=4)
def test_a_worker_that_stands_still_in_the_middle_of_a_push_holds_up_nobody(comm, shared_path):
    """Worker 0 stands still after the first chunks of its second push; all others mark the order and push on."""
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.storage.position import ReplicaPosition
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import Phase, SavedFiles

    roles = assign([0] * comm.size, servers=1)
    ranges, workers = shards(SIZE, 1), len(roles.replicas)
    capacity = Capacity(ranges, np.dtype(np.float64), chunk_bytes=8 * CHUNK)
    first_of_all = 2
    with Transport(comm, roles, capacity) as transport:
        if comm.rank == 0:
            link = transport.coordinator()
            link.orders.set_phase(Phase.TRAIN)
            comm.Barrier()
            comm.recv(source=first_of_all, tag=6)
            link.orders.save(1, 0)
            for rank in range(first_of_all + 1, comm.size):
                # Each has marked the order, and its pushes since have been applied.
                comm.recv(source=rank, tag=7)
            reported = link.posted.saved()
            comm.send(None, first_of_all, tag=8)
            while not any(saved.shards for saved in reported):
                reported += link.posted.saved()
                time.sleep(1e-3)
            assert {worker for saved in reported for worker in saved.replicas} == set(range(workers))
            for rank in range(first_of_all, comm.size):
                comm.recv(source=rank, tag=9)
            link.orders.set_phase(Phase.EXIT)
        elif comm.rank in roles.servers:
            shard = Shard(ranges[0], np.zeros(SIZE), ScheduledRule(None), AddChange(), CHUNK)
            server = Server(0, {0: shard}, shared_path, partial(scratch, shared_path), workers=workers)
            server.bind(transport)
            comm.Barrier()
            server.run()
            assert shard.parameters.tolist() == [sum(3.0 * 10**worker for worker in range(workers))] * SIZE
            server.unbind()
        else:
            number = comm.rank - first_of_all
            link = transport.worker(number)
            handler = ThroughServers(ranges)
            handler.bind(link)
            push = Push(np.full(SIZE, 10.0**number))
            comm.Barrier()
            handler.actions[Push](push)
            if number == 0:
                link.pushes.begin([0], (-1, -1))
                before = link.pushes.bytes
                while link.pushes.bytes == before:
                    assert not link.pushes.send(push.vector, SIZE // 2)
                    link.pushes.applied()
                comm.send(None, 0, tag=6)
                comm.recv(source=0, tag=8)
                while not link.pushes.send(push.vector):
                    time.sleep(1e-3)
            while link.orders.read().number == 0:
                time.sleep(1e-3)
            while not link.pushes.mark(1):
                time.sleep(1e-3)
            link.reports.saved(SavedFiles(1, replicas={number: ReplicaPosition(batches=0, samples=0)}))
            for _ in range(1 if number == 0 else 2):
                handler.actions[Push](push)
            while not link.pushes.applied():
                time.sleep(1e-3)
            if number:
                comm.send(None, 0, tag=7)
            comm.send(None, 0, tag=9)
            handler.unbind()
    if comm.rank == 0:
        with h5py.File(scratch(shared_path, 1) / "shard-0.h5") as file:
            expected = 2.0 + sum(10.0**worker for worker in range(1, workers))
            assert file["parameters"][...].tolist() == [expected] * SIZE
