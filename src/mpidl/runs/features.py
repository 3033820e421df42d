"""The optional features of a job, a line for each; `others` are ranks that push and fetch without being workers."""

from __future__ import annotations

from mpidl.config.topology import TopologySection
from mpidl.engines.virtual.times import Intermediaries
from mpidl.relays import feature as others

__all__ = ["others", "virtual_others"]


def virtual_others(topology: TopologySection) -> Intermediaries | None:
    """Return the `others` of a virtual cluster, if the topology has any."""
    return others.VirtualRelays() if topology.relay else None
