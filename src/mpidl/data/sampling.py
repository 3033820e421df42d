"""The order in which samples are drawn: by a user's own sampler, and by each replica from its portions."""

from __future__ import annotations

import copy
import sys
import zlib
from collections import deque
from collections.abc import Callable, Iterable
from itertools import pairwise
from operator import index
from typing import Any

import msgspec
import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Minibatch
from mpidl.data.schedule import Assignment, Portions
from mpidl.errors import MpidlError, UsageError, kind_of, quoted, raised
from mpidl.functions import same_random_numbers, seed_generators

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
        of_epoch = zlib.crc32(f"{seed} {epoch}".encode())
        generator, torch = getattr(self._sampler, "generator", None), sys.modules.get("torch")
        with same_random_numbers():
            seed_generators(of_epoch)
            if torch is not None and isinstance(generator, torch.Generator):
                generator.manual_seed(of_epoch)
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


#: Separates the orders of several owners' data, and the end of data that never end.
STREAM, ENDLESS = 0x6F776E, 1 << 62

#: Places [start, stop) in an endless sequence of samples.
Places = tuple[int, int]
#: Begins to read samples, given their indices.
Prefetch = Callable[[NDArray[np.int64]], object]


class OwnPosition(msgspec.Struct, frozen=True):
    """How far a replica is in data of its own: places in the sequence of its epochs' samples.

    Attributes
    ----------
    next : int
        The first place that has not been drawn.
    unused : list of (int, int)
        Places drawn before whose gradients have not been computed.
    unpushed : list of (int, int)
        Places whose gradients have been computed and not pushed.
    """

    next: int
    unused: list[Places] = []
    unpushed: list[Places] = []

    @property
    def used(self) -> int:
        """The number of samples whose gradients have been computed."""
        return self.next - sum(stop - start for start, stop in self.unused)


class PortionSampler:
    """The samples of portions that any replica may take: each portion has its own.

    Parameters
    ----------
    portions : Portions
    """

    def __init__(self, portions: Portions) -> None:
        self._portions = portions

    @property
    def drawn(self) -> int:
        """The number of samples of its own that the replica has drawn so far; 0 if it has none."""
        return 0

    def begin(self, part: Assignment, prefetch: Prefetch | None = None) -> list[Minibatch]:
        """Return the minibatches of a part of a portion; `prefetch` begins to read their samples."""
        if prefetch is not None:
            prefetch(self._portions.indices(part.portion))
        return self._portions.minibatches(part.portion)[part.first : part.last]

    def position(self, unused: int, unpushed: int) -> OwnPosition | None:
        """Return how far a replica is, given the numbers of its last samples that it hasn't used, or not pushed.

        None if its samples don't depend on what it has drawn before.
        """
        return None

    def resume(self, position: OwnPosition | None, computed: bool = False) -> None:
        """Resume at a position; `computed`: the gradients that weren't pushed have been kept."""


class OwnSampler(PortionSampler):
    """The samples of one replica's own data.

    It draws them epoch by epoch of its own, each in another order. A portion only says how many it draws: how many
    passes a replica makes through its data depends on the number of portions that it takes.

    Parameters
    ----------
    portions : Portions
        Those of all data, which determine the sizes of batches.
    samples : array (n,) of int64
        Indices of the replica's samples.
    owner : int
        The replica. The first one's order, alone with all samples, is that of data that belong to no one.
    """

    def __init__(self, portions: Portions, samples: NDArray[np.int64], owner: int) -> None:
        super().__init__(portions)
        seed = portions.seed
        if owner:
            seed = int(np.random.SeedSequence(seed, spawn_key=(STREAM, owner)).generate_state(1)[0])
        self._samples = samples
        self._own = Portions(len(samples), portions.batch, portions.portion, seed, portions.contiguous)
        self._drawn: list[Places] = []
        self._coming = deque([(0, ENDLESS)])

    def begin(self, part: Assignment, prefetch: Prefetch | None = None) -> list[Minibatch]:
        portions = self._portions
        before = part.portion % portions.per_epoch * portions.portion
        bounds = [min(before + batch * portions.batch, portions.samples) for batch in range(part.first, part.last + 1)]
        first = part.portion * portions.per_portion + part.first
        batches = [self._batch(stop - start, first + i) for i, (start, stop) in enumerate(pairwise(bounds))]
        if prefetch is not None and batches:
            prefetch(np.concatenate([each.indices for each in batches]))
        return batches

    def _batch(self, size: int, number: int) -> Minibatch:
        """Draw a batch: its epoch, for which samples are augmented, is that of its first sample."""
        places = self._draw(size)
        parts = [part for start, stop in places for part in self._parts(start, stop)]
        return Minibatch(self._samples[np.concatenate(parts)], number, places[0][0] // self._own.samples)

    def _draw(self, size: int) -> list[Places]:
        """Take places in order."""
        taken: list[Places] = []
        while size:
            start, stop = self._coming.popleft()
            end = min(stop, start + size)
            if end < stop:
                self._coming.appendleft((end, stop))
            taken.append((start, end))
            size -= end - start
        _extend(self._drawn, taken)
        return taken

    def _parts(self, start: int, stop: int) -> list[NDArray[np.int64]]:
        """Return what is at places [start, stop) of the sequence of all epochs."""
        own, found = self._own, []
        while start < stop:
            epoch, within = divmod(start, own.samples)
            number, first = divmod(within, own.portion)
            part = own.indices(epoch * own.per_epoch + number)[first : first + stop - start]
            found.append(part)
            start += len(part)
        return found

    @property
    def drawn(self) -> int:
        """The number of samples that it has drawn so far, without those that it will draw again."""
        *again, (following, _) = self._coming
        return following - sum(stop - start for start, stop in again)

    def position(self, unused: int, unpushed: int) -> OwnPosition:
        rest, left = _last(self._drawn, unused)
        _, computed = _last(rest, unpushed)
        *again, (following, _) = self._coming
        _extend(left, again)
        return OwnPosition(following, left, computed)

    def resume(self, position: OwnPosition | None, computed: bool = False) -> None:
        if position is None:
            position = OwnPosition(0)
        self._drawn = list(position.unpushed) if computed else []
        again = position.unused if computed else [*position.unpushed, *position.unused]
        self._coming = deque([*again, (position.next, ENDLESS)])


def _extend(places: list[Places], more: Iterable[Places]) -> None:
    """Append places, neighbours as one."""
    for start, stop in more:
        if places and places[-1][1] == start:
            start = places.pop()[0]
        places.append((start, stop))


def _last(places: list[Places], size: int) -> tuple[list[Places], list[Places]]:
    """Divide places into those before the last `size` of them, and these."""
    before, after = list(places), deque[Places]()
    while size:
        start, stop = before.pop()
        cut = max(start, stop - size)
        after.appendleft((cut, stop))
        if start < cut:
            before.append((start, cut))
        size -= stop - cut
    return before, list(after)
