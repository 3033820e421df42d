"""Making batches of the samples of a dataset with ``__getitem__``."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.errors import MpidlError, kind_of, quoted, raised


@dataclass(frozen=True)
class BatchMaker:
    """Makes batches of the samples of several splits, with the functions of a `mpidl.data.Indexed`."""

    splits: Mapping[str, Any]
    collate: Callable[[list[Any]], Any] | None = None
    weight: Callable[[Any, Any], float] | None = None
    classes: int | None = None

    def make(
        self, split: str, indices: NDArray[np.int64], begin: Callable[[int], object] = lambda index: None
    ) -> Batch:
        """Return the batch of some samples of a split.

        Parameters
        ----------
        indices : array (n,) of int64
        begin : callable
            Called with the index of each sample before it is read, and with -1 after the last.

        Raises
        ------
        MpidlError
            A sample or the batch can't be made; the message names the sample, or the batch's first one.
        """
        dataset, samples = self.splits[split], []
        for index in indices.tolist():
            begin(index)
            try:
                samples.append(dataset[index])
            except Exception as error:
                raise MpidlError(f"data: {split} sample {index} {raised(error)}") from error
        begin(-1)
        where = f"data: {split} samples {indices[0]}, ... ({len(indices)})"
        try:
            made = self.collate(samples) if self.collate is not None else _pair(samples)
        except Exception as error:
            name = "collate" if self.collate is not None else "stacking"
            raise MpidlError(f"{where}: {name} {raised(error)}") from error
        batch = self._batch(made, where)
        return batch._replace(weight=self._weigh(batch, len(samples), where))

    def _batch(self, made: Any, where: str) -> Batch:
        batch = made
        if not isinstance(batch, Batch):
            if not isinstance(made, tuple | list) or len(made) not in (2, 3):
                expected = "(inputs, targets), (inputs, targets, weight) or a mpidl.Batch"
                raise MpidlError(f"{where}: collate returned {kind_of(made)}, expected {expected}")
            batch = Batch(made[0], made[1], weight=made[2] if len(made) == 3 else None)
        targets = batch.targets
        if self.classes is not None and isinstance(targets, np.ndarray) and targets.dtype.kind in "iu":
            wrong = (targets < 0) | (targets >= self.classes)
            if wrong.any():
                raise MpidlError(f"{where}: label {targets[wrong][0]}, expected 0 to {self.classes - 1}")
        return batch

    def _weigh(self, batch: Batch, samples: int, where: str) -> float:
        found: Any = samples if batch.weight is None else batch.weight
        if self.weight is not None:
            try:
                found = self.weight(batch.inputs, batch.targets)
            except Exception as error:
                raise MpidlError(f"{where}: weight {raised(error)}") from error
        try:
            weight = float(found)
        except (TypeError, ValueError):
            weight = nan
        if not (isfinite(weight) and weight > 0):
            raise MpidlError(f"{where}: weight {quoted(found)}, expected a number above 0")
        return weight


def _pair(samples: list[Any]) -> Any:
    first = samples[0]
    if not isinstance(first, tuple | list) or len(first) != 2:
        raise ValueError(f"a sample is {kind_of(first)}, expected (input, target), or a collate function")
    return collate([tuple(sample) for sample in samples])


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples along a new first axis.

    Parameters
    ----------
    samples : sequence
        Arrays, PyTorch tensors, numbers or lists of them, all of one shape; or tuples or mappings of these, whose parts
        are stacked separately.

    Returns
    -------
    array (n, ...), or tuple or dict of arrays
        NumPy arrays with the samples' dtype.

    Raises
    ------
    ValueError
        The samples differ in shape, or one isn't an array.
    """
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(collate(parts) for parts in zip(*samples, strict=True))
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    arrays = [np.asarray(sample) for sample in samples]
    if arrays[0].dtype.kind not in "biufc":
        raise ValueError(f"{kind_of(first)} is neither an array nor a number, expected a collate function for it")
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"samples of shapes {min(shapes)} and {max(shapes)}, expected a collate function for them")
    return np.stack(arrays)


def leaves(values: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays in tuples, lists and mappings, including tensors in host memory; skip everything else."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, tuple | list):
        for each in values:
            yield from leaves(each)
    elif isinstance(values, np.ndarray | int | float) or hasattr(values, "__array__"):
        yield np.ascontiguousarray(values)
