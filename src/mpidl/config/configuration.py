"""The configuration of a run: TOML in, checked dataclasses out, and TOML again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, is_dataclass
from pathlib import Path
from typing import Any, TypeVar

from mpidl import schema
from mpidl.algorithms import ALGORITHMS, Algorithm, Exchange
from mpidl.config import toml
from mpidl.config.sections import Checkpoint, Data, Device, Model, Run, Test, Topology
from mpidl.config.virtual import Virtual
from mpidl.data import SOURCES, Source
from mpidl.errors import UsageError, nearest
from mpidl.rules import RULES, Rule
from mpidl.rules.schedule import RateSchedule

__all__ = ["Config", "chosen_rule", "from_dict", "load"]

Named = TypeVar("Named")


@dataclass(frozen=True)
class Config:
    """A resolved configuration.

    Attributes
    ----------
    data_source : Source
        What ``data.source`` names, with its own keys of ``[data]``.
    algorithm : Algorithm
        What ``algorithm.name`` names, with its own keys.
    rule : Rule or None
        What ``server.rule`` names, with its own keys; the algorithm's default where it names none. None where the
        algorithm leaves no choice of rule.
    """

    run: Run
    data: Data
    data_source: Source
    model: Model
    algorithm: Algorithm
    rule: Rule | None
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
            **({"server": {"rule": self.rule.name, **_fields(self.rule)}} if self.rule is not None else {}),
            "rate": _fields(self.rate),
            "topology": _fields(self.topology),
            "checkpoint": _fields(self.checkpoint),
            "device": _fields(self.device),
            "virtual": _fields(self.virtual),
            "test": _fields(self.test),
        }
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
        run=schema.build(Run, "run", values.get("run", {})),
        data_source=_named(SOURCES, "data", "source", values, beside=schema.keys(Data)),
        data=schema.build(Data, "data", _only(schema.keys(Data), values["data"])),
        model=schema.build(Model, "model", values.get("model", {})),
        algorithm=algorithm,
        rule=_rule(algorithm, values),
        rate=schema.build(RateSchedule, "rate", values.get("rate", {})),
        topology=schema.build(Topology, "topology", values.get("topology", {})),
        checkpoint=schema.build(Checkpoint, "checkpoint", values.get("checkpoint", {})),
        device=schema.build(Device, "device", values.get("device", {})),
        virtual=schema.build(Virtual, "virtual", values.get("virtual", {})),
        test=schema.build(Test, "test", values.get("test", {})),
    )
    config.algorithm.check(config.run.deterministic, config.rule)
    if config.run.record and algorithm.exchange in (Exchange.SHARED_MEMORY, Exchange.OPERATIONS):
        raise UsageError(f"run.record: a run of {algorithm.name} can't be recorded")
    return config


def chosen_rule(algorithm: Algorithm, rule: Rule | None) -> Rule | None:
    """Return the shards' rule where a user chose `rule`, or none; None where the algorithm leaves no choice."""
    default = algorithm.default_rule
    return default if default is None or rule is None else rule


def _rule(algorithm: Algorithm, values: Mapping[str, Any]) -> Rule | None:
    """Return the rule of ``[server]``; keys that are not given are those of the algorithm's default."""
    default, table = algorithm.default_rule, values.get("server", {})
    if default is None:
        return None
    if isinstance(table, Mapping) and table.get("rule", default.name) == default.name:
        table = {"rule": default.name, **_fields(default), **table}
    return _named(RULES, "server", "rule", {"server": table})


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
    schema.check_table(section, table)
    if key not in table and default is None:
        raise UsageError(f"{section}.{key}: missing; known: {', '.join(sorted(registry))}")
    cls = schema.choose(registry, f"{section}.{key}", table.get(key, default))
    own = schema.keys(cls)
    schema.check_keys(section, table, [key, *beside, *own])
    return schema.build(cls, section, _only(own, table))


def _only(keys: Sequence[str], table: Mapping[str, Any]) -> dict[str, Any]:
    return {key: table[key] for key in keys if key in table}


def _fields(instance: Any) -> dict[str, Any]:
    fields = {key: getattr(instance, key) for key in schema.keys(type(instance))}
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
        schema.check_table(".".join(path[:depth]), table)
    table[key] = toml.parse(text.strip())
    table.pop(INSTEAD.get((".".join(path), key)), None)
