"""A shard: one range of the parameters, and the policy that acts on the pushes to it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from copy import copy
from functools import cached_property
from math import fsum
from typing import Any

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.shards.operations import PARAMETERS
from mpidl.shards.policies import Policy
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.state import PushHeader, ShardState, prefixed, selected

#: Bytes of a chunk: it stays in a server's cache between arrival and update.
CHUNK_BYTES = 512 * 1024


class Shard(ShardState):
    """One range of the parameters, its state, and the policy that acts on the pushes to it.

    Parameters
    ----------
    range, parameters, rule, chunk, state, clock
        See `ShardState`.
    policy : Policy
        An instance of the shard's own.
    """

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
        twin = Shard(self.range, parameters, self.scheduled_rule, copy(self.policy), self.chunk_size, state=vectors)
        twin.load(self.state())
        return twin

    def on_host(self) -> dict[str, np.ndarray]:
        """Return `state` in the host's memory; not a copy where it lies there."""
        return self.state()

    def bring(self, values: np.ndarray) -> Any:
        """Return `values`, an array of the host's, where the shard's vectors lie; valid until the next call."""
        return values

    def publish(self) -> None:
        """Show others the parameters after anything but a push has changed them."""

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: Any, portions: tuple[int, int] = (-1, -1)
    ) -> bool:
        """Act on one chunk of a push. A worker's chunks arrive from the last to the first.

        Parameters
        ----------
        worker : int
            Number of the worker.
        chunk : int
            Number of the chunk. The last chunk opens the push, chunk 0 completes it.
        fetched : int
            The clock of this shard when the worker fetched what it computed the gradient on.
        values : array, shape (chunk's size,), or (2, chunk's size) if the policy compares
        portions : (int, int)
            The first and the last portion that the push was computed on.

        Returns
        -------
        bool
            Whether this completed the push.
        """
        if chunk == self.chunks - 1:
            staleness = self.clock - fetched
            self.begun += self.policy.takes(staleness)
            self._open[worker] = PushHeader(worker, self.begun, fetched, staleness, portions)
        push = self._open[worker]
        self.portion = push.portions[1]
        if self.policy.adds_up:
            values = self._damping.damped(chunk, values, push.staleness)
        if chunk:
            self.policy.apply_chunk(self, chunk, values, push)
            return False
        staleness = self.clock - fetched
        self.policy.apply_chunk(self, chunk, values, push)
        del self._open[worker]
        self.pushes += 1
        self.staleness.add(staleness)
        self.policy.end_push(self, push)
        return True

    def receive_push(self, worker: int, fetched: int, values: Any, portions: tuple[int, int] = (-1, -1)) -> None:
        """Act on a whole push; `values` has shape (range.size,), or (2, range.size) if the policy compares."""
        for chunk in reversed(range(self.chunks)):
            self.receive_chunk(worker, chunk, fetched, values[..., self._slices[chunk]], portions)

    def receive_sum(
        self,
        parts: Sequence[np.ndarray] | np.ndarray,
        weights: Sequence[float] | None,
        portions: tuple[int, int] = (-1, -1),
    ) -> None:
        """Act on the sum of several vectors as on one push of worker 0 that was fetched at the present clock.

        Parameters
        ----------
        parts : sequence of array (range.size,), or array (n, range.size)
            At least one vector in the host's memory. They are summed in their order and stay as they are.
        weights : sequence of float, or None
            What each part counts in their mean, which is taken then; None: they are summed.
        portions : (int, int)
            The first and the last portion that the parts were computed on.
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
            self.receive_chunk(0, chunk, fetched, total, portions)

    def _weighted(self, pieces: Sequence[np.ndarray], weights: Sequence[float], out: np.ndarray) -> np.ndarray:
        """Write the mean of pieces, which count differently, into `out`, and return it."""
        whole, scaled = fsum(weights), self._scaled[: out.size]
        np.multiply(pieces[0], weights[0] / whole, out=out)
        for piece, weight in zip(pieces[1:], weights[1:], strict=True):
            np.add(out, np.multiply(piece, weight / whole, out=scaled), out=out)
        return out

    @cached_property
    def _scaled(self) -> np.ndarray:
        return np.empty_like(self._sum)

    def look(self, now: float) -> float:
        """Let the policy act on the time, and return when the next call is due; see `Policy.look`."""
        return self.policy.look(self, now)

    def remove_worker(self, worker: int) -> None:
        """Expect no more pushes of a worker."""
        self.policy.remove_worker(self, worker)

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a worker that begins anew."""
        self.policy.add_worker(worker)

    def apply_rest(self) -> None:
        """Apply what the policy has gathered; no more pushes follow."""
        self.policy.apply_rest(self)
