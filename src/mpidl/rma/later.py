"""Answers that wait until counters are large enough."""

from __future__ import annotations

from collections import deque
from collections.abc import Sequence

import numpy as np


class Later:
    """Answers to other ranks that wait for counters in this rank's memory.

    Answers to one rank leave in the order in which it asked, so that only the first one has to be looked at.

    Parameters
    ----------
    memory : array of uint8
        Aligned to 8 bytes.
    ranks : sequence of int
        The ranks that may ask.
    """

    def __init__(self, memory: np.ndarray, ranks: Sequence[int]) -> None:
        self._counters = memory[: memory.size // 8 * 8].view(np.int64)
        self._answers = {rank: deque[tuple[int, int, np.ndarray]]() for rank in ranks}
        # The waiting ranks, in any order, and the counter and the value for which the first answer to each waits.
        self._ranks: list[int] = []
        self._places, self._least = np.zeros(len(ranks), np.intp), np.zeros(len(ranks), np.int64)

    def add(self, rank: int, counter: int, least: int, values: np.ndarray) -> None:
        """Let an answer wait.

        Parameters
        ----------
        rank : int
            The rank that gets the answer.
        counter : int
            The place of the int64 for which it waits, in bytes.
        least : int
            The least value for which it waits.
        values : array
            The answer, with its values at that time.
        """
        answers = self._answers[rank]
        answers.append((counter // self._counters.itemsize, least, values))
        if len(answers) == 1:
            self._await(rank)

    def _await(self, rank: int) -> None:
        number = len(self._ranks)
        self._places[number], self._least[number], _ = self._answers[rank][0]
        self._ranks.append(rank)

    def take(self) -> list[tuple[int, np.ndarray]]:
        """Take out the answers that wait no longer: pairs of the receiving rank and the values."""
        found: list[tuple[int, np.ndarray]] = []
        count = len(self._ranks)
        if not count:
            return found
        (due,) = (self._counters[self._places[:count]] >= self._least[:count]).nonzero()
        for number in reversed(due.tolist()):
            rank, last = self._ranks[number], len(self._ranks) - 1
            self._ranks[number] = self._ranks[last]
            self._places[number], self._least[number] = self._places[last], self._least[last]
            self._ranks.pop()
            answers = self._answers[rank]
            while answers and self._counters[answers[0][0]] >= answers[0][1]:
                found.append((rank, answers.popleft()[2]))
            if answers:
                self._await(rank)
        return found
