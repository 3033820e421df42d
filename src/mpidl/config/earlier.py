"""Configurations of earlier versions: sections that have another name now, and keys that are gone."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from mpidl import schema
from mpidl.errors import UsageError, quoted

__all__ = ["modernise"]

#: Sections that have another name now.
RENAMED = {"test": "debug"}

#: Keys that are gone: the only value that they could have, and why there is no other.
RETIRED = {
    ("topology", "standby"): (0, "every rank has work"),
}


def modernise(values: Mapping[str, Any]) -> dict[str, Any]:
    """Return a configuration with the names of this version; where a key is given under both, the new name wins.

    Raises
    ------
    UsageError
        A key that is gone has a value other than the only one that it could have.
    """
    values = dict(values)
    for old, new in RENAMED.items():
        if old in values:
            earlier, table = values.pop(old), values.get(new, {})
            schema.check_table(old, earlier)
            schema.check_table(new, table)
            values[new] = {**earlier, **table}
    for (section, key), (only, why) in RETIRED.items():
        table = values.get(section)
        if isinstance(table, Mapping) and key in table:
            if table[key] != only:
                raise UsageError(f"{section}.{key}: {quoted(table[key])}, but {why}; leave the key out")
            values[section] = {name: value for name, value in table.items() if name != key}
    return values
