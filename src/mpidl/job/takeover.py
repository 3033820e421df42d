"""Whether another process of a node can continue with a rank when its process has ended."""

from __future__ import annotations

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.topology.roles import Roles

#: What prevents it for the coordinator of a job to which a script has given callbacks or loggers.
GIVEN = "callbacks and loggers of a script have a state of their own in the coordinator's process"


def obstacle_to_all(config: Config, roles: Roles | None = None, nodes: int = 1) -> str | None:
    """Return what prevents it for any rank, such as "run.deterministic: true, ..."; None if some can be taken over.

    `roles` are those of the ranks, if they are known, on a number of nodes.
    """
    name, topology = config.algorithm.name, config.topology
    if topology.survive == "off":
        return "topology.survive: off"
    if nodes > 1:
        return f"the ranks are on {nodes} nodes, which don't share memory"
    if roles is not None and roles.intermediaries:
        return "workers push through other ranks"
    if topology.partitions > 1:
        return f"topology.partitions: {topology.partitions}, replicas are cut"
    if config.run.deterministic:
        return "run.deterministic: true, which needs all workers"
    if topology.transport == "messages":
        return "topology.transport: messages, ranks don't share memory"
    if config.data.owned is not None:
        return f"{config.data.owned}, no other worker has a worker's samples"
    if config.algorithm.exchange is not Exchange.SERVERS:
        return f"algorithm.name: {name} exchanges by {config.algorithm.exchange.value}"
    if config.algorithm.policy(1).awaited:
        return f"algorithm.name: {name}, workers wait for each other's pushes"
    return None


def obstacle(config: Config) -> str | None:
    """Return what prevents it for a server, as `obstacle_to_all` does.

    All that a server keeps must lie in its rank's memory.
    """
    algorithm = config.algorithm
    if (cause := obstacle_to_all(config)) is not None:
        return cause
    if config.device.shards:
        return "device.shards: true, shards lie in the memory of GPUs"
    if algorithm.fetch_encoding() is not None:
        return f"algorithm.wire_fetch: {algorithm.wire_fetch}, servers encode differences from what each worker has"
    if not algorithm.shard_policy(1).stateless:
        return f"algorithm.name: {algorithm.name}, servers gather pushes outside of the shared memory"
    return None
