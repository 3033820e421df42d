"""Configurations of earlier versions: renamed sections and removed keys."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpidl import schema
from mpidl.errors import UsageError, quoted

#: Renamed sections.
RENAMED = {"test": "debug"}

#: Removed keys that had one valid value, and the reason in the error for any other.
RETIRED = {
    ("algorithm", "warm_rate"): (0.01, "a warm start has a rate of 0.01"),
}

#: Removed keys that had no effect on training.
IGNORED = [("run", "record"), ("algorithm", "wire_within_nodes")]


def modernise(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the names of this version; a key under its new name takes precedence.

    Raise UsageError if a removed key has a value other than the valid one.
    """
    values = dict(values)
    for old, new in RENAMED.items():
        if old in values:
            earlier, table = values.pop(old), values.get(new, {})
            schema.check_table(old, earlier)
            schema.check_table(new, table)
            values[new] = {**earlier, **table}
    run = values.get("run")
    if isinstance(run, Mapping) and "target_accuracy" in run:
        if "target" in run:
            raise UsageError("run.target_accuracy: run.target is given too, expected one of them")
        values["run"] = {**_without(run, "target_accuracy"), "target": f"accuracy >= {run['target_accuracy']}"}
    for (section, key), (only, why) in RETIRED.items():
        table = values.get(section)
        if isinstance(table, Mapping) and key in table:
            if table[key] != only:
                raise UsageError(f"{section}.{key}: {quoted(table[key])}, but {why}; leave the key out")
            values[section] = _without(table, key)
    for section, key in IGNORED:
        if isinstance(table := values.get(section), Mapping):
            values[section] = _without(table, key)
    return values


def _without(table: Mapping[str, Any], key: str) -> dict[str, Any]:
    return {name: value for name, value in table.items() if name != key}
