"""A job: a configuration, its data and its model, which fit together. The first of three stages.

A `mpidl.job.placed.PlacedJob` is made from it once the number of replicas is known, and from that on each rank a
`mpidl.job.ready.ReadyJob`.
"""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from functools import cached_property

import numpy as np
from msgspec import Struct

from mpidl.algorithms import Algorithm
from mpidl.config import Config
from mpidl.data import Dataset, Portions, Split, augmented, held_out, in_memory, normalised
from mpidl.job.callbacks import Callbacks
from mpidl.job.checks import check_labels, check_model, check_order, check_parts, check_states, of_data, scoring
from mpidl.job.goal import Goal, metrics
from mpidl.job.initial import Initial, InitialValues
from mpidl.job.notes import notes_on, notes_on_buffers, notes_on_tables
from mpidl.job.ownership import check_ownership
from mpidl.loggers import Logger
from mpidl.metrics import Metric
from mpidl.nn.adaptation import adapt
from mpidl.nn.groups import frozen_names, segments_of
from mpidl.nn.model import CompleteModel, Model
from mpidl.paths import user_path
from mpidl.shards.scheduled_rule import AVERAGE
from mpidl.storage.checkpoint import CONSTANTS, Checkpoint
from mpidl.tables.sources import FirstRows


class Script(Struct, frozen=True):
    """What a Python script wants of a run.

    Attributes
    ----------
    shared : bool
        Whether every rank gets the trained parameters in the end, and not only those that train.
    callbacks : Callbacks
        Functions that take each record.
    loggers : sequence of Logger
        Loggers beside those that the configuration names.
    """

    shared: bool = False
    callbacks: Callbacks = Callbacks()
    loggers: Sequence[Logger] = ()


SCRIPT = Script()


@dataclass(frozen=True, eq=False)
class Job:
    """What was asked.

    Attributes
    ----------
    config : Config
    given : Dataset
        The data as they were given, with integers as they are if the model takes them.
    described : mapping of str to str
        What the data are, for checkpoints; see `mpidl.job.checks`.
    dataset : Dataset
        Augmented, normalised and with a share held out for validation, as the configuration says.
    original : CompleteModel
        The model as it was given, on the host. Where it is cut, nothing of it is allocated.
    metrics : sequence of Metric
        The figures of evaluations beside loss and accuracy.
    goal : Goal
    first_values : InitialValues
        Returns the parameters [start, stop) of a layout at the beginning, of a file or the model.
    checkpoint : Checkpoint or None
        The checkpoint to resume from.
    notes : sequence of str
        What a user may not have meant or may want to know, in lines.
    continues : bool
        Whether the run continues in the directory that the configuration names; otherwise it makes a new one.
    script : Script
        What the Python script that trains has given beside these.
    """

    config: Config
    given: Dataset
    described: Mapping[str, str]
    dataset: Dataset
    original: CompleteModel
    metrics: Sequence[Metric]
    goal: Goal
    first_values: InitialValues
    checkpoint: Checkpoint | None
    notes: Sequence[str]
    continues: bool
    script: Script = SCRIPT

    @classmethod
    def of(
        cls, config: Config, dataset: Dataset, model: Model, checkpoint: Checkpoint | None = None,
        script: Script = SCRIPT,
    ) -> Job:  # fmt: skip
        """Return the job of a configuration, its data and its model.

        Raise UsageError if the parts don't fit together, or don't fit the checkpoint.
        """
        data, run, original = config.data, config.run, adapt(model)
        given = dataset if data.keep == "files" else in_memory(dataset, data.keep == "distributed")
        given = given.as_integers() if original.takes_integers else given
        given = given.as_double() if original.dtype == np.float64 else given
        prepared = held_out(given, data.validation, data.portion, run.seed)
        prepared = normalised(augmented(prepared, data.augment, run.seed), data.normalise)
        goal = Goal.of(run, validation=prepared.validation is not None)
        segments_of(config.model.group, original.layout, original.statistics)  # checks the groups
        original.freeze(frozen_names(config.model.group, original.layout))
        own = config.tables.first_values == "weights"
        trained = original.rows if own and getattr(original.rows, "complete", False) else None
        if original.tables:
            original.rows = FirstRows(original.tables, run.seed, original.dtype)
        check_parts(config, prepared, original)
        check_labels(given, scoring(original, given).ignored)
        check_ownership(config, prepared)
        path, initial = config.model.initial, None
        if checkpoint is None and path is not None:
            initial = Initial(user_path(path), original)
        first_values = InitialValues(initial, original, own, trained)
        measured = metrics(run, scoring(original, prepared))
        notes = [*notes_on(config, prepared.train, dataset), *notes_on_buffers(original)]
        if checkpoint is None and initial is None and trained is None:
            notes += notes_on_tables(config, original)
        job = cls(
            config, given, of_data(given), prepared, original, measured, goal, first_values,
            checkpoint, notes, continues=checkpoint is not None, script=script,
        )  # fmt: skip
        if checkpoint is not None:
            check_model(checkpoint, original)
            check_order(checkpoint, config)
            if job.resumes:
                check_states(checkpoint, config, job.states)
            original.load_constants(checkpoint.arrays(CONSTANTS))
            # Of a PyTorch module, the scale of first values is measured, and another one's may differ.
            if original.tables:
                saved = {spec.name: spec for spec in checkpoint.tables}
                original.tables = [saved[spec.name] for spec in original.tables]
        return job

    @property
    def algorithm(self) -> Algorithm:
        return self.config.algorithm

    @property
    def states(self) -> tuple[str, ...]:
        """Names of the vectors that a shard keeps beside the parameters: of its rule, the algorithm, and an average."""
        rule = self.config.rule
        average = () if self.config.run.ema is None else (AVERAGE,)
        return (*(() if rule is None else rule.states), *self.algorithm.vectors(), *average)

    @property
    def dtype(self) -> np.dtype:
        """The parameters' dtype."""
        return self.original.dtype

    @cached_property
    def portions(self) -> Portions:
        """The portions of the training data."""
        data, train, seed = self.config.data, self.dataset.train, self.config.run.seed
        order = self.dataset.order
        samples = train.samples if order is None else order.length
        blocks = order is None and data.by_portions(train)
        return Portions(samples, data.batch, data.portion, seed, blocks, data.drop_last, order)

    @property
    def evaluated(self) -> dict[str, Split]:
        """The splits that the model is evaluated on by their names: the first after each epoch, all at the end."""
        splits = {} if self.original.evaluated == "never" else self.dataset.splits
        return {name: split for name, split in splits.items() if name != "train"}

    @property
    def resumes(self) -> bool:
        """Whether the algorithm resumes from the checkpoint, and doesn't just start from its parameters."""
        if self.checkpoint is None:
            return False
        if not self.algorithm.coordinated:
            return True
        saved = self.checkpoint.sections.get("algorithm", {}).get("name", self.algorithm.name)
        return self.checkpoint.position.state is not None and saved == self.algorithm.name

    @cached_property
    def same_algorithm(self) -> bool:
        """Whether the checkpoint is of the same algorithm with the same settings as the configuration.

        Settings that the version which saved it didn't know had their defaults.
        """
        if self.checkpoint is None:
            return False
        present = tomllib.loads(self.config.to_toml())["algorithm"]
        known = {each.name: each.default for each in fields(self.algorithm) if each.name in present}
        return bool(known | self.checkpoint.sections.get("algorithm", {}) == present)
