"""Relays of a virtual cluster: what they gather, when they send it, and what crosses the network."""

import math

import numpy as np
import pytest
import simpy
from hypothesis import given, settings
from hypothesis import strategies as st

from mpidl.algorithms import Agn, Downpour, Easgd, Ssp
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.totals import Totals
from mpidl.engines.virtual import Hooks, Training, VirtualEngine, VirtualTime
from mpidl.engines.virtual.cluster import VirtualCluster
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.server import VirtualServer
from mpidl.engines.virtual.times import Constant, Death, Exponential, Times
from mpidl.engines.virtual.traffic import Traffic
from mpidl.nn import adapt
from mpidl.parameters import Range, shards
from mpidl.relays.virtual import VirtualRelay
from mpidl.rules import Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

BATCH, EPOCHS = 8, 4


def engine(problem, algorithm, times, replicas, servers=1, seed=3, statistics=(), on_batch=None):
    model, split = problem
    schedule = Schedule(Portions(split.samples, BATCH, BATCH, seed=7), epochs=EPOCHS)
    rule = ScheduledRule(Sgd(1.0) if algorithm.default_rule else None, statistics=statistics)
    parts = [
        Shard(
            part, model.parameters[slice(*part)].copy(), rule, algorithm.policy(replicas), 5,
            state={name: np.zeros(part.size) for name in algorithm.vectors()},
        )
        for part in shards(model.parameters.size, servers)
    ]  # fmt: skip
    hooks = Hooks() if on_batch is None else Hooks(on_batch=on_batch)
    return VirtualEngine(
        Training(algorithm, adapt(model), split, schedule), parts, replicas,
        time=VirtualTime(times, seed, start=1.0), hooks=hooks,
    )  # fmt: skip


def two_nodes(**durations):
    """Return times of nodes of four ranks: with a server and five replicas, three are beside it, two have a relay."""
    return Times(**{"compute": Exponential(1.0), "ranks_per_node": 4, "intermediaries": VirtualRelay, **durations})


def test_nodes_without_all_servers_have_relays(tally):
    roles = engine(tally(), Downpour(), two_nodes(), replicas=5).roles
    assert [(relay.rank, relay.workers) for relay in roles.relays] == [(1, (2, 3))]
    # Ranks that share a node's cores need none.
    assert engine(tally(), Downpour(), two_nodes(cores=2), replicas=5).roles.relays == ()


@pytest.mark.parametrize(
    "algorithm",
    [
        Downpour(),
        Downpour(overlap=True),
        Downpour(n_push=3),
        Ssp(2),
        Downpour(wire="bf16"),
        Downpour(wire_fetch="bf16"),
    ],
)
@given(
    servers=st.integers(1, 3),
    replicas=st.integers(4, 9),
    at=st.floats(0.01, 30),
    away=st.floats(0.01, 30) | st.none(),
    bandwidth=st.sampled_from([math.inf, 200.0]),
    memory_bandwidth=st.sampled_from([math.inf, 1000.0]),
    seed=st.integers(0, 9),
)
@settings(max_examples=12)
def test_every_gradient_counts_once(tally, algorithm, servers, replicas, at, away, bandwidth, memory_bandwidth, seed):
    model, split = tally(samples=205)
    deaths = (Death(2, at, None if away is None else at + away), Death(3, 2 * at))
    times = two_nodes(
        bandwidth=bandwidth, memory_bandwidth=memory_bandwidth, latency=Constant(0.01), deaths=deaths, chunk=16.0
    )
    run = engine((model, split), algorithm, times, replicas, servers, seed)
    totals = run.run()
    # Who dies when all others are done leaves something behind.
    portions = Portions(205, BATCH, BATCH, seed=7)
    left = sum(np.sum(portions.batches(each)[0] + 1.0) for each, _ in run.supply.given_back.values())
    expected = (1.0 + np.arange(13)) * left - model.total(205, EPOCHS)
    if algorithm.wire == "fp32":
        assert np.array_equal(run.parameters(), expected)
    else:
        assert run.parameters() == pytest.approx(expected, rel=0.01)
    # To servers, a sum is one push.
    assert totals.staleness.counts.sum() <= totals.pushes * servers


def test_what_is_on_its_way_through_a_relay_counts_in_a_cut(tally):
    model, split = tally(samples=205)
    portions, looks = Portions(205, BATCH, BATCH, seed=7), []

    def look():
        parameters = np.concatenate([shard.parameters for shard in run.settled_shards()])
        unpushed = {each for position in run.positions() for each, *_ in [*position.unpushed, *position.working]}
        pushed = [portions.batches(each)[0] + 1.0 for each in set(range(run.supply.tickets)) - unpushed]
        assert parameters[0] == -sum(map(np.sum, pushed))
        looks.append(np.array_equal(parameters, run.parameters()))

    run = engine((model, split), Downpour(), two_nodes(bandwidth=200.0), 5, on_batch=look)
    run.run()
    assert looks.count(False) > 50


@pytest.mark.parametrize("algorithm", [Ssp(1), Downpour(n_push=2), Easgd(0.1), Agn(2)])
def test_workers_of_one_speed_share_exchanges(tally, algorithm):
    times = two_nodes(compute=Constant(1.0), bandwidth=1e4)
    run = engine(tally(samples=2000), algorithm, times, replicas=5)
    totals = run.run()
    # Three replicas push themselves, and two by one relay.
    assert totals.staleness.counts.sum() == pytest.approx(totals.pushes * 4 / 5, rel=0.05)


