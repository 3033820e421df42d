"""How the flat parameter vector is dealt to servers."""

from __future__ import annotations

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split


def shards(size: int, servers: int) -> list[Range]:
    """Return each server's shard: consecutive ranges, balanced to one element whatever the layers' sizes.

    Parameters
    ----------
    size
        Number of parameters.
    servers
        Number of servers, at least one.

    Raises
    ------
    UsageError
        If there are more servers than parameters: a server without a parameter would have nothing to do.
    """
    if servers > size:
        raise UsageError(f"topology.servers: {servers} for {size} parameters, expected at most {size}")
    return split(size, servers)
