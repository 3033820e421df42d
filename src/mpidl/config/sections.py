"""The sections of a configuration whose keys are always the same, each a checked dataclass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.data import Augmentation, Dataset, Normalisation
from mpidl.errors import UsageError, quoted
from mpidl.nn import LOSSES, SoftmaxCrossEntropy
from mpidl.nn.build import layer_from_section
from mpidl.paths import user_path
from mpidl.schema import Checked

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class RunSection(Checked):
    """``[run]``: how long a run is, and where its files go.

    Attributes
    ----------
    name : str
        Directory of the run, within `dir`.
    dir : str
        Directory of all runs; ``~`` is your home directory.
    epochs, steps : int, optional
        Length of the run: passes over the training data, or minibatches of all replicas together. One of them
        is set; 10 epochs if neither is given.
    seed : int
        Determines the initial parameters and the order of the data.
    deterministic : bool
        Make the whole run, not only its start, independent of the number of servers and of timing.
    target_accuracy : float, optional
        Stop when the test accuracy reaches this value.
    record : bool
        Record the interleaving of a run on ranks, for ``mpidl simulate --replay``.
    report : float
        Seconds between two reports where the output is a log and not a terminal.
    terminate_on_nan : bool
        End the run when a loss is NaN or infinite.
    """

    name: Annotated[str, Meta(min_length=1)] = "run"
    dir: Annotated[str, Meta(min_length=1)] = "runs"
    epochs: Count | None = None
    steps: Count | None = None
    seed: Annotated[int, Meta(ge=0)] = 0
    deterministic: bool = False
    target_accuracy: Annotated[float, Meta(gt=0, le=1)] | None = None
    record: bool = False
    report: Seconds = 10.0
    terminate_on_nan: bool = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if "/" in self.name or not self.name.isprintable() or self.name in (".", ".."):
            raise UsageError(f"name: {quoted(self.name)} can't name a directory within run.dir")
        try:
            user_path(self.dir)
            user_path(self.name)
        except UsageError as error:
            raise UsageError(f"dir: {error}") from None
        if self.epochs is not None and self.steps is not None:
            raise UsageError("steps: run.epochs is given too, expected one of them")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 10)

    @property
    def directory(self) -> Path:
        """The run's directory, with a ``~`` in `dir` expanded."""
        return user_path(self.dir) / self.name


