"""Flows that share network cards: textbook rates, what no card ever exceeds, and what follows for whole runs."""

from unittest import mock

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st

from mpidl.algorithms import Downpour
from mpidl.data import Portions
from mpidl.data.schedule import Schedule
from mpidl.engines.virtual import Training, VirtualEngine, VirtualTime, network
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.network import Fabric, fair_shares
from mpidl.engines.virtual.times import Constant, Exponential, Times
from mpidl.nn import adapt
from mpidl.parameters import shards
from mpidl.rules import Sgd
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard

A, B, C, D = range(4)


def rates(flows, bandwidths):
    """Return the fair rates of flows, given as (sender, receiver)."""
    ends, found = np.array(flows).T.copy(), np.empty(len(flows))
    capacities = np.array([bandwidths, bandwidths], float)
    spare, crossing = np.empty_like(capacities), np.empty_like(capacities)
    places, cards = np.empty(2 * len(flows), np.int64), np.empty((3, capacities.size + 1), np.int64)
    fair_shares(len(flows), ends, capacities, found, spare, crossing, places, cards)
    return found


def ends(flows, bandwidths):
    """Let flows (start, sender, receiver, size) pass; return when each ends, and the order in which they do."""
    environment = simpy.Environment()
    cards = Fabric(environment, np.array(bandwidths, float))
    found = {}

    def live(number, start, *flow):
        yield environment.timeout(start)
        yield cards.send(*flow)
        found[number] = environment.now

    for number, flow in enumerate(flows):
        environment.process(live(number, *flow))
    environment.run()
    return [found[number] for number in range(len(flows))], list(found)


@pytest.mark.parametrize(
    ("bandwidths", "expected"),
    [
        ([9, 100, 4, 100], [7, 2, 2]),  # C is full first, and A's other flow takes what is left there
        ([2, 100, 10, 100], [1, 1, 9]),  # A is full first
        ([6, 1, 6, 100], [1, 3, 3]),  # B, then C
        ([4, 4, 4, 4], [2, 2, 2]),
    ],
)
def test_rates_of_the_textbook(bandwidths, expected):
    assert rates([(A, B), (A, C), (D, C)], bandwidths) == pytest.approx(expected)


@pytest.mark.parametrize("count", [1, 2, 7, 100])
def test_equal_flows_to_one_node_take_as_many_times_as_long(count):
    found, order = ends([(0.5, sender, 0, 30.0) for sender in range(1, count + 1)], [10.0] * (count + 1))
    assert found == pytest.approx([0.5 + 3.0 * count] * count)
    assert order == sorted(order)


def test_rates_change_as_flows_come_and_go():
    # Alone at 10 for 1 s; beside another at 5 for 4 s; then alone again.
    found, _ = ends([(0, A, C, 40.0), (1, B, C, 20.0)], [10, 10, 10])
    assert found == pytest.approx([1 + 4 + 1, 1 + 4])
    # What a node sends doesn't take from what it receives, and other nodes' flows take nothing.
    assert ends([(0, A, B, 40.0), (0, B, A, 40.0), (0, C, D, 40.0)], [10] * 4)[0] == pytest.approx([4, 4, 4])


nodes = st.integers(2, 6)
bandwidth = st.floats(0.1, 1e9)


@st.composite
def cases(draw):
    """Return bandwidths, and flows (start, sender, receiver, size) between different nodes."""
    count = draw(nodes)
    pair = st.tuples(st.integers(0, count - 1), st.integers(1, count - 1))
    flow = st.builds(
        lambda start, pair, size: (start, pair[0], (pair[0] + pair[1]) % count, size),
        st.sampled_from([0.0, 0.0, 0.25, 1.0, 1e3]), pair, st.floats(1e-3, 1e6),
    )  # fmt: skip
    return draw(st.lists(bandwidth, min_size=count, max_size=count)), draw(st.lists(flow, min_size=1, max_size=12))


@given(cases())
def test_rates_are_max_min_fair(case):
    bandwidths, flows = case
    pairs = [(sender, receiver) for _, sender, receiver, _ in flows]
    found = rates(pairs, bandwidths)
    cards = [
        [[rate for pair, rate in zip(pairs, found, strict=True) if pair[way] == node] for node in range(6)]
        for way in (0, 1)
    ]
    for way in (0, 1):
        assert all(sum(cards[way][node]) <= bandwidths[node] * (1 + 1e-6) for node in range(len(bandwidths)))
    # Each flow passes a full card on which no flow is faster: its rate can't be raised without lowering another's.
    for pair, rate in zip(pairs, found, strict=True):
        through = [(cards[way][node], bandwidths[node]) for way, node in enumerate(pair)]
        assert any(sum(on) >= (1 - 1e-6) * most and rate >= (1 - 1e-6) * max(on) for on, most in through)


