"""Asynchronous distributed adaptive gradients, ADAG (Hermans 2017)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.replica_state import ReplicaState
from mpidl.algorithms.windowed import Commits, commit_windows
from mpidl.shards.policies import DampedChange, Policy


@dataclass(frozen=True)
class Adag(Commits):
    """Replicas commit the change of `window` local steps, scaled down where other replicas have moved the parameters.

    This is the ADAG of Hermans' thesis; the ADAG of dist-keras is `Agn`.

    Parameters
    ----------
    damping : {"coordinate", "norm"}
        Scaling of a change d if the parameters have moved by m since they were fetched. "coordinate" adds
        (d / window) / (m^2 / rate + 1) coordinate by coordinate, as the author's code does. "norm" adds
        d / (|m|^2 / rate + 1), as in the thesis, but with the norm of each chunk of a server's shard, of at most
        512 KiB, since no server knows that of the whole vector: results depend on the number of servers, in
        deterministic runs too. It doesn't divide by `window`, which is then 2 by default.
    """

    name: ClassVar[str] = "adag"

    damping: Literal["coordinate", "norm"] = "coordinate"

    def default_window(self, replicas: int) -> int:
        return 2 if self.damping == "norm" else super().default_window(replicas)

    def replica(self, number: int, parameters: Any, replicas: int, state: ReplicaState) -> Replica:
        """Return the worker of the thesis."""
        rate, window = self.chosen(replicas)
        factor = 1.0 if self.damping == "norm" else 1 / window
        return commit_windows(parameters, rate, window, state, factor, with_origin=True)

    def policy(self, replicas: int) -> Policy:
        """Return the policy that scales a change by the parameters' movement since the worker's fetch."""
        return DampedChange(self.chosen(replicas)[0], self.damping == "norm")
