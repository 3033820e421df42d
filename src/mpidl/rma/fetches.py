"""A worker's fetches: of the shards of its slice and their clocks."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

import numpy as np

from mpidl.rma.differences import DifferenceFetch, take_answers
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.verbs import RemoteMemory
from mpidl.shards.state import PARAMETERS
from mpidl.transport.protocol import ShardClock
from mpidl.transport.routes import Holder, Route


class Fetches:
    """Reads parameters and clocks from where a worker's route leads.

    For each shard of the worker's slice, `servers` has the server itself, and `parts` the place in the slice.
    `differences` has the shards whose fetches are encoded, by their numbers in the slice. A fetch also asks how far
    earlier `pushes` have come. `evaluated` is the name of the vector that evaluations read.
    """

    def __init__(
        self,
        window: RemoteMemory,
        route: Route,
        servers: Sequence[Holder],
        parts: Sequence[slice],
        pushes: Outboxes,
        differences: Mapping[int, DifferenceFetch],
        evaluated: str = PARAMETERS,
    ) -> None:
        self._holders, self._parts = route.holders, parts
        self._pushes, self._differences = pushes, differences
        self._reader = ShardReader(window, route.holders, parts)
        self._servers_reader = ShardReader(window, servers, parts, evaluated)
        deferred = [window.to(rank).supports_deferred_get for rank, _ in route.holders]
        self._can_be_followed = np.flatnonzero(deferred).tolist() if route.direct else []
        self._followed: list[int] = []
        self._before = np.zeros((0, len(ShardClock)), np.int64)
        self._after, self._present = np.zeros((2, len(parts), len(ShardClock)), np.int64)

    @property
    def encoded(self) -> Collection[int]:
        """Numbers of the shards, from 0, whose fetches are encoded."""
        return self._differences.keys()

    @property
    def bytes(self) -> int:
        """Bytes of values that have arrived as differences."""
        return sum(each.bytes for each in self._differences.values())

    def all_newer(self, clocks: np.ndarray) -> bool:
        """Return whether all shards have been updated since their `clocks` were read.

        Call it with the same clocks until it returns True.
        """
        return self._reader.all_newer(clocks)

    def all_behind(self, clocks: np.ndarray, by: Callable[[int], int]) -> bool:
        """Return whether all shards have been updated since their `clocks` were read, as often as `by` says for each.

        Unlike `all_newer` it waits for an answer of each server, and nothing is under way after it.
        """
        self._reader.start_clocks(self._present)
        self._reader.finish()
        before, present = (each[:, ShardClock.CLOCK].tolist() for each in (clocks, self._present))
        return all(now - then >= by(then) for now, then in zip(present, before, strict=True))

    def start(self, parameters: Any, clocks: np.ndarray, without: Sequence[int] = ()) -> None:
        """Start reading all shards but some into a vector, and before each its `protocol.ShardClock` into `clocks`.

        `clocks` is an int64 array (shards, len(ShardClock)). Shards that are `encoded` are not read: their servers are
        asked for differences.
        """
        self._reader.start_clocks(clocks, without)
        self._pushes.start_asking()
        self._reader.start(parameters, {*without, *self._differences})
        for number, fetch in self._differences.items():
            if number not in without:
                fetch.ask()

    def take_differences(self) -> bool:
        """Update this worker's copies of encoded shards with the answers so far; return whether all have come."""
        return take_answers(self._differences.values())

    def finish(self) -> None:
        """Wait until a started fetch has arrived."""
        self._reader.finish()

    def read_present(self, parameters: Any) -> None:
        """Read what is evaluated from the servers themselves, as it is now and not encoded, and wait for it."""
        self._servers_reader.start(parameters)
        self._servers_reader.finish()

    @property
    def can_follow(self) -> bool:
        """Whether there is a server that supports `follow`."""
        return bool(self._can_be_followed)

    def follow(self, parameters: Any, clocks: np.ndarray) -> Sequence[int]:
        """Start a fetch behind the push that was sent last, of each part as soon as the push has been applied to it.

        Returns the numbers of the shards whose servers support that. Where fetches are encoded, the parameters are left
        alone, and the servers asked for differences.
        """
        self._before, self._followed = clocks, list(self._can_be_followed)
        for number in self._followed:
            encoded, shard = number in self._differences, self._holders[number].shard
            part = None if encoded else parameters[self._parts[number]]
            self._pushes[number].follow(part, clocks[number], self._after[number], regions(shard))
            if encoded:
                self._differences[number].ask()
        return self._followed

    def finish_following(self) -> None:
        """Wait until what `follow` started has arrived.

        The push itself is in the parameters, and counts in their clocks, as one update.
        """
        followed, before = self._followed, self._before
        for number in followed:
            self._pushes[number].followed()
        # The push ended after the first reading, or both readings have it.
        after = self._after[followed]
        clock, cut = ShardClock.CLOCK, ShardClock.CUT
        before[followed, clock] = np.minimum(before[followed, clock] + 1, after[:, clock])
        before[followed, cut] = after[:, cut]


