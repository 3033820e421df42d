"""Orders of the samples by a user's own sampler, such as one of ``torch.utils.data``."""

from __future__ import annotations

import copy
import random
import sys
import zlib
from collections.abc import Iterator
from contextlib import contextmanager
from operator import index
from typing import Any

import numpy as np
from numpy.typing import NDArray

from mpidl.errors import MpidlError, UsageError, kind_of, quoted, raised

EXPECTED = "expected a function of the epoch that returns indices, or an iterable with __len__ that yields them"


class SampledOrder:
    """The order of each epoch's samples, the same on every rank that computes it.

    A sampler is iterated once for each epoch, with the generators of Python, NumPy and PyTorch, and its own
    ``generator`` if it has one, seeded from the run's seed and the epoch.

    Parameters
    ----------
    sampler : iterable with ``__len__``, or callable
        Yields the indices of an epoch. ``set_epoch`` is called before if there is one. A callable takes the epoch, from
        0, and returns the indices.
    samples : int
        Number of samples to choose from.

    Attributes
    ----------
    length : int
        Number of samples of an epoch.

    Raises
    ------
    UsageError
        It is neither, or it has no length.
    """

    def __init__(self, sampler: Any, samples: int) -> None:
        self._given, self._samples = sampler, samples
        self._called = callable(sampler)
        if not self._called and not (hasattr(sampler, "__iter__") and hasattr(sampler, "__len__")):
            raise UsageError(f"Indexed.sampler: {EXPECTED}, found {kind_of(sampler)}")
        self._begin()
        try:
            self.length = len(self._next(0)) if self._called else len(sampler)
        except MpidlError as error:
            raise UsageError(str(error)) from error.__cause__
        except Exception as error:
            raise UsageError(f"Indexed.sampler: __len__ {raised(error)}") from error
        if not self.length:
            raise UsageError("Indexed.sampler: no samples, expected at least one")

    def _begin(self) -> None:
        # A sampler may have a state that changes with each epoch.
        self._sampler, self._epoch = copy.deepcopy(self._given), 0

    def __call__(self, seed: int, epoch: int) -> NDArray[np.int64]:
        """Return the indices (length,) of an epoch, from 0; MpidlError if the sampler fails or yields no such."""
        if self._called:
            return self._checked(self._next(seed, epoch), epoch)
        if epoch < self._epoch:
            self._begin()
        while True:
            self._epoch += 1
            order = self._next(seed, self._epoch - 1)
            if self._epoch > epoch:
                return self._checked(order, epoch)

    def _next(self, seed: int, epoch: int = 0) -> Any:
        with _seeded(zlib.crc32(f"{seed} {epoch}".encode()), getattr(self._sampler, "generator", None)):
            try:
                if self._called:
                    return self._sampler(epoch)
                if hasattr(self._sampler, "set_epoch"):
                    self._sampler.set_epoch(epoch)
                return list(self._sampler)
            except Exception as error:
                raise MpidlError(f"Indexed.sampler: epoch {epoch} {raised(error)}") from error

    def _checked(self, order: Any, epoch: int) -> NDArray[np.int64]:
        where = f"Indexed.sampler: epoch {epoch}"
        try:
            indices = np.asarray([index(each) for each in order], np.int64)
        except (TypeError, ValueError):
            first = next(iter(order), order) if hasattr(order, "__iter__") else order
            raise MpidlError(f"{where}: found {quoted(first)}, expected the index of a sample") from None
        if len(indices) != self.length:
            raise MpidlError(f"{where}: {len(indices)} samples, expected {self.length} as its length says")
        if indices.min() < 0 or indices.max() >= self._samples:
            raise MpidlError(
                f"{where}: samples {indices.min()} to {indices.max()}, expected indices from 0 to {self._samples - 1}"
            )
        return indices


@contextmanager
def _seeded(seed: int, generator: Any) -> Iterator[None]:
    """Seed all generators, and give the common ones their states back afterwards."""
    torch = sys.modules.get("torch")
    python, numpy = random.getstate(), np.random.get_state()  # noqa: NPY002 (the generator that samplers use)
    ours = None if torch is None else torch.get_rng_state()
    random.seed(seed)
    np.random.seed(seed)  # noqa: NPY002
    if torch is not None:
        torch.manual_seed(seed)
        if isinstance(generator, torch.Generator):
            generator.manual_seed(seed)
    try:
        yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)  # noqa: NPY002
        if torch is not None:
            torch.set_rng_state(ours)
