"""Which process plays the ranks of one that has died: a pure function of the roles."""

from __future__ import annotations

from collections.abc import Collection, Sequence

from mpidl.topology.roles import Roles


def heir(rank: int, roles: Roles, processes: Sequence[int], alive: Collection[int]) -> int | None:
    """Return the process that takes over a rank; None if there is none that can.

    A server's or the coordinator's rank goes to a standby that has nothing to do, else to the server or standby with
    the fewest ranks, else to the coordinator, which computes nothing, and only then to a worker, where it competes with
    the training. A worker's rank goes to the worker with the fewest ranks. A standby's needs no process.

    Parameters
    ----------
    rank : int
    roles : Roles
    processes : sequence of int
        The process that plays each rank.
    alive : collection of int
        The processes that are alive, each with the number of the rank that it played at first.
    """
    workers = [own for replica in roles.replicas for own in replica]

    def fewest(own: Collection[int]) -> list[int]:
        played = list(processes)
        return sorted((process for process in own if process in alive), key=lambda each: (played.count(each), each))

    if rank in workers:
        return next(iter(fewest(workers)), None)
    if rank != roles.coordinator and rank not in roles.servers:
        return None
    idle = [each for each in fewest(roles.standby) if list(processes).count(each) == 1]
    serving = fewest([*roles.servers, *roles.standby])
    return next(iter([*idle, *serving, *fewest([roles.coordinator]), *fewest(workers)]), None)
