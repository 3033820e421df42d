"""A job: the parts of one run, put together before any rank begins to work."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from mpidl.config import Config
from mpidl.data import Dataset, Portions, augmented, normalised
from mpidl.data.schedule import Schedule
from mpidl.device import Place, choose
from mpidl.engines.training import Training
from mpidl.errors import UsageError
from mpidl.job.description import of_data
from mpidl.nn.adaptation import adapt
from mpidl.nn.model import CompleteModel, Model, PlacedModel
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.parameters import Range, shards
from mpidl.schema import LARGEST
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.storage.checkpoint import Checkpoint, prune
from mpidl.storage.files import scratch
from mpidl.storage.index import save_index
from mpidl.storage.position import Position, ReplicaPosition
from mpidl.version import VERSION


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
        The data as they were given.
    dataset : Dataset
        Augmented and normalised as the configuration says.
    original : CompleteModel
        The model as it was given, on the host.
    model : PlacedModel
        The model that computes; the original itself until `place` has put it on a GPU.
    layout, dtype, statistics
        Those of the original; see `CompleteModel`.
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
    position : Position
        Where the run starts or resumes.
    schedule : Schedule

    Raises
    ------
    UsageError
        The parts don't fit together.
    """

    def __init__(self, config: Config, dataset: Dataset, model: Model, checkpoint: Checkpoint | None = None) -> None:
        data, run = config.data, config.run
        self.config, self.checkpoint = config, checkpoint
        self.given, self._data = dataset, of_data(dataset)
        self.original: CompleteModel = adapt(model)
        if self.original.takes_integers:
            dataset = dataset.as_integers()
        self.dataset = normalised(augmented(dataset, data.augment, run.seed), data.normalise)
        self.model: PlacedModel = self.original
        self.layout, self.dtype = self.original.layout, self.original.dtype
        self.statistics = self.original.statistics
        self.algorithm, self.rule = config.algorithm, config.rule
        self.states = (*(() if self.rule is None else self.rule.states), *self.algorithm.vectors())
        self.directory = run.directory
        self.continues = checkpoint is not None
        self.shared = False
        self._check()
        train = self.dataset.train
        self._portions = Portions(train.samples, data.batch, data.portion, run.seed, train.contiguous)
        self.begin(1)

    def begin(self, replicas: int) -> None:
        """Settle where so many replicas begin: where those of the checkpoint were, if they are the same."""
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

    @property
    def same_algorithm(self) -> bool:
        """Whether the checkpoint is of the same algorithm with the same settings."""
        if self.checkpoint is None:
            return False
        present = tomllib.loads(self.config.to_toml())["algorithm"]
        return bool(self.checkpoint.sections.get("algorithm") == present)

    @property
    def replicas_resume(self) -> bool:
        """Whether the replicas go on with what the checkpoint's replicas kept; else they begin at the parameters."""
        found = self.checkpoint.position.replicas if self.checkpoint is not None else ()
        return self.same_algorithm and len(found) == self.replicas

    def _check(self) -> None:
        self.original.check_data(self.dataset.input_shape, self.dataset.classes)
        name = self.algorithm.name
        if self.statistics and not self.algorithm.takes_statistics:
            raise UsageError(
                f"algorithm.name: {name} minimises one function of the parameters; the model has statistics beside it "
                "(of batch_normalisation)"
            )
        if self.layout.size > LARGEST:
            raise UsageError("model: more than 2**63 - 1 parameters, expected fewer")
        if self.config.servers > self.layout.size:
            raise UsageError(
                f"topology.servers: {self.config.servers}, expected at most one for each of the model's "
                f"{self.layout.size} parameters"
            )
        if self.config.device.shards and not self.config.servers:
            raise UsageError(f"device.shards: true, but {name} has no servers")
        if self.checkpoint is None:
            return
        self._check_model(self.checkpoint)
        self._check_config(self.checkpoint)
        if self.resumes and set(self.checkpoint.states) != set(self.states):
            saved, needed = (", ".join(names) or "nothing" for names in (self.checkpoint.states, self.states))
            by = f"algorithm.name: {name}" if self.rule is None else f"server.rule: {self.rule.name}"
            raise UsageError(f"{by} keeps {needed}, {self.checkpoint.path} was saved with {saved}")

    def _check_model(self, checkpoint: Checkpoint) -> None:
        """Raise UsageError if a checkpoint is of another model."""
        if checkpoint.size != self.layout.size:
            raise UsageError(f"{checkpoint.path}: {checkpoint.size} parameters, the model has {self.layout.size}")
        shapes = {tensor.name: tensor.shape for tensor in self.layout}
        for name in [*shapes, *checkpoint.shapes]:
            saved, present = checkpoint.shapes.get(name), shapes.get(name)
            if saved != present:
                found = "none" if saved is None else f"one of shape {saved}"
                expected = "none" if present is None else f"one of shape {present}"
                raise UsageError(f"{checkpoint.path}: parameters {name}: found {found}, the model has {expected}")

    def _check_config(self, checkpoint: Checkpoint) -> None:
        """Raise UsageError if the data were in another order, so that the position would stand for other samples."""
        if checkpoint.position.at_beginning:
            return
        present = self.config.to_dict()
        for section, key in (("data", "batch"), ("data", "portion"), ("run", "seed")):
            saved = checkpoint.sections.get(section, {}).get(key)
            if saved not in (None, present[section][key]):
                found = f"{section}.{key}: {present[section][key]}"
                raise UsageError(
                    f"{found}, but {checkpoint.path} was saved with {saved}, which decides what of the data is done"
                )

    def identify(self, data: Mapping[str, str]) -> None:
        """Note what the data are, as `mpidl.job.description` says it; checkpoints will have that.

        Raises
        ------
        UsageError
            The checkpoint's were others.
        """
        self._data = dict(data)
        checkpoint = self.checkpoint
        if checkpoint is None or checkpoint.position.at_beginning:
            return
        for name, saved in checkpoint.data.items():
            if "test" not in name and self._data.get(name, saved) != saved:
                raise UsageError(f"{name}: {self._data[name]}, but {checkpoint.path} was saved with {saved}")

    def restore(self, checkpoint: Checkpoint) -> None:
        """Give the model the parameters of a checkpoint.

        Raises
        ------
        UsageError
            It is of another model.
        """
        self._check_model(checkpoint)
        self.original.parameters[:] = checkpoint.read("parameters", Range(0, self.layout.size))

    def rehearse(self) -> None:
        """Let the user's own model compute the first batch, so that what is wrong with it is told before the training.

        Raises
        ------
        UsageError
            Something is.
        """
        if not self.original.movable:
            self.original.rehearse(self.dataset.train.take(self._portions.minibatches(0)[0]))

    @property
    def accuracy_name(self) -> str:
        """What the model's share of correct samples is called."""
        return self.original.accuracy_name(several_labels=self.dataset.classes is None)

    def replica_position(self, number: int) -> ReplicaPosition | None:
        """Return where a replica goes on; None if it begins at the parameters."""
        return self.position.replicas[number] if self.replicas_resume else None

    @property
    def resumes(self) -> bool:
        """Whether the algorithm resumes from the checkpoint, and doesn't just start from its parameters."""
        return self.checkpoint is not None and self.algorithm.resumes(self.checkpoint.position.state)

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    def complete_checkpoint(self, order: int, position: Position, shards: int, files: Sequence[str] = ()) -> None:
        """Complete a checkpoint, whose other files are on disk, and remove those not to be kept.

        Parameters
        ----------
        order : int
            Ordinal of the order to save it.
        position : Position
        shards : int
            Number of shards.
        files : sequence of str
            Names of the files beside those of the shards.
        """
        directory = scratch(self.checkpoints, order)
        save_index(directory, self.layout, shards, position, self.config.to_toml(), VERSION, self._data, files)
        prune(self.checkpoints, self.config.checkpoint.keep, position.step)

    @property
    def units(self) -> int:
        """Largest number of units of a coordinator's evaluation; 0 without a coordinator."""
        return self.algorithm.units(self.schedule.portions.per_epoch)

    def rate_at(self, portion: int) -> float:
        """Return the factor of all rates for a gradient of this portion."""
        schedule = self.schedule
        epochs = schedule.steps / schedule.steps_per_epoch
        # The middle of the portion: at its beginning, the first step of a warm-up would have a rate of 0.
        return self.config.rate.at((portion + 0.5) / schedule.portions.per_epoch, epochs)

    @property
    def note(self) -> str | None:
        """What a user may not have meant, in a line; None if there is nothing."""
        default = self.algorithm.default_rule
        if not self.algorithm.outer or self.rule is None or default is None or isinstance(self.rule, type(default)):
            return None
        return f"server.rule: {self.rule.name} is the outer rule of {self.algorithm.name} now, {default.name} its own"

    def shards(self, holders: int) -> list[Range]:
        """Return the parts of the parameters that servers hold or, without servers, workers.

        Raises
        ------
        UsageError
            There are too many of them.
        """
        encoding = self.algorithm.encoding()
        return shards(self.layout.size, holders, 1 if encoding is None else encoding.block)

    @property
    def scheduled_rule(self) -> ScheduledRule:
        """The shards' rule, with the schedule of its rate and the parameters that it leaves alone."""
        if self.algorithm.outer:
            return ScheduledRule(self.rule, statistics=self.statistics)
        return ScheduledRule(self.rule, self.rate_at, self.statistics)

    @property
    def training(self) -> Training:
        """What an engine in one process trains, with the model that computes; see `place`."""
        train = self.dataset.train
        return Training(self.algorithm, self.model, train, self.schedule, self.rate_at, self.statistics)

    def place(self, number: int = 0, mirrored: bool = True) -> Place | None:
        """Put the model on the device that ``[device]`` asks for. A rank that computes calls it once.

        Parameters
        ----------
        number : int
            Number of this rank among those of its node that compute on GPUs.
        mirrored : bool
            Whether parameters and gradient lie in the host's memory even if the model computes on a GPU.

        Returns
        -------
        Place or None
            Where the model computes. None if there was no choice: the configuration says the CPU, or the model
            computes where it likes.

        Raises
        ------
        UsageError
            The configuration asks for a GPU that can't be had, or can't be used by the model.
        """
        kind = self.config.device.kind
        if not self.original.movable:
            if kind == "cuda":
                raise UsageError(
                    "device.kind: 'cuda' is for [[model.layer]]; a model of your own computes where it likes"
                )
            return None
        place = choose(kind, number)
        if place.xp is not np:
            self.model = (Mirrored if mirrored else OnDevice)(self.original, place.xp)
        return None if kind == "cpu" else place
