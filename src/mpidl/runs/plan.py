"""Planning a job without allocating anything: its layers, its sizes, each rank's memory: ``mpidl plan``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from mpidl.config import Config
from mpidl.config.topology import TopologySection
from mpidl.job.build import build
from mpidl.job.footprint import Footprint, capacity_of, footprints, state_bytes
from mpidl.job.job import Job
from mpidl.job.ownership import check_number
from mpidl.job.placed import place
from mpidl.job.planning import plan_model
from mpidl.metrics.figures import Figures
from mpidl.nn.capabilities import activation_bytes, summaries
from mpidl.parameters import Range
from mpidl.partition.plan import Plan
from mpidl.report.text import quantity, size, table
from mpidl.runs.features import intermediaries
from mpidl.tables.entries import ENTRY
from mpidl.topology.roles import Roles
from mpidl.transport.capacity import Capacity

#: Operations of a gradient per operation of the forward pass: the backward pass takes as many again for the gradient
#: of the inputs, and as many for that of the weights.
FORWARD_AND_BACKWARD = 3
#: Bytes of a row beside its values and its rule's state: its entry and, about, its id in the index.
BESIDE = ENTRY.itemsize + 27
#: Parts of a rank's memory: the keys of its "memory", and their headings in the text.
PARTS = {name: name for name in Footprint._fields} | {"state": "rule's state"}


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
        parameter_bytes, gradient_bytes and state_bytes of the whole model; tables, a dict for each with name, rows,
        their largest number or None, and row_bytes, a row's on its server; layers, a dict for each with name, type,
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
    parameters, batch = job.original.layout.size, job.config.data.batch
    nbytes = parameters * job.dtype.itemsize
    result: dict[str, Any] = {
        "name": job.config.run.name,
        "algorithm": job.config.algorithm.name,
        "rule": None if job.config.rule is None else job.config.rule.name,
        "dtype": job.dtype.name,
        "batch": batch,
        "parameters": parameters,
        "parameter_bytes": nbytes,
        "gradient_bytes": nbytes,
        "state_bytes": state_bytes(job, parameters),
        "tables": _tables(job),
        "layers": None,
        "activation_bytes": activation_bytes(job.original, batch),
        "operations": None,
    }
    layers = summaries(job.original)
    if layers is not None:
        sizes = ({"bytes": each.parameters * job.dtype.itemsize, "operations": each.operations} for each in layers)
        own = ("name", "type", "shape", "parameters")
        result["layers"] = [dict(zip(own, each, strict=False)) | more for each, more in zip(layers, sizes, strict=True)]
        result["operations"] = sum(layer.operations for layer in layers)
    return result


def _tables(job: Job) -> list[dict[str, Any]]:
    section = job.config.tables
    vectors, found = 1 + len(section.rule_beside(job.config.rule).states), []
    for spec in job.original.tables:
        bounds = [int(each) for each in (spec.rows, section.max_rows) if each is not None]
        nbytes = vectors * spec.dimension * job.dtype.itemsize + BESIDE
        found.append({"name": spec.name, "rows": min(bounds, default=None), "row_bytes": nbytes})
    return found


def of_cuts(job: Job, cut: Plan) -> list[dict[str, Any]]:
    """Describe how a job's model is cut; see `plan`."""
    moved: Counter[str] = Counter()
    for each in cut.traffic(job.config.data.batch):
        moved[each.name] += sum(each.sent) * job.dtype.itemsize
    rows = [{"layer": step.name, "how": step.cut, "moved": moved.pop(step.name, 0)} for step in cut.steps]
    return [*rows, *({"layer": name, "how": "samples", "moved": nbytes} for name, nbytes in moved.items())]


def of_ranks(
    job: Job, nodes: Sequence[int], servers: int, cut: Plan | None, topology: TopologySection
) -> dict[str, Any]:
    """Describe the ranks of a job on these nodes, with a number of servers; see `plan`."""
    roles = topology.assign(nodes, servers, 1 if cut is None else cut.partitions)
    placed = place(job, len(roles.replicas), cut)
    check_number(job.config, job.dataset, placed.replicas)
    capacity = capacity_of(placed, servers, Figures(job.metrics))
    found = footprints(placed, intermediaries.routes(roles, capacity))
    shards = _shards(capacity, roles)
    described = [
        {"rank": rank, "role": name, "shard": shards.get(rank), "memory": memory._asdict()}
        for rank, (name, memory) in enumerate(zip(roles.names(), found, strict=True))
    ]
    return {"nodes": len(set(nodes)), "roles": described, "memory_bytes": sum(map(sum, found))}


def _shards(capacity: Capacity, roles: Roles) -> dict[int, Range]:
    """Return the range of the parameters of each rank that holds one; of none that holds several apart."""
    held: dict[int, list[Range]] = {}
    for each in capacity.held:
        rank = roles.servers[each.holder] if roles.servers else roles.replicas[each.holder][each.partition]
        held.setdefault(rank, []).append(each.range)
    hulls = {rank: Range(parts[0].start, parts[-1].stop) for rank, parts in held.items()}
    return {rank: hull for rank, hull in hulls.items() if hull.size == sum(part.size for part in held[rank])}


def as_text(plan: Mapping[str, Any]) -> str:
    """Return a plan as text for people."""
    state = f"rule's state {quantity(plan['state_bytes'], 'B')}"
    found = [
        f"{plan['name']}: {size(plan['parameters'], plan['parameter_bytes'])} of {plan['dtype']}, "
        f"gradient {quantity(plan['gradient_bytes'], 'B')}, {state}"
    ]
    for each in plan["tables"]:
        rows = each["rows"]
        most = "" if rows is None else f"; at most {rows:,} rows, {quantity(rows * each['row_bytes'], 'B')}"
        found.append(f"table {each['name']}: {quantity(each['row_bytes'], 'B')} on the servers for each row{most}")
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
    return [*table(rows, left=2), "moved: between the ranks of a replica in a step of training, forward and backward"]


def _rank_table(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each rank, and one for all that hold no shard and are alike."""
    used = {part: title for part, title in PARTS.items() if any(rank["memory"][part] for rank in plan["roles"])}
    rows = [["rank", "role", "shard", *used.values(), "in all"]]

    @cache
    def cells(memory: tuple[int, ...]) -> list[str]:
        shown = [nbytes for part, nbytes in zip(PARTS, memory, strict=True) if part in used]
        return [quantity(each, "B") if each else "" for each in (*shown, sum(memory))]

    for (_, shard, texts), group in groupby(
        plan["roles"], lambda rank: (rank["role"].split()[0], rank["shard"], cells(tuple(rank["memory"].values())))
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
