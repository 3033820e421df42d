"""The default collate function: samples stacked along a new first axis."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from dataclasses import is_dataclass
from typing import Any

import numpy as np

from mpidl.data.nested import parts_of, rebuilt
from mpidl.errors import kind_of


def pair(samples: Sequence[Any]) -> Any:
    """Return a batch (inputs, targets) of samples (input, target); ValueError if they don't stack."""
    pairs = [tuple(each) if isinstance(each, list) else each for each in samples]
    for sample in pairs:
        parts = None if isinstance(sample, Mapping) else parts_of(sample)
        if parts is None or len(parts) != 2:
            raise ValueError(f"a sample is {kind_of(sample)}, expected (input, target), or a collate function")
    return tuple(parts_of(collate(pairs)).values())  # type: ignore[union-attr]


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples along a new first axis.

    Parameters
    ----------
    samples : sequence
        Arrays, PyTorch tensors, numbers or lists of them, all of one shape; or text; or tuples, mappings or dataclasses
        of these, whose parts are stacked separately. Lists of anything else are stacked element by element.

    Returns
    -------
    array (n, ...)
        With the samples' dtype. A tensor, for tensors that NumPy has no arrays of: those that require gradients, of
        bfloat16, or sparse ones. A list of texts. A tuple, mapping, dataclass or list of these.

    Raises
    ------
    ValueError
        The samples differ in shape or in their parts, or one can't be stacked, or has a masked value.
    """
    first = samples[0]
    if isinstance(first, str | bytes):
        return list(samples)
    if isinstance(first, tuple | Mapping) or is_dataclass(first):
        return _by_parts(first, samples)
    if any(map(np.ma.is_masked, samples)):
        raise ValueError("a masked value, expected finite numbers")
    try:
        arrays = [np.asarray(sample) for sample in samples]
    except (TypeError, RuntimeError):
        if not hasattr(first, "detach"):
            raise
        return sys.modules["torch"].stack(list(samples))
    other = next((number for number, array in enumerate(arrays) if array.dtype.kind not in "biufcmM"), None)
    if other is not None:
        if isinstance(first, list):
            return _by_parts(first, samples)
        found = samples[other]
        what = f"an array of {found.dtype}" if isinstance(found, np.ndarray) else kind_of(found)
        raise ValueError(f"{what} is neither an array nor a number, expected a collate function for it")
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"samples of shapes {min(shapes)} and {max(shapes)}, expected a collate function for them")
    return np.stack(arrays)


def _by_parts(first: Any, samples: Sequence[Any]) -> Any:
    parts = [parts_of(sample) or {} for sample in samples]
    keys = parts[0].keys()
    if any(each.keys() != keys for each in parts):
        raise ValueError("samples with different parts, expected a collate function for them")
    return rebuilt(first, {key: collate([each[key] for each in parts]) for key in keys})
