"""Failures in a virtual run: which ranks die when, which are taken over, and when the job restarts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from heapq import heapify, heapreplace, merge
from typing import Any, Protocol

import numpy as np
from msgspec import Struct

from mpidl.data.sampling import OwnPosition
from mpidl.engines.totals import Totals
from mpidl.engines.virtual.times import Distribution, Failures
from mpidl.errors import MpidlError
from mpidl.shards.shard import Shard
from mpidl.topology.roles import Roles
from mpidl.topology.takeover import successors

#: Restarts without a new checkpoint in between, after which a run is given up.
FRUITLESS = 100


class RestartPoint(Struct, frozen=True):
    """The state from which the job restarts.

    Attributes
    ----------
    shards : list of Shard
        Copies of all shards.
    tickets : int
        Number of portions taken.
    left : list of (int, int)
        Portions that were taken and not pushed to their ends, each with its first such batch.
    samples, batches : int
        Number of samples and of batches that had been pushed.
    state : dict, optional
        State of a coordinator's last `Iteration`.
    accrued : int
        Samples that it had accrued.
    owners : list of OwnPosition or None
        How far each replica was in data of its own.
    """

    shards: list[Shard]
    tickets: int
    left: list[tuple[int, int]]
    samples: int
    batches: int
    state: dict[str, Any] | None
    accrued: int
    owners: list[OwnPosition | None]


class FailingRun(Protocol):
    """A run to which failures happen; see `mpidl.engines.virtual.engine.VirtualEngine`.

    Times are in seconds after its beginning.
    """

    @property
    def roles(self) -> Roles | None: ...

    def advance(self, until: float) -> bool: ...

    def pause(self, seconds: float) -> None: ...

    def die(self, replica: int) -> None: ...

    def delay(self, server: int, seconds: float) -> None: ...

    def save(self) -> RestartPoint: ...

    def restart(self, saved: RestartPoint, at: float) -> None: ...


def renewals(distribution: Distribution | None, count: int, random: np.random.Generator) -> Iterator[tuple[float, int]]:
    """Yield the times of renewal events in order, each with the number, below `count`, of its process.

    The distribution is that of the time between two events of the same number; None stands for no events.
    """
    due = [] if distribution is None else [(distribution(random), number) for number in range(count)]
    heapify(due)
    while due and distribution is not None:
        at, number = due[0]
        yield at, number
        heapreplace(due, (at + distribution(random), number))


class FailureSimulation:
    """Runs a cluster to its end, with failures.

    Ranks and nodes fail at times that depend on the `seed` only: the same whatever follows from them, so that runs with
    different intervals between checkpoints and different topologies meet the same fate.

    Parameters
    ----------
    run : FailingRun
    failures : Failures
    nodes : sequence of int
        The node of each rank.
    seed : int
    on_event : callable
        See `mpidl.engines.virtual.handler.Hooks`.
    coordinated : bool
        Whether checkpoints are only possible where an iteration of a coordinator ends, which calls `iterated`.
    """

    def __init__(
        self,
        run: FailingRun,
        failures: Failures,
        nodes: Sequence[int],
        seed: int,
        on_event: Callable[..., None],
        *,
        coordinated: bool = False,
    ) -> None:
        assert run.roles is not None
        self._run, self._failures, self._nodes, self._coordinated = run, failures, nodes, coordinated
        self._roles, self._on_event = run.roles, on_event
        self._replicas = {rank: number for number, own in enumerate(run.roles.replicas) for rank in own}
        self._random, *self._streams = np.random.default_rng((seed, len(nodes))).spawn(3)
        self._saved = run.save()
        self._due = failures.every
        self._up = 0.0
        self.restarts = self._fruitless = 0
        self._assign()

    def _assign(self) -> None:
        """Let each rank be played by its own process."""
        self._processes, self._alive = list(range(len(self._nodes))), set(range(len(self._nodes)))

    def run(self) -> None:
        """Run until no replica is at work."""
        for at, ranks in self._strikes():
            if not self._advance(at):
                return
            self._strike(at, [rank for rank in ranks if rank in self._alive])

    def _strikes(self) -> Iterator[tuple[float, list[int]]]:
        """Yield the times of failures, each with the ranks that die."""
        failures, nodes = self._failures, self._nodes
        residents: list[list[int]] = [[] for _ in range(max(nodes) + 1)]
        for rank, node in enumerate(nodes):
            residents[node].append(rank)
        of_ranks = renewals(failures.of_rank, len(nodes), self._streams[0])
        of_nodes = renewals(failures.of_node, len(residents), self._streams[1])
        return merge(((at, [rank]) for at, rank in of_ranks), ((at, residents[node]) for at, node in of_nodes))

    def _advance(self, at: float) -> bool:
        """Let the time pass until `at`, with the checkpoints before it; return whether replicas are still at work."""
        run, saving = self._run, self._failures.saving
        while not self._coordinated and self._due + saving <= at:
            if not run.advance(self._due):
                return False
            run.pause(saving)
            self._save(self._due + saving)
        if not run.advance(at if self._coordinated else min(at, self._due)):
            return False
        if at > self._due and not self._coordinated:
            run.pause(at - self._due)  # It has begun a checkpoint, which never ends.
        return True

    def _save(self, now: float) -> None:
        self._saved, self._fruitless = self._run.save(), 0
        self._due = now + self._failures.every

    def iterated(self, now: float) -> None:
        """Save a checkpoint at the end of an iteration, if it is due."""
        if now >= self._due:
            self._run.pause(self._failures.saving)
            self._save(now + self._failures.saving)

    def _strike(self, at: float, dead: list[int]) -> None:
        """Let the processes of some ranks die."""
        if not dead:
            return
        self._alive.difference_update(dead)
        too_few = len(self._alive & self._replicas.keys()) < self._failures.min_workers
        if too_few and at >= self._up and self._failures.fixed.all is None:
            self._save(at)  # The coordinator saves the run before it ends it.
        orphans = [rank for rank, process in enumerate(self._processes) if process in dead]
        found = successors(orphans, self._roles, self._processes, self._alive, self._failures.fixed)
        if too_few or at < self._up or isinstance(found, str):
            for rank in dead:
                self._log("failure", rank)
            self._restart(at)
            return
        self._due = max(self._due, at)  # A checkpoint that has begun is given up.
        for rank in dead:
            if rank in self._replicas:
                self._run.die(self._replicas[rank])
            else:
                self._log("failure", rank)
        for rank, process in found.items():
            self._take_over(at, rank, process)

    def _take_over(self, at: float, rank: int, process: int) -> None:
        self._processes[rank] = process
        if rank in self._replicas:
            return  # Its portions are handed out again; no rank waits.
        seconds = self._failures.takeover
        if rank in self._roles.servers:
            self._run.delay(self._roles.servers.index(rank), seconds)
        else:
            self._due = max(self._due, at + seconds)
        self._log("recovery", rank, by=process, seconds=seconds)

    def _restart(self, at: float) -> None:
        """Start the job again, from the last checkpoint; if it is starting already, from the beginning."""
        self.restarts += 1
        self._fruitless += 1
        if self._fruitless > FRUITLESS:
            raise MpidlError(
                f"the job has started again {FRUITLESS} times without a new checkpoint: failures come faster than "
                f"restarts (virtual.restart) and checkpoints (checkpoint.every) allow"
            )
        seconds = self._failures.restart(self._random)
        self._up = at + seconds
        self._due = self._up + self._failures.every
        self._run.restart(self._saved, self._up)
        self._assign()
        self._log("recovery", self._roles.coordinator, restarts=self.restarts, seconds=seconds)

    def _log(self, kind: str, rank: int, **details: Any) -> None:
        self._on_event(kind, rank, self._roles.role(rank), **details)

    def figures(self, totals: Totals) -> dict[str, float]:
        """Return the items of a summary about what failures have cost."""
        seconds = totals.trained_seconds
        return {
            "goodput": (totals.samples - totals.again) / seconds if seconds else 0.0,
            "samples_again": totals.again,
            "restarts": self.restarts,
        }
