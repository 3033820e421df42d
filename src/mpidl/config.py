"""The configuration of a run: TOML in, checked dataclasses out, and TOML again."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from msgspec import Meta

from mpidl import sections, toml
from mpidl.algorithms import ALGORITHMS, Algorithm, Exchange
from mpidl.data import SOURCES, Augmentation, Source
from mpidl.errors import UsageError, nearest
from mpidl.nn import LOSSES, SoftmaxCrossEntropy
from mpidl.nn.build import layer_from_section
from mpidl.rules import RULES, Rule
from mpidl.rules.schedule import RateSchedule
from mpidl.virtual import Virtual

__all__ = [
    "Checkpoint", "Config", "Data", "Device", "Model", "Run", "Test", "Topology", "chosen_rule", "from_dict", "load",
]  # fmt: skip

Count = Annotated[int, Meta(ge=1)]
Seconds = Annotated[float, Meta(gt=0)]
Named = TypeVar("Named")


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
    """

    batch: Count = 128
    portion: Count = None  # type: ignore[assignment]  # resolved below
    augment: Augmentation = field(default_factory=Augmentation)

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
            sections.choose(LOSSES, "loss", self.loss)
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
    """``[device]``: where workers compute; "auto" is a GPU if there is one that works, else the CPU."""

    kind: Literal["auto", "cpu", "cuda"] = "auto"


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


@dataclass(frozen=True)
class Config:
    """A resolved configuration.

    Attributes
    ----------
    data_source : Source
        What ``data.source`` names, with its own keys of ``[data]``.
    algorithm : Algorithm
        What ``algorithm.name`` names, with its own keys.
    rule : Rule
        What ``server.rule`` names, with its own keys; the algorithm's default where it names none.
    """

    run: Run
    data: Data
    data_source: Source
    model: Model
    algorithm: Algorithm
    rule: Rule
    topology: Topology
    checkpoint: Checkpoint
    device: Device
    rate: RateSchedule = field(default_factory=RateSchedule)
    virtual: Virtual = field(default_factory=Virtual)
    test: Test = field(default_factory=Test)

    @property
    def servers(self) -> int:
        """Ranks that are servers: none if the algorithm needs none."""
        return self.topology.servers if self.algorithm.exchange in (Exchange.SERVERS, Exchange.OPERATIONS) else 0

    def to_toml(self) -> str:
        """Return the configuration as TOML text, which `load` turns into an equal one."""
        data = {"source": self.data_source.name, **_fields(self.data_source), **_fields(self.data)}
        tables = {
            "run": _fields(self.run),
            "data": data,
            "model": _fields(self.model),
            "algorithm": {"name": self.algorithm.name, **_fields(self.algorithm)},
            "server": {"rule": self.rule.name, **_fields(self.rule)},
            "rate": _fields(self.rate),
            "topology": _fields(self.topology),
            "checkpoint": _fields(self.checkpoint),
            "device": _fields(self.device),
            "virtual": _fields(self.virtual),
            "test": _fields(self.test),
        }
        if self.algorithm.default_rule is None:
            del tables["server"]
        return toml.dump(tables)


SECTIONS = (
    "run",
    "data",
    "model",
    "algorithm",
    "server",
    "rate",
    "topology",
    "checkpoint",
    "device",
    "virtual",
    "test",
)
INSTEAD = {
    ("run", "epochs"): "steps",
    ("run", "steps"): "epochs",
    ("model", "factory"): "layer",
}
"""Keys that a ``--set`` of another key takes the place of."""


def load(path: str | Path, overrides: Sequence[str] = ()) -> Config:
    """Read a configuration from a TOML file.

    Parameters
    ----------
    path : str or Path
        The file; its name without suffix names the run unless ``run.name`` does.
    overrides : sequence of str
        ``"section.key=value"``: each takes the place of the file's. The value is TOML, or else a bare string.

    Raises
    ------
    UsageError
        No such file, not TOML, or what `from_dict` raises.
    """
    values = toml.read(Path(path))
    for override in overrides:
        _override(values, override)
    run = values.get("run", {})
    if isinstance(run, Mapping):
        values["run"] = {"name": Path(path).stem, **run}
    return from_dict(values)


