"""Replicas of several virtual ranks: their shares of a gradient's computations and messages, and of the parameters."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Generator, Sequence
from itertools import pairwise
from typing import Any

import simpy
from msgspec import Struct

from mpidl.partition.costs import Basis, plan_seconds
from mpidl.partition.flow import Compute, Flow, Send, flows
from mpidl.partition.plan import Plan


class ReplicaCut(Struct, frozen=True):
    """The division of a model over the ranks of a replica.

    Attributes
    ----------
    stops : tuple of float
        For each rank, the end of its slice of the flat vector, as a fraction of the whole.
    flows : tuple of Flow
        Each rank's work for a gradient.
    whole : float
        Seconds of a gradient of the uncut model at the speeds that `flows` are based on. `Times.compute` relative to
        this makes ranks slower or faster.
    """

    stops: tuple[float, ...]
    flows: tuple[Flow, ...] = ()
    whole: float = 1.0

    @classmethod
    def of(cls, plan: Plan, uncut: Plan, basis: Basis) -> ReplicaCut:
        """Return the cut of a plan; `uncut` is the model's plan for one rank."""
        return cls(slice_stops(plan), tuple(flows(plan, basis)), plan_seconds(uncut, basis))

    @classmethod
    def busy(cls, plan: Plan, seconds: float, whole: float) -> ReplicaCut:
        """Return a cut whose ranks are busy for `seconds`, including their own messages."""
        return cls(slice_stops(plan), ((Compute(seconds),),) * plan.partitions, whole)

    @property
    def partitions(self) -> int:
        """Number of ranks of a replica."""
        return len(self.stops)

    @property
    def parts(self) -> list[float]:
        """Each rank's fraction of the flat vector."""
        return [stop - start for start, stop in pairwise((0.0, *self.stops))]

    def shares(self, servers: int) -> list[list[tuple[int, float]]]:
        """Return for each of `servers` equal shards the ranks that hold parts of it, with their shares of the shard."""
        slices = list(enumerate(pairwise((0.0, *self.stops))))
        found = []
        for server in range(servers):
            first, last = server / servers, (server + 1) / servers
            parts = [(rank, min(stop, last) - max(start, first)) for rank, (start, stop) in slices]
            own = [(rank, part) for rank, part in parts if part > ROUNDING]
            whole = sum(part for _, part in own)
            found.append([(rank, part / whole) for rank, part in own])
        return found


#: Fractions of the vector below this are zero.
ROUNDING = 1e-12
#: A replica of one rank.
UNCUT = ReplicaCut((1.0,))


def slice_stops(plan: Plan) -> tuple[float, ...]:
    """Return the end of each rank's slice of the flat vector, as a fraction of the whole."""
    return tuple(own.stop / max(1, plan.layout.size) for own in plan.slices)


def gradient(
    environment: simpy.Environment,
    flows: Sequence[Flow],
    work: Callable[[int, float], simpy.Event],
    move: Callable[[int, int, float], Generator[simpy.Event, Any, None]],
) -> simpy.Event:
    """Let the ranks of a replica compute a gradient, each by its flow; return an event that occurs at its end.

    `work` returns an event that occurs when a rank has computed for a number of seconds; `move` moves a number of bytes
    from one rank to another.
    """
    arrived: defaultdict[tuple[int, int, int], simpy.Event] = defaultdict(environment.event)

    def carry(source: int, send: Send) -> Generator[simpy.Event, Any, None]:
        yield from move(source, send.to, send.nbytes)
        arrived[source, send.to, send.tag].succeed()

    def live(rank: int, flow: Flow) -> Generator[simpy.Event, Any, None]:
        for each in flow:
            if isinstance(each, Compute):
                yield work(rank, each.seconds)
            elif isinstance(each, Send):
                environment.process(carry(rank, each))
            else:
                yield arrived[each.source, rank, each.tag]

    return environment.all_of([environment.process(live(rank, flow)) for rank, flow in enumerate(flows)])
