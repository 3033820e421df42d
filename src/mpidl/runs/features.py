"""The optional features of a job, a line for each; `intermediaries` push and fetch without being workers."""

from __future__ import annotations

from mpidl.config.topology import TopologySection
from mpidl.engines.virtual.times import Intermediaries
from mpidl.relays import feature as intermediaries

__all__ = ["intermediaries", "virtual_intermediaries"]


def virtual_intermediaries(topology: TopologySection) -> Intermediaries | None:
    """Return the intermediaries of a virtual cluster, if the topology has any."""
    return intermediaries.VirtualRelay if topology.relay else None
