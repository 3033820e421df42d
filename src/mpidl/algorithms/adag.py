"""Asynchronous distributed adaptive gradients, ADAG (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Windowed, commit_windows, falling_rate
from mpidl.schema import Count, Positive
from mpidl.shards.policies import DampedChange, Policy


@dataclass(frozen=True)
class Adag(Windowed):
    """Replicas commit the change of `window` local steps, scaled down where other replicas have moved the parameters.

    This is the ADAG of Hermans' thesis; the ADAG of dist-keras is `Agn`.

    Parameters
    ----------
    rate : float, optional
        Learning rate of the local steps, eta. By default 0.5, or 0.8 / replicas if that is lower.
    damping : {"coordinate", "norm"}
        Scaling of a change d if the parameters have moved by m since they were fetched. "coordinate" adds
        (d / window) / (m^2 / rate + 1) coordinate by coordinate, as the author's code does; "norm" adds
        d / (|m|^2 / rate + 1), as in the thesis, with the norm of each chunk of 512 KiB.
    """

    name: ClassVar[str] = "adag"

    rate: Positive | None = None
    window: Count = 2
    damping: Literal["coordinate", "norm"] = "coordinate"

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        factor = 1.0 if self.damping == "norm" else 1 / self.window
        rate = falling_rate(self.rate, replicas)
        return commit_windows(parameters, rate, self.window, state, factor, with_origin=True)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that scales a change by the parameters' movement since the worker's fetch."""
        return DampedChange(falling_rate(self.rate, replicas), self.damping == "norm")
