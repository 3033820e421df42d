"""Replicas of several virtual ranks: when they are done, and what they send."""

from collections import Counter
from dataclasses import replace

import numpy as np
import pytest
import simpy
from hypothesis import given
from hypothesis import strategies as st
from test_network_cards import engine

from mpidl.algorithms import Downpour
from mpidl.engines.virtual.cut import UNCUT, ReplicaCut, slice_stops
from mpidl.engines.virtual.machines import Machines
from mpidl.engines.virtual.times import Constant, Exponential, Times
from mpidl.nn import BatchNormalisation, Conv2d, Dense
from mpidl.partition.costs import Basis, Costs
from mpidl.partition.flow import Compute, Receive, Send, flows
from mpidl.partition.planner import make_plan

COSTS = Costs(flops=1000.0)


def planned(layers, shape, partitions, batch, **times):
    """Return times of replicas that are cut."""
    plan, uncut = (make_plan(layers, shape, ranks, batch=batch, costs=COSTS) for ranks in (partitions, 1))
    cut = ReplicaCut.of(plan, uncut, Basis(batch, COSTS, 4))
    return Times(Constant(cut.whole), cut=cut, **times)


def seconds_of_a_gradient(times, replicas=1, servers=1):
    environment = simpy.Environment()
    machines = Machines(environment, times, 0, replicas=replicas, servers=servers)
    environment.run(environment.all_of([machines.compute(number) for number in range(replicas)]))
    return environment.now


#: Two layers by units, 4 x 6 and 6 x 4, of 4 samples. Each of two ranks computes half of each.
LAYERS, SHAPE, BATCH = [Dense(6, cut="units"), Dense(4, cut="units")], (4,), 4


def by_hand(bandwidth, latency, computing=1.0):
    """Return the seconds of a gradient on two ranks, by hand: operations at 1000/s, then messages there and back."""
    first = 2 * 4 * 3 * BATCH / 1000 * computing
    second = 2 * 6 * 2 * BATCH / 1000 * computing
    # Three units of all samples go to the other; then two outputs of two samples, for which it computes the loss.
    values = latency + 4 * 3 * BATCH / bandwidth
    outputs = latency + 4 * 2 * 2 / bandwidth
    forward = first + values + second + outputs
    # The gradient of the values is on its way while those of the weights are computed.
    return forward + outputs + second + max(second, values) + first


@pytest.mark.parametrize(("bandwidth", "latency"), [(100.0, 0.5), (1e4, 0.0), (7.0, 0.01)])
def test_two_ranks_take_what_a_hand_computes(bandwidth, latency):
    times = planned(LAYERS, SHAPE, 2, BATCH, bandwidth=bandwidth, latency=Constant(latency))
    assert seconds_of_a_gradient(times) == pytest.approx(by_hand(bandwidth, latency))
    # Ranks of one node pass its card by.
    within = replace(times, memory_bandwidth=bandwidth, bandwidth=1e-9, ranks_per_node=4)
    assert seconds_of_a_gradient(within) == pytest.approx(by_hand(bandwidth, latency))
    # Given durations count, and the plan divides them.
    slower = replace(times, compute=Constant(3 * times.cut.whole), slow={0: 2.0})
    assert seconds_of_a_gradient(slower) == pytest.approx(by_hand(bandwidth, latency, computing=6.0))


def test_ranks_of_a_replica_share_the_cores():
    times = planned(LAYERS, SHAPE, 2, BATCH, bandwidth=1e12, cores=1)
    assert seconds_of_a_gradient(times) == pytest.approx(2 * by_hand(1e12, 0.0))
    assert seconds_of_a_gradient(replace(times, cores=2)) == pytest.approx(by_hand(1e12, 0.0))


NETWORKS = [
    (LAYERS, SHAPE),
    ([Conv2d(6, 3, padding="same", cut="rows"), Conv2d(4, 3, cut="samples"), Dense(7, cut="inputs")], (9, 7, 3)),
]  # fmt: skip


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_ranks_send_what_the_plan_moves(network, partitions):
    plan = make_plan(*network, partitions, batch=5)
    sent, received = Counter(), Counter()
    for rank, flow in enumerate(flows(plan, Basis(5, COSTS, 8))):
        sent += Counter({(rank, each.to, each.tag): each.nbytes for each in flow if isinstance(each, Send)})
        received += Counter((each.source, rank, each.tag) for each in flow if isinstance(each, Receive))
    assert received == Counter(list(sent))
    moved = np.zeros((partitions, partitions))
    for (source, to, _), nbytes in sent.items():
        moved[source, to] += nbytes
    elements = sum((each.elements for each in plan.traffic(5)), np.zeros((partitions, partitions), int))
    assert (moved == 8 * (elements + elements.T)).all()


@pytest.mark.parametrize("partitions", [1, 2, 3, 4])
@pytest.mark.parametrize("network", NETWORKS)
def test_nobody_waits_for_ever_and_nobody_computes_less(network, partitions):
    plan = make_plan(*network, partitions, batch=5, costs=COSTS)
    work = [sum(each.seconds for each in flow if isinstance(each, Compute)) for flow in flows(plan, Basis(5, COSTS, 4))]
    times = planned(*network, partitions, 5, bandwidth=1e15)
    assert max(work) <= seconds_of_a_gradient(times) * (1 + 1e-9)
    assert sum(work) >= times.cut.whole * (1 - 1e-9)


