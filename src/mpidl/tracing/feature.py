"""What a job needs to keep the spans of its ranks."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

import numpy as np

from mpidl.launch.output import say
from mpidl.tracing.activities import Applications, Line, TracedActivity
from mpidl.tracing.files import RankSpans, remove, write
from mpidl.tracing.spans import KINDS, Ring, around

if TYPE_CHECKING:
    from mpidl.rma.transport import Transport
    from mpidl.roles.role import Role
    from mpidl.topology.roles import Roles


class Ranks(Protocol):
    """The ranks of a job: `nodes` has for each the lowest rank of its node."""

    comm: Any
    nodes: list[int]
    roles: Roles


RECOVER = KINDS.index("recover")


class Untraced:
    """Keeps no spans of a process's ranks."""

    def follow(self, role: Role, transport: Transport) -> None:
        """Keep the spans of a role that is bound to a transport, before it runs."""

    @contextmanager
    def recovering(self, rank: int) -> Iterator[None]:
        """Keep a span for the time in which this process takes over a rank."""
        yield

    def end(self, together: bool) -> None:
        """Write the spans into the run's directory; collective if `together`."""


class Traced(Untraced):
    """Keeps the spans of the ranks that a process plays, and compares the clocks of hosts; made collectively.

    `directory` is the run's, and `kept` the key ``run.trace``.
    """

    def __init__(self, world: Ranks, directory: Path, kept: bool | float) -> None:
        self._world, self._directory, self._kept = world, directory, kept
        self._clocks = [compare(world.comm, world.nodes)]
        self._rings: dict[int, Ring] = {}
        self._applications: list[Applications] = []

    def follow(self, role: Role, transport: Transport) -> None:
        rank, roles, capacity = transport.rank, transport.roles, transport.capacity
        ring = self._rings.setdefault(rank, Ring())
        if role.status is not None:
            partition = transport.workers.index(rank) % transport.partitions if rank in transport.workers else 0
            line = Line(ring, rank, role.status.row["pushes"], capacity.of_partition(partition))
            role.status.use(partial(TracedActivity, line))
        for served in role.served:
            partition = next(
                each for each in range(transport.partitions) if served.number in capacity.of_partition(each)
            )
            pushers = [-1 if each in roles.intermediaries else each for each in roles.pushers(partition)]
            traced = Applications(ring, served, pushers)
            self._applications.append(traced)

    @contextmanager
    def recovering(self, rank: int) -> Iterator[None]:
        began, since = time.perf_counter(), time.thread_time()
        yield
        ring = self._rings.setdefault(rank, Ring())
        ring.write(RECOVER, began, time.perf_counter(), time.thread_time() - since)

    def end(self, together: bool) -> None:
        comm, roles = self._world.comm, self._world.roles
        if together:
            self._clocks.append(compare(comm, self._world.nodes))
        for each in self._applications:
            each.flush()
        for rank in {comm.rank, *self._rings}:
            place, ring = (rank, roles.role(rank), roles.hosts[rank]), self._rings.get(rank)
            save(self._directory, place, ring, self._kept, self._clocks, comm.rank)


def save(
    directory: Path, place: tuple[int, str, str], ring: Ring | None, kept: bool | float,
    clocks: Sequence[ClockOffset] = (), process: int | None = None,
) -> bool:  # fmt: skip
    """Write the spans of a rank into a run's directory as ``run.trace`` says; if that fails, say so and return False.

    `place` is the rank, its role and its host. `clocks` compare its clock with that of the first rank, by default the
    same one; `process` is the rank that has played it in the end.
    """
    ring = Ring(0, 0) if ring is None else ring
    spans = ring.spans()
    for name in ("start", "end") if clocks else ():
        spans[name] = aligned(spans[name], clocks)
    spans = spans if kept is True else around(spans, kept)
    error = max((each.error for each in clocks), default=0.0)
    try:
        write(directory, RankSpans(*place, spans, error, ring.dropped), process)
    except OSError as cause:
        say(f"rank {place[0]} ({place[1]}): its timeline can't be written: {cause.strerror or cause}")
        return False
    return True


def begin(world: Ranks, directory: Path, kept: bool | float) -> Untraced:
    """Return what keeps the spans of this process's ranks, if ``run.trace`` asks for that; collective.

    Those of an earlier part of the run are removed from its directory.
    """
    if not kept:
        return Untraced()
    if world.comm.rank == world.roles.coordinator:
        remove(directory)
    return Traced(world, directory, kept)


#: Messages to each host, of which the fastest counts.
TRIES = 16
TAG = 4747


class ClockOffset(NamedTuple):
    """A comparison of two clocks.

    At the time `at` of this host's clock, the other one was ahead by `offset`, give or take `error`, in seconds.
    """

    at: float
    offset: float
    error: float


def compare(comm: Any, nodes: Sequence[int]) -> ClockOffset:
    """Compare the clock of this rank's host with that of the first rank's; collective.

    `nodes` has for each rank the lowest rank of its node, which has one clock.
    """
    own = ClockOffset(time.perf_counter(), 0.0, 0.0)
    others = sorted(set(nodes) - {nodes[0]})
    if not others:
        return own
    word = np.zeros(1)
    for rank in others:
        if comm.rank == 0:
            for _ in range(TRIES):
                comm.Recv(word, source=rank, tag=TAG)
                word[0] = time.perf_counter()
                comm.Send(word, dest=rank, tag=TAG)
        elif comm.rank == rank:
            own = min([_round_trip(comm, word) for _ in range(TRIES)], key=lambda each: each.error)
    found: ClockOffset = comm.allgather(own)[nodes[comm.rank]]
    return found


def _round_trip(comm: Any, word: np.ndarray) -> ClockOffset:
    sent = time.perf_counter()
    comm.Send(word, dest=0, tag=TAG)
    comm.Recv(word, source=0, tag=TAG)
    arrived = time.perf_counter()
    middle = (sent + arrived) / 2
    return ClockOffset(middle, float(word[0]) - middle, (arrived - sent) / 2)


def aligned(times: np.ndarray, comparisons: Sequence[ClockOffset]) -> np.ndarray:
    """Return times of this host's clock as those of the other one: offsets change linearly between comparisons."""
    offsets = [each.offset for each in comparisons]
    if len(comparisons) == 1:
        return times + offsets[0]
    (first, last), (before, after) = (comparisons[0].at, comparisons[-1].at), (offsets[0], offsets[-1])
    return times + before + (after - before) / max(last - first, 1e-9) * (times - first)
