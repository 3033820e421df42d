"""Asynchronous distributed adaptive gradients, ADAG (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mpidl.algorithms.algorithm import Algorithm, Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import commit_windows, falling_rate
from mpidl.rules import Rule
from mpidl.shards.policies import DampedChange, Policy


@dataclass(frozen=True)
class Adag(Algorithm):
    """Replicas commit the change of `window` local steps, scaled down where other replicas have moved the parameters.

    This is the ADAG of Hermans' thesis; the ADAG of dist-keras is `Agn`.

    Parameters
    ----------
    rate : float, optional
        Learning rate of the local steps, eta. By default 0.5, or 0.8 / replicas if that is lower.
    window : int
        Number of local steps between commits, lambda.
    damping : {"coordinate", "norm"}
        Scaling of a change d if the parameters have moved by m since they were fetched. "coordinate" adds
        (d / window) / (m^2 / rate + 1) coordinate by coordinate, as the author's code does; "norm" adds
        d / (|m|^2 / rate + 1), as in the thesis, with the norm of each chunk of 512 KiB.
    """

    name: ClassVar[str] = "adag"
    default_rule: ClassVar[Rule | None] = None

    rate: Annotated[float, Meta(gt=0)] | None = None
    window: Annotated[int, Meta(ge=1)] = 2
    damping: Literal["coordinate", "norm"] = "coordinate"

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        factor = 1.0 if self.damping == "norm" else 1 / self.window
        return commit_windows(parameters, self._rate(replicas), self.window, state, factor, with_origin=True)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that scales a change by the parameters' movement since the worker's fetch."""
        return DampedChange(self._rate(replicas), self.damping == "norm")

    def _rate(self, replicas: int) -> float:
        return falling_rate(replicas) if self.rate is None else self.rate
