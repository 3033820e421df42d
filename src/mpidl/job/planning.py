"""How a job's model would be cut over the ranks of a replica."""

from __future__ import annotations

from mpidl.engines.virtual.cut import Cut
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import Network
from mpidl.partition.costs import Costs
from mpidl.partition.plan import Plan
from mpidl.partition.planner import make_plan
from mpidl.partition.seconds import Basis


def plan_model(job: Job, partitions: int, stages: int = 1) -> Plan:
    """Plan how a job's model is cut: the same plan wherever it is made, whatever was measured there.

    Raises
    ------
    UsageError
        The model can't be cut like this.
    """
    network, batch = job.original, job.config.data.batch
    if not isinstance(network, Network):
        kind = "a user's own model" if network.own else type(network).__name__
        raise UsageError(f"topology.partitions: {partitions}, but {kind} trains whole, expected 1")
    itemsize = network.dtype.itemsize
    plan = make_plan(network.layers, network.input_shape, partitions, batch=batch, stages=stages, itemsize=itemsize)
    idle = [rank for rank in range(partitions) if not any(step.values(rank, batch) for step in plan.steps)]
    if idle:
        raise UsageError(
            f"topology.partitions: {partitions}, but {len(idle)} of them would have nothing to compute, "
            f"expected at most {partitions - len(idle)}"
        )
    return plan


def basis_of(job: Job, costs: Costs) -> Basis:
    """Return what the seconds of a step of a job depend on."""
    return Basis(job.config.data.batch, costs, job.dtype.itemsize)


def virtual_cut(job: Job, partitions: int, costs: Costs) -> Cut:
    """Return how virtual replicas of so many ranks share a job's model.

    Raises
    ------
    UsageError
        The model can't be cut like this.
    """
    return Cut.of(plan_model(job, partitions), plan_model(job, 1), basis_of(job, costs))
