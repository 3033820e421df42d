"""A replica's requests, answered in place for some batches: another replica makes its pushes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from mpidl.algorithms.algorithm import Replica
from mpidl.algorithms.requests import Fetch, Gradient, NextBatch, Push


def pushes(
    replica: Replica,
    next_batch: Callable[[], Any],
    fetch: Callable[[Any], None],
    gradient: Callable[[Gradient], Any],
) -> Iterator[Any]:
    """Yield the vectors that a replica pushes, each valid until the next; it waits for no others.

    Parameters
    ----------
    replica : generator
        The requests of an algorithm that exchanges through servers.
    next_batch, fetch, gradient : callable
        Answer `NextBatch`, `Fetch`, given its parameters, and `Gradient`.
    """
    answer = None
    while True:
        try:
            request = replica.send(answer)
        except StopIteration:
            return
        answer = None
        match request:
            case NextBatch():
                answer = next_batch()
            case Gradient():
                answer = gradient(request)
            case Fetch(parameters):
                fetch(parameters)
            case Push(vector):
                yield vector
