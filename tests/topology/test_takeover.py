"""Which process plays the ranks of those that have died, and what prevents it."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from mpidl.topology.roles import assign
from mpidl.topology.takeover import Fixed, successors


def take_over(roles, deaths):
    """Return the process that plays each rank after deaths, one after the other; None if one can't be played."""
    processes = list(range(len(roles.names())))
    alive = set(processes)
    for dead in deaths:
        alive.discard(dead)
        orphans = [rank for rank, process in enumerate(processes) if process == dead]
        found = successors(orphans, roles, processes, alive, Fixed())
        if isinstance(found, str):
            return None
        for rank, process in found.items():
            processes[rank] = process
    return processes


def test_a_standby_comes_first_then_servers_then_the_coordinator_then_workers():
    roles = assign([0] * 8, servers=2, standby=2)
    assert (roles.servers, roles.standby) == ((1, 2), (6, 7))
    deaths = [1, 6, 7, 2, 0]
    played = [take_over(roles, deaths[:count])[:3] for count in range(1 + len(deaths))]
    assert played == [[0, 1, 2], [0, 6, 2], [0, 7, 2], [0, 2, 2], [0, 0, 0], [3, 4, 5]]


def test_a_standby_has_one_rank_before_servers_have_two():
    roles = assign([0] * 7, servers=2, standby=1)
    assert take_over(roles, [1])[1] == 6
    assert take_over(roles, [1, 2])[:3] == [0, 6, 6]
    assert take_over(roles, [1, 0])[:3] == [2, 6, 2]


def test_a_worker_is_followed_by_the_worker_with_the_fewest_ranks():
    roles = assign([0] * 5, servers=1)
    assert take_over(roles, [2])[2] == 3
    assert take_over(roles, [2, 3]) == [0, 1, 4, 4, 4]
    assert take_over(roles, [2, 3, 4]) is None


@given(st.data())
def test_every_rank_is_played_by_a_living_process_that_can(data):
    servers, standby, replicas = (data.draw(st.integers(*bounds)) for bounds in ((1, 3), (0, 2), (1, 4)))
    roles = assign([0] * (1 + servers + standby + replicas), servers, standby=standby)
    everyone = range(len(roles.names()))
    deaths = data.draw(st.lists(st.sampled_from(everyone), unique=True))
    found = take_over(roles, deaths)
    workers = {own for replica in roles.replicas for own in replica}
    assert (found is None) == (workers <= set(deaths))
    if found is not None:
        assert not {process for rank, process in enumerate(found) if rank not in roles.standby} & set(deaths)
        assert all(found[rank] == rank for rank in everyone if rank not in deaths)
        assert all(found[rank] in workers for rank in workers)


@pytest.mark.parametrize(
    ("fixed", "ends"),
    [
        (Fixed(), {}),
        (Fixed(servers="no room"), {1: "no room", 2: "no room"}),
        (Fixed(coordinator="callbacks"), {0: "callbacks"}),
        (Fixed("relays", "no room", "callbacks"), dict.fromkeys(range(5), "relays")),
    ],
)
def test_a_rank_that_is_fixed_has_no_successor(fixed, ends):
    roles = assign([0] * 6, servers=2, standby=1)
    for rank in range(6):
        found = successors([rank], roles, range(6), {*range(6)} - {rank}, fixed)
        assert found == ends[rank] if rank in ends else isinstance(found, dict)
    assert successors([3, 4], roles, range(6), {0, 1, 2, 5}, Fixed()) == "no process is left to play worker 0"
    assert successors([5], roles, range(6), {0, 1, 2, 3, 4}, fixed) == {}


def test_the_first_cause_is_told():
    assert Fixed("relays") | Fixed("tables", "no room") == Fixed("relays", "no room")
    assert (Fixed("relays") | Fixed(servers="no room")).lines() == ["a rank's death ends the run: relays"]
    lines = ["the coordinator's death ends the run: callbacks", "a server's death ends the run: no room"]
    assert Fixed(None, "no room", "callbacks").lines() == lines