@pytest.mark.parametrize("changes", [network.CHANGES, 3])
@given(case=cases())
def test_no_card_carries_more_than_its_capacity(changes, case):
    bandwidths, flows = case
    with mock.patch.object(network, "CHANGES", changes):
        carries_no_more(flows, bandwidths)


def carries_no_more(flows, bandwidths):
    found, order = ends(flows, bandwidths)
    assert (found, order) == ends(flows, bandwidths)
    for way in (1, 2):
        for node, most in enumerate(bandwidths):
            through = [(flow[0], end, flow[3]) for flow, end in zip(flows, found, strict=True) if flow[way] == node]
            for start, _, _ in through:
                for _, end, _ in through:
                    inside = sum(size for begun, ended, size in through if start <= begun and ended <= end)
                    assert inside <= most * (max(0, end - start) * (1 + 1e-6) + 1e-9)


def test_many_flows_change_together_and_take_hardly_longer(monkeypatch):
    draw = np.random.default_rng(0)
    flows = [
        (start, sender, 20 + receiver, size)
        for start, sender, receiver, size in zip(
            draw.uniform(0, 50, 1501), draw.integers(0, 20, 1501), draw.integers(0, 5, 1501),
            draw.uniform(1, 9, 1501), strict=True,
        )
    ]  # fmt: skip
    changes = []
    monkeypatch.setattr(network, "fair_shares", lambda *given: changes.append(given[0]) or fair_shares(*given))
    together, _ = ends(flows, [20.0] * 25)
    counted = len(changes)
    changes.clear()
    monkeypatch.setattr(network, "CHANGES", 10**6)
    exact, _ = ends(flows, [20.0] * 25)
    assert len(changes) > 2 * counted
    longer = (np.array(together) - exact) / (np.array(exact) - [flow[0] for flow in flows])
    assert abs(longer.mean()) < 0.01
    assert longer.max() < 0.2
    # All that flows through the last card to be empty has flowed at its full rate.
    assert max(together) == pytest.approx(max(exact), rel=0.005)


def engine(problem, algorithm, times, replicas, servers=1):
    model, split = problem
    schedule = Schedule(Portions(split.samples, 8, 8, seed=7), epochs=4)
    parts = [
        Shard(part, np.zeros(part.size), ScheduledRule(Sgd(0.01)), algorithm.policy(replicas), part.size)
        for part in shards(model.parameters.size, servers)
    ]
    return VirtualEngine(
        Training(algorithm, adapt(model), split, schedule), parts, replicas, time=VirtualTime(times, 3, start=1.0)
    )


@pytest.mark.parametrize("servers", [1, 2])
def test_replicas_move_no_more_than_the_servers_cards_carry(least_squares, servers):
    times = Times(Exponential(0.001), bandwidth=1e3)
    totals = engine(least_squares(), Downpour(), times, replicas=10, servers=servers).run()
    for moved in (totals.bytes_fetched, totals.bytes_pushed):
        # All replicas fetch together, and then push together: each way is busy for half the time.
        assert 0.45 < moved / totals.trained_seconds / (1e3 * servers) <= 1


def test_a_server_works_on_other_pushes_while_one_arrives_over_a_slow_link(tally):
    # Ranks 0 and 1, on one node, are the coordinator and a replica; 2 and 3 the server and the other replica.
    problem = tally(samples=800)
    nbytes = problem[0].parameters.nbytes
    times = Times(Constant(0.01), bandwidth=nbytes / 0.05, ranks_per_node=2, chunk=8.0)
    totals = engine(problem, Downpour(), times, replicas=2).run()
    # While the far replica makes a step in 0.064 s, fetching behind its push, the near one makes one each 0.01 s.
    assert totals.trained_seconds == pytest.approx(totals.batches * 0.064 / 7.4, rel=0.03)


