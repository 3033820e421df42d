"""Whether another process of a node can continue with a server's rank when its process has ended."""

from __future__ import annotations

from mpidl.algorithms import Exchange
from mpidl.config import Config


def obstacle(config: Config, nodes: int = 1) -> str | None:
    """Return what prevents that, in a line such as "run.deterministic: true, ..."; None if nothing does.

    `nodes` is the number of the job's nodes. Everything that a server keeps must lie in its rank's memory, which its
    node's processes share.
    """
    algorithm = config.algorithm
    name = f"algorithm.name: {algorithm.name}"
    if algorithm.exchange is not Exchange.SERVERS:
        return f"{name} exchanges by {algorithm.exchange.value}, not by pushes to servers"
    if config.topology.survive == "off":
        return "topology.survive: off"
    if config.run.deterministic:
        return "run.deterministic: true, servers take pushes in rounds with all workers"
    if nodes > 1:
        return f"the ranks are on {nodes} nodes, which don't share memory"
    if config.topology.transport == "messages":
        return "topology.transport: messages, which the process of a rank itself receives"
    if config.device.shards:
        return "device.shards: true, shards lie in the memory of GPUs"
    if algorithm.fetch_encoding() is not None:
        return f"algorithm.wire_fetch: {algorithm.wire_fetch}, servers encode differences from what each worker has"
    if not algorithm.shard_policy(1).stateless:
        return f"{name}, servers gather pushes outside of the shared memory"
    return None
