"""How a job's model would be cut over the ranks of a replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import isfinite, prod
from typing import NamedTuple

from mpidl.algorithms import Exchange
from mpidl.engines.virtual.cut import UNCUT, ReplicaCut
from mpidl.engines.virtual.times import Times
from mpidl.errors import UsageError
from mpidl.job.durations import JobDurations
from mpidl.job.job import Job
from mpidl.nn import Network
from mpidl.partition.costs import Basis, Costs, plan_seconds
from mpidl.partition.plan import Plan
from mpidl.partition.planner import make_plan
from mpidl.partition.sections import Sections, sections_of

#: Micro-batches of a minibatch for each stage.
MICRO_BATCHES = 4


def cut(job: Job, partitions: int) -> Plan | Sections | None:
    """Plan how a job's model is cut over the ranks of a replica: into the stages that it asks for.

    The plan is the same on every rank, None for one partition. Raise UsageError if the model can't be cut like this.
    """
    stages = job.config.topology.stages
    if partitions == 1:
        return None
    if job.original.by_stages and stages == partitions:
        return sections_of(job.original, stages)
    return plan_model(job, partitions, stages)


def plan_model(job: Job, partitions: int, stages: int = 1) -> Plan:
    """Plan how a job's model is cut: the same plan wherever it is made, whatever was measured there.

    Raise UsageError if the model can't be cut like this.
    """
    network, batch = job.original, job.config.data.batch
    if not isinstance(network, Network):
        if network.by_stages:
            raise UsageError(
                f"topology.stages: {stages}, expected {partitions}, the number of partitions: of a model that isn't "
                "made of layers, each stage is one rank"
            )
        raise UsageError(f"topology.partitions: {partitions}, but only networks of layers can be cut, expected 1")
    # With more ranks, the search for a plan would take minutes.
    most = batch * max(map(prod, network.graph.shapes))
    if partitions > most:
        raise UsageError(
            f"topology.partitions: {partitions}, expected at most {most}, the values of the largest layer for a "
            "minibatch"
        )
    itemsize = network.dtype.itemsize
    plan = make_plan(network.layers, network.input_shape, partitions, batch=batch, stages=stages, itemsize=itemsize)
    idle = [rank for rank in range(partitions) if not any(step.values(rank, batch) for step in plan.steps)]
    if idle:
        raise UsageError(
            f"topology.partitions: {partitions}, expected at most {partitions - len(idle)}: {len(idle)} ranks would "
            "have nothing to compute"
        )
    return plan


class ModelCut(NamedTuple):
    """A way to cut a model.

    `seconds` is the time of a gradient. `plan` is None if the model isn't cut; `virtual` is the cut for a virtual
    cluster.
    """

    partitions: int
    stages: int
    micro_batches: int
    seconds: float
    plan: Plan | None
    virtual: ReplicaCut


def cuts(job: Job, durations: JobDurations, times: Times, most: int) -> Iterator[ModelCut]:
    """Yield the ways to cut a job's model: whole, and the fastest number of stages for 2, 4, ... partitions up to most.

    `durations` are the origin of `times`, whose gradient is that of the whole model.
    """
    whole = ModelCut(1, 1, 1, times.compute.mean, None, UNCUT)
    yield whole
    network, costs = job.original, durations.measured.costs
    if not isinstance(network, Network) or network.tables or job.algorithm.exchange is Exchange.SHARED_MEMORY:
        return
    if durations.gradient_given:
        within, latency = times.memory_bandwidth, times.latency.mean
        costs = replace(
            costs, bandwidth=within if isfinite(within) else times.bandwidth, between_bandwidth=times.bandwidth,
            latency=latency, between_latency=latency,
        )  # fmt: skip
    basis = basis_of(job, costs)._replace(ranks_per_node=None if times.cores else times.ranks_per_node)
    if whole.seconds:
        # The given or measured time of a gradient counts; the plan only says how ranks divide it.
        slower = whole.seconds / plan_seconds(plan_model(job, 1), basis)
        basis = basis._replace(costs=costs.slower(slower))
    partitions = 2
    while partitions <= most and (found := list(_stages(job, partitions, basis, whole.seconds))):
        yield min(found, key=lambda each: each.seconds)
        partitions *= 2


def _stages(job: Job, partitions: int, basis: Basis, whole: float) -> Iterator[ModelCut]:
    """Yield the cuts into 1, 2, 4, ... stages, as far as the model has them."""
    stages = 1
    while stages <= partitions:
        try:
            plan = plan_model(job, partitions, stages)
        except UsageError:
            return
        micro_batches = min(MICRO_BATCHES * stages, basis.samples) if stages > 1 else 1
        seconds = plan_seconds(plan, basis, micro_batches)
        yield ModelCut(partitions, stages, micro_batches, seconds, plan, ReplicaCut.busy(plan, seconds, whole))
        stages *= 2


def basis_of(job: Job, costs: Costs) -> Basis:
    """Return what the seconds of a step of a job depend on."""
    return Basis(job.config.data.batch, costs, job.dtype.itemsize)


def virtual_cut(job: Job, costs: Costs) -> ReplicaCut:
    """Return how virtual replicas of several ranks share a job's model.

    With stages, its ranks are busy for as long as a minibatch takes to pass through them; see `plan_seconds`. Raise
    UsageError if the model can't be cut like this.
    """
    topology = job.config.topology
    if topology.partitions == 1:
        return UNCUT
    basis, uncut, plan = basis_of(job, costs), plan_model(job, 1), plan_model(job, topology.partitions, topology.stages)
    if topology.stages == 1:
        return ReplicaCut.of(plan, uncut, basis)
    seconds = plan_seconds(plan, basis, topology.pipeline["micro_batches"])
    return ReplicaCut.busy(plan, seconds, plan_seconds(uncut, basis))
