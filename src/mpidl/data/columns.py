"""Columns of samples: arrays of inputs or targets, and the checks that all sources share."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from math import prod
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import ArrayLike, NDArray

from mpidl.data.ragged import BagsOfFile, Ragged, StoredBags
from mpidl.errors import MpidlError, UsageError, kind_of

LABELS_PER_CHECK = 1 << 20
#: Names of inputs and targets in files.
KEYS = ("train/x", "train/y", "test/x", "test/y")
#: What the name of inputs is followed by in that of their offsets, if they are ids of bags.
OFFSETS = "_offsets"


class Column(NamedTuple):
    """Inputs or targets, and their file (and key) for error messages.

    `values` has a shape and a dtype; targets are read in slices.
    """

    name: str
    values: Any


def as_array(name: str, values: ArrayLike | Ragged) -> Any:
    """Return `values` as an array; UsageError, with their name, if they can't be converted, or some are masked.

    A `Ragged` is returned as it is.
    """
    if isinstance(values, Ragged):
        return values
    try:
        array = np.asarray(detached(values))
    except Exception as error:  # arrays and tensors of other libraries raise all kinds of errors
        raise UsageError(f"{name}: {error}, expected an array") from None
    if array.dtype == object and not array.ndim:
        remedy = ", as its method toarray() returns it" if hasattr(values, "toarray") else ""
        raise UsageError(f"{name}: {kind_of(values)}, expected an array{remedy}")
    if (sample := first_masked(values)) is not None:
        raise UsageError(f"{name}: masked value in sample {sample}, expected finite numbers")
    return array


def first_masked(values: Any) -> int | None:
    """Return the index of the first masked element of an array, or in a sequence of arrays; None if there is none."""
    if isinstance(values, list | tuple):
        return next((number for number, each in enumerate(values) if np.ma.is_masked(each)), None)
    mask = np.ma.getmask(values)
    return int(np.nonzero(np.atleast_1d(mask))[0][0]) if mask.any() else None


def detached(values: Any) -> Any:
    """Return a PyTorch tensor in a form that NumPy converts: detached, on the CPU, and as float32 if it is bfloat16."""
    if not hasattr(values, "detach"):
        return values
    tensor = values.detach().cpu()
    return tensor.float() if str(tensor.dtype) == "torch.bfloat16" else tensor


def splits_of(columns: Mapping[str, Column]) -> list[tuple[Column, Column]]:
    """Return the inputs and targets of the training, test and, if there is one, validation split."""
    parts = [part for part in ("train", "test", "validation") if f"{part}/x" in columns]
    return [(columns[f"{part}/x"], columns[f"{part}/y"]) for part in parts]


def check(splits: Sequence[tuple[Column, Column]], classes: int | None) -> tuple[tuple[int, ...], int | None]:
    """Check that the inputs and targets of all splits fit together, and that every label is valid.

    Parameters
    ----------
    splits : sequence of (inputs, targets)
        The training split first.
    classes : int or None
        Number of classes; None for one more than the largest training label.

    Returns
    -------
    input_shape, classes
        Those of the `Dataset`.

    Raises
    ------
    UsageError
        Shapes, dtypes or labels don't fit together.
    """
    for split in splits:
        _check_split(*split)
    (inputs, targets), *others = splits
    for other_inputs, other_targets in others:
        _check_alike(other_inputs, inputs)
        _check_alike(other_targets, targets)
        found, expected = other_inputs.values.dtype, inputs.values.dtype
        if (found == np.uint8) != (expected == np.uint8):
            raise UsageError(f"{other_inputs.name}: {found}, expected {expected} as in {inputs.name}")
    input_shape = tuple(int(size) for size in inputs.values.shape[1:])
    if targets.values.dtype.kind == "f":
        if classes is not None:
            raise UsageError(f"data.classes: {classes}, expected none: {targets.name} contains floats")
        return input_shape, None
    largest = check_labels(targets, classes)
    classes = largest + 1 if classes is None else classes
    for _, other_targets in others:
        check_labels(other_targets, classes)
    return input_shape, classes


def _check_split(inputs: Column, targets: Column) -> None:
    """Raise UsageError unless inputs and targets have the same number of samples, and valid shapes and dtypes."""
    check_inputs(inputs)
    check_targets(targets)
    samples = inputs.values.shape[0]
    if targets.values.shape[0] != samples:
        found = targets.values.shape[0]
        raise UsageError(f"{targets.name}: {found} targets, expected {samples} as in {inputs.name}")
    if samples == 0:
        raise UsageError(f"{inputs.name}: no samples, expected at least one")


def check_inputs(inputs: Column) -> None:
    """Raise UsageError unless inputs have a valid shape and dtype."""
    shape, dtype = inputs.values.shape, inputs.values.dtype
    if isinstance(inputs.values, StoredBags | Ragged):
        return
    if len(shape) < 2 or 0 in shape[1:]:
        raise UsageError(f"{inputs.name}: shape {shape}, expected (samples, ...) with no size 0 per sample")
    if dtype.kind not in "iuf":
        raise UsageError(f"{inputs.name}: {dtype}, expected floats, bytes (uint8) or other integers")


def with_offsets(inputs: Column, offsets: Column) -> Column:
    """Return a column of bags with these ids and offsets; UsageError unless they fit together."""
    part = BagsOfFile(inputs.name, inputs.values, offsets.values).check(offsets.name)
    return Column(inputs.name, StoredBags([part]))


def check_targets(targets: Column) -> None:
    """Raise UsageError unless targets have a valid shape and dtype."""
    shape, dtype = targets.values.shape, targets.values.dtype
    fits = (dtype.kind in "iu" and len(shape) > 0) or (dtype.kind == "f" and len(shape) == 2)
    if not fits or 0 in shape[1:]:
        expected = "integers of shape (samples, ...) or floats of shape (samples, outputs) with outputs >= 1"
        raise UsageError(f"{targets.name}: {dtype} of shape {shape}, expected {expected}")


def _check_alike(other: Column, train: Column) -> None:
    found, expected = other.values, train.values
    if (found.dtype.kind == "f") != (expected.dtype.kind == "f"):
        raise UsageError(f"{other.name}: {found.dtype}, expected {expected.dtype} as in {train.name}")
    if found.shape[1:] != expected.shape[1:]:
        shapes = f"shape {found.shape[1:]} per sample, expected {expected.shape[1:]}"
        raise UsageError(f"{other.name}: {shapes} as in {train.name}")


def check_labels(labels: Column, classes: int | None) -> int:
    """Return the largest label, at least 0; check that all are below `classes`, unless it is None.

    Negative labels are for losses that ignore them.
    """
    shape, largest = labels.values.shape, 0
    rows = max(1, LABELS_PER_CHECK // prod(shape[1:]))
    for start in range(0, shape[0], rows):
        block = labels.values[start : start + rows]
        largest = max(largest, int(block.max()))
        if classes is not None and largest >= classes:
            raise wrong_label(labels.name, block, block >= classes, start, f"0 to {classes - 1}")
    return largest


def wrong_label(name: str, labels: NDArray[Any], wrong: NDArray[Any], start: int, expected: str) -> UsageError:
    """Return the error for the first wrong label of samples from `start` on."""
    first = tuple(np.argwhere(wrong)[0])
    return UsageError(f"{name}: label {labels[first]} at index {start + first[0]}, expected {expected}")


def check_finite(column: Column, samples: Sequence[int] | NDArray[np.int64] | None = None) -> None:
    """Raise UsageError for a NaN or an infinity; `samples` are the indices of the column's samples, if not from 0."""
    values = column.values
    # The extremes suffice, and need no memory for a mask.
    if values.dtype.kind != "f" or not values.size or np.isfinite([values.min(), values.max()]).all():
        return
    wrong = ~np.isfinite(values.reshape(len(values), -1)).all(axis=1)
    place = int(np.flatnonzero(wrong)[0])
    sample = place if samples is None else samples[place]
    raise UsageError(f"{column.name}: NaN or infinity in sample {sample}, expected finite numbers")


def check_read(column: Column, samples: Sequence[int] | NDArray[np.int64]) -> None:
    """Raise MpidlError for a NaN or an infinity that is found in samples read during the run."""
    try:
        check_finite(column, samples)
    except UsageError as error:
        raise MpidlError(str(error)) from None


def input_dtype(dtype: np.dtype[Any], double: bool = False) -> np.dtype[Any]:
    """Return the dtype that inputs of `dtype` have in memory: the same for integers, `float_dtype` for floats."""
    return dtype.newbyteorder("=") if dtype.kind in "iu" else float_dtype(dtype, double)


def target_dtype(dtype: np.dtype[Any], double: bool = False) -> np.dtype[Any]:
    """Return the dtype of the targets of a batch: int64 for integers, `float_dtype` for floats."""
    return float_dtype(dtype, double) if dtype.kind == "f" else np.dtype(np.int64)


def float_dtype(dtype: np.dtype[Any], double: bool) -> np.dtype[Any]:
    """Return the dtype of floats in memory: float64 if `double` and they are at least as long, otherwise float32."""
    return np.dtype(np.float64 if double and dtype.kind == "f" and dtype.itemsize >= 8 else np.float32)
