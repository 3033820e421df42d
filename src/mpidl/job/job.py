"""A job: everything that one run is made of, put together before any rank begins to work."""

from __future__ import annotations

from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np

from mpidl.config import Config
from mpidl.data import Dataset, Portions, augmented, normalised
from mpidl.data.schedule import Schedule
from mpidl.device import Place, choose
from mpidl.engines.training import Training
from mpidl.errors import UsageError
from mpidl.nn import Network
from mpidl.nn.model import Model, layout_of
from mpidl.nn.network import check
from mpidl.nn.ondevice import Mirrored, OnDevice
from mpidl.parameters import Layout, Range
from mpidl.rules import Sgd
from mpidl.shards.on_device import ShardOnDevice, rehearse
from mpidl.shards.scheduled_rule import ScheduledRule
from mpidl.shards.shard import Shard
from mpidl.storage.checkpoint import Checkpoint
from mpidl.storage.position import Position


class Job:
    """One run's parts.

    Parameters
    ----------
    config : Config
    dataset : Dataset
    model : Model
    checkpoint : Checkpoint, optional
        Where to go on from.

    Attributes
    ----------
    model : Model
        Computes; see `place`.
    states : tuple of str
        Names of the vectors that a shard keeps beside the parameters: its rule's state and those of the algorithm.
    replicas : int
        How many the run has; set once the roles are given out.

    Raises
    ------
    UsageError
        The parts don't fit together.
    """

    def __init__(self, config: Config, dataset: Dataset, model: Model, checkpoint: Checkpoint | None = None) -> None:
        dataset = augmented(dataset, config.data.augment, config.run.seed)
        dataset = normalised(dataset, config.data.normalise)
        self.config, self.dataset, self.checkpoint = config, dataset, checkpoint
        self.model = self._given = model
        self.algorithm, self.rule = config.algorithm, config.rule
        self.states = (*(self.rule.states if self.rule is not None else ()), *self.algorithm.vectors())
        self.replicas = 1
        self.directory = Path(config.run.dir) / config.run.name
        if isinstance(model, Network):
            check(model, dataset.classes)
        if self.statistics and not self.algorithm.takes_statistics:
            raise UsageError(
                f"algorithm.name: {self.algorithm.name} minimises one function of the parameters; the model has "
                "statistics beside it (of batch_normalisation)"
            )
        if config.device.shards and not config.servers:
            raise UsageError(f"device.shards: true, but {self.algorithm.name} has no servers")
        if checkpoint is not None:
            self._check_checkpoint(checkpoint)
        data, run = config.data, config.run
        portions = Portions(dataset.train.samples, data.batch, data.portion, run.seed, dataset.train.contiguous)
        self.position = checkpoint.position if checkpoint is not None else Position(0, 0, 0.0, 0, [])
        self.schedule = Schedule(portions, run.epochs, run.steps, self.position.next_portion, self.position.unfinished)

    def _check_checkpoint(self, checkpoint: Checkpoint) -> None:
        if checkpoint.size != self.layout.size:
            raise UsageError(f"{checkpoint.path}: {checkpoint.size} parameters, the model has {self.layout.size}")
        if not self.algorithm.resumes(checkpoint.position.state):
            return
        if set(checkpoint.states) != set(self.states):
            saved, needed = (", ".join(states) or "nothing" for states in (checkpoint.states, self.states))
            by = f"algorithm.name: {self.algorithm.name}" if self.rule is None else f"server.rule: {self.rule.name}"
            raise UsageError(f"{by} keeps {needed}, {checkpoint.path} was saved with {saved}")

    @property
    def checkpoints(self) -> Path:
        """Directory of the run's checkpoints."""
        return self.directory / "checkpoints"

    @cached_property
    def layout(self) -> Layout:
        """Where the model's tensors lie in its flat vector."""
        return layout_of(self._given)

    @property
    def dtype(self) -> np.dtype:
        """Of the parameters."""
        return np.dtype(self._given.dtype if isinstance(self._given, Network) else self._given.parameters.dtype)

    def place(self, number: int = 0, mirrored: bool = True) -> Place | None:
        """Put the model where `[device]` says; called where it computes.

        Parameters
        ----------
        number : int
            Of this rank among those of its node that compute on GPUs.
        mirrored : bool
            Whether its vectors are the host's even where it computes on a GPU.

        Returns
        -------
        Place or None
            Where that is. None if there was nothing to choose: the configuration says the CPU, or a model
            of the user's own computes where it likes.

        Raises
        ------
        UsageError
            It is to be on a GPU, and can't be.
        """
        kind = self.config.device.kind
        if not isinstance(self._given, Network):
            if kind == "cuda":
                raise UsageError(
                    "device.kind: 'cuda' is for [[model.layer]]; a model of your own computes where it likes"
                )
            return None
        place = choose(kind, number)
        if place.xp is not np:
            self.model = (Mirrored if mirrored else OnDevice)(self._given, place.xp)
        return None if kind == "cpu" else place

    def copy_to_host(self) -> None:
        """Let the model that was given have the parameters of the one that computes."""
        if isinstance(self.model, OnDevice):
            self.model.settle()

    def warm(self, xp: Any = np) -> None:
        """Compile, or load from the cache, what a shard with vectors of this package needs: NumPy or CuPy."""
        if xp is np:
            # Policies and a coordinator's operations add vectors by plain SGD.
            (Sgd() if self.rule is None else self.rule).warm(self.dtype)
        elif not self.algorithm.coordinated:  # `Vectors.rehearse` compiles a coordinator's operations.
            rehearse(xp, self.rule, self.algorithm.shard_policy(1), self.dtype)

    def fill(
        self,
        range: Range,
        parameters: np.ndarray,
        chunk: int,
        state: tuple[np.ndarray, ...] | None = None,
        xp: Any = np,
    ) -> Shard:
        """Return a shard whose `parameters` and rule's state are the initial ones, or those of the checkpoint.

        Parameters
        ----------
        range : Range
            What the shard holds.
        parameters : array, shape (range.size,)
            Its memory, overwritten.
        chunk : int
            Elements of a chunk.
        state : tuple of arrays, optional
            Memory for the rule's state, overwritten.
        xp
            NumPy, or CuPy for a shard on the device; `parameters` are then where it publishes its own.
        """
        clock = 0
        if state is None:
            state = tuple(np.empty_like(parameters) for _ in self.states)
        for vector in state:
            vector.fill(0)
        if self.checkpoint is not None:
            anew = not self.algorithm.resumes(self.checkpoint.position.state)
            parameters[:] = self.checkpoint.read("parameters", range)
            for name, vector in () if anew else zip(self.states, state, strict=True):
                vector[:] = self.checkpoint.read(f"rule/{name}", range)
            clock = self.checkpoint.clock(range)
        elif isinstance(self._given, Network):
            parameters[:] = self._given.initial(range)
        else:
            parameters[:] = self._given.parameters[range.start : range.stop]
        policy = self.algorithm.shard_policy(self.replicas)
        rule, vectors = self.scheduled_rule, dict(zip(self.states, state, strict=True))
        if xp is np:
            return Shard(range, parameters, rule, policy, chunk, state=vectors, clock=clock)
        return ShardOnDevice(range, parameters, rule, policy, chunk, xp=xp, state=vectors, clock=clock)

    @property
    def scheduled_rule(self) -> ScheduledRule:
        """The shards' rule with the schedule of its rate and the parameters that it leaves alone."""
        return ScheduledRule(self.rule, self.rate_at, self.statistics)

    @property
    def units(self) -> int:
        """The most units that an evaluation of a coordinator has; 0 where there is none."""
        return self.algorithm.units(self.schedule.portions.per_epoch)

    @property
    def statistics(self) -> list[Range]:
        """Parameters that rules leave alone."""
        return getattr(self._given, "statistics", [])

    @property
    def training(self) -> Training:
        """What an engine in one process trains; the model is the one that computes, see `place`."""
        train = self.dataset.train
        return Training(self.algorithm, self.model, train, self.schedule, self.rate_at, self.statistics)

    def rate_at(self, portion: int) -> float:
        """Return what rates are multiplied by for a gradient of this portion."""
        schedule = self.schedule
        epochs = schedule.steps / schedule.steps_per_epoch
        # In the middle of the portion: a warm-up's first step is no step else.
        return self.config.rate.at((portion + 0.5) / schedule.portions.per_epoch, epochs)
