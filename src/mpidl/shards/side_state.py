"""What a shard may keep besides its range of the parameters."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Protocol

import numpy as np

from mpidl.shards.policies import Policy
from mpidl.shards.state import PushHeader, ShardState

#: Numbers of what is kept now, and of what has been new, admitted and evicted so far.
FIGURES = ("rows", "rows_new", "rows_admitted", "rows_evicted")


class SideState(Protocol):
    """State that changes with a shard's pushes, but is no range of the parameters.

    What a push has for it comes before the push, by `receive`.
    """

    def unpack(self, data: np.ndarray) -> Any:
        """Return what a message, bytes as uint8, has for a push, as `receive` takes it: a copy."""

    def answer(self, request: np.ndarray, answer: np.ndarray) -> None:
        """Write the answer to a request, both bytes as uint8; there may be room for more than the answer."""

    def receive(self, worker: int, values: Any) -> None:
        """Keep what the next push of a worker has for this state; shared with copies, and not changed."""

    def end_push(self, shard: ShardState, policy: Policy, push: PushHeader, dropped: bool) -> None:
        """Act on the end of a push, which the policy has dropped or not; the shard's clock may have advanced."""

    def settle(self, shard: ShardState, policy: Policy) -> None:
        """Act on a change of the shard's clock at another time."""

    def end_worker(self, shard: ShardState, policy: Policy, worker: int) -> None:
        """Apply what a worker has sent since its last push; no more of its pushes follow."""

    def apply_rest(self, shard: ShardState, policy: Policy) -> None:
        """Apply all that the policy has gathered; no more pushes follow."""

    def copy(self) -> SideState:
        """Return another state like this one, with memory of its own."""
        ...

    def load(self, other: Any) -> None:
        """Take over the state of another one that `copy` made or that was copied."""

    def figures(self) -> Mapping[str, int]:
        """Return the figures `FIGURES` of the state."""
        ...

    def arrays(self) -> Mapping[str, np.ndarray]:
        """Return the arrays of a checkpoint by their names, which contain the name of the state."""
        ...
