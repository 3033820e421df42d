"""Whether other processes can play the ranks of one that dies, and which: a pure function of the roles."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from typing import NamedTuple

from mpidl.topology.roles import Roles


class Fixed(NamedTuple):
    """Why no other process can play a rank, as parts of a line; None where another can. `a | b` prefers causes of `a`.

    Attributes
    ----------
    all, servers, coordinator : str or None
        What prevents it for all ranks, for those of servers, and for the coordinator's.
    """

    all: str | None = None
    servers: str | None = None
    coordinator: str | None = None

    def __or__(self, other: Fixed) -> Fixed:
        return Fixed(*(own or of_other for own, of_other in zip(self, other, strict=True)))

    def cause(self, rank: int, roles: Roles) -> str | None:
        """Return what prevents it for a rank."""
        own = self.coordinator if rank == roles.coordinator else self.servers if rank in roles.servers else None
        return self.all or own

    def lines(self) -> list[str]:
        """Return lines that say which deaths end the run, and why."""
        if self.all is not None:
            return [f"a rank's death ends the run: {self.all}"]
        named = {"the coordinator": self.coordinator, "a server": self.servers}
        return [f"{name}'s death ends the run: {cause}" for name, cause in named.items() if cause is not None]


def successors(
    ranks: Iterable[int], roles: Roles, processes: Sequence[int], alive: Collection[int], fixed: Fixed
) -> dict[int, int] | str:
    """Return the process that takes over each rank, or what prevents it for one of them, as part of a line.

    A server's or the coordinator's rank goes to a standby that has nothing to do, else to the server or standby with
    the fewest ranks, else to the coordinator, which computes nothing, and only then to a worker, where it competes with
    the training. A worker's rank goes to the worker with the fewest ranks. A standby's needs no process.

    Parameters
    ----------
    ranks : iterable of int
        Ranks whose processes have died.
    roles : Roles
    processes : sequence of int
        The process that plays each rank.
    alive : collection of int
        The processes that are alive, each with the number of the rank that it played at first.
    fixed : Fixed
    """
    found, played = dict[int, int](), list(processes)
    for rank in ranks:
        if rank in roles.standby:
            continue
        if (cause := fixed.cause(rank, roles)) is not None:
            return cause
        candidates = _candidates(rank, roles, played, alive)
        if not candidates:
            return f"no process is left to play {roles.role(rank)}"
        found[rank] = played[rank] = candidates[0]
    return found


def _candidates(rank: int, roles: Roles, played: list[int], alive: Collection[int]) -> list[int]:
    """Return the processes that can play a rank, the best first."""

    def fewest(own: Iterable[int]) -> list[int]:
        return sorted((process for process in own if process in alive), key=lambda each: (played.count(each), each))

    workers = fewest(own for replica in roles.replicas for own in replica)
    if rank != roles.coordinator and rank not in roles.servers:
        return workers
    idle = [each for each in fewest(roles.standby) if played.count(each) == 1]
    return [*idle, *fewest([*roles.servers, *roles.standby]), *fewest([roles.coordinator]), *workers]
