"""The configuration of a run: TOML in, checked dataclasses out, and TOML again."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from copy import deepcopy
from dataclasses import asdict, dataclass, field, is_dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple, TypeVar, get_type_hints

from mpidl import schema
from mpidl.algorithms import ALGORITHMS, Algorithm, Exchange
from mpidl.config import toml
from mpidl.config.cluster import TopologySection, VirtualSection
from mpidl.config.sections import (
    PYTHON_MODEL,
    CheckpointSection,
    DataSection,
    DebugSection,
    DeviceSection,
    ModelSection,
    PythonData,
    RunSection,
)
from mpidl.config.tables import TablesSection
from mpidl.data import SOURCES, Factory, Private, Source
from mpidl.data.dataset import PYTHON
from mpidl.data.hdf5_files import found_files
from mpidl.errors import UsageError, nearest, quoted, shown
from mpidl.rules import RULES, Rule
from mpidl.rules.schedule import RateSchedule
from mpidl.rules.tensors import TensorRule

Named = TypeVar("Named")

#: Sections that name a class in `ALGORITHMS` or `RULES`, and have its keys.
NAMING = ("algorithm", "server")

#: The ``server.rule`` that stands for the algorithm's own default, with its rate and other keys.
DEFAULT_RULE = "default"

#: Keys that replace another key of their section.
INSTEAD = {
    ("run", "epochs"): "steps",
    ("run", "steps"): "epochs",
    ("run", "target"): "target_accuracy",
    ("model", "factory"): "layer",
    ("data", "factory"): "source",
}


class Kept(NamedTuple):
    """The settings that a configuration keeps from the `earlier` algorithm when another one is chosen.

    `keys` are those of ``[algorithm]``; `rule` says whether ``[server]`` is kept.
    """

    earlier: str
    keys: tuple[str, ...]
    rule: bool


@dataclass(frozen=True, kw_only=True)
class Config:
    """A complete configuration.

    Attributes
    ----------
    data_source : Source
        The source named by ``data.source``, with its own keys of ``[data]``.
    algorithm : Algorithm
        The algorithm named by ``algorithm.name``, with its own keys.
    rule : Rule or None
        The rule named by ``server.rule``, with its own keys, or the algorithm's default. None if there is no choice of
        rule.
    run, data, model, rate, topology, tables, checkpoint, device, virtual, debug
        The other sections, of the classes in `SECTIONS`.
    kept : Kept or None
        The settings kept from another algorithm.
    """

    run: RunSection
    data: DataSection
    data_source: Source
    model: ModelSection
    algorithm: Algorithm
    rule: Rule | None
    rate: RateSchedule = field(default_factory=RateSchedule)
    topology: TopologySection
    tables: TablesSection = field(default_factory=TablesSection)
    checkpoint: CheckpointSection
    device: DeviceSection
    virtual: VirtualSection = field(default_factory=VirtualSection)
    debug: DebugSection = field(default_factory=DebugSection)
    kept: Kept | None = field(default=None, compare=False)

    @property
    def servers(self) -> int:
        """Number of ranks that are servers; 0 if the algorithm needs none."""
        return self.topology.servers if self.algorithm.exchange.has_servers else 0

    @property
    def tensor_rule(self) -> TensorRule | None:
        """The rule of the steps by gradients, on servers or replicas, if it is one of whole tensors."""
        rule = self.algorithm.local_rule or (None if self.algorithm.outer else self.rule)
        return rule if isinstance(rule, TensorRule) else None

    @property
    def of_script(self) -> bool:
        """Whether a Python script has given the data, or the model as an object."""
        return self.data_source.name == PYTHON or self.model.factory == PYTHON_MODEL

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """Return the configuration as a mapping of sections, for `from_dict`."""
        plain = {name: _table(getattr(self, name)) for name in SECTIONS}
        plain["data"] = {"source": self.data_source.name, **_source_table(self.data_source), **plain["data"]}
        naming = {"algorithm": {"name": self.algorithm.name, **_table(self.algorithm)}}
        if self.rule is not None:
            naming["server"] = {"rule": self.rule.name, **_table(self.rule)}
        return {name: plain[name] for name in ("run", "data", "model")} | naming | plain

    def to_toml(self) -> str:
        """Return the configuration as TOML text, for `load`."""
        return toml.dump(self.to_dict())


#: The class of each section with fixed keys. The section ``[data]`` also has the keys of its source.
SECTIONS: dict[str, type] = {
    name: cls
    for name, cls in get_type_hints(Config).items()
    if isinstance(cls, type) and is_dataclass(cls) and cls is not Algorithm
}


def load(path: str | Path, overrides: Sequence[str] = (), of_run: bool = False) -> Config:
    """Read a configuration from a TOML file, whose name without suffix names the run unless ``run.name`` does.

    Each of the `overrides`, ``"section.key=value"``, replaces the file's key; the value is TOML or a bare string.
    `of_run` says whether the file is that of a run (see `mpidl.paths.read_text`). Raise UsageError if it doesn't exist
    or is not TOML, or as `from_dict` does.
    """
    given = read(path, of_run)  # only once: it may be a pipe
    values = deepcopy(given)
    # A rule comes before its keys: the algorithm's default replaces those of the file, not those given beside it.
    for override in sorted(overrides, key=lambda each: not each.strip().startswith("server.rule")):
        _override(values, override)
    return marked(from_dict(values), given, values)


def marked(config: Config, given: Mapping[str, Any], values: Mapping[str, Any]) -> Config:
    """Return a configuration made of `values`, noting in `kept` which of them were `given` for another algorithm."""
    before, after = given.get("algorithm", {}), values.get("algorithm", {})
    schema.check_table("algorithm", before)
    earlier = before.get("name", "downpour")
    if earlier == config.algorithm.name:
        return config
    keys = [key for key, value in after.items() if key != "name" and before.get(key) == value]
    server = given.get("server")
    rule = bool(server) and (server == values.get("server"))
    return replace(config, kept=Kept(earlier, tuple(keys), rule))


def read(path: str | Path, of_run: bool = False) -> dict[str, Any]:
    """Read a TOML file as an unchecked mapping of sections, with ``run.name``; for `of_run` see `load`.

    Raise UsageError if the file doesn't exist or is not TOML.
    """
    values = toml.read(Path(path), of_run)
    run = values.get("run", {})
    if isinstance(run, Mapping):
        values["run"] = {"name": Path(path).stem, **run}
    return values


def from_dict(
    values: Mapping[str, Any],
    *,
    data_source: Source | None = None,
    algorithm: Algorithm | None = None,
    rule: Rule | None = None,
) -> Config:
    """Check a configuration given as a mapping of sections, and fill in the defaults.

    Raise UsageError if a section, key or name is unknown, a value has the wrong type or is out of bounds, or a required
    key is missing.

    Parameters
    ----------
    values : mapping
        Sections as read from TOML, or as their dataclasses.
    data_source, algorithm, rule : optional
        Used instead of those named in the sections ``[data]``, ``[algorithm]`` and ``[server]``.
    """
    values = dict(values)
    for section in values:
        if section not in (*SECTIONS, *NAMING):
            raise UsageError(f"{shown(section)}: unknown section{nearest(section, [*SECTIONS, *NAMING])}")
    for section in ("data", *NAMING):
        schema.check_table(section, values.setdefault(section, {}))
    if data_source is None:
        data_source = _source(values)
    else:
        _check_source(values["data"], data_source)
    if algorithm is None:
        algorithm = _named(ALGORITHMS, "algorithm", "name", values, default="downpour")
    values["data"] = _without_source(values["data"])
    config = Config(
        data_source=data_source,
        algorithm=algorithm,
        rule=_rule(algorithm, values, rule),
        **{name: schema.convert(values.get(name, {}), cls, name) for name, cls in SECTIONS.items()},
    )
    config.algorithm.check(config.run.deterministic, config.rule)
    if config.algorithm.streamed and any(death.returns is not None for death in config.virtual.death):
        raise UsageError(
            f"virtual.death: a replica that returns can't take part in a run of {algorithm.name} with fragments or "
            "overlap, expected no returns"
        )
    _check_model(config)
    config.topology.check(config.algorithm, config.run)
    _check_average(config)
    _check_matrices(config)
    if config.rate.patience is not None and config.run.deterministic:
        raise UsageError("rate.schedule: 'plateau' depends on timing, which rules out run.deterministic = true")
    return config


def _check_model(config: Config) -> None:
    """Check that the configuration describes a model if the algorithm doesn't."""
    section, algorithm = config.model, config.algorithm
    if not (section.layer or section.factory or algorithm.makes_model):
        raise UsageError("model.layer: expected [[model.layer]] sections or model.factory, found neither")


