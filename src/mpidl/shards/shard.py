"""A shard: one range of the parameters, the policy for the pushes to it, and snapshots of it between pushes."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from copy import copy
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.shards.policies import Policy
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.side_state import SideState
from mpidl.shards.state import PARAMETERS, PushHeader, ShardState, prefixed, selected

#: Bytes of a chunk: it stays in a server's cache between arrival and update.
CHUNK_BYTES = 1 << 20


#: In the place of the clock at a fetch: the push isn't of this shard, and changes nothing of it.
ABSENT = int(np.iinfo(np.int64).min)


def outside(parts: Sequence[Range], shards: Iterable[Range]) -> list[int]:
    """Return the numbers of the shards that are outside of some parts of a vector; none if there are no parts."""
    found = enumerate(shards if parts else ())
    return [number for number, shard in found if all(part.intersect(shard) is None for part in parts)]


class Shard(ShardState):
    """One range of the parameters, its state, and its own instance of the policy for the pushes to it.

    `side_state` is what pushes change besides the parameters, if anything.
    """

    side_state: SideState | None = None

    def __init__(
        self,
        range: Range,
        parameters: Any,
        rule: ScheduledRule,
        policy: Policy,
        chunk: int,
        *,
        state: Mapping[str, Any] | None = None,
        clock: int = 0,
    ) -> None:
        super().__init__(range, parameters, rule, chunk, state=state, clock=clock)
        self.policy = policy
        self._sum = np.empty(min(chunk, range.size), parameters.dtype)
        policy.attach(self)

    def state(self) -> dict[str, Any]:
        """Return `ShardState.state`, and the policy's as "policy/NAME"."""
        return super().state() | prefixed("policy", self.policy.state())

    def load(self, state: Mapping[str, Any]) -> None:
        super().load(state)
        self.policy.load(selected("policy", state))

    def copy(self) -> Shard:
        """Return another shard in the same state, with memory of its own."""
        vectors = {name: np.empty_like(vector) for name, vector in self.vectors.items()}
        parameters = vectors.pop(PARAMETERS)
        twin = Shard(self.range, parameters, self.scheduled_rule, copy(self.policy), self._chunk_size, state=vectors)
        twin.load(self.state())
        twin.side_state = None if self.side_state is None else self.side_state.copy()
        return twin

    def become(self, other: Shard) -> None:
        """Take over the state of a copy, or of the shard that this one is a copy of, with its side state."""
        self.load(other.state())
        if self.side_state is not None:
            self.side_state.load(other.side_state)

    def on_host(self) -> dict[str, np.ndarray]:
        """Return `state` in the host's memory; not a copy if it is there already."""
        return self.state()

    def saved(self, on_host: dict[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Return what a checkpoint has of the shard: its `on_host`, with the arrays of its side state."""
        return on_host | ({} if self.side_state is None else dict(self.side_state.arrays()))

    def bring(self, values: np.ndarray) -> Any:
        """Return `values` from the host's memory on the device of the shard's vectors; valid until the next call."""
        return values

    def publish(self) -> None:
        """Make changes of the parameters other than by pushes visible to others."""

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: Any | None, batches: tuple[int, int] = (-1, -1)
    ) -> bool:
        """Handle one chunk of a push, and return whether it completed the push.

        Parameters
        ----------
        worker : int
            Number of the worker.
        chunk : int
            Number of the chunk. The last chunk opens the push, chunk 0 completes it.
        fetched : int
            This shard's clock at the worker's fetch, or `ABSENT`.
        values : array, shape (chunk's size,), or (2, chunk's size) if the policy compares; or None
            None if they are lost: then the push goes on without this chunk.
        batches : (int, int)
            The numbers of the first and the last minibatch that the push was computed on.
        """
        if fetched == ABSENT:
            return chunk == 0
        staleness = self.clock - fetched
        if chunk == self.chunks - 1:
            self.begun += staleness <= self.policy.bound
            self.open[worker] = PushHeader(worker, self.begun, fetched, staleness, batches)
        push = self.open[worker]
        self.batch = push.batches[1]
        accepted = push.staleness <= self.policy.bound
        if accepted and values is not None:
            if self.policy.adds_up:
                values = self._damping.damped(chunk, values, push.staleness)
            self.policy.apply_chunk(self, chunk, values, push)
            self.settle()
        elif accepted and self._tensors is not None:
            self._tensors.count(chunk)
        if chunk:
            return False
        del self.open[worker]
        self.pushes += 1
        self.staleness.add(staleness)
        dropped = self.dropped
        if accepted:
            self.policy.end_push(self, push)
        else:
            self.drop(push)
        if self.side_state is not None:
            self.side_state.end_push(self, self.policy, push, self.dropped > dropped)
        return True

    def reopen(self, push: PushHeader, chunk: int) -> None:
        """Go on with a push of which another process has received the chunks down to number `chunk`."""
        self.open[push.worker] = push
        if self._tensors is not None and push.staleness <= self.policy.bound:
            self._tensors.reopen(chunk)

    def receive_push(self, worker: int, fetched: int, values: Any, batches: tuple[int, int] = (-1, -1)) -> None:
        """Handle a whole push; `values` has shape (range.size,), or (2, range.size) if the policy compares."""
        for chunk in reversed(range(self.chunks)):
            self.receive_chunk(worker, chunk, fetched, values[..., self._slices[chunk]], batches)

    def receive_sum(
        self,
        parts: Sequence[np.ndarray] | np.ndarray,
        weights: Sequence[float] | None,
        batches: tuple[int, int] = (-1, -1),
    ) -> None:
        """Handle the sum of several vectors as one push of worker 0 with staleness 0.

        The parts, (range.size,) each and in the host's memory, are added in order, and not changed. With weights, their
        mean takes the place of the sum. They were computed on `batches`, the first and the last.
        """
        fetched, equal = self.clock, weights is None or len(set(weights)) == 1
        for chunk in reversed(range(self.chunks)):
            pieces = [part[self._slices[chunk]] for part in parts]
            out = self._sum[: pieces[0].size]
            if weights is None or equal:
                total = pieces[0]
                for part in pieces[1:]:
                    total = np.add(total, part, out=out)
                if weights is not None:
                    total = np.divide(total, len(parts), out=out)
            else:
                total = self._weighted(pieces, weights, out)
            self.receive_chunk(0, chunk, fetched, total, batches)

    def _weighted(self, pieces: Sequence[np.ndarray], weights: Sequence[float], out: np.ndarray) -> np.ndarray:
        """Write the weighted mean of pieces into `out`, and return it."""
        whole, scaled = fsum(weights), self._scaled[: out.size]
        np.multiply(pieces[0], weights[0] / whole, out=out)
        for piece, weight in zip(pieces[1:], weights[1:], strict=True):
            np.add(out, np.multiply(piece, weight / whole, out=scaled), out=out)
        return out

    @cached_property
    def _scaled(self) -> np.ndarray:
        return np.empty_like(self._sum)

    def pass_time(self, now: float) -> float:
        """Let the policy handle the passage of time, and return when the next call is due."""
        due = self.policy.pass_time(self, now)
        self._settle_all()
        return due

    def remove_worker(self, worker: int) -> None:
        """Expect no more pushes of a worker."""
        self.policy.remove_worker(self, worker)
        self._settle_all()
        self.end_side_state(worker)

    def end_side_state(self, worker: int) -> None:
        """Apply what a worker has sent for `side_state` since its last push."""
        if self.side_state is not None:
            self.side_state.end_worker(self, self.policy, worker)

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a new worker."""
        self.policy.add_worker(worker)

    def apply_rest(self) -> None:
        """Apply all gradients that the policy has gathered; no more pushes follow."""
        self.policy.apply_rest(self)
        self.settle()
        if self.side_state is not None:
            self.side_state.apply_rest(self, self.policy)

    def _settle_all(self) -> None:
        self.settle()
        if self.side_state is not None:
            self.side_state.settle(self, self.policy)


class Snapshot:
    """A copy of a shard with each worker's pushes up to the worker's mark and none after it.

    The copy is taken at the first mark (K. M. Chandy, L. Lamport 1985, Distributed snapshots: determining global states
    of distributed systems). What other workers push before their marks is applied to the shard and to the copy. The
    copy's time stands still until all have marked, and then runs out: steps with enough pushes are over in the copies
    of all shards, whenever they end on the shards. `clock` is the shard's when the copy was taken.
    """

    def __init__(self, shard: Shard) -> None:
        self._shard = shard
        self._awaited: set[int] = set()
        # Kept for the next snapshot: allocating this memory takes longer than filling it.
        self._copy: Shard | None = None

    @property
    def copy(self) -> Shard:
        """The copy that was taken last."""
        assert self._copy is not None, "no snapshot has begun"
        return self._copy

    @property
    def complete(self) -> bool:
        """Whether every worker has made its mark."""
        return not self._awaited

    def begin(self, workers: Iterable[int]) -> None:
        """Copy the shard, and await the marks of workers; an incomplete copy is abandoned."""
        self._awaited, self.clock = set(workers), self._shard.clock
        if self._copy is None:
            self._copy = self._shard.copy()
        else:
            self._copy.become(self._shard)
        self._end_if_complete()

    def mark(self, worker: int) -> None:
        """Accept no more pushes of a worker."""
        if worker in self._awaited:
            self._awaited.discard(worker)
            self._end_if_complete()

    def mark_all(self) -> set[int]:
        """Accept no more pushes; return the workers that had not made their marks."""
        missing = self._awaited.copy()
        for worker in missing:
            self.mark(worker)
        return missing

    def _end_if_complete(self) -> None:
        if self.complete:
            self.copy.pass_time(math.inf)

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: np.ndarray, batches: tuple[int, int]
    ) -> None:
        """Apply a chunk that the shard has received to the copy, if the worker has not made its mark."""
        if worker in self._awaited:
            self.copy.receive_chunk(worker, chunk, fetched, values, batches)

    def end(self, worker: int) -> None:
        """Accept no more pushes of a worker; side data sent since its last one are part of the copy."""
        if worker in self._awaited:
            self.copy.end_side_state(worker)
            self.mark(worker)

    def receive_side_data(self, worker: int, values: Any) -> None:
        """Give the copy what the next push has for `Shard.side_state`, if the worker has not made its mark."""
        if worker in self._awaited and self.copy.side_state is not None:
            self.copy.side_state.receive(worker, values)
