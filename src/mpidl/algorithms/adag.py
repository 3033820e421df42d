"""Asynchronous distributed adaptive gradients (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.steps import Steps
from mpidl.algorithms.windowed import commit_windows
from mpidl.rules import Rule
from mpidl.shards.policies import Adag as Scaled
from mpidl.shards.policies import Policy


@dataclass(frozen=True)
class Adag(Algorithm):
    """Replicas make `window` local steps and commit their change, which counts the less the more others moved.

    This is the thesis' ADAG. What dist-keras calls ADAG is `Agn`.

    Parameters
    ----------
    rate : float
        Learning rate of the replicas, eta.
    window : int
        Local steps between commits, lambda.
    """

    name: ClassVar[str] = "adag"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.2
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the thesis' worker; see `Algorithm.replica`."""
        return commit_windows(parameters, self.rate, self.window, steps)

    def policy(self, replicas: int) -> Policy:
        """Scale each coordinate by how far it has moved since the worker's last commit."""
        return Scaled(self.rate)
