"""Remote memory whose operations are late."""

import time

import numpy as np


class Late:
    """Remote memory each of whose operations may begin late."""

    def __init__(self, memory, random):
        self._memory, self._random = memory, np.random.default_rng(random)

    def to(self, rank):
        return Late(self._memory.to(rank), self._random)

    def __getattr__(self, name):
        if self._random.random() < 0.15:
            time.sleep(self._random.exponential(3e-4))
        return getattr(self._memory, name)
