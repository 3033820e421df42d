"""What virtual replicas exchange with servers beside their vectors."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from mpidl.data.batch import Minibatch
from mpidl.engines.virtual.cluster import VirtualCluster, VirtualReplica
from mpidl.engines.virtual.server import Load, Process
from mpidl.engines.virtual.traffic import Traffic


class Nothing:
    """The interface, and the exchange of nothing.

    Attributes
    ----------
    pushes : bool
        Whether pushes have anything beside their vectors.
    ahead : int
        Number of batches that replicas look at ahead.
    """

    pushes = False
    ahead = 0

    def begin(self, cluster: VirtualCluster, traffic: Traffic) -> None:
        """Begin anew in a cluster, through its traffic."""

    def bring(self, replica: VirtualReplica, batch: Minibatch, coming: Sequence[Minibatch]) -> Process:
        """Wait for what a replica needs for a batch, and begin to bring what it needs for the `coming` ones."""
        yield from ()

    def computing(self, replica: VirtualReplica) -> None:
        """Note that the model computes for a replica from now on."""

    def computed(self, replica: VirtualReplica) -> Process:
        """Wait for what the computation of a gradient needed beyond what was brought."""
        yield from ()

    def push(self, replica: VirtualReplica) -> Sequence[Load]:
        """Return what a replica's next push has for each server; empty if it has nothing."""
        return ()

    def show(self) -> None:
        """Let the model evaluate what the servers have at present."""

    def vectors(self, replica: VirtualReplica) -> dict[str, np.ndarray]:
        """Return arrays, by name, with what a replica has not pushed yet, for a checkpoint."""
        return {}

    def load(self, replica: VirtualReplica, vectors: Mapping[str, np.ndarray]) -> None:
        """Let a replica continue with what `vectors` returned, among other arrays."""
