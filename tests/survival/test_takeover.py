"""Which process plays the ranks of those that have died."""

from hypothesis import given
from hypothesis import strategies as st

from mpidl.survival.takeover import heir
from mpidl.topology.roles import assign


def take_over(roles, deaths):
    """Return the process that plays each rank after deaths, one after the other; None if one can't be played."""
    processes = list(range(len(roles.names())))
    alive = set(processes)
    for dead in deaths:
        alive.discard(dead)
        for rank, process in enumerate(processes):
            if process == dead and rank not in roles.standby:
                found = heir(rank, roles, processes, alive)
                if found is None:
                    return None
                processes[rank] = found
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
