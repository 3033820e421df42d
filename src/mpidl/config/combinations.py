"""What of a topology can't go with which algorithm and run."""

from __future__ import annotations

from mpidl.algorithms import Algorithm, Exchange
from mpidl.config.sections import RunSection
from mpidl.config.topology import TopologySection
from mpidl.errors import UsageError


def check_partitions(topology: TopologySection, algorithm: Algorithm, run: RunSection) -> None:
    """Raise UsageError for what can't be done with models that are cut."""
    if topology.partitions == 1:
        return
    found = f"topology.partitions: {topology.partitions}"
    if algorithm.exchange is Exchange.SHARED_MEMORY:
        raise UsageError(f"{found}, but {algorithm.name}'s replicas share one whole vector, expected 1")
    if run.record:
        raise UsageError(f"{found}, but only replicas of one rank can be recorded, expected 1 or run.record = false")


def check_relay(topology: TopologySection, algorithm: Algorithm, run: RunSection) -> None:
    """Raise UsageError for what can't be done with the sum of several workers' pushes."""
    if not topology.relay:
        return
    found = "topology.relay: true, but"
    if algorithm.exchange is not Exchange.SERVERS:
        raise UsageError(f"{found} {algorithm.name} exchanges by {algorithm.exchange.value}, without pushes")
    if algorithm.max_staleness is not None:
        raise UsageError(f"{found} algorithm.max_staleness drops pushes one by one, expected none")
    if not algorithm.policy(1).sums:
        raise UsageError(f"{found} servers need each push of {algorithm.name} by itself, expected false")
    for key in ("deterministic", "record"):
        if getattr(run, key):
            raise UsageError(f"{found} run.{key} is true and needs each push by itself, expected false")
