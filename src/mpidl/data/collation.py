"""Collation: samples become the arrays of a batch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import kind_of


def collate(samples: Sequence[Any]) -> Any:
    """Stack samples along a new first axis.

    Parameters
    ----------
    samples : sequence
        Arrays, PyTorch tensors, numbers or lists of them, all of one shape; or tuples or mappings of such, whose parts
        are stacked each for itself.

    Returns
    -------
    array (n, ...), or tuple or dict of arrays
        NumPy's, with the samples' dtype.

    Raises
    ------
    ValueError
        The samples differ in shape, or one is no array.
    """
    first = samples[0]
    if isinstance(first, tuple):
        return tuple(collate(parts) for parts in zip(*samples, strict=True))
    if isinstance(first, Mapping):
        return {key: collate([sample[key] for sample in samples]) for key in first}
    arrays = [np.asarray(sample) for sample in samples]
    if arrays[0].dtype.kind not in "biufc":
        raise ValueError(f"{kind_of(first)} is neither an array nor a number: samples like it need a collate function")
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise ValueError(f"samples of shapes {min(shapes)} and {max(shapes)} need a collate function")
    return np.stack(arrays)


def leaves(values: Any) -> Iterator[NDArray[Any]]:
    """Yield the arrays in tuples, lists and mappings, tensors in the host's memory too; leave out all else."""
    if isinstance(values, Mapping):
        values = list(values.values())
    if isinstance(values, tuple | list):
        for each in values:
            yield from leaves(each)
    elif isinstance(values, np.ndarray | int | float) or hasattr(values, "__array__"):
        yield np.ascontiguousarray(values)
