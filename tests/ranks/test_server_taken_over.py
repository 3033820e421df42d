"""A server ends in the middle of a chunk, and another process continues as its rank while workers push and fetch."""

import json

import numpy as np
import pytest

from mpidl.algorithms.requests import Fetch, Push
from mpidl.parameters import Range
from mpidl.rules import Adagrad
from mpidl.shards.policies import ApplyAtOnce
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.topology.roles import assign

RULE = Adagrad(0.5)
SIZE, CHUNK, PUSHES, BEFORE = 1009, 100, 20, 57


class Died(Exception):
    """Stands for the end of a process."""


class Mortal(ApplyAtOnce):
    """Ends when it has applied half of a chunk, some time after others."""

    left = BEFORE

    def apply_chunk(self, shard, chunk, values, push):
        if self.left == 0:
            shard.chunk(chunk)[: values.size // 2] = np.nan
            raise Died
        self.left -= 1
        super().apply_chunk(shard, chunk, values, push)


@pytest.mark.mpi(min_size=3)
def test_another_process_continues_as_a_server(comm, shared_path):
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import Phase, State

    roles, whole, taker, victim = assign([0] * comm.size, servers=1), Range(0, SIZE), 0, 1
    workers = len(roles.replicas)
    capacity = Capacity([whole], np.dtype(float), chunk_bytes=8 * CHUNK, kept=RULE.states)

    def server(policy, fill):
        vectors = {name: np.full(SIZE, fill) for name in RULE.states}
        shard = Shard(whole, np.full(SIZE, fill), ScheduledRule(RULE), policy, CHUNK, state=vectors)
        return Server(0, {0: shard}, shared_path, None, workers=workers)

    with Transport(comm, roles, capacity) as transport:
        if comm.rank == victim:
            (shared_path / "events.jsonl").write_text("")
            role = server(Mortal(), 0.0)
            role.bind(transport)
            comm.Barrier()
            with pytest.raises(Died):
                role.run()
            comm.send(None, taker)
        elif comm.rank == taker:
            transport.coordinator().orders.set_phase(Phase.TRAIN)
            comm.Barrier()
            comm.recv(source=victim)
            role = server(ApplyAtOnce(), np.nan)
            role.adopt(transport.as_rank(victim))
            assert role.lost == 1
            (served,), (shard,) = role.served, role.shards
            backoff = served.link.backoff()
            while served.status.figures["state"] != State.TRAINED:
                if not served.round():
                    backoff.pause()
            check(shard, workers, shared_path)
            role.unbind()
            assert shard.pushes == workers * PUSHES
        else:
            handler, fetched = ThroughServers([whole]), np.empty(SIZE)
            link = transport.worker(comm.rank - 2)
            handler.bind(link)
            comm.Barrier()
            for _ in range(PUSHES):
                handler.actions[Push](Push(np.ones(SIZE)))
                handler.actions[Fetch](Fetch(fetched))
            while not link.pushes.end():
                pass
            handler.unbind()


def check(shard, workers, directory):
    """Check that each element is as after all pushes but the chunk that is recorded as lost."""
    (event,) = (json.loads(line) for line in (directory / "events.jsonl").read_text().splitlines())
    assert (event["event"], event["role"], event["shard"]) == ("lost", "server 0", 0)
    assert 0 <= event["worker"] < workers
    pushes = np.full(SIZE, workers * PUSHES)
    pushes[CHUNK * event["chunk"] :][:CHUNK] -= 1
    # Half of the lost chunk was torn.
    torn = np.isnan(shard.parameters)
    assert torn.sum() == torn[CHUNK * event["chunk"] :][:CHUNK].sum() == shard.chunk(event["chunk"]).size // 2
    np.testing.assert_array_equal(shard.vectors["sum"][~torn], pushes[~torn])
    parameters, sums = np.zeros((2, 1))
    after = [0.0]
    for step in range(1, workers * PUSHES + 1):
        RULE.update(parameters, (sums,), np.ones(1), step)
        after.append(parameters[0])
    np.testing.assert_array_equal(shard.parameters[~torn], np.array(after)[pushes[~torn]])
    assert shard.staleness.counts.sum() == shard.pushes == shard.clock == workers * PUSHES