def regions(shard: int, vector: str = PARAMETERS) -> tuple[str, str]:
    """Return the names of the window regions of a shard's vector, by default the parameters, and of its clock."""
    return f"{vector}/{shard}", f"clock/{shard}"


class ShardReader:
    """Reads a vector of all shards of a slice, side by side. `parts` has the place of each shard in the slice."""

    def __init__(
        self, window: RemoteMemory, holders: Sequence[Holder], parts: Sequence[slice], vector: str = PARAMETERS
    ) -> None:
        self._holders, self._parts = holders, parts
        self._regions = [regions(holder.shard, vector) for holder in holders]
        self._windows = {holder.rank: window.to(holder.rank) for holder in holders}
        # Return whether shards that `all_newer` waits for have been updated.
        self._awaited: list[Callable[[], bool]] = []

    def start_clocks(self, clocks: np.ndarray, without: Collection[int] = ()) -> None:
        """Start reading the `protocol.ShardClock` of all shards but some into an int64 array, a row for each."""
        for number, (rank, _) in enumerate(self._holders):
            if number not in without:
                self._windows[rank].get(clocks[number], rank, self._regions[number][1])

    def all_newer(self, clocks: np.ndarray) -> bool:
        """Return whether all shards have been updated since these clocks were read; call it until it returns True."""
        if not self._awaited:
            known = clocks[:, ShardClock.CLOCK].tolist()
            self._awaited = [
                self._windows[holder.rank].watch(holder.rank, region, ShardClock.CLOCK, clock + 1)
                for holder, (_, region), clock in zip(self._holders, self._regions, known, strict=True)
            ]
        while self._awaited and self._awaited[-1]():
            self._awaited.pop()
        return not self._awaited

    def start(self, parameters: Any, without: Collection[int] = ()) -> None:
        """Start reading all shards but some into a vector, after earlier reads."""
        for rank, window in self._windows.items():
            window.fence(rank)
        for number, (rank, _) in enumerate(self._holders):
            if number not in without:
                self._windows[rank].get(parameters[self._parts[number]], rank, self._regions[number][0])

    def finish(self) -> None:
        """Wait until all reads have arrived."""
        for rank, window in self._windows.items():
            window.flush(rank)


#: Plain integers, which index arrays faster than an enumeration's.
CLOCK, CUT = int(ShardClock.CLOCK), int(ShardClock.CUT)


class ShownShards:
    """All shards in a rank's memory, where others read them as they do at servers.

    `parts` has the place of each shard in the flat vector.
    """

    def __init__(self, window: RemoteMemory, parts: Sequence[slice]) -> None:
        self._window, self._parts = window, parts
        names = [regions(shard) for shard in range(len(parts))]
        self._values = [window.local(values) for values, _ in names]
        self._clocks = [window.local(clock) for _, clock in names]

    def show(self, parameters: np.ndarray, clocks: np.ndarray) -> None:
        """Show the whole vector, and each shard's `protocol.ShardClock`, a row of `clocks`.

        A reader that sees a clock finds the parameters of that clock, or later ones.
        """
        for shown, row in zip(self._clocks, clocks, strict=True):
            shown[CUT] = row[CUT]
        self._window.sync()
        for values, part in zip(self._values, self._parts, strict=True):
            np.copyto(values, parameters[part])
        self._window.sync()
        for shown, row in zip(self._clocks, clocks, strict=True):
            shown[CLOCK] = row[CLOCK]
        self._window.sync()
