"""The batches whose gradients a worker has computed and not pushed yet."""

from __future__ import annotations

from mpidl.storage.position import ReplicaPosition


class UnpushedBatches:
    """Follows a worker from batch to batch.

    Attributes
    ----------
    portion : int
        The portion of the last batch; -1 before the first.
    parts : list of [int, int, int]
        The batches computed since the last push: a portion, its first such batch, and the batch after the last.
    """

    def __init__(self) -> None:
        self.parts: list[list[int]] = []
        self.portion, self._batch = -1, -1

    def load(self, position: ReplicaPosition) -> None:
        """Go on where a replica was."""
        self.parts = [list(part) for part in position.unpushed]
        self.portion = position.portion

    def took(self, portion: int, batch: int) -> None:
        """Note the batch that the next gradient will come from."""
        self.portion, self._batch = portion, batch

    def computed(self) -> None:
        """Note that the gradient of the last batch has been computed."""
        if self.parts and self.parts[-1][0] == self.portion:
            self.parts[-1][2] = self._batch + 1
        else:
            self.parts.append([self.portion, self._batch, self._batch + 1])

    @property
    def portions(self) -> tuple[int, int]:
        """The first and the last portion of a push of all batches up to the last one."""
        return (self.parts[0][0] if self.parts else self.portion), self.portion

    def pushed(self, rest: int = 0) -> None:
        """Note that all batches but the last `rest` have been pushed."""
        if not rest:
            self.parts.clear()
            return
        pushed = sum(last - first for _, first, last in self.parts) - rest
        while pushed > 0:
            _, first, last = self.parts[0]
            self.parts[0][1] = min(last, first + pushed)
            pushed -= last - first
            if pushed >= 0:
                del self.parts[0]
