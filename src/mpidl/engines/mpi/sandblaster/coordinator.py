"""The coordinator's part in Sandblaster: what the algorithm's coordinator asks for, a little at a time."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from math import fsum
from typing import Any

import numpy as np

from mpidl.algorithms.algorithm import Algorithm
from mpidl.algorithms.coordinator_requests import Evaluate, Evaluation, Iteration, Operate
from mpidl.algorithms.units import of_segments, units
from mpidl.data.portions import Portions
from mpidl.engines.mpi.sandblaster.server import Begin, Complete, Obeyed
from mpidl.engines.mpi.sandblaster.worker import EVALUATION, Notice
from mpidl.rma.calls import Caller
from mpidl.rma.counters import Counter
from mpidl.rma.transport import Fabric

#: Progresses whenever it is resumed, and yields while it waits for other ranks.
Steps = Generator[None, None, Any]


class Conductor:
    """Conducts servers and workers.

    Parameters
    ----------
    fabric : Fabric
    algorithm : Algorithm
    portions : Portions
    state : dict, optional
        What the algorithm's coordinator goes on from.
    on_iteration : callable
        Called with each `Iteration`; returns (stop, test, order): whether to stop, whether the test data are to be
        evaluated at the present parameters, and the ordinal of an order to save that servers must take up first.
    on_test : callable
        Called with how many times the test data are evaluated; reports it once they have been, and returns whether.
    reached : callable
        Whether the last evaluation reached the run's target.
    """

    def __init__(
        self,
        fabric: Fabric,
        algorithm: Algorithm,
        portions: Portions,
        state: dict[str, Any] | None,
        on_iteration: Callable[[Iteration], tuple[bool, bool, int]],
        on_test: Callable[[int], bool],
        reached: Callable[[], bool],
    ) -> None:
        self._fabric, self._algorithm, self._portions, self._state = fabric, algorithm, portions, state
        self._on_iteration, self._on_test, self._reached = on_iteration, on_test, reached
        self._caller = Caller(fabric.comm, fabric.roles.servers, fabric.doorbells)
        window = fabric.window
        self._notice, self._copies = window.local("evaluation"), window.local("copies")
        self._tickets = fabric.tickets()
        self._pieces = Counter(window, fabric.roles.coordinator, "evaluation", Notice.PIECE)
        self._evaluation = self._tests = 0
        self._messages, self._operating = 0, 0.0

    def steps(self) -> Steps:
        """Return the whole of the training."""
        coordinator = self._algorithm.coordinator(self._portions.per_epoch, self._state)
        answer: Any = None
        while True:
            try:
                request = coordinator.send(answer)
            except StopIteration:
                break
            match request:
                case Operate():
                    answer = yield from self._operate(request)
                case Evaluate():
                    answer = yield from self._evaluate(request)
                case Iteration():
                    answer = yield from self._iterate(request)
        self._tell(Notice.OVER, 1)

    def _operate(self, request: Operate) -> Steps:
        started = time.perf_counter()
        answers = yield from self._call(request)
        self._operating += time.perf_counter() - started
        return [fsum(parts) for parts in zip(*answers, strict=True)]

    def _call(self, message: Any) -> Steps:
        """Tell all servers something, and return their answers."""
        self._messages += 2 * len(self._fabric.roles.servers)
        self._caller.call(message)
        while (answers := self._caller.answers()) is None:
            yield
        return answers

    def _tell(self, element: Notice, value: int) -> None:
        """Write an element of what workers look at, and wake them."""
        self._notice[element] = value
        self._fabric.window.sync()
        for rank in self._fabric.workers:
            self._fabric.doorbells.ring(rank)

    def _evaluate(self, request: Evaluate) -> Steps:
        self._evaluation += 1
        of = units(request.segments, self._algorithm.unit)
        yield from self._call(Begin(self._evaluation, request.segments, self._algorithm.unit))
        self._copies[: len(of)] = 0
        self._notice[Notice.SEGMENTS] = len(request.segments)
        places = [place for segment in request.segments for place in (segment.first, segment.count)]
        self._notice[len(Notice) : len(Notice) + len(places)] = places
        # A worker that still holds a ticket of the last evaluation reads the notice until it is of its ticket's.
        self._tickets.swap(self._evaluation * EVALUATION)
        self._tell(Notice.NUMBER, self._evaluation)
        complete: dict[int, Complete] = {}
        handed_out = time.perf_counter()
        while len(complete) < len(self._fabric.roles.servers):
            for number, notice in self._caller.notices():
                if notice.evaluation == self._evaluation:
                    complete[number] = notice
            if self._tickets.read() - self._evaluation * EVALUATION < len(of):
                handed_out = time.perf_counter()
            yield
        self._messages += len(complete)
        losses, samples = of_segments(request.segments, of, complete[0].losses, self._portions)
        backups = int(np.count_nonzero(self._copies[: len(of)]))
        portions = sum(len(unit.portions) for unit in of)
        waiting = time.perf_counter() - handed_out
        return Evaluation(losses, samples, portions, backups, complete[0].won, waiting)

    def _iterate(self, request: Iteration) -> Steps:
        counted = replace(request, operating=self._operating, messages=self._messages)
        self._messages, self._operating = 0, 0.0
        stop, test, order = self._on_iteration(counted)
        while order and min((yield from self._call(Obeyed()))) < order:
            yield
        if test:
            self._tests += 1
            self._pieces.swap(self._tests * EVALUATION)
            self._tell(Notice.TEST, self._tests)
            while not self._on_test(self._tests):
                self._fabric.window.sync()
                yield
            stop |= self._reached()
        return stop
