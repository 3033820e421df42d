"""A job whose model is cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Sequence

from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import Network
from mpidl.partition.group import Group
from mpidl.partition.network import CutNetwork
from mpidl.partition.plan import Plan
from mpidl.partition.planner import make_plan
from mpidl.partition.rounding import rounded_otherwise

#: Layers that a line lists.
NAMES = 5


def cut(job: Job, partitions: int) -> Plan:
    """Plan how a job's model is cut, and let the job's vectors have the plan's layout.

    Parameters
    ----------
    job : Job
    partitions : int
        Number of ranks of a replica.

    Returns
    -------
    Plan
        The same one on every rank.

    Raises
    ------
    UsageError
        The model can't be cut like this.
    """
    network, batch = job.original, job.config.data.batch
    if not isinstance(network, Network):
        raise UsageError(
            f"topology.partitions: {partitions}, but only networks of layers are cut, other models train whole; "
            "expected 1"
        )
    plan = make_plan(
        network.layers, network.input_shape, partitions,
        batch=batch, stages=job.config.topology.stages, itemsize=network.dtype.itemsize,
    )  # fmt: skip
    idle = [rank for rank in range(partitions) if not any(step.values(rank, batch) for step in plan.steps)]
    if idle:
        raise UsageError(
            f"topology.partitions: {partitions}, but {len(idle)} of them would have nothing to compute, "
            f"expected at most {partitions - len(idle)}"
        )
    job.lay_out(plan.layout, plan.slices)
    hows = {step.name: step.how for step in reversed(plan.steps)}
    cuts = [f"{name} by {hows[name]}" for name in network.graph.names]
    job.notes.append(f"each replica is cut over {partitions} ranks: {_listed(cuts)}")
    if job.config.run.deterministic and (names := rounded_otherwise(plan, clips=job.config.model.clip is not None)):
        job.notes.append(
            f"run.deterministic: the bits are those of any run of {partitions} partitions; of other numbers of them "
            f"not, since sums are rounded otherwise in {_listed(names)}"
        )
    return plan


def take_part(job: Job, plan: Plan, group: Group) -> None:
    """Let this rank compute its part of a job's model, together with the other ranks of its replica."""
    assert isinstance(job.original, Network)
    part = CutNetwork(job.original, plan, group.rank, **job.config.topology.pipeline)
    part.freeze(job.frozen)
    part.bind(group)
    job.part = job.model = part
    job.group, job.slice = group, part.slice


def _listed(texts: Sequence[str]) -> str:
    """Return texts as one, the first few of them if they are many."""
    return ", ".join(texts[:NAMES]) + ", ..." * (len(texts) > NAMES)
