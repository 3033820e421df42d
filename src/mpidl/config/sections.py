"""The sections of a configuration with fixed keys, each a checked dataclass.

A key is also a keyword of `mpidl.train`, of the same name unless its field's metadata has another ``"keyword"``; None
stands for a key that `mpidl.train` takes by an argument of its own.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, ClassVar, Literal

from msgspec import Meta

from mpidl import schema
from mpidl.data import Augmentation, Dataset, Normalisation, Source, Split
from mpidl.data.dataset import PYTHON
from mpidl.data.labels import Deal
from mpidl.errors import UsageError, quoted
from mpidl.functions import FunctionName, check_name
from mpidl.loggers import LOGGERS
from mpidl.metrics import METRICS, Metric
from mpidl.metrics.figures import parse
from mpidl.nn import LOSSES, SoftmaxCrossEntropy
from mpidl.nn.groups import Group
from mpidl.nn.network import layer_from_section
from mpidl.paths import user_path
from mpidl.schema import Checked, Count, FilePath, Fraction, Natural, NonNegative, Positive


def _check_names(key: str, names: Sequence[str], known: Mapping[str, Any]) -> None:
    """Raise UsageError unless each of the names, the value of a key, is a known one or that of a function."""
    for number, name in enumerate(names):
        if ":" in name:
            check_name(f"{key}[{number}]", name)
        else:
            schema.choose(known, f"{key}[{number}]", name)


@dataclass(frozen=True)
class RunSection(Checked):
    """``[run]``: the length of a run, and the directory of its files.

    Attributes
    ----------
    name : str
        Directory of the run, within `dir`.
    dir : str
        Directory of all runs; ``~`` is your home directory.
    epochs, steps : int, optional
        Length of the run: passes over the training data, or minibatches of all replicas together. Only one can be
        given; 10 epochs by default.
    seed : int
        Determines the initial parameters and the order of the data.
    deterministic : bool
        Make the whole run, not only its start, independent of the number of servers and of timing. Libraries round
        differently with other numbers of threads: set OMP_NUM_THREADS if bits matter.
    metrics : list of str
        Figures of evaluations beside loss and accuracy: names in `mpidl.metrics.METRICS`, and ``"module:function"`` for
        a function of (outputs, targets) that returns a sum over a batch and its divisor.
    target : str, optional
        Stop when an evaluation fulfils this comparison, such as ``"validation_loss < 0.1"``. Without a split, as in
        ``"accuracy >= 0.9"``: on the validation data, or on the test data if there are none.
    patience : int, optional
        Stop when the figure of `target`, or without it the loss of evaluations, has not improved for this number of
        epochs.
    loggers : list of str
        What gets records and events beside the run's files: names in `mpidl.loggers.LOGGERS`, and ``"module:function"``
        for a function without arguments that returns a `mpidl.Logger`.
    report : float
        Seconds between two reports where the output is a log and not a terminal.
    ema : float, optional
        Decay of an exponential moving average of the weights, such as 0.999: servers move it by 1 - `ema` towards the
        parameters at each of their updates. It is what evaluations, exports and trained models have.
    terminate_on_nan : bool
        End the run when a loss is NaN or infinite.
    trace : bool or float
        Keep a timeline of every rank, which ``mpidl report RUN --trace FILE.json.gz`` writes for Perfetto. A number: of
        the first two seconds, and of this number of seconds at the end.
    hang_after : float, optional
        Seconds in one batch after which a worker counts as hanging, from its first batch on, and is replaced where
        others can take it over. By default, that takes five minutes and 20 times its longest batch, after 20 batches.
    """

    name: Annotated[str, Meta(min_length=1)] = "run"
    dir: FilePath = "runs"
    epochs: Count | None = None
    steps: Count | None = None
    seed: Natural = 0
    deterministic: bool = False
    metrics: tuple[FunctionName, ...] = ()
    target: str | None = None
    patience: Count | None = None
    loggers: tuple[FunctionName, ...] = field(default=(), metadata={"keyword": None})
    report: Positive = 10.0
    ema: Annotated[float, Meta(gt=0, lt=1)] | None = None
    terminate_on_nan: bool = True
    trace: bool | Positive = False
    hang_after: Positive | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if "/" in self.name or not self.name.isprintable() or self.name in (".", ".."):
            raise UsageError(f"name: {quoted(self.name)} can't name a directory within run.dir")
        for key in ("name", "dir"):
            try:
                user_path(getattr(self, key))
            except UsageError as error:
                raise UsageError(f"{key}: {error}") from None
        if self.epochs is not None and self.steps is not None:
            raise UsageError("steps: run.epochs is given too, expected one of them")
        if self.epochs is None and self.steps is None:
            object.__setattr__(self, "epochs", 10)
        self._check_metrics()
        _check_names("loggers", self.loggers, LOGGERS)

    def _check_metrics(self) -> None:
        _check_names("metrics", self.metrics, {**METRICS, "accuracy": Metric})
        if len(set(self.figures)) < len(self.figures):
            raise UsageError(f"metrics: {quoted(list(self.metrics))}, expected each name once")
        if self.target is not None:
            parse(self.target, self.figures)

    @property
    def figures(self) -> list[str]:
        """Names of the figures of an evaluation, of which loss and accuracy are always two."""
        own = [metric.rpartition(":")[2] for metric in self.metrics if metric != "accuracy"]
        return ["loss", "accuracy", *own]

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
    validation : float, optional
        Fraction of the training samples, chosen by ``run.seed``, that is held out: the model is evaluated on these
        after each epoch, and on the test data only at the end.
    portion : int
        Samples assigned to a replica at a time, a multiple of `batch`; four batches if not given.
    shuffle : {"samples", "portion"}
        The order of an epoch: a permutation of all samples; or one of portions, which are blocks of neighbours, and of
        the samples in each. By default portions with ``hdf5``, where neighbours are read together, otherwise samples.
    drop_last : bool
        Leave out an epoch's last batch if it has fewer samples than `batch`, as `torch.utils.data.DataLoader` does.
    keep : {"files", "memory", "distributed"}
        Storage of the samples. "files": the source. "memory": memory shared by the workers of a node, which reads the
        samples once. "distributed": each node reads a part of them into memory, and fetches the rest from the others.
    private : bool
        Each worker's training samples are those of its own file, which ``path`` lists in the workers' order, or of its
        own item of a list that a script or a factory gives. Otherwise any worker trains with any samples.
    split : str, optional
        Deal out the samples of any source to the workers by their labels and ``run.seed``, as if they were private.
        "label:2": sorted by label, they are cut into equal pieces, two for each worker. "dirichlet:0.1": the workers'
        shares of a label are drawn from a Dirichlet distribution of this concentration; small ones are uneven.
    augment : Augmentation
        ``[data.augment]``.
    normalise : Normalisation
        ``[data.normalise]``.
    """

    batch: Count = 128
    validation: Annotated[float, Meta(gt=0, lt=1)] | None = None
    portion: Count = None  # type: ignore[assignment]  # resolved below
    shuffle: Literal["samples", "portion"] | None = None
    drop_last: bool = False
    keep: Literal["files", "memory", "distributed"] = field(default="files", metadata={"keyword": "data_keep"})
    private: bool = False
    split: str | None = None
    augment: Augmentation = field(default_factory=Augmentation)
    normalise: Normalisation = field(default_factory=Normalisation)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.portion is None:
            object.__setattr__(self, "portion", 4 * self.batch)
        elif self.portion % self.batch:
            raise UsageError(f"portion: {self.portion}, expected a multiple of data.batch ({self.batch})")
        if self.split is not None:
            try:
                Deal.parse(self.split)
            except UsageError as error:
                raise UsageError(f"split: {error}") from None
        if self.private and self.split is not None:
            raise UsageError(f"split: {quoted(self.split)}, but data.private is true, expected one of them")

    @property
    def owned(self) -> str | None:
        """The key by which training samples belong to workers, with its value; None if they don't."""
        if self.split is not None:
            return f"data.split: {quoted(self.split)}"
        return "data.private: true" if self.private else None

    def by_portions(self, split: Split) -> bool:
        """Return whether portions are blocks of neighbours, as `shuffle` says."""
        return split.contiguous if self.shuffle is None else self.shuffle == "portion"


