"""How a job's model would be cut over the ranks of a replica."""

from __future__ import annotations

from math import prod

from mpidl.engines.virtual.cut import Cut
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.nn import Network
from mpidl.nn.capabilities import Staged
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.plan import Plan
from mpidl.partition.planner import make_plan
from mpidl.partition.sections import Sections, sections_of


def cut(job: Job, partitions: int) -> Plan | Sections | None:
    """Plan how a job's model is cut over the ranks of a replica: into the stages that it asks for.

    The plan is the same on every rank, None for one partition. Raise UsageError if the model can't be cut like this.
    """
    stages = job.config.topology.stages
    if partitions == 1:
        return None
    if isinstance(job.original, Staged) and stages == partitions:
        return sections_of(job.original, stages)
    return plan_model(job, partitions, stages)


def plan_model(job: Job, partitions: int, stages: int = 1) -> Plan:
    """Plan how a job's model is cut: the same plan wherever it is made, whatever was measured there.

    Raise UsageError if the model can't be cut like this.
    """
    network, batch = job.original, job.config.data.batch
    if not isinstance(network, Network):
        if isinstance(network, Staged):
            raise UsageError(
                f"topology.stages: {stages}, but a stage of a model that isn't made of layers is one rank, "
                f"expected {partitions} as topology.partitions"
            )
        raise UsageError(
            f"topology.partitions: {partitions}, but only networks of layers are cut, other models train whole; "
            "expected 1"
        )
    # With more ranks, the search for a plan would take minutes.
    most = batch * max(map(prod, network.graph.shapes))
    if partitions > most:
        raise UsageError(
            f"topology.partitions: {partitions}, but a minibatch has at most {most} values in a layer, "
            f"expected at most {most}"
        )
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


def virtual_cut(job: Job, costs: Costs) -> Cut:
    """Return how virtual replicas of several ranks share a job's model.

    With stages, its ranks are busy for as long as a minibatch takes to pass through them; see `plan_seconds`. Raise
    UsageError if the model can't be cut like this.
    """
    topology, basis, uncut = job.config.topology, basis_of(job, costs), plan_model(job, 1)
    plan = plan_model(job, topology.partitions, topology.stages)
    if topology.stages == 1:
        return Cut.of(plan, uncut, basis)
    seconds = plan_seconds(plan, basis, topology.pipeline["micro_batches"])
    return Cut.busy(plan, seconds, plan_seconds(uncut, basis))