def _check_average(config: Config) -> None:
    """Check that shards can keep an average of their parameters, if they are to."""
    ema, algorithm = config.run.ema, config.algorithm
    if ema is None:
        return
    if algorithm.exchange in (Exchange.OPERATIONS, Exchange.SHARED_MEMORY) or algorithm.streamed:
        with_fragments = " with fragments or overlap" if algorithm.streamed else ""
        raise UsageError(f"run.ema: {ema:g}, but {algorithm.name}{with_fragments} keeps no average; leave it out")
    if config.device.shards:
        raise UsageError(f"run.ema: {ema:g}, not supported with device.shards, expected device.shards = false")


def _check_matrices(config: Config) -> None:
    """Check that shards get gradients of whole matrices, if their rule needs them."""
    rule, algorithm = config.rule, config.algorithm
    if not isinstance(rule, TensorRule):
        return
    if algorithm.outer:
        inner = f"expected algorithm.inner = {rule.name!r}"
        raise UsageError(f"server.rule: {rule.name}, but {algorithm.name} pushes changes, not gradients, {inner}")
    if algorithm.exchange is Exchange.SHARED_MEMORY:
        raise UsageError(f"server.rule: {rule.name}, but {algorithm.name}'s workers update one vector at the same time")
    config.topology.check_whole(f"but server.rule is {rule.name}, which needs whole matrices")


