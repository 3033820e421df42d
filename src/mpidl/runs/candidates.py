"""The ways to cut a model that a proposal compares: numbers of partitions and stages of a replica."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from math import isfinite

from mpidl.algorithms import Exchange
from mpidl.engines.virtual import Times
from mpidl.engines.virtual.cut import UNCUT, Cut
from mpidl.errors import UsageError
from mpidl.job.job import Job
from mpidl.job.planning import basis_of, plan_model
from mpidl.nn import Network
from mpidl.partition.costs import Costs, plan_seconds
from mpidl.partition.plan import Plan

#: Micro-batches of a minibatch for each stage.
MICRO_BATCHES = 4


@dataclass(frozen=True)
class Candidate:
    """A way to cut a model.

    `seconds` is the time of a gradient. `plan` is None if the model isn't cut; `virtual` is the cut for a virtual
    cluster.
    """

    partitions: int
    stages: int
    micro_batches: int
    seconds: float
    plan: Plan | None
    virtual: Cut


class Candidates:
    """The candidates for a job's model.

    `costs` are measured or assumed. The gradient's duration in `times` is that of the uncut model; `given` says whether
    the links are those of `times`. `known` has all candidates so far, by partitions and stages.
    """

    def __init__(self, job: Job, costs: Costs, times: Times, given: bool) -> None:
        self._job = job
        seconds = times.compute.mean
        self.uncut = Candidate(1, 1, 1, seconds, None, UNCUT)
        self.known = {(1, 1): self.uncut}
        if given:
            within = times.memory_bandwidth if isfinite(times.memory_bandwidth) else times.bandwidth
            latency = times.latency.mean
            costs = replace(
                costs, bandwidth=within, between_bandwidth=times.bandwidth, latency=latency, between_latency=latency
            )
        self._basis = basis_of(job, costs)._replace(ranks_per_node=None if times.cores else times.ranks_per_node)
        whole = job.algorithm.exchange is Exchange.SHARED_MEMORY or job.original.tables
        self._cuttable = isinstance(job.original, Network) and not whole
        if self._cuttable and seconds:
            # The given or measured time of a gradient counts; the plan only says how ranks divide it.
            slower = seconds / plan_seconds(plan_model(job, 1), self._basis)
            self._basis = self._basis._replace(costs=costs.slower(slower))

    def cut(self, most: int) -> Iterator[Candidate]:
        """Yield the candidate with the fastest number of stages for 2, 4, ... partitions, up to `most`."""
        partitions = 2
        while self._cuttable and partitions <= most:
            candidates = list(self._of(partitions))
            if not candidates:
                return
            best = min(candidates, key=lambda each: each.seconds)
            self.known[partitions, best.stages] = best
            yield best
            partitions *= 2

    def _of(self, partitions: int) -> Iterator[Candidate]:
        stages = 1
        while stages <= partitions:
            try:
                plan = plan_model(self._job, partitions, stages)
            except UsageError:
                return
            micro_batches = min(MICRO_BATCHES * stages, self._job.config.data.batch) if stages > 1 else 1
            seconds = plan_seconds(plan, self._basis, micro_batches)
            virtual = Cut.busy(plan, seconds, self.uncut.seconds)
            yield Candidate(partitions, stages, micro_batches, seconds, plan, virtual)
            stages *= 2
