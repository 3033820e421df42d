"""The sections of a configuration whose keys don't depend on names in it, each a checked dataclass."""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.data import Augmentation, Normalisation
from mpidl.errors import UsageError
from mpidl.nn import LOSSES, SoftmaxCrossEntropy
from mpidl.nn.build import layer_from_section

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]


@dataclass(frozen=True)
class Run:
    """``[run]``: how long, and where its files go.

    Attributes
    ----------
    name : str
        Directory of the run within `dir`.
    epochs, steps : int, optional
        Length of the run: passes over the training data, or minibatches of all replicas together. One of them
        is set; 10 epochs if neither is given.
    seed : int
        Decides the initial parameters and the order of the data.
    deterministic : bool
        Make the whole run, not just its start, independent of the number of servers and of timing.
    target_accuracy : float, optional
        Stop when the test accuracy reaches it.
    record : bool
        Keep the interleaving of a run on ranks, for ``mpidl simulate --replay``.
    report : float
        Seconds between the reports of a batch log.
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

    def __post_init__(self) -> None:
        if "/" in self.name or "\0" in self.name or self.name in (".", ".."):
            raise UsageError(f"name: {self.name!r} can't name a directory within run.dir")
        if self.epochs is not None and self.steps is not None:
            raise UsageError("steps: run.epochs is given too, expected one of them")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 10)


@dataclass(frozen=True)
class Data:
    """``[data]``, without the keys of the source itself.

    Attributes
    ----------
    batch : int
        Samples of a minibatch of one replica.
    portion : int
        Samples handed to a replica at a time, a multiple of `batch`; four batches if not given.
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
        if self.portion is None:
            object.__setattr__(self, "portion", 4 * self.batch)
        elif self.portion % self.batch:
            raise UsageError(f"portion: {self.portion}, expected a multiple of data.batch ({self.batch})")


@dataclass(frozen=True)
class Model:
    """``[model]``: a network's layers and its loss, or a factory of any other model.

    Attributes
    ----------
    layer : list of dict, optional
        The ``[[model.layer]]`` sections, checked, as they stand.
    factory : str, optional
        ``"module:function"``, which returns a model.
    loss : str, optional
        A name in `mpidl.nn.LOSSES`; None with a factory, whose model has its own.
    label_smoothing : float
        Of softmax cross-entropy; see `mpidl.nn.SoftmaxCrossEntropy`.
    l2, clip : float
        See `mpidl.nn.regularisation.Regularisation`.
    dtype : {"float32", "float64"}
        Of parameters, gradients and activations.
    """

    layer: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = None
    factory: str | None = None
    loss: str | None = None
    label_smoothing: Annotated[float, Meta(ge=0, lt=1)] = 0.0
    l2: Annotated[float, Meta(ge=0)] = 0.0
    clip: Annotated[float, Meta(gt=0)] | None = None
    dtype: Literal["float32", "float64"] = "float32"

    def __post_init__(self) -> None:
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
            raise UsageError(f"factory: expected module:function, found {self.factory!r}")


@dataclass(frozen=True)
class Topology:
    """``[topology]``: how the ranks share the work. The replicas are what the ranks left can form."""

    servers: Count = 1
    partitions: Count = 1
    standby: Annotated[int, Meta(ge=0)] = 0
    transport: Literal["windows", "messages"] = "windows"

    def __post_init__(self) -> None:
        if self.partitions > 1:
            raise UsageError(f"partitions: {self.partitions}, this version trains whole models (1)")
        if self.standby > 0:
            raise UsageError(f"standby: {self.standby}, this version gives every rank work (0)")
        if self.transport != "windows":
            raise UsageError(f"transport: {self.transport!r}, this version has 'windows'")


@dataclass(frozen=True)
class Checkpoint:
    """``[checkpoint]``: seconds between checkpoints, and how many to keep besides the first and the last."""

    every: Seconds = 60.0
    keep: Count = 3


@dataclass(frozen=True)
class Device:
    """``[device]``: where ranks compute.

    Attributes
    ----------
    kind : {"auto", "cpu", "cuda"}
        Of workers; "auto" is a GPU if there is one that works, else the CPU.
    transfer : {"auto", "direct", "staged"}
        Whether MPI is given a GPU's memory, or pinned memory of the host; "auto" asks the MPI library.
    shards : bool
        Whether servers compute there too, and hold their shards there.
    """

    kind: Literal["auto", "cpu", "cuda"] = "auto"
    transfer: Literal["auto", "direct", "staged"] = "auto"
    shards: bool = False

    def __post_init__(self) -> None:
        if self.shards and self.kind == "cpu":
            raise UsageError("shards: true, but device.kind is 'cpu', expected 'auto' or 'cuda'")


@dataclass(frozen=True)
class Test:
    """``[test]``: make a worker slow, to see what an algorithm does about it.

    Attributes
    ----------
    slow_worker : int, optional
        This worker's gradients take longer.
    slow_factor : float
        So many times as long.
    gradient_seconds : float
        Every other worker's gradients take at least so long.
    """

    slow_worker: Annotated[int, Meta(ge=0)] | None = None
    slow_factor: Annotated[float, Meta(ge=1)] = 10.0
    gradient_seconds: Annotated[float, Meta(ge=0)] = 0.0

    def delay(self, worker: int) -> Callable[[float], float]:
        """Return, for a worker, how long to sleep after a gradient that took so many seconds."""
        factor = self.slow_factor if worker == self.slow_worker else 1.0
        return lambda seconds: factor * max(seconds, self.gradient_seconds) - seconds