@dataclass(frozen=True)
class DataSection(Checked):
    """``[data]``, without the keys of the source.

    Attributes
    ----------
    batch : int
        Samples in a minibatch of one replica.
    portion : int
        Samples given to a replica at a time, a multiple of `batch`; four batches if not given.
    augment : Augmentation
        ``[data.augment]``.
    normalise : Normalisation
        ``[data.normalise]``.
    """

    batch: Count = 128
    portion: Count = None  # type: ignore[assignment]  # resolved below
    augment: Augmentation = field(default_factory=Augmentation)
    normalise: Normalisation = field(default_factory=Normalisation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.portion is None:
            object.__setattr__(self, "portion", 4 * self.batch)
        elif self.portion % self.batch:
            raise UsageError(f"portion: {self.portion}, expected a multiple of data.batch ({self.batch})")


@dataclass(frozen=True)
class PythonData:
    """The source, ``data.source = "python"``, of a run whose data were given by a Python script."""

    name: ClassVar[str] = "python"

    def open(self) -> Dataset:
        """Raise UsageError: only the script has the data."""
        raise UsageError(
            "data.source: the data of this run were given by a Python script: give them to mpidl.train or "
            "mpidl.evaluate as `data`"
        )


@dataclass(frozen=True)
class ModelSection(Checked):
    """``[model]``: the layers and the loss of a network, or a factory of any other model.

    Attributes
    ----------
    layer : list of dict, optional
        The ``[[model.layer]]`` sections, checked and unchanged.
    factory : str, optional
        ``"module:function"``; the function returns the model for ``(dataset, seed)``.
    loss : str, optional
        A name in `mpidl.nn.LOSSES`; None with a factory, whose model has its own loss.
    label_smoothing : float
        Label smoothing of softmax cross-entropy; see `mpidl.nn.SoftmaxCrossEntropy`.
    l2 : float
        Adds ``l2 / 2`` times the sum of the squared weights to the loss.
    clip : float, optional
        Largest Euclidean norm of the gradient of a batch; longer gradients are scaled down to it.
    dtype : {"float32", "float64"}
        Type of parameters, gradients and activations.
    """

    layer: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    factory: str | None = None
    loss: str | None = None
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    l2: Annotated[float, Meta(ge=0)] = 0.0
    clip: Annotated[float, Meta(gt=0)] | None = None
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
        super().__post_init__()
        if (self.layer is None) == (self.factory is None):
            found = "neither" if self.layer is None else "both"
            raise UsageError(f"layer: expected [[model.layer]] sections or model.factory, found {found}")
        if self.layer is not None:
            for number, section in enumerate(self.layer):
                layer_from_section(section, f"layer[{number}]")
            object.__setattr__(self, "loss", self.loss or "softmax_cross_entropy")
            schema.choose(LOSSES, "loss", self.loss)
            if self.label_smoothing and self.loss != SoftmaxCrossEntropy.name:
                raise UsageError(f"label_smoothing: {self.label_smoothing:g}, the loss {self.loss!r} takes none")
        elif self.loss is not None:
            raise UsageError("loss: model.factory is given, whose model has its own loss")
        else:
            for key in ("label_smoothing", "l2", "clip"):
                if getattr(self, key):
                    raise UsageError(f"{key}: model.factory is given, whose model has its own loss")
        if self.factory is not None and not re.fullmatch(r"[\w.]+:\w+", self.factory):
            raise UsageError(f"factory: expected module:function, found {quoted(self.factory)}")


@dataclass(frozen=True)
class TopologySection(Checked):
    """``[topology]``: how the ranks share the work. The replicas are formed by the ranks that are not servers.

    Attributes
    ----------
    servers : int
        Number of shards of the parameters, each on a rank of its own; ignored by algorithms without servers.
    """

    servers: Count = 1


@dataclass(frozen=True)
class CheckpointSection(Checked):
    """``[checkpoint]``: when to save, and what to keep.

    Attributes
    ----------
    every : float
        Seconds between checkpoints.
    keep : int
        Number of checkpoints to keep besides the first and the last.
    """

    every: Seconds = 60.0
    keep: Count = 3


@dataclass(frozen=True)
class DeviceSection(Checked):
    """``[device]``: where ranks compute.

    Attributes
    ----------
    kind : {"auto", "cpu", "cuda"}
        Device of the workers; "auto" is a GPU if there is one that works, else the CPU.
    transfer : {"auto", "direct", "staged"}
        Whether MPI is given a GPU's memory, or pinned memory of the host; "auto" asks the MPI library.
    shards : bool
        Whether servers use that device too, for their shards and the rule.
    """

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    transfer: Literal["auto", "direct", "staged"] = "auto"
    shards: bool = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.shards and self.kind == "cpu":
            raise UsageError("shards: true, but device.kind is 'cpu', expected 'auto' or 'cuda'")


@dataclass(frozen=True)
class DebugSection(Checked):
    """``[debug]``: make a worker slow, to see how an algorithm copes with it.

    Attributes
    ----------
    slow_worker : int, optional
        Number of the worker whose gradients take longer.
    slow_factor : float
        How many times as long they take.
    gradient_seconds : float
        Shortest time in seconds that any worker takes for a gradient, before `slow_factor`.
    """

    slow_worker: Annotated[int, Meta(ge=0)] | None = None
    slow_factor: Annotated[float, Meta(ge=1)] = 10.0
    gradient_seconds: Annotated[float, Meta(ge=0)] = 0.0

    def delay(self, worker: int) -> Callable[[float], float]:
        """Return a function from the seconds that a worker's gradient took to the seconds to sleep after it."""
        factor = self.slow_factor if worker == self.slow_worker else 1.0
        return lambda seconds: factor * max(seconds, self.gradient_seconds) - seconds
