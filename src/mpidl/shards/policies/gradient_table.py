"""A policy that keeps a mean gradient of each worker, and makes one update for each worker in a round."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from mpidl.parameters.ranges import within
from mpidl.shards.policies.gather import for_chunks
from mpidl.shards.policies.policy import Policy
from mpidl.shards.state import PushHeader, ShardState


class GradientTable(Policy):
    """Apply the rule to the mean over workers of the mean of each one's gradients, once for each worker in a round.

    A round first gathers until each worker that trains has pushed. The push that completes it makes the first update,
    and the next push of each other worker joins that worker's gradients and makes another. What a worker pushes after
    its update belongs to the next round. So each gradient is used, none by more than 2 `workers` - 2 updates late.

    Statistics, such as running means, take one step in a round, by the mean of all changes.

    The table takes the memory of `workers` + 1 vectors like the parameters. A worker that has left the training counts
    as a gradient of 0, so that the others keep their share of the rate.

    Parameters
    ----------
    workers : int
        Number of workers, the paper's n.

    References
    ----------
    A. Maranjyan, P. Richtarik (2026), Ringleader ASGD: the first asynchronous SGD with optimal time complexity under
    data heterogeneity, algorithm 1. There a worker gets new parameters only with its update; here after each push.
    """

    count = None

    def __init__(self, workers: int) -> None:
        self._workers, self.vectors = workers, workers + 1

    def attach(self, shard: ShardState) -> None:
        self._active = set(range(self._workers))
        # The mean gradient of each worker since its last update, and the mean over workers, by which a round updates.
        self._rows = [np.zeros_like(shard.parameters) for _ in range(self._workers)]
        self._mean = np.zeros_like(shard.parameters)
        self._change = np.empty_like(shard.chunk(0))
        # Of each chunk: gradients in each row, workers that still have an update in this round, and updates so far.
        self._counts = [[0] * self._workers for _ in range(shard.chunks)]
        self._awaited: list[set[int]] = [set() for _ in range(shard.chunks)]
        self._clocks = [shard.clock] * shard.chunks
        self._statistics = [[slice(*part) for part in within(shard.statistics, piece)] for piece in shard.pieces]

    def apply_chunk(self, shard: ShardState, chunk: int, values: np.ndarray, push: PushHeader) -> None:
        row, counts, awaited = shard.part(self._rows[push.worker], chunk), self._counts[chunk], self._awaited[chunk]
        counts[push.worker] += 1
        change = self._change[: row.size]
        np.subtract(values, row, out=change)
        change /= counts[push.worker]
        row += change
        if push.worker in awaited:
            change /= self._workers
            shard.part(self._mean, chunk)[...] += change
            self._update(shard, chunk, push.worker)
        elif not awaited:
            self._begin_if_complete(shard, chunk, push.worker)

    def end_push(self, shard: ShardState, push: PushHeader) -> None:
        """Leave the clock alone, which counts updates instead of pushes."""

    def _begin_if_complete(self, shard: ShardState, chunk: int, last: int | None = None) -> None:
        """Make the first update of a round, that of the worker `last`, if every worker that trains has pushed."""
        counts = self._counts[chunk]
        given = [worker for worker, count in enumerate(counts) if count]
        if not given or not self._active.issubset(given):
            return
        mean = shard.part(self._mean, chunk)
        mean.fill(0)
        for worker in given:
            mean += shard.part(self._rows[worker], chunk)
        mean /= self._workers
        self._awaited[chunk] = set(self._active)
        self._update(shard, chunk, last)
        for worker in given:
            if worker not in self._active:
                self._clear(shard, chunk, worker)

    def _update(self, shard: ShardState, chunk: int, worker: int | None) -> None:
        self._clocks[chunk] += 1
        mean = shard.part(self._mean, chunk)
        shard.update(chunk, mean, self._clocks[chunk])
        for part in self._statistics[chunk]:
            mean[part] = 0
        shard.clock = min(self._clocks)
        if worker is not None:
            self._clear(shard, chunk, worker)

    def _clear(self, shard: ShardState, chunk: int, worker: int) -> None:
        """Begin another row of a worker, which has no more update in this round."""
        self._awaited[chunk].discard(worker)
        self._counts[chunk][worker] = 0
        shard.part(self._rows[worker], chunk).fill(0)

    def remove_worker(self, shard: ShardState, worker: int) -> None:
        self._active.discard(worker)
        for chunk, awaited in enumerate(self._awaited):
            if worker in awaited:
                # The mean of this round has its gradients.
                self._clear(shard, chunk, worker)
            if not awaited:
                self._begin_if_complete(shard, chunk)

    def add_worker(self, worker: int) -> None:
        """Expect pushes of a new worker; gradients of an earlier one with its number stay in its row."""
        self._active.add(worker)

    def expect_all(self) -> None:
        self._active = set(range(self._workers))

    def state(self) -> dict[str, Any]:
        workers = range(self._workers)
        return {
            "mean": self._mean,
            **{f"rows/{worker}": row for worker, row in enumerate(self._rows)},
            "counts": np.array(self._counts, np.int64),
            "awaited": np.array([[worker in each for worker in workers] for each in self._awaited], np.int64),
            "active": np.array([worker in self._active for worker in workers], np.int64),
            "clocks": np.array(self._clocks, np.int64),
        }

    def load(self, state: Mapping[str, Any]) -> None:
        """Copy the state of another instance; that of another number of workers begins a round with its gradients."""
        chunks, saved = len(self._clocks), state["counts"].shape[1]
        self._mean[...] = state["mean"]
        self._clocks = for_chunks(state["clocks"], chunks).tolist()
        self._active = set(np.flatnonzero(state["active"][: self._workers]).tolist())
        awaited = for_chunks(state["awaited"], chunks)
        self._awaited = [set(np.flatnonzero(each).tolist()) if saved == self._workers else set() for each in awaited]
        # Rows that are one too many join others: without open pushes, all chunks have the same counts.
        counts = np.zeros((chunks, self._workers), np.int64)
        for worker, added in enumerate(for_chunks(state["counts"], chunks).T):
            own, given = worker % self._workers, state[f"rows/{worker}"]
            counts[:, own] += added
            if worker == own:
                self._rows[own][...] = given
            elif added[0]:
                self._rows[own] += (given - self._rows[own]) * (added[0] / counts[0, own])
        self._counts = counts.tolist()
