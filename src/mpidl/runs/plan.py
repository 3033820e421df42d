"""Planning a job without allocating anything: its layers, its sizes, each rank's memory: ``mpidl plan``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any, NamedTuple

from mpidl.algorithms import Exchange
from mpidl.config import Config
from mpidl.config.topology import TopologySection
from mpidl.job.build import build
from mpidl.job.job import Job
from mpidl.job.planning import plan_model
from mpidl.job.slices import answer_bytes, shards_of
from mpidl.nn.capabilities import LayerSummary, activation_bytes, summaries
from mpidl.nn.evaluation import BATCH
from mpidl.parameters import Range, split
from mpidl.partition.plan import Plan
from mpidl.report.text import quantity, size, table
from mpidl.runs.features import intermediaries
from mpidl.topology.roles import Roles
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
        Number of ranks whose roles and memory are described too. They are on one node or, as
        ``virtual.ranks_per_node`` says, on several.

    Returns
    -------
    dict
        name, algorithm, dtype, batch; rule, None if the algorithm leaves no choice of rule; parameters, their number;
        parameter_bytes, gradient_bytes and state_bytes of the whole model; layers, a dict for each with name, type,
        shape of a sample's outputs, parameters, bytes and operations; activation_bytes of a batch; operations of a
        sample's forward pass. The last three are None for a model that can't tell them.

        Where the model is cut, cuts: a dict for each step with layer, how it is cut, and moved, the bytes that its
        ranks send each other in a step of training: what it takes, and parameters that they share.

        With `ranks` also: nodes, their number; roles, a dict for each rank with its role, its shard as (start, stop) or
        None, and its memory, bytes by the keys of `PARTS`; memory_bytes, the sum over all ranks. Vectors that only some
        algorithms keep on workers are not counted, such as those of elastic averaging and the remainders of a wire
        format.

    Raises
    ------
    UsageError
        The job can't be built (see `mpidl.job.build.build`), there are too few ranks, or the algorithm's settings don't
        go with the replicas that they are.
    """
    job, partitions = build(config), config.topology.partitions
    cut = plan_model(job, partitions) if partitions > 1 else None
    described = of_model(job) | ({} if cut is None else {"cuts": of_cuts(job, cut)})
    if ranks is None:
        return described
    of_node = config.virtual.ranks_per_node or ranks
    nodes = [rank // of_node for rank in range(ranks)]
    return described | of_ranks(job, nodes, config.servers, cut, config.topology)


def of_model(job: Job) -> dict[str, Any]:
    """Describe a job without its ranks; see `plan`."""
    parameters, nbytes, batch = (
        job.original.layout.size,
        job.original.layout.size * job.dtype.itemsize,
        job.config.data.batch,
    )
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
        "activation_bytes": activation_bytes(job.original, batch),
        "operations": None,
    }
    layers = summaries(job.original)
    if layers is not None:
        result["layers"] = [_layer(layer, job.dtype.itemsize) for layer in layers]
        result["operations"] = sum(layer.operations for layer in layers)
    return result


def of_cuts(job: Job, cut: Plan) -> list[dict[str, Any]]:
    """Describe how a job's model is cut; see `plan`."""
    moved: Counter[str] = Counter()
    for each in cut.traffic(job.config.data.batch):
        moved[each.name] += sum(each.sent) * job.dtype.itemsize
    rows = [{"layer": step.name, "how": step.how, "moved": moved.pop(step.name, 0)} for step in cut.steps]
    return [*rows, *({"layer": name, "how": "samples", "moved": nbytes} for name, nbytes in moved.items())]


def of_ranks(
    job: Job, nodes: Sequence[int], servers: int, cut: Plan | None, topology: TopologySection
) -> dict[str, Any]:
    """Describe the ranks of a job on these nodes, with a number of servers; see `plan`."""
    ranks, partitions = len(nodes), 1 if cut is None else cut.partitions
    assigned = topology.assign(nodes, servers, partitions)
    job.algorithm.check_replicas(len(assigned.replicas), job.config.run.deterministic)
    roles = _roles(job, assigned, ranks, cut)
    needed = sum(sum(rank["memory"].values()) for rank in roles)
    return {"nodes": len(set(nodes)), "roles": roles, "memory_bytes": needed}


def _layer(summary: LayerSummary, itemsize: int) -> dict[str, Any]:
    return {
        "name": summary.name,
        "type": summary.type,
        "shape": summary.shape,
        "parameters": summary.parameters,
        "bytes": summary.parameters * itemsize,
        "operations": summary.operations,
    }


class _Part(NamedTuple):
    """What a rank has of a model: elements of the parameters, and bytes of activations."""

    parameters: int
    activations: int


