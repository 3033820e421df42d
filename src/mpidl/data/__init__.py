"""Data: where samples come from, and how an epoch is cut into portions and batches."""

from __future__ import annotations

from typing import Any

from mpidl.data.arrays import ArrayFiles, Arrays
from mpidl.data.batch import Batch, Minibatch
from mpidl.data.builtin import Digits, Synthetic
from mpidl.data.cached import Cached, CachedSplit, in_memory
from mpidl.data.click_log import ClickLog
from mpidl.data.dataset import ArraySplit, Dataset, Source, Split, opened
from mpidl.data.given import Factory, Private
from mpidl.data.hdf5 import Hdf5
from mpidl.data.images import Cifar10, Idx
from mpidl.data.indexed import Indexed
from mpidl.data.preprocessing import (
    Augmentation,
    Augmented,
    Normalisation,
    Normalised,
    Subset,
    augmented,
    held_out,
    normalised,
)
from mpidl.data.ragged import Ragged
from mpidl.data.schedule import Portions

SOURCES: dict[str, type[Any]] = {
    source.name: source for source in (ArrayFiles, Cifar10, ClickLog, Digits, Factory, Hdf5, Idx, Synthetic)
}
"""The sources by their names in ``data.source``; each is a `Source` and a dataclass of its own keys."""

__all__ = [
    "SOURCES",
    "ArrayFiles",
    "ArraySplit",
    "Arrays",
    "Augmentation",
    "Augmented",
    "Batch",
    "Cached",
    "CachedSplit",
    "Cifar10",
    "ClickLog",
    "Dataset",
    "Digits",
    "Factory",
    "Hdf5",
    "Idx",
    "Indexed",
    "Minibatch",
    "Normalisation",
    "Normalised",
    "Portions",
    "Private",
    "Ragged",
    "Source",
    "Split",
    "Subset",
    "Synthetic",
    "augmented",
    "held_out",
    "in_memory",
    "normalised",
    "opened",
]
