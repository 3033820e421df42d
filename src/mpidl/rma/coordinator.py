"""The coordinator's link to all other ranks."""

from __future__ import annotations

import zlib
from collections.abc import Mapping, Sequence

import numpy as np
from mpi4py import MPI

from mpidl.rma.calls import Caller
from mpidl.rma.counters import Counter
from mpidl.rma.evaluation import ShownEvaluation
from mpidl.rma.regions import RECORDS
from mpidl.rma.shared_state import SharedState
from mpidl.rma.takings import noted
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.coordination import Tag
from mpidl.transport.protocol import EVALUATIONS, ROUNDS, Control, EpochEvaluation, GivenBack, Order, Phase, SavedFiles

#: Numbers before a record: its ordinal from 1, its length and its checksum.
HEADER = 3
#: Mean number of portions that a worker takes before other ranks get the number of tickets that have been taken.
TOLD_AFTER = 4


class Posted:
    """The status that other ranks posted last, as structured arrays, and workers' sums; up to date after `look`.

    Workers have a row of `protocol.WORKER_STATUS` each, as have other ranks that push (`intermediaries`); the holder of
    each shard has one of `SERVER_STATUS`. `sums`, float64 of shape (workers, sums), are those over each worker's part
    of an evaluation.
    """

    def __init__(self, shared: SharedState) -> None:
        window = shared.window
        self._window, self._comm, self._ranks = window, shared.comm, shared.workers
        self._numbers = window.local("control")
        self.workers, self.servers = window.local("workers"), window.local("servers")
        self.intermediaries = window.local("intermediaries")
        self.sums = window.local("sums").reshape(len(shared.workers), -1)
        self._given_back = window.local("given_back").reshape(-1, len(GivenBack))
        self._takings, self._clocks = window.local("takings").reshape(len(shared.workers), -1), window.local("clocks")

    def given_back(self, order: int) -> dict[int, tuple[int, int]]:
        """Return what workers had given back before they marked an order, as `Schedule.given_back`."""
        rows = self._given_back[: self._numbers[Control.GIVEN_BACK]]
        found = np.flatnonzero(rows[:, GivenBack.MARKED] < order).tolist()
        parts = rows[:, [GivenBack.PORTION, GivenBack.FIRST]].tolist()
        return {-1 - number: tuple(parts[number]) for number in found}

    def taken(self, worker: int) -> tuple[list[int], list[int], int] | None:
        """Return the last tickets that a worker has taken, all that it has of what others gave back, and its clock.

        Return None while it takes one, or if its process has ended, so that others may have done some of that.
        """
        rows = self._given_back[: self._numbers[Control.GIVEN_BACK]]
        tickets, clock = noted(self._takings[worker].tolist()), int(self._clocks[worker])
        claimed = -1 - np.flatnonzero(rows[:, GivenBack.TAKER] == 1 + worker)
        settled = (rows[:, GivenBack.GIVER] == worker).any()
        return None if tickets is None or settled else (tickets, claimed.tolist(), clock)

    def look(self) -> None:
        """Make the posts of other ranks visible."""
        self._window.sync()

    def longest(self) -> float:
        """Return the mean seconds between two batches of the slowest worker."""
        seconds = self.workers["last_push"] - self.workers["first_fetch"]
        return max(0.0, float((seconds / np.maximum(self.workers["batches"], 1)).max()))

    def signals(self) -> int:
        """Return the number of ranks that a signal asked to stop."""
        return int(self._numbers[Control.SIGNALS])

    def values(self, slices: Sequence[np.ndarray]) -> None:
        """Receive the values that workers send after an evaluation, one of each partition, into its slice."""
        status = MPI.Status()
        for _ in slices:
            self._comm.Probe(MPI.ANY_SOURCE, Tag.VALUES, status)
            self._comm.Recv(slices[self._ranks.index(status.source) % len(slices)], status.source, Tag.VALUES)

    def saved(self) -> list[SavedFiles]:
        """Return the reports of parts of checkpoints on disk since the last call."""
        found, status = [], MPI.Status()
        while self._comm.iprobe(MPI.ANY_SOURCE, Tag.SAVED, status):
            found.append(self._comm.recv(source=status.source, tag=Tag.SAVED))
        return found


class GivenEvaluations:
    """The evaluations that workers give; each has room for a few, and waits until these have been taken.

    `seen` has the number of each worker's that `look` has returned.
    """

    def __init__(self, shared: SharedState) -> None:
        self._window, workers = shared.window, len(shared.workers)
        self._given, self._taken = shared.window.local("evaluations").reshape(2, workers)
        self._rows = shared.window.local("evaluated").reshape(workers, EVALUATIONS, -1)
        self.seen: list[int] = [0] * workers

    def look(self) -> list[EpochEvaluation]:
        """Return the evaluations since the last look, in the order of their epochs."""
        given, found = self._given.tolist(), []
        if given != self.seen:
            self._window.sync()
            for worker, (first, end) in enumerate(zip(self.seen, given, strict=True)):
                for number in range(first, end):
                    epoch, at, *values = self._rows[worker, number % EVALUATIONS].tolist()
                    found.append(EpochEvaluation(int(epoch), at, values))
            self.seen = given
        return sorted(found)

    def take(self) -> None:
        """Let workers overwrite what has been `seen`."""
        self._taken[:] = self.seen
        self._window.sync()


