"""The coordinator's part in Sandblaster: the requests of the algorithm's coordinator, step by step."""

from __future__ import annotations

import time
from collections.abc import Callable, Generator
from dataclasses import replace
from typing import Any, Protocol

from mpidl.algorithms.coordinated import Coordinated
from mpidl.algorithms.coordination import Evaluate, Evaluation, Iteration, Operate, cut_units, segment_sums
from mpidl.algorithms.requests import drive
from mpidl.data.schedule import Schedule
from mpidl.parameters import Layout
from mpidl.rma.coordinator import CoordinatorLink
from mpidl.shards.vectors import merged
from mpidl.transport.protocol import Begin, Complete, Obeyed

#: Makes progress whenever it is resumed, and yields while it waits for other ranks.
Steps = Generator[None, None, Any]


class CoordinatorHooks(Protocol):
    """Decisions of the coordinator's role."""

    def iterated(self, iteration: Iteration) -> tuple[bool, bool, int]:
        """Act on an iteration.

        Return whether to stop, whether to evaluate the test data at the present parameters, and the ordinal of an order
        to save that servers must obey first; 0 for none.
        """
        ...

    def tested(self, number: int) -> bool:
        """Report the evaluation number `number` of the test data if it is complete; return whether it is."""
        ...

    def stopped(self) -> bool:
        """Return whether the run must stop."""
        ...


class SandblasterCoordinator:
    """Drives servers and workers.

    `state` is that from which the algorithm's coordinator resumes.
    """

    def __init__(
        self, algorithm: Coordinated, schedule: Schedule, layout: Layout, state: dict[str, Any] | None,
        hooks: CoordinatorHooks,
    ) -> None:  # fmt: skip
        self._algorithm, self._portions, self._hooks = algorithm, schedule.portions, hooks
        self._coordinator = algorithm.coordinator(schedule.portions.per_epoch, state, layout, schedule.samples_in_all)
        self._evaluation = self._tests = 0
        self._shown = Evaluate(())
        self._over = False
        self._messages, self._operating = 0, 0.0

    def bind(self, link: CoordinatorLink) -> None:
        """Reach the other ranks by `link` from now on; workers take the units of the present evaluation again."""
        self._link, self._servers = link, link.holders
        if self._evaluation:
            link.evaluation.show(self._evaluation, self._shown)
        if self._tests:
            link.evaluation.show_test(self._tests)
        if self._over:
            link.evaluation.show_over()

    def steps(self) -> Steps:
        """Run the whole training."""
        actions: dict[type, Callable[[Any], Steps]] = {
            Operate: self._operate, Evaluate: self._evaluate, Iteration: self._iterate,
        }  # fmt: skip
        yield from drive(self._coordinator, actions)
        self._over = True
        self._link.evaluation.show_over()

    def _operate(self, request: Operate) -> Steps:
        started = time.perf_counter()
        answers = yield from self._call(request)
        self._operating += time.perf_counter() - started
        return merged(answers)

    def _call(self, message: Any) -> Steps:
        """Call all servers with a message, and return their answers."""
        self._messages += 2 * self._servers
        self._link.calls.call(message)
        while (answers := self._link.calls.answers()) is None:
            yield
        return answers

    def _evaluate(self, request: Evaluate) -> Steps:
        units = cut_units(request.segments, self._algorithm.unit)
        yield from self._call(Begin(self._evaluation + 1, request.segments, self._algorithm.unit))
        self._evaluation, self._shown = self._evaluation + 1, request
        self._link.evaluation.show(self._evaluation, request)
        complete: dict[int, Complete] = {}
        handed_out = time.perf_counter()
        while len(complete) < self._servers:
            for number, notice in self._link.calls.notices():
                if notice.evaluation == self._evaluation:
                    complete[number] = notice
            if self._link.evaluation.units_taken(self._evaluation) < len(units):
                handed_out = time.perf_counter()
            yield
        self._messages += len(complete)
        first = complete[0]
        sums = segment_sums(request.segments, units, first.losses, first.weights, self._portions)
        portions = sum(len(unit.portions) for unit in units)
        waiting = time.perf_counter() - handed_out
        backups = self._link.evaluation.copies_taken(self._evaluation)
        return Evaluation(*sums, portions, backups, first.won, waiting)

    def _iterate(self, request: Iteration) -> Steps:
        counted = replace(request, operating=self._operating, messages=self._messages)
        self._messages, self._operating = 0, 0.0
        stop, test, order = self._hooks.iterated(counted)
        while order and min((yield from self._call(Obeyed()))) < order:
            yield
        if test:
            self._tests += 1
            self._link.evaluation.show_test(self._tests)
            while not self._hooks.tested(self._tests):
                self._link.posted.look()
                yield
            stop = self._hooks.stopped()
        return stop
