"""Roles: every rank has one, servers spread over nodes, a replica stays on one node where it fits."""

from collections import Counter
from functools import partial
from itertools import chain

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.errors import UsageError
from mpidl.topology.roles import RelayRank, assign, check_number, most_ranks


@st.composite
def worlds(draw):
    servers, partitions, standby = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(0, 3))
    size = 1 + servers + partitions + standby + draw(st.integers(0, 17))
    nodes = draw(st.lists(st.integers(0, 4), min_size=size, max_size=size))
    return nodes, servers, partitions, standby


@given(worlds())
def test_every_rank_has_one_role(world):
    nodes, servers, partitions, standby = world
    roles = assign(*world)
    workers = [rank for replica in roles.replicas for rank in replica]
    assert sorted([0, *roles.servers, *workers, *roles.standby]) == list(range(len(nodes)))
    assert len(roles.servers) == servers
    assert {len(replica) for replica in roles.replicas} == {partitions}
    assert list(roles.replicas) == sorted(roles.replicas, key=min)
    assert standby <= len(roles.standby) < standby + partitions
    labels = [roles.role(rank) for rank in range(len(nodes))]
    assert len(set(labels)) == len(nodes)
    assert labels[0] == "coordinator"


@given(worlds())
def test_servers_spread_over_nodes(world):
    nodes, *_ = world
    roles = assign(*world)
    room = Counter(nodes[1:])
    placed = Counter(nodes[rank] for rank in roles.servers)
    for node in room:
        for other in room:
            assert placed[other] <= placed[node] + 1 or placed[node] == room[node]