def test_ranks_that_share_statistics_tell_each_other_their_sums():
    """Two of 5 channels forward, with those of gradients backward, where ranks share the samples."""
    layers = [Dense(5, cut="samples"), BatchNormalisation(cut="samples"), Dense(3, cut="samples")]
    plan = make_plan(layers, (4,), 3, batch=6)
    without = make_plan([layers[0], layers[2]], (4,), 3, batch=6)
    gathered = 4 * (plan.steps[1].gathered() + plan.steps[1].gathered().T).sum(axis=0)
    of_both = zip(*(flows(each, Basis(6, COSTS, 4)) for each in (plan, without)), strict=True)
    for rank, both in enumerate(of_both):
        own, others = (sum(each.nbytes for each in flow if isinstance(each, Send)) for flow in both)
        assert own - others == gathered[rank] + 2 * (5 + 5 + 2 * 5) * 8


def test_stages_compute_one_after_the_other():
    plan = make_plan([Dense(8) for _ in range(3)], (8,), 3, batch=4, stages=3, costs=COSTS)
    uncut = make_plan([Dense(8) for _ in range(3)], (8,), 1, batch=4, costs=COSTS)
    cut = ReplicaCut.of(plan, uncut, Basis(4, COSTS, 4))
    # But gradients of weights, each an eighth of the work, are computed while earlier stages go on.
    assert seconds_of_a_gradient(Times(Constant(cut.whole), cut=cut)) == pytest.approx(cut.whole * 6 / 8)


def test_ranks_of_cut_replicas_draw_their_own_durations():
    times = replace(planned(LAYERS, SHAPE, 2, BATCH), compute=Exponential(1.0))
    without = replace(times, cut=ReplicaCut.busy(make_plan(LAYERS, SHAPE, 2, batch=BATCH), 1.0, 1.0))
    longest = max(np.random.default_rng(0).spawn(2)[0].exponential(1.0, 2))
    assert seconds_of_a_gradient(without) == pytest.approx(longest)
    assert seconds_of_a_gradient(times) < seconds_of_a_gradient(without)


def test_messages_between_ranks_share_cards_with_pushes():
    """While rank 0 sends 3 units of 4 samples to rank 1, its part of a push passes its card."""
    times = planned(LAYERS, SHAPE, 2, BATCH, bandwidth=10.0)
    environment = simpy.Environment()
    machines = Machines(environment, times, 0, replicas=1, servers=1)
    computed = machines.compute(0)
    first = 2 * 4 * 3 * BATCH / 1000

    def push():
        yield environment.timeout(first)
        yield from machines.push(0, 0, 2 * 4 * 3 * BATCH)

    environment.process(push())
    environment.run(computed)
    # The ranks hold as much, push as much as they send, and so send half as fast.
    assert times.cut.parts == [0.5, 0.5]
    assert environment.now == pytest.approx(by_hand(10.0, 0.0) + 4 * 3 * BATCH / 10)


@given(st.lists(st.floats(0, 1), min_size=1, max_size=5), st.integers(1, 9))
def test_shares_of_shards_are_those_of_ranges(stops, servers):
    cut = ReplicaCut((*sorted(stops)[:-1], 1.0))
    shares = cut.shares(servers)
    held = np.zeros(cut.partitions)
    for own in shares:
        assert sum(share for _, share in own) == pytest.approx(1)
        for rank, share in own:
            held[rank] += share / servers
    assert held == pytest.approx(cut.parts, abs=1e-9)


@given(st.integers(1, 300))
def test_an_uncut_replica_has_all_of_each_shard(servers):
    assert UNCUT.shares(servers) == [[(0, 1.0)]] * servers


def test_a_rank_exchanges_its_slice_with_the_servers_that_hold_it():
    """Two servers, three ranks with 1/4, 1/4 and 1/2: the first two share the first server's card."""
    environment = simpy.Environment()
    times = Times(bandwidth=10.0, cut=ReplicaCut((0.25, 0.5, 1.0)))
    machines, found = Machines(environment, times, 0, replicas=1, servers=2), {}

    def fetch(server):
        yield from machines.fetch(0, server, 120)
        found[server] = environment.now

    for server in range(2):
        environment.process(fetch(server))
    environment.run()
    assert found == {0: 12.0, 1: 12.0}
    slow = replace(times, cut=ReplicaCut((0.5, 0.5, 1.0)), bandwidth=5.0)
    assert [len(own) for own in slow.cut.shares(2)] == [1, 1]
    assert seconds_of_reduction(UNCUT) == 2 * 3 * 3
    # Four replicas of two ranks, whose halves go from node to node together with the others.
    assert seconds_of_reduction(ReplicaCut((0.5, 1.0))) == 2 * 3 * 1.5


def seconds_of_reduction(cut):
    environment = simpy.Environment()
    machines = Machines(environment, Times(bandwidth=1.0, cut=cut), 0, replicas=4, servers=0)
    environment.run(environment.process(machines.all_reduce(4, 12.0)))
    return environment.now


def test_a_run_with_cut_replicas_has_the_result_of_uncut_ones(least_squares):
    problem = least_squares()
    found = []
    for cut in (UNCUT, ReplicaCut((0.3, 1.0))):
        run = engine(problem, Downpour(), Times(Constant(0.01), bandwidth=1e4, cut=cut), replicas=1)
        totals = run.run()
        found.append((run.parameters(), totals.bytes_pushed, totals.bytes_fetched, totals.pushes))
    assert np.array_equal(found[0][0], found[1][0])
    assert found[0][1:] == found[1][1:]


def test_where_slices_end():
    plan = make_plan([Dense(6, cut="units"), Dense(4, cut="units")], (4,), 2, batch=5)
    assert slice_stops(plan) == (0.5, 1.0)
