"""The division of the flat parameter vector into shards."""

from __future__ import annotations

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split


def shards(size: int, servers: int) -> list[Range]:
    """Return each server's shard: consecutive ranges whose sizes differ by at most one, regardless of layers.

    Parameters
    ----------
    size
        Number of parameters.
    servers
        Number of servers, at least one.

    Raises
    ------
    UsageError
        If there are more servers than parameters.
    """
    if servers > size:
        raise UsageError(f"topology.servers: {servers} for {size} parameters, expected at most {size}")
    return split(size, servers)