@pytest.mark.parametrize(("servers", "wire_fetch"), [(1, "fp32"), (3, "fp32"), (1, "bf16")])
def test_a_fetch_goes_on_behind_its_push(least_squares, servers, wire_fetch):
    problem = least_squares()
    nbytes = problem[0].parameters.nbytes
    times = Times(Constant(0.1), bandwidth=nbytes / 1.0, chunk=nbytes / servers / 10)
    timed = engine(problem, Downpour(wire_fetch=wire_fetch), times, replicas=1, servers=servers)
    totals = timed.run()
    # The first chunk in 0.1 s, then the others and what is fetched at the same time, then the last one back. What is
    # encoded begins when the whole push is there.
    step = 0.1 + (1.1 if wire_fetch == "fp32" else 1 + totals.bytes_fetched / totals.fetches / nbytes)
    assert totals.trained_seconds == pytest.approx(totals.batches * step, rel=0.05)
    # It has the push.
    at_once = engine(problem, Downpour(wire_fetch=wire_fetch), None, replicas=1, servers=servers)
    at_once.run()
    assert np.array_equal(timed.parameters(), at_once.parameters())


def test_a_fetch_through_windows_waits_for_its_push(least_squares):
    problem = least_squares()
    nbytes = problem[0].parameters.nbytes
    times = Times(Constant(0.1), bandwidth=nbytes / 1.0, chunk=nbytes / 10, messages=False)
    totals = engine(problem, Downpour(), times, replicas=1).run()
    assert totals.trained_seconds == pytest.approx(totals.batches * 2.1, rel=0.01)


@pytest.mark.parametrize(("messages", "staleness"), [(True, 1), (False, 2)])
def test_a_fetch_ahead_goes_on_behind_its_push(least_squares, messages, staleness):
    problem = least_squares()
    nbytes = problem[0].parameters.nbytes
    times = Times(Constant(0.1), bandwidth=nbytes / 0.08, chunk=nbytes / 10, messages=messages)
    totals = engine(problem, Downpour(overlap=True), times, replicas=1).run()
    # What is fetched while a gradient is computed has the push before it or, without messages, not even that.
    assert np.argmax(totals.staleness.counts) == staleness
    assert totals.trained_seconds == pytest.approx(totals.batches * 0.1, rel=0.05)


def fetches(times):
    """Let four replicas of two nodes fetch 120 bytes from a server on the second; return when each has them."""
    environment = simpy.Environment()
    machines, found = Machines(environment, times, 0, replicas=4, servers=1), {}

    def fetch(replica):
        yield from machines.fetch(replica, 0, 120)
        found[replica] = environment.now

    for replica in range(4):
        environment.process(fetch(replica))
    environment.run()
    return [found[replica] for replica in range(4)]


def test_ranks_of_one_node_share_its_card_and_pass_it_by_among_themselves():
    # Ranks 0 to 2 are the coordinator and two replicas; 3 to 5 the server and the other two.
    assert fetches(Times(bandwidth=10.0, ranks_per_node=3)) == [24, 24, 0, 0]
    assert fetches(Times(bandwidth=10.0, ranks_per_node=3, memory_bandwidth=60.0)) == [24, 24, 2, 2]
    assert fetches(Times(bandwidth=10.0)) == [48] * 4
    assert fetches(Times(bandwidth=10.0, latency=Constant(0.5))) == [48.5] * 4


@pytest.mark.parametrize(("ranks_per_node", "seconds"), [(1, 2 * 5), (2, 2 * 2 * 4), (3, 2 * 3 * 3), (7, 2 * 5 / 8)])
def test_a_reduction_takes_the_time_of_the_fullest_card(ranks_per_node, seconds):
    environment = simpy.Environment()
    times = Times(bandwidth=1.0, ranks_per_node=ranks_per_node, memory_bandwidth=8.0)
    machines = Machines(environment, times, 0, replicas=6, servers=0)
    # Twice, each of six replicas sends a byte to each other: those of its node, or through the card.
    environment.run(environment.process(machines.all_reduce(6, 6.0)))
    assert environment.now == seconds


def test_only_what_leaves_a_node_is_encoded(least_squares):
    """One of the replicas shares the server's node."""
    problem = least_squares(101)
    times = Times(Constant(0.01), bandwidth=1e6, ranks_per_node=2)
    whole, encoded = (engine(problem, Downpour(wire=w, wire_fetch=w), times, replicas=2) for w in ("fp32", "bf16"))
    ratios = [getattr(run.run(), name) for name in ("bytes_pushed", "bytes_fetched") for run in (encoded, whole)]
    assert 0.3 < ratios[0] / ratios[1] < 0.9
    assert 0.3 < ratios[2] / ratios[3] < 0.9
