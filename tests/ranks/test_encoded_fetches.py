"""Fetches as encoded differences; vectors are encoded between nodes, and travel as they are within one."""

import time

import numpy as np
import pytest
from small_runs import coordinate, dataset, serve

import mpidl
from mpidl.algorithms import Downpour
from mpidl.algorithms.algorithm import Pattern
from mpidl.algorithms.requests import Fetch, Push
from mpidl.parameters import shards
from mpidl.rules import Sgd
from mpidl.shards.policies import AddChange
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.topology.roles import assign
from mpidl.wire import encoded_bytes, parse
from rows import in_turn

SIZE, PUSHES = 5009, 7
FORMATS = ["bf16", "int8", "topk:0.3", "onebit"]


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize(
    ("wire_fetch", "way"), [*in_turn(FORMATS, [("windows",), ("messages",)]), ("topk:0.3", "messages")]
)
def test_copies_follow_the_shards_through_one_transport_after_another(comm, tmp_path, wire_fetch, way):
    """Whatever the timing: what a worker has is what its server thinks that it has, and comes to rest where it is."""
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.engines.progress import Encodings
    from mpidl.rma.regions import of_shard
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity

    roles = assign([0] * comm.size, servers=1 if comm.size == 3 else 2)
    ranges, workers = shards(SIZE, len(roles.servers), 1024), len(roles.replicas)
    capacity = Capacity(ranges, np.dtype(np.float64), wire_fetch=parse(wire_fetch), chunk_bytes=8192)
    server, handler, initial = None, None, np.random.default_rng(0).normal(size=SIZE)
    if comm.rank in roles.servers:
        number = roles.servers.index(comm.rank)
        part = ranges[number]
        shard = Shard(part, initial[slice(*part)].copy(), ScheduledRule(None), AddChange(), 1024)
        server = Server(number, {number: shard}, tmp_path, None, workers=workers)
    elif comm.rank > 0:
        encodings = Encodings.of(ranges, np.dtype(np.float64), None, parse(wire_fetch))
        handler = ThroughServers(ranges, encodings)
        together = comm.Create_group(comm.group.Incl([rank for replica in roles.replicas for rank in replica]))
    random, fetched = np.random.default_rng(comm.rank), np.full(SIZE, np.nan)
    for _ in range(2):
        with Transport(comm, roles, capacity, way=way) as transport:
            if server is not None:
                serve(comm, transport, server)
                rows = transport.window.local(of_shard(number).copies).reshape(workers, -1).copy()
                server.unbind()
            elif handler is not None:
                comm.Barrier()
                number = comm.rank - 1 - len(roles.servers)
                handler.bind(transport.worker(number, copies=encodings.copies))
                if np.isnan(fetched).any():
                    handler.actions[Fetch](Fetch(fetched))
                    assert np.array_equal(fetched, initial)
                together.Barrier()
                for _ in range(PUSHES):
                    time.sleep(random.exponential(0.003))
                    handler.actions[Push](Push(random.integers(-9, 9, SIZE).astype(float)))
                    handler.actions[Fetch](Fetch(fetched))
                comm.send(None, 0)
                handler.unbind()
            else:
                coordinate(comm, transport)
        has = [each.values for each in encodings.copies] if handler is not None else None
        all_has = comm.allgather(has)
        if server is not None:
            for worker, rank in enumerate(rank for replica in roles.replicas for rank in replica):
                assert rows[worker].tobytes() == all_has[rank][roles.servers.index(comm.rank)].tobytes()
    if handler is not None:
        figures = handler.status.figures
        encoded = sum(encoded_bytes(parse(wire_fetch), part.size, np.float64) for part in ranges)
        assert figures["fetches"] == 1 + 2 * PUSHES
        assert figures["bytes_fetched"] == SIZE * 8 + 2 * PUSHES * encoded
        assert np.array_equal(fetched, np.concatenate([each.values for each in encodings.copies]))


