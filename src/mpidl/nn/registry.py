"""Finding things by the name that a configuration gives."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TypeVar

from mpidl.errors import UsageError, nearest

Entry = TypeVar("Entry")


def lookup(registry: Mapping[str, Entry], name: object, key: str) -> Entry:
    """Return what `registry` has under `name`, the value of the configuration's `key`.

    Raises
    ------
    UsageError
        If there is none; names the key, what was found and the nearest known name.
    """
    if not isinstance(name, str) or name not in registry:
        raise UsageError(f"{key}: unknown name {name!r}{nearest(str(name), list(registry))}")
    return registry[name]
