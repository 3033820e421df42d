"""What a job would be: its layers, how large they are, and what each rank would hold. Nothing of it is allocated."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from math import prod
from typing import Any

from mpidl import wire
from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.nn import Network
from mpidl.nn.evaluation import BATCH
from mpidl.parameters import Range, shards
from mpidl.report.text import quantity, size, table
from mpidl.rma.geometry import Geometry
from mpidl.topology.roles import Roles, assign

#: Operations of a gradient for each of the forward pass: backward computes as many again for the gradient of the
#: inputs, and as many for that of the weights.
FORWARD_AND_BACKWARD = 3
#: What a rank's memory is made of: keys of its "memory", and their headings.
PARTS = {
    "parameters": "parameters",
    "gradient": "gradient",
    "state": "rule's state",
    "exchange": "exchange",
    "activations": "activations",
    "evaluation": "evaluation",
    "checkpoint": "checkpoint",
}


def plan(config: Config, ranks: int | None = None) -> dict[str, Any]:
    """Describe the job of a configuration.

    Parameters
    ----------
    config : Config
    ranks : int, optional
        Also describe what so many ranks of one node would do.

    Returns
    -------
    dict
        name, algorithm, rule, dtype, batch; parameters (how many); parameter_bytes, gradient_bytes, state_bytes: of
        the whole model; layers: name, type, shape of a sample's outputs, parameters, bytes, operations of each, and
        activation_bytes for a batch, operations for a sample's forward pass, all three None for a model of a
        factory. With `ranks`: roles, a dict for each rank with its role, shard (start, stop) or None, and memory,
        bytes by the keys of `PARTS`; and memory_bytes, all ranks' together. Vectors that only some algorithms keep
        are not counted, such as those of elastic averaging and what a wire format leaves out.

    Raises
    ------
    UsageError
        What `mpidl.job.build.build` raises, or too few ranks.
    """
    job = build(config)
    parameters, nbytes = job.layout.size, job.layout.size * job.dtype.itemsize
    result: dict[str, Any] = {
        "name": config.run.name,
        "algorithm": config.algorithm.name,
        "rule": None if job.rule is None else job.rule.name,
        "dtype": job.dtype.name,
        "batch": config.data.batch,
        "parameters": parameters,
        "parameter_bytes": nbytes,
        "gradient_bytes": nbytes,
        "state_bytes": nbytes * len(job.states),
        "layers": None,
        "activation_bytes": None,
        "operations": None,
    }
    if isinstance(job.model, Network):
        result["layers"] = layers = _layers(job.model, job.dtype.itemsize)
        result["activation_bytes"] = job.model.activation_bytes(config.data.batch)
        result["operations"] = sum(layer["operations"] for layer in layers)
    if ranks is not None:
        roles = assign([0] * ranks, config.servers, config.topology.partitions, config.topology.standby)
        result["roles"] = _roles(job, roles, ranks)
        result["memory_bytes"] = sum(sum(rank["memory"].values()) for rank in result["roles"])
    return result


def _layers(network: Network, itemsize: int) -> list[dict[str, Any]]:
    found = []
    for index, (layer, name) in enumerate(zip(network.layers, network.graph.names, strict=True)):
        inputs = network.graph.input_shapes(index)
        parameters = sum(map(prod, layer.parameters(*inputs).values()))
        found.append(
            {
                "name": name,
                "type": layer.type,
                "shape": network.graph.shapes[index + 1],
                "parameters": parameters,
                "bytes": parameters * itemsize,
                "operations": layer.operations(*inputs),
            }
        )
    return found


def _roles(job: Job, roles: Roles, ranks: int) -> list[dict[str, Any]]:
    """Return what each rank does and holds."""
    workers = [rank for replica in roles.replicas for rank in replica]
    holders = list(roles.servers) or workers
    parts = dict(zip(holders, shards(job.layout.size, len(holders)), strict=True))
    return [
        {
            "rank": rank,
            "role": roles.role(rank),
            "shard": parts.get(rank),
            "memory": _memory(job, parts.get(rank), len(workers), rank in workers),
        }
        for rank in range(ranks)
    ]


def _memory(job: Job, shard: Range | None, workers: int, works: bool) -> dict[str, int]:
    """Return the bytes that a rank holds, at most at any time; each vector is counted once where ranks share it."""
    memory = dict.fromkeys(PARTS, 0)
    exchange, itemsize = job.algorithm.exchange, job.dtype.itemsize
    if shard is not None:
        own, states = shard.size * itemsize, len(job.states)
        memory["parameters"] += own
        memory["state"] += own * states
        memory["checkpoint"] += own * (1 + states)  # written from a copy, while training goes on
        if not works:
            memory["exchange"] += Geometry.of(shard, workers, job.dtype, wire.parse(job.algorithm.wire)).nbytes
        elif exchange is Exchange.REDUCTION:
            memory["exchange"] += own * workers  # this shard's part of every worker's vector
    if works:
        whole = job.layout.size * itemsize
        memory["parameters"] += whole
        memory["gradient"] += whole
        if exchange is not Exchange.SHARED_MEMORY:
            memory["evaluation"] += whole  # the worker's own parameters, aside while others are evaluated
        if isinstance(job.model, Network):
            samples = max(job.config.data.batch, min(BATCH, job.dataset.test.samples))
            memory["activations"] += job.model.activation_bytes(samples)
    return memory


def lines(plan: Mapping[str, Any]) -> list[str]:
    """Return a plan as text for people."""
    state = f"rule's state {quantity(plan['state_bytes'], 'B')}"
    found = [
        f"{plan['name']}: {size(plan['parameters'], plan['parameter_bytes'])} of {plan['dtype']}, "
        f"gradient {quantity(plan['gradient_bytes'], 'B')}, {state}"
    ]
    if plan["layers"] is not None:
        found += ["", *_layer_lines(plan)]
    if "roles" in plan:
        found += ["", *_role_lines(plan)]
    return found


def _layer_lines(plan: Mapping[str, Any]) -> list[str]:
    rows = [["layer", "type", "outputs", "parameters", "bytes", "operations"]]
    whole = {"name": "in all", "type": "", "shape": (), "bytes": plan["parameter_bytes"]}
    for each in (*plan["layers"], {**plan, **whole}):
        shape = " x ".join(map(str, each["shape"]))
        sizes = [f"{each['parameters']:,}", quantity(each["bytes"], "B"), quantity(each["operations"], "")]
        rows.append([each["name"], each["type"], shape, *sizes])
    return [
        *table(rows, left=3),
        f"operations: of floating point, forward, for a sample; with backward about {FORWARD_AND_BACKWARD} times as "
        f"many, {quantity(FORWARD_AND_BACKWARD * plan['operations'], '')}",
        f"activations, their gradients and buffers: {quantity(plan['activation_bytes'], 'B')} "
        f"for a batch of {plan['batch']}",
    ]


def _role_lines(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each rank, and one for all that hold no shard and are alike."""
    used = {part: title for part, title in PARTS.items() if any(rank["memory"][part] for rank in plan["roles"])}
    rows = [["rank", "role", "shard", *used.values(), "in all"]]

    def cells(rank: Mapping[str, Any]) -> list[str]:
        memory = rank["memory"]
        return [
            quantity(each, "B") if each else "" for each in (*(memory[part] for part in used), sum(memory.values()))
        ]

    for (_, shard, texts), group in groupby(
        plan["roles"], lambda rank: (rank["role"].split()[0], rank["shard"], cells(rank))
    ):
        first, *others = list(group)
        to = [f" to {others[-1]['rank']}", f" to {others[-1]['role'].split()[1]}"] if others else ["", ""]
        held = f"{shard[0]:,} to {shard[1]:,}" if shard else ""
        rows.append([f"{first['rank']}{to[0]}", f"{first['role']}{to[1]}", held, *texts])
    return [
        *table(rows, left=3),
        f"{len(plan['roles'])} ranks of one node: {quantity(plan['memory_bytes'], 'B')} in all, "
        "besides Python and its libraries",
    ]
