"""A job: the parts of one run, put together before any rank begins to work."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from functools import cached_property
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from mpidl.algorithms.algorithm import Coordinated
from mpidl.config import Config
from mpidl.data import CachedSplit, Dataset, Portions, Split, augmented, held_out, in_memory, normalised
from mpidl.data.schedule import Schedule
from mpidl.errors import UsageError
from mpidl.job.checks import check_model, check_order, check_parts, check_states
from mpidl.job.description import of_data
from mpidl.job.goal import Goal, metrics
from mpidl.job.initial import Initial
from mpidl.job.notes import notes_on
from mpidl.metrics.figures import Figures
from mpidl.nn.adaptation import adapt
from mpidl.nn.groups import frozen_names, segments_of, statistics_in
from mpidl.nn.model import CompleteModel, Model, PlacedModel
from mpidl.parameters import Layout, Range
from mpidl.partition.group import Group
from mpidl.paths import user_path
from mpidl.schema import LARGEST
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.checkpoints import Best
from mpidl.storage.position import Position


class Job:
    """The parts of one run.

    Parameters
    ----------
    config : Config
    dataset : Dataset
    model : Model
    checkpoint : Checkpoint, optional
        The checkpoint to resume from.

    Attributes
    ----------
    config : Config
    given : Dataset
        The data as they were given, with integers as they are if the model takes them.
    described : dict of str
        What the data are; see `mpidl.job.description`. Checkpoints have it.
    dataset : Dataset
        Augmented, normalised and with a share held out for validation, as the configuration says.
    figures : Figures
        What evaluations say; `learn_outputs` completes it.
    goal : Goal
    original : CompleteModel
        The model as it was given, on the host. Where it is cut, nothing of it is allocated.
    part : CompleteModel
        What this rank computes of it, on the host: the original, unless `mpidl.job.cutting.take_part` has cut it.
    model : PlacedModel
        The model that computes; `part` itself until `place` has put it on a GPU.
    group : Group or None
        The ranks that compute the model together.
    layout : Layout
        Layout of the flat vectors of shards, replicas and algorithms. The original's own vector has its own layout.
    dtype
        The original's dtype; see `CompleteModel`.
    slices : sequence of Range
        What each rank of a replica has of the flat vectors.
    slice : Range
        What this one has.
    statistics : sequence of Range
        Ranges of the flat vectors that hold statistics; see `CompleteModel`.
    segments : list of Segment
        The parameters that are in groups.
    frozen : list of str
        Names of the tensors that are never changed.
    algorithm : Algorithm
    rule : Rule or None
        The shards' rule; None where the algorithm leaves no choice of rule.
    states : tuple of str
        Names of the vectors that a shard keeps beside the parameters: its rule's state and those of the algorithm.
    replicas : int
        Number of replicas; `begin` is called again once the roles are known.
    directory : Path
        The run's directory; set anew once the recorder has made it.
    checkpoint : Checkpoint or None
    continues : bool
        Whether the run goes on in the directory that the configuration names; else it makes one of its own.
    shared : bool
        Whether every rank is to have the trained parameters in the end, and not only those that train.
    best : Best or None
        The run's best checkpoint, on the rank that completes checkpoints.
    position : Position
        Where the run starts or resumes.
    schedule : Schedule
    notes : list of str
        What a user may not have meant or may want to know, in lines.

    Raises
    ------
    UsageError
        The parts don't fit together.
    """

    def __init__(
        self,
        config: Config,
        dataset: Dataset,
        model: Model,
        checkpoint: Checkpoint | None = None,
    ) -> None:
        data, run = config.data, config.run
        self.config, self.checkpoint = config, checkpoint
        self.original: CompleteModel = adapt(model)
        dataset = dataset if data.keep == "files" else in_memory(dataset, data.keep == "distributed")
        dataset = dataset.as_integers() if self.original.takes_integers else dataset
        self.given = dataset.as_double() if self.original.dtype == np.float64 else dataset
        self.described = of_data(self.given)
        dataset = held_out(self.given, data.validation, data.portion, run.seed)
        self.dataset = normalised(augmented(dataset, data.augment, run.seed), data.normalise)
        self.figures = Figures(metrics(run))
        self.goal = Goal.of(run, validation=dataset.validation is not None)
        self.part = self.original
        self.model: PlacedModel = self.original
        self.group: Group | None = None
        self.dtype = self.original.dtype
        self.lay_out(self.original.layout)
        self.frozen = frozen_names(config.model.group, self.layout)
        self.original.freeze(self.frozen)
        self.algorithm, self.rule = config.algorithm, config.rule
        self.states = (*(() if self.rule is None else self.rule.states), *self.algorithm.vectors())
        self.directory = run.directory
        self.continues = checkpoint is not None
        self.shared = False
        self.best: Best | None = None
        check_parts(config, self.dataset, self.original)
        if checkpoint is not None:
            check_model(checkpoint, self.original)
            check_order(checkpoint, config)
            if self.resumes:
                check_states(checkpoint, config, self.states)
            self.original.load_constants(checkpoint.constants())
        self.notes = notes_on(config, self.dataset.train)
        self._initial = self._open_initial()
        train = self.dataset.train
        by_portions = data.by_portions(train)
        self._portions = Portions(train.samples, data.batch, data.portion, run.seed, by_portions)
        self._settle(1)

    def lay_out(self, layout: Layout, slices: Sequence[Range] = ()) -> None:
        """Let the job's flat vectors have a layout, of which each rank of a replica has a slice.

        Parameters
        ----------
        layout : Layout
            The model's tensors; where the model is cut, in the order in which the ranks of a replica hold them.
        slices : sequence of Range
            Consecutive; by default, one rank has all.
        """
        self.layout, self.slice = layout, Range(0, layout.size)
        self.slices = slices or (self.slice,)
        self.statistics = statistics_in(layout, self.original)
        self.segments = segments_of(self.config.model.group, layout, self.statistics)

    def begin(self, replicas: int) -> None:
        """Settle where so many replicas begin: where those of the checkpoint were, if they are the same.

        Raises
        ------
        UsageError
            The algorithm's settings don't go with so many replicas.
        """
        self.algorithm.check_replicas(replicas, self.config.run.deterministic)
        self._settle(replicas)

    def _settle(self, replicas: int) -> None:
        self.replicas = replicas
        self.position = self.checkpoint.position if self.checkpoint is not None else Position(0, 0, 0.0, 0, [])
        self.schedule = self._schedule()
        if self.replicas_resume:
            self.position = self.position.with_replicas(self.schedule, self.config.run.deterministic)
            self.schedule = self._schedule()

    def _schedule(self) -> Schedule:
        run, position = self.config.run, self.position
        schedule = Schedule(self._portions, run.epochs, run.steps, position.next_portion, position.unfinished)
        if schedule.steps * self.config.data.batch > LARGEST:
            key = "epochs" if run.steps is None else "steps"
            raise UsageError(f"run.{key}: {getattr(run, key)}, expected fewer than 2**63 samples in all")
        return schedule

    @cached_property
    def same_algorithm(self) -> bool:
        """Whether the checkpoint is of the same algorithm with the same settings as the configuration."""
        if self.checkpoint is None:
            return False
        present = tomllib.loads(self.config.to_toml())["algorithm"]
        return bool(self.checkpoint.sections.get("algorithm") == present)

    @property
    def replicas_resume(self) -> bool:
        """Whether the replicas go on with what the checkpoint's replicas kept; else they begin at the parameters."""
        found = self.checkpoint.position.replicas if self.checkpoint is not None else ()
        return self.same_algorithm and len(found) == self.replicas

    def _open_initial(self) -> Initial | None:
        """Open the file of ``model.initial``, unless there is none or a checkpoint takes its place."""
        path = self.config.model.initial
        return None if path is None or self.checkpoint is not None else Initial(user_path(path), self.original)

    def initial(self, range: Range) -> np.ndarray:
        """Return the values with which the parameters [start, stop) begin, of a file or the model, shape (range.size,).

        Raises
        ------
        UsageError
            The file of ``model.initial`` can't be read.
        """
        source = self.original.initial if self._initial is None else self._initial.read
        return source(range, self.layout)

    def rehearse(self) -> None:
        """Let the user's own model compute the first batch, so that what is wrong with it is told before the training.

        Raises
        ------
        UsageError
            Something is.
        """
        if self.original.own:
            self.original.rehearse(self.dataset.train.take(self._portions.minibatches(0)[0]))

    @property
    def evaluated(self) -> dict[str, Split]:
        """The splits that the model is evaluated on by their names: the first after each epoch, all at the end."""
        splits = {"validation": self.dataset.validation, "test": self.dataset.test}
        return {name: split for name, split in splits.items() if split is not None}

    def values(self, sums: Mapping[str, NDArray[np.float64]]) -> dict[str, float]:
        """Return the figures of evaluations by their names, such as "test_loss", given the sums over each split."""
        return {
            f"{split}_{name}": value for split, of in sums.items() for name, value in self.figures.values(of).items()
        }

    def know_outputs(self, count: int) -> None:
        """Note the model's number of outputs, on a rank that doesn't compute."""
        self.figures = Figures(self.figures.metrics, count)

    @property
    def accuracy_name(self) -> str:
        """What the model's share of correct samples is called."""
        return self.original.accuracy_name(several_labels=self.dataset.classes is None)

    @property
    def resumes(self) -> bool:
        """Whether the algorithm resumes from the checkpoint, and doesn't just start from its parameters."""
        if self.checkpoint is None:
            return False
        return not self.algorithm.coordinated or self.checkpoint.position.state is not None

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    @property
    def units(self) -> int:
        """Largest number of units of a coordinator's evaluation; 0 without a coordinator."""
        algorithm = self.algorithm
        return algorithm.units(self.schedule.portions.per_epoch) if isinstance(algorithm, Coordinated) else 0

    def rate_at(self, portion: int) -> float:
        """Return the factor of all rates for a gradient of this portion."""
        schedule = self.schedule
        epochs = schedule.steps / schedule.steps_per_epoch
        # The middle of the portion: at its beginning, the first step of a warm-up would have a rate of 0.
        return self.config.rate.at((portion + 0.5) / schedule.portions.per_epoch, epochs)

    @property
    def kept(self) -> list[CachedSplit]:
        """The splits whose samples are kept in memory."""
        splits = (self.given.train, self.given.test, self.given.validation)
        return [split for split in splits if isinstance(split, CachedSplit)]

    @property
    def scheduled_rule(self) -> ScheduledRule:
        """The shards' rule, with the schedule of its rate and the parameters that it updates otherwise, or not."""
        if self.algorithm.outer:
            frozen = [each._replace(rate=1.0, weight_decay=None) for each in self.segments if each.frozen]
            return ScheduledRule(self.rule, statistics=self.statistics, segments=frozen)
        return ScheduledRule(self.rule, self.rate_at, self.statistics, self.segments)