@given(worlds())
def test_as_many_replicas_stay_on_one_node_as_fit(world):
    nodes, _, partitions, _ = world
    roles = assign(*world)
    room = Counter(nodes)
    room.subtract([nodes[0], *(nodes[rank] for rank in roles.servers)])
    fit = sum(left // partitions for left in room.values())
    whole = sum(len({nodes[rank] for rank in replica}) == 1 for replica in roles.replicas)
    assert whole == min(fit, len(roles.replicas))


@given(worlds(), st.permutations(range(5)))
def test_the_names_of_nodes_do_not_matter(world, names):
    nodes, *rest = world
    assert assign([f"node{names[node]}" for node in nodes], *rest) == assign(*world)


def test_one_node():
    roles = assign(["a"] * 5, servers=2)
    labels = [roles.role(rank) for rank in range(5)]
    assert labels == ["coordinator", "server 0", "server 1", "worker 0", "worker 1"]


def test_two_nodes():
    roles = assign(["a"] * 4 + ["b"] * 4, servers=2, partitions=2, standby=1)
    assert roles.servers == (4, 1)
    assert roles.replicas == ((2, 3), (5, 6))
    assert roles.standby == (7,)
    assert roles.role(6) == "worker 1, partition 1 of 2"
    assert roles.role(7) == "standby 0"


def test_nodes_that_have_not_all_servers_have_relays():
    roles = assign(["a"] * 4 + ["b"] * 3, servers=1, relay=True)
    assert roles.servers == (1,)
    assert roles.relays == (RelayRank(4, (5, 6)),)
    assert roles.replicas == ((2,), (3,), (5,), (6,))
    assert roles.pushers() == [2, 3, 4, 4]
    assert roles.fetchers() == [2, 3, 4]
    assert [roles.role(rank) for rank in (4, 5)] == ["relay 0", "worker 2"]
    assert roles.relay_of(3) is None
    assert roles.relay_of(6) == roles.relays[0]
    both = assign(["a"] * 5 + ["b"] * 4, servers=2, relay=True)
    assert both.relays == (RelayRank(2, (3, 4)), RelayRank(6, (7, 8)))
    assert both.pushers() == [2, 6, 2, 6]
    assert both.fetchers() == [2, 6]


def test_a_relay_is_for_whole_replicas_of_its_node():
    roles = assign(["a"] * 7 + ["b"] * 6, servers=1, partitions=2, relay=True)
    assert roles.replicas == ((2, 3), (4, 5), (6, 12), (8, 9), (10, 11))
    assert roles.relays == (RelayRank(7, (8, 9, 10, 11)),)
    assert [roles.pushers(partition) for partition in range(2)] == [[2, 4, 6, 7, 7], [3, 5, 12, 7, 7]]
    assert assign(["a"] * 7 + ["b"] * 4, servers=1, partitions=2, relay=True).relays == ()


def test_relays_are_where_they_save_something():
    assert assign(["a"] * 8, servers=2, relay=True).relays == ()
    assert assign(["a"] * 3 + ["b"] * 3, servers=1, relay=True).relays == ()
    assert assign(["a"] * 8 + ["b"] * 8, servers=0, relay=True).relays == ()


@given(st.lists(st.integers(0, 3), min_size=3, max_size=24), st.integers(1, 3), st.integers(1, 3))
def test_every_rank_has_one_role_beside_relays(nodes, servers, partitions):
    if len(nodes) < 1 + servers + partitions:
        return
    roles = assign(nodes, servers, partitions, relay=True)
    workers = [rank for replica in roles.replicas for rank in replica]
    relays = [relay.rank for relay in roles.relays]
    assert sorted([0, *roles.servers, *relays, *workers, *roles.standby]) == list(range(len(nodes)))
    assert len(roles.standby) < partitions
    assert len(set(roles.names())) == len(nodes)
    assert roles.servers == assign(nodes, servers).servers
    for relay in roles.relays:
        own = [each for each in roles.replicas if {nodes[rank] for rank in each} == {nodes[relay.rank]}]
        assert relay.workers == tuple(rank for each in own for rank in each)
        assert len(own) >= 2
        assert not {nodes[rank] for rank in roles.servers} <= {nodes[relay.rank]}
    pushers = [roles.pushers(partition) for partition in range(partitions)]
    assert len(set(map(len, pushers))) == 1
    assert {*workers, *relays} == {*chain(*pushers), *(w for each in roles.relays for w in each.workers)}


@given(st.integers(1, 40), st.integers(0, 5), st.integers(1, 3), st.integers(1, 12))
def test_the_most_ranks_that_make_so_many_replicas(replicas, servers, partitions, of_node):
    def roles(ranks, relay=True):
        return assign([rank // of_node for rank in range(ranks)], servers, partitions, relay=relay)

    least = most_ranks(replicas, servers, partitions, of_node)
    assert (len(roles(least, relay=False).replicas), roles(least, relay=False).standby) == (replicas, ())
    most = most_ranks(replicas, servers, partitions, of_node, partial(assign, relay=True))
    assert (len(roles(most).replicas), roles(most).standby) == (replicas, ())
    assert not any(
        len(roles(ranks).replicas) == replicas and not roles(ranks).standby for ranks in range(most + 1, 2 * most + 1)
    )


def test_a_replica_spans_nodes_when_it_must():
    roles = assign(["a", "a", "b", "b", "c"], servers=1, partitions=3)
    assert roles.servers == (2,)
    assert roles.replicas == ((1, 3, 4),)


def test_no_such_rank():
    with pytest.raises(IndexError, match="rank 3"):
        assign([0, 0, 0], servers=1).role(3)


@pytest.mark.parametrize(
    ("ranks", "topology", "line"),
    [
        (2, (1,), "2 ranks are too few: a coordinator, 1 server and 1 worker need 3"),
        (1, (1,), "1 rank is too few: a coordinator, 1 server and 1 worker need 3"),
        (4, (1, 3), "4 ranks are too few: a coordinator, 1 server and 1 replica of 3 workers need 5"),
        (4, (2, 1, 1), "4 ranks are too few: a coordinator, 2 servers, 1 worker and 1 standby need 5"),
    ],
)
def test_too_few_ranks(ranks, topology, line):
    with pytest.raises(UsageError) as error:
        assign([0] * ranks, *topology)
    assert str(error.value) == f"{line} (or run without mpirun for one process)"


@pytest.mark.parametrize(
    ("ranks", "servers", "line"),
    [
        (5, 1, "5 ranks: a coordinator, 1 server and replicas of 2 workers leave 1 without work, expected 4 or 6"),
        (4, 0, "4 ranks: a coordinator and replicas of 2 workers leave 1 without work, expected 3 or 5"),
    ],
)
def test_ranks_that_no_replica_needs(ranks, servers, line):
    with pytest.raises(UsageError) as error:
        check_number(ranks, servers, partitions=2)
    assert str(error.value) == f"{line} ranks"
    for more in (1, 3):
        check_number(ranks + more, servers, partitions=2)
