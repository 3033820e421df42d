"""A job placed on replicas: the layout of its vectors, and where in the data it begins. The second of three stages."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property, lru_cache
from math import isfinite, nan

import numpy as np

from mpidl.algorithms.coordination import Coordinated
from mpidl.data.sampling import OwnSampler, PortionSampler
from mpidl.data.schedule import REDUCTION, Schedule
from mpidl.errors import UsageError, quoted
from mpidl.functions import call
from mpidl.job.job import Job
from mpidl.job.notes import notes_on_cut, notes_on_owners, notes_on_tensors
from mpidl.job.ownership import own_positions, shares
from mpidl.nn.groups import segments_of, statistics_in
from mpidl.nn.matrices import matrices, rules_of_tensors, segments_by_tensors
from mpidl.parameters import Layout, Range, moves
from mpidl.partition.plan import Plan
from mpidl.partition.sections import Sections
from mpidl.rules import RateSchedule
from mpidl.rules.segments import Segment
from mpidl.schema import LARGEST
from mpidl.shards.scheduled_rule import AVERAGE, Average, ScheduledRule
from mpidl.shards.state import PARAMETERS
from mpidl.storage.position import Position

#: Factors of rates that are kept: the chunks of a push have the same one.
RATES = 64


@dataclass(frozen=True, eq=False)
class PlacedJob:
    """A job for a number of replicas.

    Attributes
    ----------
    job : Job
    replicas : int
    plan : Plan, Sections or None
        How the model is cut over the ranks of a replica; None if it isn't.
    layout : Layout
        Layout of the flat vectors of shards, replicas and algorithms: the model's own or, where it is cut, one with the
        tensors in the order in which ranks hold them.
    slices : sequence of Range
        The part of the flat vectors of each rank of a replica.
    position : Position
        Where the run starts or resumes.
    schedule : Schedule
    """

    job: Job
    replicas: int
    plan: Plan | Sections | None
    layout: Layout
    slices: Sequence[Range]
    position: Position
    schedule: Schedule

    @cached_property
    def statistics(self) -> Sequence[Range]:
        """Ranges of the flat vectors that hold statistics; see `CompleteModel`."""
        return statistics_in(self.layout, self.job.original)

    @cached_property
    def segments(self) -> list[Segment]:
        """The parameters that are in groups or, with a rule of whole tensors, all."""
        groups, rule = self.job.config.model.group, self.job.config.tensor_rule
        found = segments_of(groups, self.layout, self.statistics)
        if rule is None:
            return found
        return segments_by_tensors(rule, groups, self.layout, self.statistics, matrices(groups, self.job.original))

    @property
    def notes(self) -> list[str]:
        """What the user may not have meant or may want to know, in lines."""
        job = self.job
        rules = rules_of_tensors(job.config.tensor_rule, job.config.model.group, job.original)
        on_cut = [] if self.plan is None else notes_on_cut(job.config, self.plan)
        return [
            *job.notes,
            *notes_on_tensors(rules),
            *notes_on_owners(job.config, job.dataset, self.replicas),
            *on_cut,
        ]

    @cached_property
    def samplers(self) -> Sequence[PortionSampler]:
        """The sampler of each replica.

        Raises
        ------
        UsageError
            Samples belong to replicas, but not to these.
        """
        found = shares(self.job.config, self.job.dataset, self.replicas)
        if found is None:
            return [PortionSampler(self.schedule.portions)] * self.replicas
        samplers = [OwnSampler(self.schedule.portions, own, owner) for owner, own in enumerate(found)]
        for own, position in zip(samplers, own_positions(self.job.checkpoint, self.replicas), strict=True):
            own.resume(position, computed=self.replicas_resume)
        return samplers

    @property
    def replicas_resume(self) -> bool:
        """Whether the replicas resume from what the checkpoint's kept; otherwise they only have its parameters."""
        return _resume(self.job, self.replicas)

    @property
    def sends_values(self) -> bool:
        """Whether workers send the coordinator what they evaluate: callbacks take values that no server has."""
        servers = self.job.algorithm.exchange.has_servers
        return self.job.script.callbacks.take_values and not servers

    def tensors(self, vector: np.ndarray) -> dict[str, np.ndarray]:
        """Return the model's tensors by name, constants included, given the flat vector (size,) of the parameters."""
        original, whole = self.job.original, Range(0, vector.size)
        if self.layout != original.layout:
            cut, vector = vector, np.empty_like(vector)
            for move in moves(self.layout, whole, original.layout, whole):
                move.copy(cut, vector)
        return {**original.layout.views(vector), **original.constants()}

    @property
    def units(self) -> int:
        """Largest number of units of a coordinator's evaluation; 0 without a coordinator."""
        algorithm = self.job.algorithm
        return algorithm.units(self.schedule.portions.per_epoch) if isinstance(algorithm, Coordinated) else 0

    @cached_property
    def rate_at(self) -> Callable[[int], float]:
        """Returns the factor of all rates for the gradient of a minibatch, given its number in the run."""
        rate, schedule, per_epoch = self.job.config.rate, self.schedule, self.schedule.portions.steps_per_epoch
        length, own = schedule.steps / per_epoch, own_schedule(rate)

        def at(batch: int) -> float:
            step = schedule.step(batch)
            # The middle of the step: at its beginning, the first of a warm-up would have a rate of 0.
            reduced = float(rate.factor ** (max(0, batch) // REDUCTION))
            return rate.at((step + 0.5) / per_epoch, length) * own(step) * reduced

        return lru_cache(RATES)(at)

    @property
    def evaluated(self) -> str:
        """Name of the shards' vector that is evaluated and given to the model in the end."""
        return PARAMETERS if self.job.config.run.ema is None else AVERAGE

    @property
    def scheduled_rule(self) -> ScheduledRule:
        """The shards' rule with its groups of parameters and, unless replicas have rates of their own, its schedule."""
        algorithm, rule, ema = self.job.algorithm, self.job.config.rule, self.job.config.run.ema
        segments = self.segments
        if algorithm.local_rule is not None:  # then only replicas make steps by gradients
            segments = [Segment(each.range, frozen=True) for each in segments if each.frozen]
        scheduled = ScheduledRule(rule, statistics=self.statistics, segments=segments)
        if not algorithm.outer:
            scheduled = replace(scheduled, rate_at=self.rate_at)
        return scheduled if ema is None else replace(scheduled, changed=Average(ema))


def place(job: Job, replicas: int, plan: Plan | Sections | None = None) -> PlacedJob:
    """Return a job for this many replicas, which go on where those of the checkpoint were if they are as many.

    `plan` is the cut of the model; see `mpidl.job.planning.cut`. Raise UsageError if the algorithm's settings don't go
    with the number of replicas, or the run is too long.
    """
    deterministic = job.config.run.deterministic
    job.algorithm.check_replicas(replicas, deterministic)
    layout = job.original.layout if plan is None else plan.layout
    slices = [Range(0, layout.size)] if plan is None else plan.slices
    position = job.checkpoint.position if job.checkpoint is not None else Position(0, 0, 0.0, 0, [])
    position = position if job.resumes else position._replace(state=None)
    schedule = _schedule(job, position)
    if _resume(job, replicas):
        position = position.with_replicas(schedule, deterministic)
        schedule = _schedule(job, position)
    placed = PlacedJob(job, replicas, plan, layout, slices, position, schedule)
    placed.rate_at(0)  # a function of the user's own fails before the training
    return placed


def _resume(job: Job, replicas: int) -> bool:
    return job.checkpoint is not None and job.same_algorithm and len(job.checkpoint.position.replicas) == replicas


def _schedule(job: Job, position: Position) -> Schedule:
    run = job.config.run
    schedule = Schedule(job.portions, run.epochs, run.steps, position.next_portion, position.unfinished)
    if schedule.steps * job.config.data.batch > LARGEST:
        key = "epochs" if run.steps is None else "steps"
        raise UsageError(f"run.{key}: {getattr(run, key)}, expected fewer than 2**63 samples in all")
    schedule.reductions = (position.rates or {}).get("reductions", 0)
    return schedule


def own_schedule(rate: RateSchedule) -> Callable[[int], float]:
    """Return the function that ``rate.schedule`` names, of the number of steps so far, or one that returns 1.

    It raises UsageError if there is no such function, or it fails or returns anything but a number of at least 0.
    """
    name = rate.schedule
    if not rate.own:
        return lambda step: 1.0

    def factor(step: int) -> float:
        found = call("rate.schedule", name, "(step)", step)
        try:
            value = float(found)
        except (TypeError, ValueError):
            value = nan
        if not (isfinite(value) and value >= 0):
            raise UsageError(f"rate.schedule: {name}: {quoted(found)} at step {step}, expected a factor of at least 0")
        return value

    return factor
