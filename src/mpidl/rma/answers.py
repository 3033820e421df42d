"""Answers to what workers ask for beside pushes: a ring for each worker in the window of the server.

A worker asks by a message in its ring of pushes, so that an answer has all that it has pushed before, and reads the
answer from the next slot of its ring of answers. The server counts its answers to each worker; the worker asks for no
more than there are slots, so that the server never waits.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Protocol, TypeVar

import numpy as np

from mpidl.rma.doorbells import Doorbells
from mpidl.rma.outboxes import Outboxes
from mpidl.rma.regions import of_shard
from mpidl.rma.verbs import RemoteMemory
from mpidl.transport.capacity import MOST_SIDE_DATA
from mpidl.transport.protocol import REQUEST


class Answerable(Protocol):
    """A request, bytes as uint8, and the arrays for its answer, as `AnswerReader.expect` takes them."""

    @property
    def message(self) -> np.ndarray: ...

    @property
    def targets(self) -> Sequence[np.ndarray]: ...


Q = TypeVar("Q", bound=Answerable)


class Answers:
    """A server's end, for the workers of one shard, whose `ranks` it wakes."""

    def __init__(self, window: RemoteMemory, ranks: Sequence[int], doorbells: Doorbells, shard: int, slot: int) -> None:
        self._window, self._ranks, self._doorbells = window, ranks, doorbells
        name = of_shard(shard)
        self._answered = window.local(name.side_answered)
        self._slots = window.local(name.side_answers).reshape(len(ranks), MOST_SIDE_DATA, slot)

    def write(self, worker: int, write: Callable[[np.ndarray], None]) -> None:
        """Answer a worker by what `write` writes into memory of uint8, (slot,)."""
        answered = int(self._answered[worker])
        write(self._slots[worker, answered % MOST_SIDE_DATA])
        self._window.sync()
        self._answered[worker] = answered + 1
        self._doorbells.ring(self._ranks[worker])


class AnswerReader:
    """A worker's end, for one shard: `worker` is its number among those that ask there.

    `asked` counts the messages by which it has asked.
    """

    def __init__(self, window: RemoteMemory, server: int, worker: int, shard: int, slot: int) -> None:
        self._window, self._server, self._worker, self._slot = window.to(server), server, worker, slot
        self._names, self._answered = of_shard(shard), np.zeros(1, np.int64)
        self._comes = self._window.supports_deferred_get
        self.asked = self._taken = 0
        self._targets: deque[Sequence[np.ndarray]] = deque()

    @property
    def room(self) -> int:
        """How many more answers there are slots for."""
        return MOST_SIDE_DATA - self.asked + self._taken

    def expect(self, targets: Sequence[np.ndarray]) -> None:
        """Expect another answer, which has the bytes of `targets`, contiguous arrays, each from a multiple of 8 on."""
        if self._comes:
            self._start_reading(targets, self.asked)
        self.asked += 1
        self._targets.append(targets)

    def flush(self) -> None:
        """Wait for what was started."""
        self._window.flush(self._server)

    def start_looking(self) -> int:
        """Start reading how many answers there are, if any are expected, and return how many these are."""
        if self._targets and not self._comes:
            self._window.get(self._answered, self._server, self._names.side_answered, self._worker)
        return len(self._targets)

    def start_taking(self) -> int:
        """Start reading the answers that there are, and return their number."""
        ready = len(self._targets) if self._comes else int(self._answered[0]) - self._taken
        for _ in range(ready):
            targets = self._targets.popleft()
            if not self._comes:
                self._start_reading(targets, self._taken)
            self._taken += 1
        return ready

    def _start_reading(self, targets: Sequence[np.ndarray], number: int) -> None:
        """Start reading answer `number`, when it is there if the server supports deferred gets."""
        window, name = self._window, self._names
        place = (self._worker * MOST_SIDE_DATA + number % MOST_SIDE_DATA) * self._slot
        for target in targets:
            values = target.reshape(-1).view(np.uint8)
            if self._comes:
                counter = name.side_answered, self._worker, number + 1
                window.get_when(values, self._server, name.side_answers, place, *counter)
            else:
                window.get(values, self._server, name.side_answers, place)
            place += -(-values.size // 8) * 8


def ask(pushes: Outboxes, asked: Sequence[AnswerReader], questions: Sequence[deque[Q]]) -> list[list[Q]]:
    """Ask each shard its questions, as far as there is room for them and for their answers, but not within a push.

    What has been asked is removed, and returned for each shard.
    """
    ready = [
        deque((REQUEST, each.message) for each in islice(own, end.room if pushes[number].delivered else 0))
        for number, (own, end) in enumerate(zip(questions, asked, strict=True))
    ]
    before = [len(each) for each in ready]
    pushes.send_side_data(ready)
    found = []
    for own, end, count, left in zip(questions, asked, before, ready, strict=True):
        sent = [own.popleft() for _ in range(count - len(left))]
        for each in sent:
            end.expect(each.targets)
        found.append(sent)
    return found


def take(asked: Sequence[AnswerReader]) -> list[int]:
    """Take the answers of all shards that there are, and return how many each had."""
    _start_and_flush(asked, AnswerReader.start_looking)
    return _start_and_flush(asked, AnswerReader.start_taking)


def _start_and_flush(asked: Sequence[AnswerReader], start: Callable[[AnswerReader], int]) -> list[int]:
    """Let all servers read side by side."""
    found = [start(each) for each in asked]
    for each, count in zip(asked, found, strict=True):
        if count:
            each.flush()
    return found
