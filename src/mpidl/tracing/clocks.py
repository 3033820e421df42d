"""The clocks of a job's hosts, compared by messages that go there and back."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np

#: Messages to each host, of which the fastest counts.
TRIES = 16
TAG = 4747


class Comparison(NamedTuple):
    """A comparison of two clocks.

    At the time `at` of this host's clock, the other one was ahead by `offset`, give or take `error`, in seconds.
    """

    at: float
    offset: float
    error: float


def compare(comm: Any, nodes: Sequence[int]) -> Comparison:
    """Compare the clock of this rank's host with that of the first rank's; collective.

    `nodes` has for each rank the lowest rank of its node, which has one clock.
    """
    own = Comparison(time.perf_counter(), 0.0, 0.0)
    others = sorted(set(nodes) - {nodes[0]})
    if not others:
        return own
    word = np.zeros(1)
    for rank in others:
        if comm.rank == 0:
            for _ in range(TRIES):
                comm.Recv(word, source=rank, tag=TAG)
                word[0] = time.perf_counter()
                comm.Send(word, dest=rank, tag=TAG)
        elif comm.rank == rank:
            own = min([_round_trip(comm, word) for _ in range(TRIES)], key=lambda each: each.error)
    found: Comparison = comm.allgather(own)[nodes[comm.rank]]
    return found


def _round_trip(comm: Any, word: np.ndarray) -> Comparison:
    sent = time.perf_counter()
    comm.Send(word, dest=0, tag=TAG)
    comm.Recv(word, source=0, tag=TAG)
    arrived = time.perf_counter()
    middle = (sent + arrived) / 2
    return Comparison(middle, float(word[0]) - middle, (arrived - sent) / 2)


def aligned(times: np.ndarray, comparisons: Sequence[Comparison]) -> np.ndarray:
    """Return times of this host's clock as those of the other one: offsets change linearly between comparisons."""
    offsets = [each.offset for each in comparisons]
    if len(comparisons) == 1:
        return times + offsets[0]
    (first, last), (before, after) = (comparisons[0].at, comparisons[-1].at), (offsets[0], offsets[-1])
    return times + before + (after - before) / max(last - first, 1e-9) * (times - first)
