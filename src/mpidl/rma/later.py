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
        # The ranks that wait, in any order, and what the first answer to each waits for.
        self._ranks: list[int] = []
        self._places, self._least = np.zeros(len(ranks), np.intp), np.zeros(len(ranks), np.int64)

    def add(self, rank: int, counter: int, least: int, values: np.ndarray) -> None:
        """Let an answer wait.

        Parameters
        ----------
        rank : int
            The rank that gets the answer.
        counter : int
            Where in memory the int64 begins that it waits for, in bytes.
        least : int
            How large that must be.
        values : array
            What is to be sent, as it is then.
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
        """Take out the answers that wait no more: pairs of the rank to which one goes, and the values."""
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
