"""Training data whose next batches are looked at ahead: XDL's pipeline of reading, prefetching and computing."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from copy import deepcopy

import numpy as np
from numpy.typing import NDArray

from mpidl.data.batch import Batch
from mpidl.data.dataset import Split
from mpidl.nn.model import CompleteModel
from mpidl.tables.lookups import Wanted


class LookingAhead(Split):
    """The samples of another split; rows of the next `depth` batches are asked for before the present one computes.

    `ask` asks for the rows of a batch, and `begin` begins the first batch that was asked for and has not begun.

    References
    ----------
    B. Jiang et al. (2019), XDL: an industrial deep learning framework for high-dimensional sparse data.
    """

    def __init__(
        self,
        split: Split,
        model: CompleteModel,
        ask: Callable[[Sequence[Wanted]], None],
        begin: Callable[[], None],
        depth: int,
    ) -> None:
        self._split, self._model, self._ask, self._begin = split, model, ask, begin
        self.samples, self.contiguous, self.by_parts, self.chunk = (
            split.samples, split.contiguous, split.by_parts, split.chunk,
        )  # fmt: skip
        self.lookahead, self._depth = max(split.lookahead, depth), depth
        # Batches that are announced, by indices and epoch, and those of them that have been read.
        self._announced: deque[tuple[NDArray[np.int64], int]] = deque()
        self._read: deque[tuple[NDArray[np.int64], int, Batch, bool]] = deque()

    def load(self) -> None:
        self._split.load()

    def prefetch(self, indices: NDArray[np.int64]) -> None:
        self._split.prefetch(indices)

    def prepare(self, indices: NDArray[np.int64], epoch: int = 0) -> None:
        """Announce a batch; it is read, and its rows are asked for, once it is among the next `depth`."""
        self._split.prepare(indices, epoch)
        self._announced.append((indices, epoch))
        self._read_ahead()

    def gather(self, indices: NDArray[np.int64], epoch: int = 0) -> Batch:
        if not self._read or self._read[0][1] != epoch or not np.array_equal(self._read[0][0], indices):
            return self._split.gather(indices, epoch)
        _, _, batch, asked = self._read.popleft()
        if asked:
            self._begin()
        self._read_ahead()
        return batch

    def _read_ahead(self) -> None:
        while self._announced and len(self._read) < self._depth:
            indices, epoch = self._announced.popleft()
            # The split overwrites a batch with the next one.
            batch = deepcopy(self._split.gather(indices, epoch))
            wanted = self._model.wanted(batch)
            if wanted is not None:
                self._ask(wanted)
            self._read.append((indices, epoch, batch, wanted is not None))