class _Numbers:
    """The numbers of `Control`, which this rank shows to workers and writes to other ranks."""

    def __init__(self, shared: SharedState) -> None:
        self._window, self._numbers = shared.window, shared.window.local("control")

    def _show(self, element: Control, value: int) -> None:
        self._numbers[element] = value
        self._window.sync()

    def _write(self, ranks: Sequence[int], *elements: Control) -> None:
        """Write some of the numbers to other ranks, one after the other."""
        for element in elements:
            for rank in ranks:
                self._window.to(rank).put(self._numbers[element : element + 1], rank, "control", element)
            for rank in ranks:
                self._window.to(rank).fence(rank)


class IssuedTickets(_Numbers):
    """The coordinator's access to the counter of tickets."""

    def __init__(self, shared: SharedState) -> None:
        super().__init__(shared)
        self._counter = Counter(shared.window, shared.roles.coordinator, "control", Control.TICKETS)
        self._intermediaries = shared.roles.intermediaries
        self._written, self._every = 0, TOLD_AFTER * len(shared.workers)

    def taken(self) -> int:
        """Return the number of tickets that have been taken."""
        return self._counter.read()

    def shown(self) -> int:
        """Return the number below which workers know that all tickets have been taken."""
        return int(self._numbers[Control.TAKEN])

    def show_taken(self, taken: int) -> None:
        """Show workers that all tickets below a number have been taken."""
        self._show(Control.TAKEN, taken)
        if self._intermediaries and taken - self._written >= self._every:
            self._written = taken
            self._write(self._intermediaries, Control.TAKEN)

    def set(self, taken: int) -> int:
        """Continue the tickets from a number, and return the number before."""
        return self._counter.swap(taken)


class GivenOrders(_Numbers):
    """The coordinator's orders to all other ranks."""

    def __init__(self, shared: SharedState) -> None:
        super().__init__(shared)
        self._begun = Counter(shared.window, shared.roles.coordinator, "control", Control.BEGUN)
        self._doorbells, self._followers = shared.doorbells, [*shared.roles.servers, *shared.roles.intermediaries]

    def given(self) -> Order:
        """Return the present orders."""
        self._window.sync()
        return Order.of(self._numbers)

    def save(self, number: int, last: int) -> None:
        """Order a checkpoint; orders are numbered from 1, and all ranks stop after order `last` unless that is 0."""
        self._give({Control.LAST: last, Control.ORDER: number})

    def decide_round(self, number: int) -> None:
        """Decide how many pushes of each worker are in the checkpoint of an order, where pushes come in rounds."""
        # Workers that begin a round from now on see the order; those that had begun one before are counted here.
        self._show(Control.ROUND, number * ROUNDS + self._begun.fetch_add(0))

    def cut(self, number: int) -> None:
        """Have servers make the marks of an order that are missing."""
        self._give({Control.CUT: number})

    def reduce(self, reductions: int) -> None:
        """Show workers how often rates have been reduced."""
        self._give({Control.REDUCTIONS: reductions}, wake=False)

    def set_phase(self, phase: Phase) -> None:
        """Set the task of all ranks that have no more portions."""
        self._give({Control.PHASE: phase})

    def _give(self, numbers: Mapping[Control, int], wake: bool = True) -> None:
        """Show numbers to workers, then write them to the ranks that follow orders, each in its turn."""
        for element, value in numbers.items():
            self._show(element, value)
        self._write(self._followers, *numbers)
        for rank in self._followers if wake else ():
            self._doorbells.ring(rank)


class Record:
    """A record in the coordinator's memory, from which another process continues if the coordinator dies."""

    def __init__(self, window: RemoteMemory) -> None:
        self._window, slots = window, window.local("record").reshape(RECORDS, -1)
        self._headers = [slot[: HEADER * 8].view(np.int64) for slot in slots]
        self._contents = slots[:, HEADER * 8 :]

    def write(self, content: bytes) -> None:
        """Write a new record; one that is too long can't be read."""
        if len(content) > self._contents.shape[1]:
            content = b""
        number = 1 + max(int(header[0]) for header in self._headers)
        header, slot = self._headers[number % RECORDS], self._contents[number % RECORDS]
        slot[: len(content)] = np.frombuffer(content, np.uint8)
        header[1:] = len(content), zlib.crc32(content)
        self._window.sync()
        header[0] = number
        self._window.sync()

    def read(self) -> bytes | None:
        """Return the newest record that is whole; None if there is none."""
        self._window.sync()
        numbers = [int(header[0]) for header in self._headers]
        for place in sorted(range(RECORDS), key=lambda place: -numbers[place]):
            _, length, checksum = self._headers[place].tolist()
            content = self._contents[place, : max(0, length)].tobytes()
            if numbers[place] and zlib.crc32(content) == checksum:
                return content or None
        return None


class CoordinatorLink:
    """The coordinator's link: its parts, `SharedState.backoff`, and the number of servers, `holders`."""

    def __init__(self, shared: SharedState) -> None:
        self.backoff, self.holders = shared.backoff, len(shared.roles.servers)
        self.posted, self.tickets, self.orders = Posted(shared), IssuedTickets(shared), GivenOrders(shared)
        self.evaluations, self.record = GivenEvaluations(shared), Record(shared.window)
        self.calls = Caller(shared.comm, shared.roles.servers, shared.doorbells)
        self.evaluation = ShownEvaluation(shared)
