"""Data: where samples come from, and how an epoch is cut into portions and batches."""

from __future__ import annotations

from typing import Any

from mpidl.data.augmentation import Augmentation, Augmented, augmented
from mpidl.data.batch import Batch, Minibatch
from mpidl.data.cifar10 import Cifar10
from mpidl.data.dataset import ArraySplit, Dataset, Source, Split
from mpidl.data.digits import Digits
from mpidl.data.hdf5 import Hdf5
from mpidl.data.idx import Idx
from mpidl.data.normalisation import Normalisation, Normalised, normalised
from mpidl.data.portions import Portions
from mpidl.data.synthetic import Synthetic

SOURCES: dict[str, type[Any]] = {source.name: source for source in (Cifar10, Digits, Hdf5, Idx, Synthetic)}
"""The sources by their names in ``data.source``; each is a `Source` and a dataclass of its own keys."""

__all__ = [
    "SOURCES",
    "ArraySplit",
    "Augmentation",
    "Augmented",
    "Batch",
    "Cifar10",
    "Dataset",
    "Digits",
    "Hdf5",
    "Idx",
    "Minibatch",
    "Normalisation",
    "Normalised",
    "Portions",
    "Source",
    "Split",
    "Synthetic",
    "augmented",
    "normalised",
]
