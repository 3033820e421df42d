"""n-softsync (Zhang, Gupta, Lian, Liu 2016)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push
from mpidl.algorithms.steps import Steps
from mpidl.shards.policies import Gather, Policy, inverse, unscaled


@dataclass(frozen=True)
class Softsync(Algorithm):
    """Servers make an update of every floor(replicas / n) gradients, from any replicas.

    Parameters
    ----------
    n : int
        1 gathers as many gradients as there are replicas; as many as replicas gathers none, as Downpour.
    modulate : bool
        Divide a gradient's rate by its staleness: alpha_0 / max(staleness, 1). False: a fixed rate.

    Notes
    -----
    1-softsync is not synchronous SGD: a fast replica may give two of the gathered gradients.
    """

    name: ClassVar[str] = "softsync"

    n: Annotated[int, Meta(ge=1)] = 1
    modulate: bool = True

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the paper's learner, which pulls right after it pushed; see `Algorithm.replica`."""
        while True:
            batch = yield NextBatch()
            if batch is None:
                break
            yield Fetch(parameters)
            gradient = yield Gradient(parameters, batch)
            yield Push(gradient)

    def policy(self, replicas: int) -> Policy:
        """Gather c = floor(lambda / n) gradients."""
        return Gather(max(1, replicas // self.n), inverse if self.modulate else unscaled)
