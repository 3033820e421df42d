"""Whether another process of a node can continue with a rank when its process has ended."""

from __future__ import annotations

from mpidl.algorithms import Exchange
from mpidl.algorithms.algorithm import Coordinated
from mpidl.config import Config
from mpidl.job.job import Job
from mpidl.topology.roles import Roles


def obstacle_to_all(config: Config, roles: Roles) -> str | None:
    """Return what prevents that for any rank of a run, as part of a line; None if some can be taken over."""
    name, topology = config.algorithm.name, config.topology
    if roles.intermediaries:
        return "workers push through other ranks"
    if topology.partitions > 1:
        return "replicas are cut"
    if config.run.deterministic:
        return "a deterministic run needs all of its workers"
    if topology.transport == "messages":
        return "ranks exchange by messages, and don't share memory"
    if config.algorithm.exchange is not Exchange.SERVERS:
        return f"{name} exchanges by {config.algorithm.exchange.value}"
    if config.algorithm.policy(1).awaited:
        return f"workers of {name} wait for each other's pushes"
    return None


def obstacle(config: Config, nodes: int = 1) -> str | None:
    """Return what prevents that for a server, in a line such as "run.deterministic: true, ..."; None if nothing does.

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


def obstacle_to_coordinator(job: Job) -> str | None:
    """Return what prevents that for the coordinator, in a line; None if nothing does.

    Its small state lies in its rank's memory.
    """
    if isinstance(job.algorithm, Coordinated):
        return f"algorithm.name: {job.algorithm.name}, its search is in the coordinator's process"
    if job.config.run.deterministic:
        return "run.deterministic: true, and the moment of a death is not determined"
    if job.script.callbacks.functions:
        return "callbacks: functions with a state of their own in the coordinator's process"
    return None
