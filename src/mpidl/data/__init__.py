"""Data: where samples come from, and how an epoch is cut into portions and batches."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import fields
from typing import Any

import msgspec

from mpidl.data.batch import Batch
from mpidl.data.dataset import ArraySplit, Dataset, Source, Split
from mpidl.data.digits import Digits
from mpidl.data.hdf5 import Hdf5
from mpidl.data.idx import Idx
from mpidl.data.portions import Portions
from mpidl.data.synthetic import Synthetic
from mpidl.errors import UsageError, nearest

SOURCES: dict[str, type[Any]] = {source.name: source for source in (Digits, Hdf5, Idx, Synthetic)}
"""The sources by their names in ``data.source``; each is a dataclass of its own keys, and a `Source`."""

KEYS_OF_TRAINING = ("batch", "portion")


def open_dataset(section: Mapping[str, Any] | Source) -> Dataset:
    """Open the data of a ``[data]`` section.

    Parameters
    ----------
    section : mapping or Source
        ``source`` and that source's own keys (``batch`` and ``portion`` are passed over), or a source itself:
        ``open_dataset(Idx("data/fashion-mnist"))``.

    Raises
    ------
    UsageError
        Unknown source or key, wrong type, or what the source's own `open` raises.
    """
    if not isinstance(section, Mapping):
        return section.open()
    name = section.get("source")
    if name not in SOURCES:
        raise UsageError(f"data.source: {name!r} is unknown{nearest(str(name), list(SOURCES))}")
    own = {key: value for key, value in section.items() if key not in ("source", *KEYS_OF_TRAINING)}
    known = [field.name for field in fields(SOURCES[name])]
    for key in own:
        if key not in known:
            raise UsageError(f"data.{key}: unknown key{nearest(key, ['source', *KEYS_OF_TRAINING, *known])}")
    try:
        source: Source = msgspec.convert(own, SOURCES[name])
    except msgspec.ValidationError as error:
        message, _, key = str(error).partition(" - at `$.")
        raise UsageError(f"data.{key.rstrip('`')}: {message}" if key else f"data: {message}") from None
    return source.open()


__all__ = [
    "SOURCES",
    "ArraySplit",
    "Batch",
    "Dataset",
    "Digits",
    "Hdf5",
    "Idx",
    "Portions",
    "Source",
    "Split",
    "Synthetic",
    "open_dataset",
]