@pytest.mark.parametrize(("of_node", "far"), [(4, 2), (5, 3), (8, 6)])
def test_what_crosses_the_network_does_not_grow_with_the_workers_of_a_node(tally, of_node, far):
    problem = tally(samples=2400)
    nbytes, replicas = problem[0].parameters.nbytes, 2 * far + 1
    times = two_nodes(compute=Constant(1.0), bandwidth=nbytes / 0.01, ranks_per_node=of_node)
    run = engine(problem, Downpour(), times, replicas)
    totals = run.run()
    assert [len(relay.workers) for relay in run.roles.relays] == [far]
    # Those beside the server, and the relay.
    exchanges = totals.batches / replicas * (replicas - far + 1)
    assert totals.bytes_pushed == pytest.approx(exchanges * nbytes, rel=0.03)
    assert totals.bytes_fetched == pytest.approx(totals.bytes_pushed, rel=0.01)
    # In each direction, one vector for each step of the relay's workers.
    assert run.load * run.now == pytest.approx(totals.batches / replicas * 0.01, rel=0.05)


def test_an_exchange_takes_its_push_and_its_fetch(tally):
    problem = tally(samples=2000)
    nbytes = problem[0].parameters.nbytes
    # The relay's push and its fetch take 0.2 s each; the two copies of a push, one after the other, and what is shown
    # and read take 0.01 s each.
    times = two_nodes(compute=Constant(1.0), bandwidth=nbytes / 0.2, memory_bandwidth=nbytes / 0.01)
    totals = engine(problem, Downpour(), times, replicas=5).run()
    far = 1.0 + 0.02 + 0.2 + 0.2 + 0.01 + 0.01
    near = 1.0 + 0.01 + 0.01
    assert totals.batches / totals.trained_seconds == pytest.approx(2 / far + 3 / near, rel=0.03)


def test_statistics_are_averaged(tally):
    model, split = tally(samples=64)
    # Those beside the server die, so that all that it gets are sums of two pushes, and none is stale.
    deaths = tuple(Death(near, 0.5) for near in (2, 3, 4))
    times = two_nodes(compute=Constant(1.0), bandwidth=1e6, deaths=deaths)
    run = engine((model, split), Downpour(), times, replicas=5, statistics=[Range(0, 3)])
    assert run.run().staleness.counts.tolist()[:2] == [16, 0]
    expected = -model.total(64, EPOCHS)
    assert np.array_equal(run.parameters(), np.where(np.arange(13) < 3, expected / 2, expected))


@pytest.fixture
def by_hand():
    """Return a function that makes a relay of two replicas, for which the test pushes.

    It returns the relay, a function that pushes for a replica and returns the event that this is applied, one that lets
    time pass and returns how many vectors have left for the server since the beginning, and what the server receives:
    clock, portions and first value of each push.
    """

    def make(copy=0.0):
        vector, environment, received = np.ones(13), simpy.Environment(), []
        times = two_nodes(compute=Constant(1.0), memory_bandwidth=vector.nbytes / copy if copy else math.inf)
        shard = Shard(Range(0, 13), np.zeros(13), ScheduledRule(Sgd(1.0)), Downpour().policy(5), 13, clock=6)
        receive = shard.receive_push

        def noted(worker, fetched, values, portions):
            received.append((fetched, portions, values[0]))
            receive(worker, fetched, values, portions)

        shard.receive_push = noted
        machines = Machines(environment, times, seed=3, replicas=5, servers=1)
        servers = [VirtualServer(environment, shard)]
        cluster = VirtualCluster(
            environment, machines, servers, vector.dtype, lambda: float(environment.now), Totals(0.0)
        )
        relay = VirtualRelay(machines.replicas, *machines.served, cluster, Traffic(cluster, None), None)

        def push(replica, fetched=6, portion=0):
            return environment.process(relay.push(replica, vector, [fetched], (portion, portion)))

        def sent(until):
            environment.run(until)
            return cluster.totals.bytes_pushed / vector.nbytes

        assert sent(1.0) == 0
        return relay, push, sent, received

    return make


def test_a_sum_is_as_stale_as_the_oldest_push_in_it(by_hand):
    _, push, sent, received = by_hand()
    for replica, fetched, portion in ((0, 5, 7), (1, 2, 9)):
        push(replica, fetched, portion)
    assert sent(2.0) == 1
    assert received == [(2, (7, 9), 2.0)]


def test_a_relay_waits_for_who_is_due_and_no_longer(by_hand):
    # A step has taken 1 s: the other one is waited for 0.6 s.
    _, push, sent, _ = by_hand()
    push(0)
    assert [sent(1.59), sent(1.61)] == [0, 1]
    _, push, sent, _ = by_hand()
    push(0)
    assert sent(1.3) == 0
    push(1)
    assert sent(1.31) == 1
    relay, push, sent, _ = by_hand()
    push(0)
    assert sent(1.3) == 0
    relay.leaves(1)
    assert sent(1.31) == 1
    # The next step has taken 0.7 s.
    relay.joins(1)
    assert sent(2.0) == 1
    push(0)
    assert [sent(2.41), sent(2.43)] == [1, 2]


def test_pushes_are_added_up_one_after_the_other_and_then_sent_together(by_hand):
    _, push, sent, received = by_hand(copy=0.1)
    first, second = push(0), push(1)
    # A push that comes when the relay no longer waits is in the next sum.
    assert sent(1.15) == 0
    push(0)
    assert [sent(1.19), sent(1.21)] == [0, 1]
    # The relay shows the parameters when it has copied them.
    assert not first.triggered
    sent(1.29)
    assert not second.triggered
    sent(1.31)
    assert first.triggered
    assert second.triggered
    assert sent(3.0) == 2
    assert [value for *_, value in received] == [2.0, 1.0]
