"""The order of a run's data: the samples of each portion, and the portion of each ticket. Does no I/O."""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Minibatch
from mpidl.errors import UsageError

#: More than the batches of any run.
REDUCTION = 1 << 48
CACHED_EPOCHS = 2  # a worker takes the next epoch's first portion while it works on this one's last


class Portions:
    """Divides every epoch's random order of the samples into portions, and these into batches.

    An epoch's order is a permutation of all samples that depends only on the seed and the epoch. If `contiguous`, a
    portion is a block of neighbours: the order of the blocks is permuted (except that a shorter block at the end of the
    data comes last), and so are the samples within each block.

    Parameters
    ----------
    samples : int
        Number of samples.
    batch : int
        Samples per batch. An epoch's last batch may have fewer.
    portion : int
        Samples per portion, a multiple of `batch`. An epoch's last portion may have fewer.
    seed : int
        Not negative.
    contiguous : bool
        Whether portions are blocks of neighbours.
    drop_last : bool
        Whether to leave out an epoch's last batch if it has fewer samples: others in each epoch, but from the last
        block if `contiguous`.
    order : callable, optional
        Returns the order of an epoch, of as many samples, given the seed and the epoch, in place of a permutation.

    Attributes
    ----------
    samples : int
        Number of samples in an epoch.
    per_epoch, steps_per_epoch : int
        Number of portions, and of batches, per epoch.
    per_portion : int
        Number of batches in a whole portion.

    Raises
    ------
    UsageError
        `portion` isn't a multiple of `batch`, or no batch remains.
    """

    def __init__(
        self, samples: int, batch: int, portion: int, seed: int, contiguous: bool = False, drop_last: bool = False,
        order: Callable[[int, int], NDArray[np.int64]] | None = None,
    ) -> None:  # fmt: skip
        if portion < 1 or portion % batch:
            raise UsageError(f"data.portion: {portion}, expected a multiple of data.batch ({batch})")
        if drop_last and samples < batch:
            raise UsageError(f"data.drop_last: true, but {samples} training samples make no batch of {batch}")
        self.batch, self.portion, self.seed, self.contiguous = batch, portion, seed, contiguous
        self._all, self.samples = samples, samples - samples % batch if drop_last else samples
        self.per_epoch, self.steps_per_epoch = (-(-self.samples // each) for each in (portion, batch))
        self.per_portion, self._given = portion // batch, order
        self._orders: dict[int, NDArray[np.int64]] = {}

    def epoch(self, number: int) -> int:
        """Return the epoch, from 0, of portion `number`."""
        return number // self.per_epoch

    def indices(self, number: int) -> NDArray[np.int64]:
        """Return the indices of the samples of portion `number`, counted over all epochs, in the order of their use.

        Returns
        -------
        array (n,) of int64
            Read-only.
        """
        epoch, within = divmod(number, self.per_epoch)
        if not self.contiguous:
            return self._order(epoch)[within * self.portion : min((within + 1) * self.portion, self.samples)]
        block = int(self._order(epoch)[within])
        start = block * self.portion
        order = self._random(epoch, block).permutation(min(self.portion, self._all - start))
        return _fixed(start + order[: self.samples - start])

    def batches(self, number: int) -> list[NDArray[np.int64]]:
        """Return the batches of portion `number`: views of its indices, in order."""
        indices = self.indices(number)
        return [indices[start : start + self.batch] for start in range(0, len(indices), self.batch)]

    def minibatches(self, number: int) -> list[Minibatch]:
        """Return the minibatches of portion `number`."""
        first, epoch = number * self.per_portion, self.epoch(number)
        return [Minibatch(indices, first + i, epoch) for i, indices in enumerate(self.batches(number))]

    def _order(self, epoch: int) -> NDArray[np.int64]:
        """Return the order of the epoch's samples, or that of its blocks if portions are contiguous."""
        order = self._orders.get(epoch)
        if order is None:
            if len(self._orders) == CACHED_EPOCHS:
                del self._orders[min(self._orders)]
            order = self._orders[epoch] = _fixed(self._permutation(epoch))
        return order

    def _permutation(self, epoch: int) -> NDArray[np.int64]:
        if self._given is not None:
            return self._given(self.seed, epoch)
        if not self.contiguous:
            return self._random(epoch).permutation(self._all)
        whole = self.samples // self.portion
        order = np.arange(self.per_epoch)
        order[:whole] = self._random(epoch).permutation(whole)
        return order

    def _random(self, *key: int) -> np.random.Generator:
        return np.random.default_rng(np.random.SeedSequence(self.seed, spawn_key=key))


def _fixed(array: NDArray[np.int64]) -> NDArray[np.int64]:
    array.flags.writeable = False
    return array


class Assignment(NamedTuple):
    """A part of a portion: its batches [first, last)."""

    portion: int
    first: int
    last: int


class Schedule:
    """Maps tickets, the values of an atomic counter from 0, to portions.

    Parameters
    ----------
    portions : Portions
    epochs, steps : int, optional
        Length of the run in epochs, or in minibatches summed over the replicas; exactly one is given.
    next_portion : int
        First portion that hasn't been taken yet; 0 unless the run is resumed.
    unfinished : sequence of (portion, batches done)
        Portions that were in progress when the run was stopped; they come first.

    Attributes
    ----------
    reductions : int
        Number of times that rates have been reduced so far.
    """

    def __init__(
        self,
        portions: Portions,
        epochs: int | None = None,
        steps: int | None = None,
        next_portion: int = 0,
        unfinished: Sequence[tuple[int, int]] = (),
    ) -> None:
        self.portions = portions
        self._next, self._unfinished = next_portion, tuple(unfinished)
        self._given_back: list[tuple[int, int]] = []
        self.reductions = 0
        self.steps = steps if steps is not None else (epochs or 0) * portions.steps_per_epoch
        self.epochs = -(-self.steps // portions.steps_per_epoch)
        whole, rest = divmod(self.steps, portions.steps_per_epoch)
        self._end = whole * portions.per_epoch + -(-rest // portions.per_portion)

    @property
    def samples_in_all(self) -> float:
        """Number of samples of the whole run."""
        return self.steps / self.portions.steps_per_epoch * self.portions.samples

    def batches(self, portion: int) -> int:
        """Return the number of batches in a portion; an epoch's last portion may have fewer."""
        portions = self.portions
        before = portion % portions.per_epoch * portions.per_portion
        return min(portions.per_portion, portions.steps_per_epoch - before)

    def _last(self, portion: int) -> int:
        """Return the number of a portion's batches before the end of the run."""
        return min(self.batches(portion), self.steps - self._steps_before(portion))

    def _steps_before(self, portion: int) -> int:
        epoch, place = divmod(portion, self.portions.per_epoch)
        return epoch * self.portions.steps_per_epoch + place * self.portions.per_portion

    def number(self, portion: int, batch: int) -> int:
        """Return the number of a portion's batch in the run, by which rates are determined.

        Numbers count on as if each portion were whole; those after a reduction of the rates are larger by `REDUCTION`.
        """
        return self.reductions * REDUCTION + portion * self.portions.per_portion + batch

    def place(self, number: int) -> tuple[int, int]:
        """Return the portion of a batch and its place there, given its number."""
        return divmod(max(0, number) % REDUCTION, self.portions.per_portion)

    def portion(self, number: int) -> int:
        """Return the portion of a batch, given its number."""
        return self.place(number)[0]

    def step(self, number: int) -> int:
        """Return the number of steps before a batch, given its number."""
        portion, within = self.place(number)
        return self._steps_before(portion) + within

    @property
    def tickets(self) -> int:
        """Number of tickets that stand for work."""
        return len(self._unfinished) + max(0, self._end - self._next)

    def assignment(self, ticket: int) -> Assignment | None:
        """Return the assignment of a ticket; None after the run's last one."""
        portion, first = self._place(ticket)
        return self.part(portion, first) if portion < self._end else None

    def part(self, portion: int, first: int) -> Assignment:
        """Return the batches of a portion from `first` on, possibly none."""
        return Assignment(portion, first, max(first, self._last(portion)))

    def _place(self, ticket: int) -> tuple[int, int]:
        """Return the portion of a ticket and its first batch, possibly after the end of the run."""
        if ticket < 0:
            return self._given_back[-1 - ticket]
        if ticket < len(self._unfinished):
            return self._unfinished[ticket]
        return self._next + ticket - len(self._unfinished), 0

    def give_back(self, portion: int, first: int) -> int:
        """Return a ticket, which is negative, for the rest of a portion that its replica gives back."""
        self._given_back.append((portion, first))
        return -len(self._given_back)

    @property
    def given_back(self) -> dict[int, tuple[int, int]]:
        """What replicas have given back so far, by its tickets: portions, each with its first batch."""
        return {-1 - number: each for number, each in enumerate(self._given_back)}

    def left(self, parts: Sequence[Assignment], pushed: int) -> list[tuple[int, int]]:
        """Return what is left of the portions of a replica, each with its next batch.

        Parameters
        ----------
        parts : sequence of Assignment
            What it has taken, in the order of its work.
        pushed : int
            The number of the last batch that it has pushed; -1 if it has pushed none.
        """
        portion, batch = self.place(pushed)
        done = [i for i, part in enumerate(parts) if part.portion == portion and part.first <= batch < part.last]
        current = done[-1] if pushed >= 0 and done else -1
        rest = [(part.portion, part.last) for part in parts[:current]]
        rest += [(portion, batch + 1)] if current >= 0 else []
        rest += [(part.portion, part.first) for part in parts[current + 1 :]]
        # Of a portion that it has taken again after it was given back, the last one counts.
        return [(portion, first) for portion, first in dict(rest).items() if first < self.batches(portion)]

    def position(self, taken: int, beyond: Collection[int] = ()) -> tuple[int, list[tuple[int, int]]]:
        """Return the position from which another schedule hands out what this one has not.

        All tickets below `taken` have been taken, and those in `beyond`.

        Returns
        -------
        next_portion : int
        passed_over : list of (int, int)
            Portions before it that are still to be handed out, each with its first batch.
        """
        known = len(self._unfinished)
        end = max(known, min(self.tickets, max([taken, *(ticket + 1 for ticket in beyond)])))
        passed_over = [self._place(ticket) for ticket in range(taken, end) if ticket not in beyond]
        return self._next + end - known, passed_over

    def size(self, ticket: int) -> tuple[int, int]:
        """Return the numbers of batches and samples that a ticket stands for."""
        part = self.assignment(ticket)
        return (0, 0) if part is None else (part.last - part.first, self.samples(*part))

    def samples(self, portion: int, first: int, last: int) -> int:
        """Return the number of samples in batches [first, last) of a portion."""
        batch = self.portions.batch
        start = portion % self.portions.per_epoch * self.portions.portion
        whole = min(self.portions.portion, self.portions.samples - start)
        return min(last * batch, whole) - min(first * batch, whole)

    def tickets_before(self, epoch: float) -> int:
        """Return the number of tickets that have been taken after `epoch` epochs."""
        return max(0, min(self.tickets, int(epoch * self.portions.per_epoch) - self._next + len(self._unfinished)))
