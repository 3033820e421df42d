"""A shard whose vectors lie on a GPU, where pushes are applied to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

import numpy as np

from mpidl.parameters.ranges import Range
from mpidl.rules import Rule
from mpidl.shards.policies import Policy
from mpidl.shards.shard import Shard


class ShardOnDevice(Shard):
    """A `Shard` with CuPy vectors, whose parameters are published in the host's memory, where workers fetch them.

    Parameters
    ----------
    xp
        CuPy.
    range : Range
    parameters : numpy.ndarray, shape (range.size,)
        The first values, and where others see them: what a push changes is there when `receive_chunk` returns.
    rule : Rule or None
    policy : Policy
    chunk : int
    state : mapping of str to numpy.ndarray
        The first values.
    more
        See `Shard`.
    """

    block: ClassVar[int | None] = None

    def __init__(
        self,
        xp: Any,
        range: Range,
        parameters: np.ndarray,
        rule: Rule | None,
        policy: Policy,
        chunk: int,
        state: Mapping[str, np.ndarray],
        *more: Any,
    ) -> None:
        self._stream = xp.cuda.get_current_stream()
        on_device = {name: xp.asarray(vector) for name, vector in state.items()}
        super().__init__(range, xp.asarray(parameters), rule, policy, chunk, on_device, *more)
        self._published = parameters
        self._arrived = xp.empty(min(chunk, range.size), parameters.dtype)

    def bring(self, values: np.ndarray) -> Any:
        """See `Shard.bring`."""
        arrived = self._arrived[: values.size]
        arrived.set(values)
        # An MPI that pins its windows' memory makes the copy asynchronous, and the slot is written again soon.
        self._stream.synchronize()
        return arrived

    def publish(self) -> None:
        """See `Shard.publish`."""
        self.parameters.get(out=self._published)

    def snapshot(self) -> dict[str, np.ndarray]:
        """See `Shard.snapshot`."""
        return {name: vector.get() for name, vector in self.vectors().items()}

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: Any, portions: tuple[int, int] = (-1, -1)
    ) -> bool:
        """See `Shard.receive_chunk`; `values` are the host's."""
        completed = super().receive_chunk(worker, chunk, fetched, self.bring(values), portions)
        self.chunk(chunk).get(out=self.part(self._published, chunk))
        return completed

    def remove_worker(self, worker: int) -> None:
        """See `Shard.remove_worker`."""
        super().remove_worker(worker)
        self.publish()

    def apply_rest(self) -> None:
        """See `Shard.apply_rest`."""
        super().apply_rest()
        self.publish()


def rehearse(xp: Any, rule: Rule | None, policy: Policy, dtype: Any) -> None:
    """Compile what a shard needs, by pushes of one worker to a shard of one element.

    Parameters
    ----------
    xp
        CuPy.
    rule : Rule
    policy : Policy
        For one worker; it belongs to this shard.
    dtype : dtype
    """
    values = np.zeros(1, dtype)
    state = {name: np.zeros(1, dtype) for name in (() if rule is None else rule.states)}
    shard = ShardOnDevice(xp, Range(0, 1), values.copy(), rule, policy, 1, state)
    for clock in range(2):
        shard.receive_chunk(0, 0, clock, values)
    if rule is not None:
        # Which a policy that gathers more than two may not have reached.
        shard.update(0, shard.bring(values), 1)
    shard.remove_worker(0)
    shard.apply_rest()
