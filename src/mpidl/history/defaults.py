"""The keys of a run's configuration, and their defaults."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import MISSING, fields
from typing import Any

import msgspec

from mpidl.history.lines import LARGEST


def flat(values: Mapping[str, Any], prefix: str = "") -> dict[str, Any]:
    """Return the keys of sections, and of sections in these, by their dotted names."""
    found: dict[str, Any] = {}
    for name, value in values.items():
        if isinstance(value, Mapping):
            found |= flat(value, f"{prefix}{name}.")
        else:
            found[prefix + name] = value
    return found


def numbers(values: Any) -> dict[str, float]:
    """Return the numbers of an object, and of objects in it, by their dotted names: those of up to `LARGEST`."""
    found = flat(values) if isinstance(values, Mapping) else {}
    return {name: each for name, each in found.items() if type(each) in (int, float) and abs(each) <= LARGEST}


def defaults(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return the default of each key of a configuration, as ``{"section.key": value}``; None for a required key.

    Those of an algorithm, a rule and a source of data are the defaults of the ones that the configuration names.
    """
    from mpidl.algorithms import ALGORITHMS
    from mpidl.config import SECTIONS
    from mpidl.data import SOURCES
    from mpidl.rules import RULES

    given = flat(config)
    algorithm = ALGORITHMS.get(str(given.get("algorithm.name")))
    rule = RULES.get(str(given.get("server.rule")))
    source = SOURCES.get(str(given.get("data.source")))
    known: dict[str, Any] = {"algorithm.name": "downpour"}
    for section, cls in (*SECTIONS.items(), ("data", source), ("algorithm", algorithm), ("server", rule)):
        if cls is not None:
            known |= flat({section: _of(cls)})
    own = None if algorithm is None else algorithm.default_rule
    if own is not None:
        known["server.rule"] = own.name
        if type(own) is rule:
            known |= flat({"server": vars(own)})
    return known


def _of(cls: Any) -> dict[str, Any]:
    """Return the default of each field of a dataclass, as a configuration has it."""
    found = {}
    for field in fields(cls):
        value = field.default if field.default_factory is MISSING else field.default_factory()
        if field.init:
            plain = None if value is MISSING else msgspec.to_builtins(value)
            found[field.name] = list(plain) if isinstance(plain, tuple) else plain
    return found
