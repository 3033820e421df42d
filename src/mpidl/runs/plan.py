"""Planning a job without allocating anything: its layers, its sizes, each rank's memory: ``mpidl plan``."""

from __future__ import annotations

from collections.abc import Mapping
from itertools import groupby
from typing import Any

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.nn.evaluation import BATCH
from mpidl.nn.model import LayerSummary
from mpidl.parameters import Range
from mpidl.report.text import quantity, size, table
from mpidl.topology.roles import Roles, assign
from mpidl.transport.mailbox_geometry import MailboxGeometry

#: Operations of a gradient per operation of the forward pass: the backward pass takes as many again for the gradient
#: of the inputs, and as many for that of the weights.
FORWARD_AND_BACKWARD = 3
#: Parts of a rank's memory: the keys of its "memory", and their headings in the text.
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
        Number of ranks, on one node, whose roles and memory are described too.

    Returns
    -------
    dict
        name, algorithm, dtype, batch; rule, None if the algorithm leaves no choice of rule; parameters, their number;
        parameter_bytes, gradient_bytes and state_bytes of the whole model; layers, a dict for each with name, type,
        shape of a sample's outputs, parameters, bytes and operations; activation_bytes of a batch; operations of a
        sample's forward pass. The last three are None for a model that can't tell them.

        With `ranks` also: roles, a dict for each rank with its role, its shard as (start, stop) or None, and its
        memory, bytes by the keys of `PARTS`; memory_bytes, the sum over all ranks. Vectors that only some algorithms
        keep on workers are not counted, such as those of elastic averaging and the remainders of a wire format.

    Raises
    ------
    UsageError
        The job can't be built (see `mpidl.job.build.build`), or there are too few ranks.
    """
    job = build(config)
    return of_model(job) | ({} if ranks is None else of_ranks(job, config.servers, ranks))


def of_model(job: Job) -> dict[str, Any]:
    """Describe a job without its ranks; see `plan`."""
    parameters, nbytes, batch = job.layout.size, job.layout.size * job.dtype.itemsize, job.config.data.batch
    result: dict[str, Any] = {
        "name": job.config.run.name,
        "algorithm": job.config.algorithm.name,
        "rule": None if job.rule is None else job.rule.name,
        "dtype": job.dtype.name,
        "batch": batch,
        "parameters": parameters,
        "parameter_bytes": nbytes,
        "gradient_bytes": nbytes,
        "state_bytes": nbytes * len(job.states),
        "layers": None,
        "activation_bytes": job.original.activation_bytes(batch),
        "operations": None,
    }
    summaries = job.original.summaries()
    if summaries is not None:
        result["layers"] = [_layer(summary, job.dtype.itemsize) for summary in summaries]
        result["operations"] = sum(summary.operations for summary in summaries)
    return result


def of_ranks(job: Job, servers: int, ranks: int) -> dict[str, Any]:
    """Describe the ranks of a job, so many of which are servers; see `plan`."""
    roles = _roles(job, assign([0] * ranks, servers), ranks)
    return {"roles": roles, "memory_bytes": sum(sum(rank["memory"].values()) for rank in roles)}


def _layer(summary: LayerSummary, itemsize: int) -> dict[str, Any]:
    return {
        "name": summary.name,
        "type": summary.type,
        "shape": summary.shape,
        "parameters": summary.parameters,
        "bytes": summary.parameters * itemsize,
        "operations": summary.operations,
    }


def _roles(job: Job, roles: Roles, ranks: int) -> list[dict[str, Any]]:
    """Return the role, the shard and the memory of each rank."""
    workers = {rank: None for replica in roles.replicas for rank in replica}
    holders = list(roles.servers or workers)
    names = roles.names()
    parts = dict(zip(holders, job.shards(len(holders)), strict=True))
    return [
        {
            "rank": rank,
            "role": names[rank],
            "shard": parts.get(rank),
            "memory": _memory(job, parts.get(rank), len(workers), rank in workers),
        }
        for rank in range(ranks)
    ]


def _memory(job: Job, shard: Range | None, workers: int, works: bool) -> dict[str, int]:
    """Return the most bytes that a rank needs at any time; a vector that ranks share is counted once."""
    memory = dict.fromkeys(PARTS, 0)
    exchange, itemsize = job.algorithm.exchange, job.dtype.itemsize
    if shard is not None:
        own, states = shard.size * itemsize, len(job.states)
        memory["parameters"] += own
        memory["state"] += own * states
        memory["checkpoint"] += own * (1 + states)  # a copy is written while training continues
        if not works:
            memory["exchange"] += MailboxGeometry.of(shard, workers, job.dtype, job.algorithm.encoding()).nbytes
        elif exchange is Exchange.REDUCTION:
            memory["exchange"] += own * workers  # the shard's part of each worker's vector
    if works:
        whole = job.layout.size * itemsize
        memory["parameters"] += whole
        memory["gradient"] += whole
        if exchange is not Exchange.SHARED_MEMORY:
            memory["evaluation"] += whole  # a copy of the worker's own parameters while others are evaluated
        samples = max(job.config.data.batch, min(BATCH, job.dataset.test.samples))
        memory["activations"] += job.original.activation_bytes(samples) or 0
    return memory


def as_text(plan: Mapping[str, Any]) -> str:
    """Return a plan as text for people."""
    state = f"rule's state {quantity(plan['state_bytes'], 'B')}"
    found = [
        f"{plan['name']}: {size(plan['parameters'], plan['parameter_bytes'])} of {plan['dtype']}, "
        f"gradient {quantity(plan['gradient_bytes'], 'B')}, {state}"
    ]
    if plan["layers"] is not None:
        found += ["", *_layer_table(plan)]
    if "roles" in plan:
        found += ["", *_rank_table(plan)]
    return "\n".join(found)


def _layer_table(plan: Mapping[str, Any]) -> list[str]:
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


def _rank_table(plan: Mapping[str, Any]) -> list[str]:
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
        elements = f"{shard[0]:,} to {shard[1]:,}" if shard else ""
        rows.append([f"{first['rank']}{to[0]}", f"{first['role']}{to[1]}", elements, *texts])
    return [
        *table(rows, left=3),
        f"{len(plan['roles'])} ranks of one node: {quantity(plan['memory_bytes'], 'B')} in all, "
        "besides Python and its libraries",
    ]
