"""Normalisation of inputs by a mean and a standard deviation, common to all channels or one per channel."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Annotated

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.dataset import Dataset, Split
from mpidl.errors import UsageError
from mpidl.schema import Checked

Positive = Annotated[float, msgspec.Meta(gt=0)]


@dataclass(frozen=True)
class Normalisation(Checked):
    """``[data.normalise]``: all inputs become (inputs - mean) / std, after augmentation.

    Attributes
    ----------
    mean, std : float, or list with one float per channel
        In units of the inputs (bytes are scaled to [0, 1]).
    """

    mean: float | list[float] = 0.0
    std: Positive | list[Positive] = 1.0


def normalised(dataset: Dataset, normalisation: Normalisation) -> Dataset:
    """Return the dataset with its inputs normalised, or `dataset` itself if `normalisation` does nothing.

    Raises
    ------
    UsageError
        If there aren't as many numbers as channels.
    """
    if normalisation == Normalisation():
        return dataset
    if dataset.input_shape is None:
        raise UsageError("data.normalise: the data's samples have no one shape, expected arrays of one shape")
    channels = dataset.input_shape[-1] if dataset.input_shape else 1
    for key, value in (("mean", normalisation.mean), ("std", normalisation.std)):
        if isinstance(value, list) and len(value) != channels:
            raise UsageError(f"data.normalise.{key}: {len(value)} numbers, expected 1, or {channels}: one per channel")
    train, test = (Normalised(split, normalisation) for split in (dataset.train, dataset.test))
    validation = None if dataset.validation is None else Normalised(dataset.validation, normalisation)
    return replace(dataset, train=train, test=test, validation=validation)


class Normalised(Split):
    """Another split's samples, normalised.

    Parameters
    ----------
    split : Split
    normalisation : Normalisation
    """

    def __init__(self, split: Split, normalisation: Normalisation) -> None:
        self.samples, self.contiguous, self.lookahead = split.samples, split.contiguous, split.lookahead
        self._split, self.chunk = split, split.chunk
        self._mean = np.array(normalisation.mean, np.float32)
        self._factor = (1 / np.array(normalisation.std)).astype(np.float32)

    def load(self) -> None:
        self._split.load()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._split.prefetch(indices)

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        self._split.prepare(indices, epoch)

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        batch = self._split.gather(indices, epoch)
        if batch.inputs.dtype.kind != "f":
            batch = batch._replace(inputs=batch.inputs.astype(np.float32))
        np.subtract(batch.inputs, self._mean, out=batch.inputs)
        np.multiply(batch.inputs, self._factor, out=batch.inputs)
        return batch
