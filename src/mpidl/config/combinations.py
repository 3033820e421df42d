"""Reject topologies that are incompatible with the algorithm or the run."""

from __future__ import annotations

from mpidl.algorithms import Algorithm, Exchange
from mpidl.config.sections import RunSection
from mpidl.config.topology import TopologySection
from mpidl.errors import UsageError


def check_partitions(topology: TopologySection, algorithm: Algorithm) -> None:
    """Raise UsageError if the model is cut and the algorithm needs it whole."""
    if topology.partitions > 1 and algorithm.exchange is Exchange.SHARED_MEMORY:
        found = f"topology.partitions: {topology.partitions}"
        raise UsageError(f"{found}, but {algorithm.name}'s replicas share one whole vector, expected 1")


def check_relay(topology: TopologySection, algorithm: Algorithm, run: RunSection) -> None:
    """Raise UsageError if there are relays and the algorithm or the run needs the pushes of single workers."""
    if not topology.relay:
        return
    found = "topology.relay: true, but"
    if algorithm.exchange is not Exchange.SERVERS:
        raise UsageError(f"{found} {algorithm.name} exchanges by {algorithm.exchange.value}, without pushes")
    if algorithm.max_staleness is not None:
        raise UsageError(f"{found} algorithm.max_staleness drops pushes one by one, expected none")
    if not algorithm.policy(1).sums:
        raise UsageError(f"{found} servers need each push of {algorithm.name} by itself, expected false")
    if run.deterministic:
        raise UsageError(f"{found} run.deterministic is true and needs each push by itself, expected false")
