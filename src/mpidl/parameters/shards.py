"""The division of the flat parameter vector into shards."""

from __future__ import annotations

from mpidl.errors import UsageError
from mpidl.parameters.ranges import Range, split


def shards(size: int, servers: int, block: int = 1) -> list[Range]:
    """Return each server's shard: consecutive ranges whose sizes differ by at most a block, regardless of layers.

    Parameters
    ----------
    size
        Number of parameters.
    servers
        Number of servers, at least one.
    block
        Number of parameters at whose multiples the shards begin.

    Raises
    ------
    UsageError
        If there are more servers than parameters, or than blocks.
    """
    blocks = -(-size // block)
    if servers > blocks:
        together = "" if block == 1 else f" in blocks of {block}, which algorithm.wire encodes together"
        raise UsageError(f"topology.servers: {servers} for {size} parameters{together}, expected at most {blocks}")
    return [Range(part.start * block, min(part.stop * block, size)) for part in split(blocks, servers)]