#: The ``model.factory`` of runs whose model is an object of a Python script.
PYTHON_MODEL = "python:object"


@dataclass(frozen=True)
class PythonData:
    """``data.source = "python"``: the source of a run whose data were given by a Python script."""

    name: ClassVar[str] = PYTHON

    def open(self) -> Dataset:
        """Raise UsageError: only the script has the data."""
        raise UsageError(
            "data.source: the data of this run were given by a Python script: give them to mpidl.train or "
            "mpidl.evaluate as `data`"
        )


def source_of(data: Dataset | Source) -> Source:
    """Return a configuration's source for data given by a Python script."""
    return PythonData() if isinstance(data, Dataset) or data.name == PYTHON else data


@dataclass(frozen=True)
class ModelSection(Checked):
    """``[model]``: the layers and the loss of a network, or a factory of any other model, such as a PyTorch module.

    Some algorithms determine the layers and the loss themselves.

    Attributes
    ----------
    layer : list of dict, optional
        The ``[[model.layer]]`` sections, checked and unchanged.
    factory : str, optional
        ``"module:function"``; the function returns the model for ``(dataset, seed)``: a `mpidl.nn.Model`, such as
        a `mpidl.jax.JaxModel`, or a `torch.nn.Module`, or a module and its loss.
    loss : str, optional
        A name in `mpidl.nn.LOSSES`. For a module that a factory returns without its loss: the name of a loss of
        `torch.nn.functional`, or ``"module:function"``.
    label_smoothing : float
        Label smoothing of `mpidl.nn.SoftmaxCrossEntropy`.
    l2 : float
        Adds ``l2 / 2`` times the sum of the squared weights to the loss. Weights are a network's tensors of this name;
        of other models, those with at least two axes, or all if none has two.
    clip : float, optional
        Largest Euclidean norm of the gradient of a batch; longer gradients are scaled down to it.
    dtype : {"float32", "float64"}, optional
        Type of parameters, gradients and activations; "float32" for a network. A model of another kind must have
        parameters of this type.
    autocast : {"bfloat16"}, optional
        For modules: compute forward passes in this precision where PyTorch deems it safe.
    compile : bool
        For modules: compile them by `torch.compile`.
    micro_batches : int
        For modules: number of pieces of a batch whose gradients are computed one by one, to save memory.
    loss_weights : dict of str to float, optional
        For modules: factors of the terms of a loss that returns a mapping of named means; 1 by default.
    group : tuple of Group
        ``[[model.group]]``: parameters with their own training settings.
    initial : str, optional
        A file of initial values for a new run: .safetensors, .npz, a state_dict of PyTorch (.pt, .pth), a run's
        directory or one of its checkpoints. Names and shapes are those of the model.
    """

    layer: Annotated[list[dict[str, Any]], Meta(min_length=1)] | None = field(default=None, metadata={"keyword": None})
    factory: FunctionName | None = field(default=None, metadata={"keyword": None})
    loss: FunctionName | None = field(default=None, metadata={"keyword": None})
    label_smoothing: Fraction = 0.0
    l2: NonNegative = 0.0
    clip: Positive | None = None
    dtype: Literal["float32", "float64"] | None = None
    autocast: Literal["bfloat16"] | None = None
    compile: bool = False
    micro_batches: Count = 1
    loss_weights: dict[str, float] | None = None
    group: tuple[Group, ...] = field(default=(), metadata={"keyword": "groups"})
    initial: FilePath | None = None

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.layer is not None and self.factory is not None:
            raise UsageError("layer: expected [[model.layer]] sections or model.factory, found both")
        if self.layer is not None:
            self._check_layers()
        elif self.factory is not None:
            self._check_factory()

    def _check_layers(self) -> None:
        for number, section in enumerate(self.layer or ()):
            layer_from_section(section, f"layer[{number}]")
        object.__setattr__(self, "loss", self.loss or "softmax_cross_entropy")
        object.__setattr__(self, "dtype", self.dtype or "float32")
        schema.choose(LOSSES, "loss", self.loss)
        if self.label_smoothing and self.loss != SoftmaxCrossEntropy.name:
            raise UsageError(f"label_smoothing: {self.label_smoothing:g}, the loss {self.loss!r} takes none")
        for key in self.of_modules:
            raise UsageError(f"{key}: only for modules returned by model.factory, not for [[model.layer]]")

    def _check_factory(self) -> None:
        if self.label_smoothing:
            raise UsageError("label_smoothing: only for [[model.layer]]; this model has a loss of its own")
        check_name("factory", self.factory or "")

    @property
    def of_modules(self) -> dict[str, Any]:
        """The keys for modules that are set, with their values."""
        present = {key: getattr(self, key) for key in ("autocast", "compile", "micro_batches", "loss_weights")}
        return {key: value for key, value in present.items() if value != getattr(type(self), key)}


