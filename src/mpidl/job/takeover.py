"""Whether another process of a node can continue with a rank when its process has ended."""

from __future__ import annotations

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.job.job import Job
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import Fixed


def fixed(config: Config, roles: Roles | None = None, nodes: int = 1) -> Fixed:
    """Return what prevents it by a configuration, such as "run.deterministic: true, ...".

    `roles` are those of the ranks, if they are known, on a number of nodes.
    """
    cause = _of_all(config, roles, nodes)
    return Fixed(cause, None if cause is not None else _of_servers(config))


def fixed_by_job(job: Job) -> Fixed:
    """Return what prevents it by the model and what a script has given."""
    script = job.script
    return Fixed(
        all="the model's tables lie in the memory of servers' processes" if job.original.tables else None,
        coordinator="callbacks and loggers of a script have a state of their own in the coordinator's process"
        if script.callbacks.functions or script.loggers
        else None,
    )


def _of_all(config: Config, roles: Roles | None, nodes: int) -> str | None:
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


def _of_servers(config: Config) -> str | None:
    """Return what prevents it for a server: all that it keeps must lie in its rank's memory."""
    algorithm = config.algorithm
    if config.device.shards:
        return "device.shards: true, shards lie in the memory of GPUs"
    if algorithm.fetch_encoding() is not None:
        return f"algorithm.wire_fetch: {algorithm.wire_fetch}, servers encode differences from what each worker has"
    if not algorithm.shard_policy(1).stateless:
        return f"algorithm.name: {algorithm.name}, servers gather pushes outside of the shared memory"
    return None
