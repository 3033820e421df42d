"""Algorithms, one file each, as generators of requests; `ALGORITHMS` maps the names that configurations use."""

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.downpour import Downpour

ALGORITHMS: dict[str, type[Algorithm]] = {"downpour": Downpour}

__all__ = ["ALGORITHMS", "Algorithm", "Downpour"]