@dataclass(frozen=True)
class CheckpointSection(Checked):
    """``[checkpoint]``: the interval and the number of checkpoints.

    Attributes
    ----------
    every : float
        Seconds between checkpoints.
    keep : int
        Number of checkpoints to keep besides the first and the last.
    full_every : int
        One checkpoint in this number has all rows of the model's tables. The others have those that were used after
        it, and keep it.
    patience : float
        Seconds in which a run that a signal has stopped must have saved. Then it ends without the ranks that still
        compute, with what is saved. Choose less than the notice that your scheduler gives.
    """

    every: Positive = field(default=60.0, metadata={"keyword": "checkpoint_every"})
    keep: Count = 3
    full_every: Count = 1
    patience: Positive = field(default=30.0, metadata={"keyword": "checkpoint_patience"})


@dataclass(frozen=True)
class DeviceSection(Checked):
    """``[device]``: the devices that ranks compute on.

    Attributes
    ----------
    kind : {"auto", "cpu", "cuda"}
        Device of the workers; "auto" is a GPU if there is one that works, otherwise the CPU.
    transfer : {"auto", "direct", "staged"}
        Whether MPI accesses a GPU's memory directly, or pinned memory of the host; "auto" asks the MPI library.
    shards : bool
        Whether servers also use that device, for their shards and the rule.
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
    """``[debug]``: a slow worker, to test how an algorithm copes with it.

    Attributes
    ----------
    slow_worker : int, optional
        Number of the worker whose gradients take longer.
    slow_factor : float
        Factor of the time of its gradients.
    gradient_seconds : float
        Least time of any worker's gradient in seconds, before `slow_factor`.
    """

    slow_worker: Natural | None = None
    slow_factor: Annotated[float, Meta(ge=1)] = 10.0
    gradient_seconds: NonNegative = 0.0

    def delay(self, worker: int) -> Callable[[float], float]:
        """Return a function from the seconds of a worker's gradient to the seconds to sleep after it."""
        factor = self.slow_factor if worker == self.slow_worker else 1.0
        return lambda seconds: factor * max(seconds, self.gradient_seconds) - seconds