def _source(values: Mapping[str, Any]) -> Source:
    """Return the source named by ``data.source``."""
    table = values["data"]
    if table.get("source") == PythonData.name:
        return PythonData()
    default = Factory.name if "factory" in table else None
    beside = schema.keys(DataSection)
    if not (table.get("private") is True and "factory" not in table):
        source: Source = _named(SOURCES, "data", "source", values, default, beside)
        return source
    if "path" not in table:
        raise UsageError("data.private: true, expected data.path with the path of each worker's file")
    paths = found_files("data.path", schema.convert(table["path"], str | list[str], "data.path"), "file")
    tables = [{**values, "data": {**table, "path": str(path)}} for path in paths]
    return Private([_named(SOURCES, "data", "source", each, default, beside) for each in tables])


def _check_source(table: Mapping[str, Any], given: Source) -> None:
    """Raise UsageError if a section names a source that doesn't exist, though another one is `given`."""
    if table.get("source", given.name) not in (given.name, PythonData.name):
        schema.choose(SOURCES, "data.source", table["source"])


def _rule(algorithm: Algorithm, values: Mapping[str, Any], rule: Rule | None) -> Rule | None:
    """Return `rule`, or that of ``[server]``, with the missing keys of the algorithm's default rule."""
    default, table = algorithm.default_rule, values["server"]
    if default is None:
        given = dict(table) if rule is None else {"rule": rule.name}
        if given.get("rule") == DEFAULT_RULE:
            del given["rule"]
        for key, value in given.items():
            raise UsageError(
                f"server.{shown(key)}: {quoted(value)}, but {algorithm.name} has no choice of rule, "
                f"expected no [server], or server.rule = {DEFAULT_RULE!r} alone"
            )
        return None
    if rule is not None:
        return rule
    if table.get("rule", DEFAULT_RULE) in (DEFAULT_RULE, default.name):
        table = {**_table(default), **table, "rule": default.name}
    return _named(RULES, "server", "rule", {"server": table})


def _named(
    registry: Mapping[str, type[Named]],
    section: str,
    key: str,
    values: Mapping[str, Any],
    default: str | None = None,
    beside: Sequence[str] = (),
) -> Named:
    """Return the object named by a section's `key`, built from the section's keys other than those of `beside`."""
    table = values[section]
    if key not in table and default is None:
        raise UsageError(f"{section}.{key}: missing; known: {', '.join(sorted(registry))}")
    cls = schema.choose(registry, f"{section}.{key}", table.get(key, default))
    own = schema.keys(cls)
    schema.check_keys(section, table, [key, *beside, *own], registry)
    return schema.build(cls, section, {name: value for name, value in table.items() if name in own})


def _without_source(table: Mapping[str, Any]) -> dict[str, Any]:
    """Return the section ``[data]`` without the name of a source and that source's own keys."""
    source = SOURCES.get(str(table.get("source", Factory.name)))
    own = ["source", *(schema.keys(source) if source is not None else ())]
    return {key: value for key, value in table.items() if key not in own}


def _table(instance: Any) -> dict[str, Any]:
    """Return a dataclass as a section, without the keys that are None."""
    plain = asdict(instance)
    return {key: plain[key] for key in schema.keys(type(instance)) if plain[key] is not None}


def _source_table(source: Source) -> dict[str, Any]:
    """Return the keys of a source; a worker's own file is one of the paths of several."""
    if not isinstance(source, Private):
        return _table(source)
    first, *_ = tables = [_table(each) for each in source.sources]
    return {**first, "path": [each["path"] for each in tables]}


def _override(values: dict[str, Any], override: str) -> None:
    """Set one ``section.key=value`` in `values`; the section may be within another, such as ``data.augment``."""
    name, equals, text = override.partition("=")
    *path, key = name.strip().split(".")
    if not (equals and path and all(path) and key):
        raise UsageError(f"--set {shown(override)}: expected section.key=value")
    if re.match(r"model\.layer\b", name.strip()):
        raise UsageError(f"--set {shown(override)}: layers can't be set here, only in the file")
    parent, table = values, values
    for depth, section in enumerate(path, start=1):
        parent, table = table, table.setdefault(section, {})
        schema.check_table(".".join(path[:depth]), table)
    parent[path[-1]] = set_keys(table, ".".join(path), {key: toml.parse(text.strip())})


def set_keys(table: Mapping[str, Any], section: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the `table` of a section with the `given` keys, without the keys that these replace."""
    schema.check_table(section, table)
    if section == "server" and given.get("rule") == DEFAULT_RULE:
        table = {}
    replaced = {INSTEAD.get((section, key)) for key in given}
    return {**{key: value for key, value in table.items() if key not in replaced}, **given}