def _roles(job: Job, roles: Roles, ranks: int, cut: Plan | None) -> list[dict[str, Any]]:
    """Return the role, the shard and the memory of each rank."""
    names, parts = roles.names(), _parts(job, cut)
    workers = {rank: part for replica in roles.replicas for rank, part in zip(replica, parts, strict=True)}
    if roles.servers:
        shards = dict(zip(roles.servers, shards_of(job, len(roles.servers)), strict=True))
    elif cut is None:
        shards = dict(zip(workers, shards_of(job, len(workers)), strict=True))
    else:
        divided = [split(own.size, len(roles.replicas)) for own in cut.slices]
        shards = {
            rank: divided[partition][number].shift(cut.slices[partition].start)
            for number, replica in enumerate(roles.replicas)
            for partition, rank in enumerate(replica)
        }
    return [
        {
            "rank": rank,
            "role": names[rank],
            "shard": shards.get(rank),
            "memory": dict.fromkeys(PARTS, 0) | intermediaries.memory(job, roles, rank)
            if rank in roles.intermediaries
            else _memory(job, shards.get(rank), roles, workers.get(rank), roles.is_direct(rank)),
        }
        for rank in range(ranks)
    ]


def _parts(job: Job, cut: Plan | None) -> list[_Part]:
    """Return what each rank of a replica has of the model."""
    samples = max(job.config.data.batch, min(BATCH, job.dataset.test.samples))
    if cut is None:
        return [_Part(job.original.layout.size, activation_bytes(job.original, samples) or 0)]
    # What a plan counts includes the vectors.
    return [
        _Part(own, max(0, elements - 2 * own) * job.dtype.itemsize)
        for own, elements in zip(cut.parameters, cut.memory(samples), strict=True)
    ]


def _memory(job: Job, shard: Range | None, roles: Roles, part: _Part | None, direct: bool) -> dict[str, int]:
    """Return the most bytes that a rank needs at any time; a vector that ranks share is counted once."""
    memory = dict.fromkeys(PARTS, 0)
    exchange, itemsize = job.algorithm.exchange, job.dtype.itemsize
    if shard is not None:
        own, states = shard.size * itemsize, len(job.states)
        memory["parameters"] += own
        memory["state"] += own * states
        memory["checkpoint"] += own * (1 + states)  # a copy is written while training continues
        if part is None:
            encoding, rings = job.algorithm.encoding(), len(roles.pushers())
            geometry = MailboxGeometry.of(shard, rings, job.dtype, encoding, statistics=job.original.statistics)
            memory["exchange"] += geometry.nbytes
            if job.algorithm.fetch_encoding() is not None:
                memory["exchange"] += len(roles.fetchers()) * (own + answer_bytes(job, [shard]))
        elif exchange is Exchange.REDUCTION:
            memory["exchange"] += own * len(roles.replicas)  # the shard's part of each worker's vector
    if part is not None:
        held = part.parameters * itemsize
        memory["parameters"] += held
        memory["gradient"] += held
        if (job.algorithm.fetch_encoding() is not None and direct) or job.algorithm.streamed:
            memory["exchange"] += held  # a copy that follows the shards
        if direct and exchange is Exchange.SERVERS:
            if job.algorithm.fetch_encoding() is not None:
                memory["exchange"] += answer_bytes(job, split(part.parameters, len(roles.servers)))
            memory["exchange"] += 0 if job.algorithm.encoding() is None else held  # what it leaves out
        if exchange is not Exchange.SHARED_MEMORY:
            memory["evaluation"] += held  # a copy of the worker's own parameters while others are evaluated
        memory["activations"] += part.activations
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
    if "cuts" in plan:
        found += ["", *_cut_table(plan["cuts"])]
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


def _cut_table(cuts: Sequence[Mapping[str, Any]]) -> list[str]:
    rows = [["layer", "cut", "moved"]]
    rows += [[each["layer"], each["how"], quantity(each["moved"], "B") if each["moved"] else ""] for each in cuts]
    return [
        *table(rows, left=2),
        "moved: between the ranks of a replica in a step of training, forward and backward",
    ]


def _rank_table(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each rank, and one for all that hold no shard and are alike."""
    used = {part: title for part, title in PARTS.items() if any(rank["memory"][part] for rank in plan["roles"])}
    rows = [["rank", "role", "shard", *used.values(), "in all"]]

    @cache
    def cells(memory: tuple[int, ...]) -> list[str]:
        shown = [nbytes for part, nbytes in zip(PARTS, memory, strict=True) if part in used]
        return [quantity(each, "B") if each else "" for each in (*shown, sum(memory))]

    for (_, shard, texts), group in groupby(
        plan["roles"],
        lambda rank: (rank["role"].split()[0], rank["shard"], cells(tuple(rank["memory"].values()))),
    ):
        first, *others = list(group)
        to = [f" to {others[-1]['rank']}", f" to {others[-1]['role'].split()[1]}"] if others else ["", ""]
        elements = f"{shard[0]:,} to {shard[1]:,}" if shard else ""
        rows.append([f"{first['rank']}{to[0]}", f"{first['role']}{to[1]}", elements, *texts])
    return [
        *table(rows, left=3),
        f"{len(plan['roles'])} ranks of {_nodes(plan['nodes'])}: {quantity(plan['memory_bytes'], 'B')} in all, "
        "besides Python and its libraries",
    ]


def _nodes(count: int) -> str:
    return "one node" if count == 1 else f"{count} nodes"
