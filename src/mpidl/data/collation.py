"""The default collate function: samples stacked along a new first axis."""

from __future__ import annotations

import sys
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from mpidl.data.nested import parts_of, rebuilt
from mpidl.data.ragged import Ragged
from mpidl.errors import kind_of

#: Kinds of dtypes that are stacked.
STACKED = set("biufcmM")
#: Keys of targets beside inputs.
LABELS = ("labels", "label", "label_ids")


def pair(samples: Sequence[Any]) -> Any:
    """Return a batch (inputs, targets) of samples (input, target); ValueError if they don't stack.

    Samples may also be mappings with `LABELS`, of which it is one.
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
