"""An exponential moving average of a shard's parameters, kept beside them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from mpidl.rules import Sgd
from mpidl.shards.state import ShardState

#: Name of its vector.
AVERAGE = "ema"


@dataclass(frozen=True)
class Average:
    """Moves the average of a chunk towards the parameters: ``average += (1 - decay) * (parameters - average)``.

    Each update of the shard's parameters is one step. The average begins with their first values.

    References
    ----------
    B. Polyak, A. Juditsky (1992), Acceleration of stochastic approximation by averaging.
    """

    decay: float
    _adding: ClassVar[Any] = Sgd()

    def __call__(self, shard: ShardState, chunk: int) -> None:
        # A step of SGD whose gradient, with weight decay -1, is the parameters minus the average.
        average, rate = shard.part(shard.vectors[AVERAGE], chunk), self.decay - 1
        self._adding.update(average, (), shard.chunk(chunk), 1, rate, decay=-1.0)
