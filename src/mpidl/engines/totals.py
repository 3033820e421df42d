"""A run's figures so far, added up over its ranks."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np

from mpidl.shards.staleness import BINS


@dataclass
class Totals:
    """Running totals; what people see is derived from two of them.

    Attributes
    ----------
    now : float
        When they were taken (seconds since the epoch).
    samples, batches : int
        Used for training by all replicas.
    loss : float
        Sum of the training losses over the samples.
    pushes, fetches, bytes_pushed, bytes_fetched : int
        Of whole vectors, by all replicas.
    first_fetch, last_push : float
        When training began and ended (seconds since the epoch); 0 if not yet.
    evaluation_seconds, waiting_seconds : float
        Mean over the replicas of the time spent on the test data during training, and waiting for servers.
    busy_seconds : list of float
        What each server worked.
    computing_seconds, overhead_seconds, fetching_seconds, pushing_seconds : float
        What all replicas needed for gradients, for what else belongs to a step (batches, own arithmetic), for copying
        parameters, and for copying pushes into mailboxes.
    computing_squares : float
        Sum of the squares of the gradients' seconds.
    dropped : int
        Pushes that shards left out.
    staleness : array (BINS,) of int64
    staleness_sum, staleness_max : int
    """

    now: float
    samples: int = 0
    batches: int = 0
    loss: float = 0.0
    pushes: int = 0
    fetches: int = 0
    bytes_pushed: int = 0
    bytes_fetched: int = 0
    first_fetch: float = 0.0
    last_push: float = 0.0
    evaluation_seconds: float = 0.0
    waiting_seconds: float = 0.0
    computing_seconds: float = 0.0
    overhead_seconds: float = 0.0
    computing_squares: float = 0.0
    fetching_seconds: float = 0.0
    pushing_seconds: float = 0.0
    dropped: int = 0
    busy_seconds: list[float] = field(default_factory=list)
    staleness: Any = field(default_factory=lambda: np.zeros(BINS, np.int64))
    staleness_sum: int = 0
    staleness_max: int = 0

    @property
    def seconds(self) -> float:
        """Training time so far: from the first fetch, evaluation left out."""
        return max(0.0, self.now - self.first_fetch - self.evaluation_seconds) if self.first_fetch else 0.0

    @property
    def trained_seconds(self) -> float:
        """Training time of a finished run: from the first fetch to the last push, evaluation left out."""
        return max(0.0, self.last_push - self.first_fetch - self.evaluation_seconds) if self.first_fetch else 0.0

    def timing(self) -> dict[str, float | None]:
        """Return what a virtual cluster needs to know to play this run: seconds, and bytes per second.

        "compute" is the mean of a worker's step but for fetches and pushes, "compute_deviation" a gradient's standard
        deviation relative to that; "service" a server's work on a push, "bandwidth" that of fetches and pushes, their
        latency included.
        """
        if not self.batches or not self.computing_seconds:
            return {}
        gradient = self.computing_seconds / self.batches
        variance = max(0.0, self.computing_squares / self.batches - gradient * gradient)
        mean = gradient + self.overhead_seconds / self.batches
        moving = self.fetching_seconds + self.pushing_seconds
        servers = max(1, len(self.busy_seconds))
        return {
            "compute": mean,
            "compute_deviation": variance**0.5 / mean,
            "service": sum(self.busy_seconds) / servers / self.pushes if self.pushes else 0.0,
            "bandwidth": (self.bytes_fetched + self.bytes_pushed) / moving if moving else None,
        }


def from_status(now: float, workers: Any, servers: Any) -> Totals:
    """Add up the rows of the board.

    Parameters
    ----------
    now : float
        Seconds since the epoch.
    workers, servers : structured arrays
        Of `rma.board.WORKER_STATUS` and `SERVER_STATUS`.
    """
    begun = workers["first_fetch"][workers["first_fetch"] > 0]
    return Totals(
        now=now,
        samples=int(workers["samples"].sum()),
        batches=int(workers["batches"].sum()),
        loss=float(workers["loss"].sum()),
        pushes=int(workers["pushes"].sum()),
        fetches=int(workers["fetches"].sum()),
        bytes_pushed=int(workers["bytes_pushed"].sum()),
        bytes_fetched=int(workers["bytes_fetched"].sum()),
        first_fetch=float(begun.min()) if begun.size else 0.0,
        last_push=float(workers["last_push"].max()),
        evaluation_seconds=float(workers["evaluation_seconds"].mean()),
        waiting_seconds=float(workers["waiting_seconds"].mean()),
        computing_seconds=float(workers["computing_seconds"].sum()),
        overhead_seconds=float(workers["overhead_seconds"].sum()),
        computing_squares=float(workers["computing_squares"].sum()),
        fetching_seconds=float(workers["fetching_seconds"].sum()),
        pushing_seconds=float(workers["pushing_seconds"].sum()),
        dropped=int(servers["dropped"].sum()),
        busy_seconds=servers["busy_seconds"].tolist(),
        staleness=servers["staleness"].sum(axis=0),
        staleness_sum=int(servers["staleness_sum"].sum()),
        staleness_max=int(servers["staleness_max"].max()),
    )
