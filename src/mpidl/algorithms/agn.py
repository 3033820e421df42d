"""Accumulated gradient normalisation (Hermans 2017; Hermans, Spanakis, Moeckel 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.steps import Steps
from mpidl.algorithms.windowed import commit_windows
from mpidl.rules import Rule
from mpidl.shards.policies import Add, Policy


@dataclass(frozen=True)
class Agn(Algorithm):
    """Replicas make `window` local steps, commit their change divided by the number of steps, and pull.

    The class ADAG of dist-keras is this algorithm; the thesis' own ADAG is `Adag`. With a window of 1 it is Downpour
    with plain SGD.

    Parameters
    ----------
    rate : float
        Learning rate of the replicas, eta.
    window : int
        Local steps between commits, lambda.
    """

    name: ClassVar[str] = "agn"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] = 0.5
    window: Annotated[int, Meta(ge=1)] = 4

    def replica(self, number: int, parameters: Any, replicas: int, steps: Steps) -> Replica:
        """Return the thesis' worker; see `Algorithm.replica`."""
        return commit_windows(parameters, self.rate, self.window, steps, lambda done: 1 / done)

    def policy(self, replicas: int) -> Policy:
        """Add the changes."""
        return Add()