@pytest.mark.mpi(min_size=3)
@pytest.mark.parametrize("ahead", [False, True])
@pytest.mark.parametrize("wire_fetch", ["fp32", "bf16"])
def test_a_fetch_behind_a_push_has_the_whole_push(comm, tmp_path, wire_fetch, ahead):
    """In many chunks, of which a server applies some between two looks at what it is asked for."""
    from mpidl.engines.mpi.through_servers import ThroughServers
    from mpidl.engines.progress import Encodings
    from mpidl.rma.transport import Transport
    from mpidl.roles.server import Server
    from mpidl.transport.capacity import Capacity
    from mpidl.transport.protocol import ShardClock

    roles, size, dtype = assign([0] * comm.size, servers=1), 20_009, np.dtype(np.float64)
    ranges, workers, wire = shards(size, 1, 1024), len(roles.replicas), parse(wire_fetch, "wire_fetch")
    capacity = Capacity(ranges, dtype, wire_fetch=wire, chunk_bytes=8192)
    with Transport(comm, roles, capacity, way="messages") as transport:
        if comm.rank in roles.servers:
            shard = Shard(ranges[0], np.zeros(size), ScheduledRule(None), AddChange(), 1024)
            server = Server(0, {0: shard}, tmp_path, None, workers=workers)
            served = server.served[0]
            at_once = served.round
            # Meanwhile a push arrives whole, and what follows it.
            served.round = lambda: time.sleep(0.005) or at_once()
            serve(comm, transport, server)
            server.unbind()
        elif comm.rank > 0:
            comm.Barrier()
            pattern, fetched = Pattern(prefetches=ahead, fetches_next=True), np.full(size, np.nan)
            encodings = Encodings.of(ranges, dtype, None, wire)
            handler = ThroughServers(ranges, encodings, pattern=pattern)
            handler.bind(transport.worker(comm.rank - 2, copies=encodings.copies))
            handler.actions[Fetch](Fetch(fetched))
            for push in range(1, PUSHES + 1):
                before, gradient = fetched.min(), np.ones(size)
                handler.actions[Push](Push(gradient))
                if ahead:
                    gradient[:] = np.nan
                handler.actions[Fetch](Fetch(fetched))
                # A fetch ahead is that behind the push before; the first one began before any push.
                assert fetched.min() >= max(push - ahead, before + (push > 2 * ahead))
                clock = handler.connection.fetched[0, ShardClock.CLOCK]
                assert push - ahead <= clock <= fetched.max()
            handler.fetch(fetched)
            assert fetched.min() >= PUSHES
            comm.send(None, 0)
            handler.unbind()
        else:
            coordinate(comm, transport)


@pytest.mark.mpi(min_size=4)
@pytest.mark.parametrize("transport", ["windows", "auto"])
def test_only_what_leaves_a_node_is_encoded(comm, shared_path, least_squares, monkeypatch, transport):
    """All but the last rank, a worker, are on one node."""
    monkeypatch.setenv("MPIDL_RANKS_PER_NODE", str(comm.size - 1))
    model, split = least_squares()
    algorithm = Downpour(wire="bf16", wire_fetch="bf16")
    debug = {"gradient_seconds": 0.01}  # Both workers have their share.
    summary = mpidl.train(
        model, dataset(split), algorithm=algorithm, rule=Sgd(0.05), epochs=3, batch=8, dir=str(shared_path),
        config={"topology": {"transport": transport}, "debug": debug},
    )  # fmt: skip
    whole, encoded = 13 * 8, 32
    assert encoded * summary["pushes"] < summary["bytes_pushed"] < whole * summary["pushes"]
    assert encoded * summary["fetches"] < summary["bytes_fetched"] < whole * summary["fetches"]


@pytest.mark.mpi(min_size=3)
def test_a_worker_on_its_servers_node_has_the_bits_of_one_that_encodes_nothing(comm, shared_path, least_squares):
    if comm.size > 3:
        pytest.skip("takes 3 ranks")
    found = []
    for algorithm in (Downpour(), Downpour(wire="onebit", wire_fetch="onebit")):
        model, split = least_squares()
        options = {"rule": Sgd(0.05), "epochs": 2, "batch": 8, "dir": str(shared_path)}
        mpidl.train(model, dataset(split), algorithm=algorithm, **options)
        found.append(model.parameters)
    assert np.array_equal(*found)