def from_dict(values: Mapping[str, Any]) -> Config:
    """Check a configuration given as a mapping of sections, and fill in the defaults.

    Raises
    ------
    UsageError
        Unknown section, key or name; wrong type; value out of bounds; a required key missing; something that
        this version doesn't have.
    """
    for section in values:
        if section not in SECTIONS:
            raise UsageError(f"{section}: unknown section{nearest(section, list(SECTIONS))}")
    algorithm = _named(ALGORITHMS, "algorithm", "name", values, default="downpour")
    config = Config(
        run=sections.build(Run, "run", values.get("run", {})),
        data_source=_named(SOURCES, "data", "source", values, beside=sections.keys(Data)),
        data=sections.build(Data, "data", _only(sections.keys(Data), values["data"])),
        model=sections.build(Model, "model", values.get("model", {})),
        algorithm=algorithm,
        rule=_rule(algorithm, values),
        rate=sections.build(RateSchedule, "rate", values.get("rate", {})),
        topology=sections.build(Topology, "topology", values.get("topology", {})),
        checkpoint=sections.build(Checkpoint, "checkpoint", values.get("checkpoint", {})),
        device=sections.build(Device, "device", values.get("device", {})),
        virtual=sections.build(Virtual, "virtual", values.get("virtual", {})),
        test=sections.build(Test, "test", values.get("test", {})),
    )
    config.algorithm.check(config.run.deterministic, config.rule)
    if config.run.record and algorithm.exchange in (Exchange.SHARED_MEMORY, Exchange.OPERATIONS):
        raise UsageError(f"run.record: a run of {algorithm.name} can't be recorded")
    return config


def chosen_rule(algorithm: Algorithm, rule: Rule | None) -> Rule:
    """Return what the shards use where a user chose `rule`, or none; SGD, unused, where there is no choice."""
    if algorithm.default_rule is None:
        return algorithm.held()
    return rule if rule is not None else algorithm.default_rule


def _rule(algorithm: Algorithm, values: Mapping[str, Any]) -> Rule:
    """Return the rule of ``[server]``; keys that are not given are those of the algorithm's default."""
    table = values.get("server", {})
    if algorithm.default_rule is None:
        return algorithm.held()
    default = chosen_rule(algorithm, None)
    if isinstance(table, Mapping) and table.get("rule", default.name) == default.name:
        table = {"rule": default.name, **_fields(default), **table}
    return chosen_rule(algorithm, _named(RULES, "server", "rule", {"server": table}))


def _named(
    registry: Mapping[str, type[Named]],
    section: str,
    key: str,
    values: Mapping[str, Any],
    default: str | None = None,
    beside: Sequence[str] = (),
) -> Named:
    """Return what a section's `key` names, built from its own keys there; those of `beside` are others'."""
    table = values.get(section, {})
    sections.check_table(section, table)
    if key not in table and default is None:
        raise UsageError(f"{section}.{key}: missing; known: {', '.join(sorted(registry))}")
    cls = sections.choose(registry, f"{section}.{key}", table.get(key, default))
    own = sections.keys(cls)
    sections.check_keys(section, table, [key, *beside, *own])
    return sections.build(cls, section, _only(own, table))


def _only(keys: Sequence[str], table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def _fields(instance: Any) -> dict[str, Any]:
    fields = {key: getattr(instance, key) for key in sections.keys(type(instance))}
    return {key: _plain(value) for key, value in fields.items()}


def _plain(value: Any) -> Any:
    """Return a value as TOML has it: sections, also those of an array, are dictionaries without what is None."""
    if isinstance(value, tuple):
        return [_plain(item) for item in value]
    if is_dataclass(value) and not isinstance(value, type):
        return {key: item for key, item in asdict(value).items() if item is not None}
    return value


def _override(values: dict[str, Any], override: str) -> None:
    """Put one ``section.key=value`` into `values`; the key may be one of a section within the section."""
    name, equals, text = override.partition("=")
    *path, key = name.strip().split(".")
    if not (equals and path and all(path) and key):
        raise UsageError(f"--set {override}: expected section.key=value")
    if re.match(r"model\.layer\b", name.strip()):
        raise UsageError(f"--set {override}: layers can't be set here, only in the file")
    table: Any = values
    for depth, section in enumerate(path, start=1):
        table = table.setdefault(section, {})
        sections.check_table(".".join(path[:depth]), table)
    table[key] = toml.parse(text.strip())
    table.pop(INSTEAD.get((".".join(path), key)), None)
