"""The optional features of a job, a line for each.

`intermediaries` push and fetch without being workers; `mirrors` are checkpoints in the memory of nodes.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path

from msgspec.structs import replace

from mpidl.config import Config
from mpidl.config.cluster import TopologySection
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.machines import place_ranks
from mpidl.engines.virtual.times import Intermediaries
from mpidl.mirrors import feature as mirrors
from mpidl.relays import feature as intermediaries
from mpidl.shards.shard import Shard
from mpidl.sparse import feature as sparse
from mpidl.topology.roles import Roles
from mpidl.tracing import feature as tracing
from mpidl.tracing.virtual import TracedProcess

__all__ = ["intermediaries", "mirrors", "sparse", "tracing", "virtual_intermediaries"]


def trace_one_process(
    config: Config, directory: Path, shards: Sequence[Shard], replicas: int, times: Times | None
) -> TracedProcess | None:
    """Return what keeps the spans of a run in one process, if it is to; `times` are those of a virtual cluster."""
    if not config.run.trace:
        return None
    nodes, roles = ([0], Roles((), ((0,),))) if times is None else place_ranks(times, replicas, config.servers)
    hosts = tuple(socket.gethostname() if times is None else f"node {node}" for node in nodes)
    return TracedProcess(shards, replace(roles, hosts=hosts), directory, config.run.trace)


def virtual_intermediaries(topology: TopologySection) -> Intermediaries | None:
    """Return the intermediaries of a virtual cluster, if the topology has any."""
    return intermediaries.VirtualRelay if topology.relay else None
