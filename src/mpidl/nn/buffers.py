"""Arrays for a batch that are allocated once."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any


class Buffers:
    """One uninitialised array per shape, for the largest batch so far; smaller batches get views of them.

    Parameters
    ----------
    xp
        NumPy or CuPy.
    shapes
        Shape of one sample in each array.
    dtype
        Of all arrays.
    """

    def __init__(self, xp: Any, shapes: Sequence[tuple[int, ...]], dtype: str) -> None:
        self._xp, self._shapes, self._dtype = xp, shapes, dtype
        self._arrays: list[Any] = []
        self._samples = 0
        self._views: dict[int, list[Any]] = {}

    def take(self, samples: int) -> list[Any]:
        """Return arrays (samples, *shape), the same ones at every call."""
        views = self._views.get(samples)
        if views is None:
            if samples > self._samples:
                self._arrays = [self._xp.empty((samples, *shape), self._dtype) for shape in self._shapes]
                self._samples = samples
                self._views.clear()
            views = self._views[samples] = [array[:samples] for array in self._arrays]
        return views
