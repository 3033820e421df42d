"""Batches of samples with any structure: the default collate function, and the checks of what a user's returns."""

from __future__ import annotations

import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from itertools import chain
from math import isfinite, nan
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch, Weight
from mpidl.data.nested import parts_of, rebuilt
from mpidl.data.ragged import Ragged
from mpidl.errors import MpidlError, kind_of, quoted, raised

#: Kinds of dtypes that are stacked.
STACKED = set("biufcmM")
#: Keys of targets beside inputs.
LABELS = ("labels", "label", "label_ids")


def pair(samples: Sequence[Any]) -> Any:
    """Return a batch (inputs, targets) of samples (input, target); ValueError if they don't stack.

    If samples are mappings with one of the keys `LABELS`, the batch is such a mapping, too.
    """
    first = samples[0]
    if isinstance(first, Mapping) and targets_of(first) is not None:
        return collate(samples)
    if is_dataclass(first):
        samples = [tuple(parts_of(each).values()) for each in samples]  # type: ignore[union-attr]
    elif isinstance(first, list):
        samples = [tuple(each) for each in samples]
    if not isinstance(samples[0], tuple) or len(samples[0]) != 2:
        raise ValueError(f"a sample is {kind_of(first)}, expected (input, target), a dict with labels, or collate=...")
    return tuple(map(collate, _columns(samples[0], samples)))


def targets_of(values: Mapping[Any, Any]) -> str | None:
    """Return the key of the targets in a mapping of inputs and targets; None if there is none, or several."""
    found = [key for key in LABELS if key in values]
    return found[0] if len(found) == 1 else None


def has_masked(values: Collection[Any]) -> bool:
    """Return whether some of the values are masked arrays with a masked value; fast if none is a masked array."""
    kinds = set(map(type, values))
    return any(issubclass(kind, np.ma.MaskedArray) for kind in kinds) and any(map(np.ma.is_masked, values))


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples along a new first axis.

    Parameters
    ----------
    samples : sequence
        Arrays, PyTorch tensors, numbers or lists of them, all of one shape; or text; or tuples, mappings or dataclasses
        of these, whose parts are stacked separately. Lists of anything else are stacked element by element. A
        `Ragged`, usually of one bag, is joined with those of the other samples.

    Returns
    -------
    array (n, ...)
        With the samples' dtype. A `Ragged`, of these. A tensor, for tensors that NumPy has no arrays of: those that
        require gradients, of bfloat16, or sparse ones. A list of texts. A tuple, mapping, dataclass or list of these.

    Raises
    ------
    ValueError
        The samples differ in shape or in their parts, or one can't be stacked, or has a masked value.
    """
    first = samples[0]
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, Ragged) and set(map(type, samples)) == {Ragged}:
        return Ragged.joined(samples)
    if isinstance(first, tuple | Mapping) or is_dataclass(first):
        return _by_parts(first, samples)
    if has_masked(samples):
        raise ValueError("a masked value, expected finite numbers")
    try:
        arrays = [np.asarray(sample) for sample in samples]
    except (TypeError, RuntimeError):
        if not hasattr(first, "detach"):
            raise
        return sys.modules["torch"].stack(list(samples))
    if isinstance(first, list) and arrays[0].dtype.kind not in STACKED:
        return _by_parts(first, samples)
    shapes = {array.shape for array in arrays}
    stacked = np.stack(arrays) if len(shapes) == 1 else None
    if stacked is not None and stacked.dtype.kind in STACKED:
        return stacked
    for sample, array in zip(samples, arrays, strict=True):
        if array.dtype.kind not in STACKED:
            what = f"an array of {sample.dtype}" if isinstance(sample, np.ndarray) else kind_of(sample)
            raise ValueError(f"{what} is neither an array nor a number, expected a collate function for it")
    bags = all(array.ndim == 1 and array.dtype.kind in "iu" for array in arrays)
    expected = "a mpidl.data.Ragged of each, or a collate function" if bags else "a collate function for them"
    raise ValueError(f"samples of shapes {min(shapes)} and {max(shapes)}, expected {expected}")


def _by_parts(first: Any, samples: Sequence[Any]) -> Any:
    parts = parts_of(first) or {}
    return rebuilt(first, dict(zip(parts, map(collate, _columns(first, samples)), strict=True)))


def _columns(first: Any, samples: Sequence[Any]) -> Iterable[Sequence[Any]]:
    """Return the parts of all samples, part by part, in the order of those of the first."""
    try:
        if isinstance(first, tuple | list):
            return list(zip(*samples, strict=True))
        if not isinstance(first, Mapping):
            return [[getattr(each, field.name) for each in samples] for field in fields(first)]
        if {len(each) for each in samples} != {len(first)}:
            raise ValueError
        return [[each[key] for each in samples] for key in first]
    except (ValueError, KeyError, TypeError, AttributeError):
        raise ValueError("samples with different parts, expected a collate function for them") from None


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
            made = pair(samples) if self.collate is None else self._collated(samples)
        except Exception as error:
            name = "stacking" if self.collate is None else "collate"
            for index, sample in zip(indices.tolist(), samples, strict=True):
                if sample is None or (isinstance(sample, tuple) and any(each is None for each in sample)):
                    where = f"data: {split} sample {index} {'is' if sample is None else 'has'} None"
                elif isinstance(sample, tuple) and has_masked(sample):
                    where = f"data: {split} sample {index} has a masked value, expected finite numbers"
                    raise MpidlError(where) from error
            raise MpidlError(f"{where}: {name} {raised(error)}") from error
        batch = self._batch(made, where)
        weight = self._weigh(batch, len(samples), where)
        return batch._replace(weight=weight if self.weight is None else Weight(weight, self.weight))

    def _collated(self, samples: list[Any]) -> Any:
        """Return what the collate function makes of samples; PyTorch's own takes masked values for others."""
        assert self.collate is not None
        if set(map(type, samples)) == {tuple} and has_masked(list(chain.from_iterable(samples))):
            raise ValueError("a masked value")
        return self.collate(samples)

    def _batch(self, made: Any, where: str) -> Batch:
        batch = made
        if not isinstance(batch, Batch):
            made = tuple(parts_of(made).values()) if is_dataclass(made) else made  # type: ignore[union-attr]
            if isinstance(made, Mapping) and (key := targets_of(made)) is not None:
                made = {name: each for name, each in made.items() if name != key}, made[key]
            if not isinstance(made, tuple | list) or len(made) not in (2, 3):
                expected = "(inputs, targets), (inputs, targets, weight), a dict with labels or a mpidl.Batch"
                raise MpidlError(f"{where}: collate returned {kind_of(made)}, expected {expected}")
            batch = Batch(made[0], made[1], weight=made[2] if len(made) == 3 else None)
        for values in (batch.inputs, batch.targets):
            if has_masked(values if isinstance(values, tuple) else (values,)):
                raise MpidlError(f"{where}: collate returned a masked value, expected finite numbers")
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
