"""Planning a job without allocating anything: its layers, its sizes, each rank's memory: ``mpidl plan``."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from functools import cache
from itertools import groupby
from typing import Any

from mpidl.config import Config
from mpidl.job.build import build
from mpidl.job.footprint import Footprint, capacity_of, footprints, rows_of, state_bytes
from mpidl.job.job import Job
from mpidl.job.ownership import check_number
from mpidl.job.placed import place
from mpidl.job.planning import cut as cut_model
from mpidl.metrics.figures import Figures
from mpidl.nn.matrices import rules_of_tensors
from mpidl.parameters import Range
from mpidl.partition.plan import Plan
from mpidl.partition.sections import Sections
from mpidl.report.text import counted, quantity, size, titled
from mpidl.runs.features import intermediaries
from mpidl.topology.roles import Roles
from mpidl.transport.capacity import Capacity

#: Operations of a gradient per operation of the forward pass: the backward pass takes as many again for the gradient
#: of the inputs, and as many for that of the weights.
FORWARD_AND_BACKWARD = 3
#: The keys of a layer.
LAYER = ("name", "type", "shape", "parameters", "bytes", "operations")
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
        their largest number or None, and row_bytes, a row's on its server; tensors, a dict for each with name, shape
        and rule, if the rule is one of whole matrices; layers, a dict for each with name, type, shape of a sample's
        outputs, parameters, bytes and operations; activation_bytes of a batch; operations of a sample's forward pass.
        The last three are None for a model that can't tell them.

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
    job, topology = build(config), config.topology
    cut = cut_model(job, topology.partitions)
    described = of_model(job, cut)
    if ranks is None:
        return described
    of_node = config.virtual.ranks_per_node or ranks
    nodes = [rank // of_node for rank in range(ranks)]
    return described | of_ranks(job, nodes, topology.assign(nodes, config.servers), cut)


def of_model(job: Job, cut: Plan | Sections | None) -> dict[str, Any]:
    """Describe a job without its ranks, and how its model is cut; see `plan`."""
    parameters, batch, itemsize = job.original.layout.size, job.config.data.batch, job.dtype.itemsize
    rules = rules_of_tensors(job.config.tensor_rule, job.config.model.group, job.original)
    layers, cuts = job.original.summaries(), {"cuts": _cuts(job, cut)} if isinstance(cut, Plan) else {}
    return {
        "name": job.config.run.name,
        "algorithm": job.config.algorithm.name,
        "rule": None if job.config.rule is None else job.config.rule.name,
        "dtype": job.dtype.name,
        "batch": batch,
        "parameters": parameters,
        "parameter_bytes": parameters * itemsize,
        "gradient_bytes": parameters * itemsize,
        "state_bytes": state_bytes(job, parameters),
        "tables": [dict(zip(("name", "rows", "row_bytes"), each, strict=True)) for each in rows_of(job)],
        "tensors": [
            {"name": name, "shape": job.original.layout.shapes[name], "rule": its} for name, its in rules.items()
        ],
        "layers": layers
        and [dict(zip(LAYER, (*each[:4], each.parameters * itemsize, each[4]), strict=True)) for each in layers],
        "activation_bytes": job.original.activation_bytes(batch),
        "operations": None if layers is None else sum(layer.operations for layer in layers),
        **cuts,
    }


def _cuts(job: Job, cut: Plan) -> list[dict[str, Any]]:
    moved: Counter[str] = Counter()
    for each in cut.traffic(job.config.data.batch):
        moved[each.name] += sum(each.sent) * job.dtype.itemsize
    rows = [{"layer": step.name, "how": step.cut, "moved": moved.pop(step.name, 0)} for step in cut.steps]
    return [*rows, *({"layer": name, "how": "samples", "moved": nbytes} for name, nbytes in moved.items())]


def of_ranks(job: Job, nodes: Sequence[int], roles: Roles, cut: Plan | Sections | None) -> dict[str, Any]:
    """Describe the ranks of a job on these nodes; see `plan`."""
    placed = place(job, len(roles.replicas), cut)
    check_number(job.config, job.dataset, placed.replicas)
    capacity = capacity_of(placed, len(roles.servers), Figures(job.metrics))
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
    if plan["tensors"]:
        rows = [{**each, "shape": " x ".join(map(str, each["shape"]))} for each in plan["tensors"]]
        found += ["", *titled(rows, left=3)]
    if plan["layers"] is not None:
        found += ["", *_layer_table(plan)]
    if "cuts" in plan:
        rows = [
            {"layer": each["layer"], "cut": each["how"], "moved": quantity(each["moved"], "B") if each["moved"] else ""}
            for each in plan["cuts"]
        ]
        moved = "moved: between the ranks of a replica in a step of training, forward and backward"
        found += ["", *titled(rows, left=2), moved]
    if "roles" in plan:
        found += ["", *_rank_table(plan)]
    return "\n".join(found)


def _layer_table(plan: Mapping[str, Any]) -> list[str]:
    whole = {"name": "in all", "type": "", "shape": (), "bytes": plan["parameter_bytes"]}
    rows = [
        {
            "layer": each["name"],
            "type": each["type"],
            "outputs": " x ".join(map(str, each["shape"])),
            "parameters": f"{each['parameters']:,}",
            "bytes": quantity(each["bytes"], "B"),
            "operations": quantity(each["operations"], ""),
        }
        for each in (*plan["layers"], {**plan, **whole})
    ]
    return [
        *titled(rows, left=3),
        f"operations: of floating point, forward, for a sample; with backward about {FORWARD_AND_BACKWARD} times as "
        f"many, {quantity(FORWARD_AND_BACKWARD * plan['operations'], '')}",
        f"activations, their gradients and buffers: {quantity(plan['activation_bytes'], 'B')} "
        f"for a batch of {plan['batch']}",
    ]


def _rank_table(plan: Mapping[str, Any]) -> list[str]:
    """Return a line for each rank, and one for all that hold no shard and are alike."""

    @cache
    def cells(memory: tuple[int, ...]) -> dict[str, str]:
        sizes = zip((*PARTS.values(), "in all"), (*memory, sum(memory)), strict=True)
        return {title: quantity(nbytes, "B") if nbytes else "" for title, nbytes in sizes}

    rows = []
    for (_, shard, texts), group in groupby(
        plan["roles"], lambda rank: (rank["role"].split()[0], rank["shard"], cells(tuple(rank["memory"].values())))
    ):
        first, *others = list(group)
        to = [f" to {others[-1]['rank']}", f" to {others[-1]['role'].split()[1]}"] if others else ["", ""]
        elements = f"{shard[0]:,} to {shard[1]:,}" if shard else ""
        rows.append({"rank": f"{first['rank']}{to[0]}", "role": f"{first['role']}{to[1]}", "shard": elements} | texts)
    nodes = "one node" if plan["nodes"] == 1 else counted(plan["nodes"], "node")
    return [
        *titled(rows, left=3),
        f"{len(plan['roles'])} ranks of {nodes}: {quantity(plan['memory_bytes'], 'B')} in all, "
        "besides Python and its libraries",
    ]
