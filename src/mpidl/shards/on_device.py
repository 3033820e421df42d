"""A shard with its vectors on a GPU, which applies the pushes."""

from __future__ import annotations

from collections.abc import Mapping
from copy import copy
from typing import Any, ClassVar

import numpy as np

from mpidl.device import to_host
from mpidl.parameters.ranges import Range
from mpidl.shards.policies import Policy
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.shards.state import PARAMETERS, moved


class ShardOnDevice(Shard):
    """A `Shard` with CuPy vectors that publishes its parameters in the host's memory, where workers fetch them.

    The initial parameters and state are on the host. The shard publishes its parameters in the array of these before
    `receive_chunk` returns. `xp` is CuPy.
    """

    block: ClassVar[int | None] = None

    def __init__(
        self,
        range: Range,
        parameters: np.ndarray,
        rule: ScheduledRule,
        policy: Policy,
        chunk: int,
        *,
        xp: Any,
        state: Mapping[str, np.ndarray],
        clock: int = 0,
    ) -> None:
        self._xp, self._stream = xp, xp.cuda.get_current_stream()
        on_device = {name: xp.asarray(vector) for name, vector in state.items()}
        super().__init__(range, xp.asarray(parameters), rule, policy, chunk, state=on_device, clock=clock)
        self._published = parameters
        self._arrived = xp.empty((1 + policy.compares) * min(chunk, range.size), parameters.dtype)

    def bind(self, memory: Mapping[str, np.ndarray]) -> None:
        """Publish the parameters in other host memory from now on."""
        self._published = moved(self._published, memory[PARAMETERS])

    def unbind(self) -> None:
        self._published = self._published.copy()

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the state of another shard, whose vectors may also be in the host's memory."""
        counters = {name: values for name, values in state.items() if values.dtype == np.int64}
        vectors = {name: self._xp.asarray(values) for name, values in state.items() if name not in counters}
        super().load(counters | vectors)
        self.publish()

    def bring(self, values: np.ndarray) -> Any:
        arrived = self._arrived[: values.size].reshape(values.shape)
        arrived.set(values)
        # The copy is asynchronous if MPI has pinned its windows' memory, and workers soon write to the slot again.
        self._stream.synchronize()
        return arrived

    def publish(self) -> None:
        self.parameters.get(out=self._published)

    def copy(self) -> ShardOnDevice:
        """Return another shard on the device in the same state."""
        published = np.empty_like(self._published)
        state = {name: np.empty(own.shape, own.dtype) for name, own in self.vectors.items() if name != PARAMETERS}
        twin = ShardOnDevice(
            self.range, published, self.scheduled_rule, copy(self.policy), self._chunk_size, xp=self._xp, state=state
        )
        twin.load(self.state())
        return twin

    def on_host(self) -> dict[str, np.ndarray]:
        return {name: to_host(values) for name, values in self.state().items()}

    def receive_chunk(
        self, worker: int, chunk: int, fetched: int, values: Any, batches: tuple[int, int] = (-1, -1)
    ) -> bool:
        """Handle one chunk of a push, with `values` in the host's memory."""
        return super().receive_chunk(worker, chunk, fetched, self.bring(values), batches)

    def settle(self) -> None:
        for chunk in self._changed:
            self.chunk(chunk).get(out=self.part(self._published, chunk))
        super().settle()

    def pass_time(self, now: float) -> float:
        before = self.clock
        due = super().pass_time(now)
        if self.clock != before:
            self.publish()
        return due

    def remove_worker(self, worker: int) -> None:
        super().remove_worker(worker)
        self.publish()

    def apply_rest(self) -> None:
        super().apply_rest()
        self.publish()


def rehearse(xp: Any, rule: ScheduledRule, policy: Policy, dtype: Any) -> None:
    """Compile a shard's kernels by pushes to a shard of one element; `policy` is a new instance for one worker."""
    zero = np.zeros(1, dtype)
    state = dict.fromkeys(() if rule.rule is None else rule.rule.states, zero)
    shard = ShardOnDevice(Range(0, 1), zero.copy(), rule, policy, 1, xp=xp, state=state)
    for clock in range(2):
        shard.receive_chunk(0, 0, clock, np.zeros((2, 1) if policy.compares else 1, dtype))
    if rule.rule is not None:
        # A policy that gathers more than two pushes hasn't applied the rule yet.
        shard.update(0, shard.bring(zero), 1)
    shard.remove_worker(0)
    shard.apply_rest()
